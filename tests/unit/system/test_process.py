"""What is asked of the operating system."""

from __future__ import annotations

import os
from typing import Any

import pytest

from monarch._src.system.process import free_descriptors


def test_each_descriptor_that_is_opened_is_one_less_to_open() -> None:
    before = free_descriptors()
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(7)]
    after = free_descriptors()
    for fd in opened:
        os.close(fd)
    assert before - after == 7


def test_where_the_kernel_does_not_tell_how_many_are_open_they_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, stat = free_descriptors(), os.stat

    def without_size(path: Any) -> os.stat_result:
        found = stat(path)
        return os.stat_result((*found[:6], 0, *found[7:10]))

    monkeypatch.setattr(os, "stat", without_size)
    assert free_descriptors() == told
