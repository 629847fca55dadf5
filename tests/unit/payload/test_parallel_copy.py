"""Copies of much memory: whole, however many make them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading

import pytest

from monarch._src.payload import receiver
from monarch._src.wire import raw_memory

SHARED = 3 << 21
SIZES = [1, 4096, SHARED - 1, SHARED, SHARED + 1, 2 * SHARED + 12_345]


@pytest.fixture(autouse=True)
def helped_with_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "SHARED", SHARED)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(raw_memory, "_copy", receiver.copy_in_parallel)


def unlike(size: int) -> memoryview:
    """Bytes of which no stretch is like another."""
    return memoryview(hashlib.shake_128(b"seed").digest(size))


@pytest.mark.parametrize("cores", [None, 1, 2, 3, 64])
def test_a_copy_is_what_was_shown_whoever_made_it(
    cores: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    for size in SIZES:
        view = unlike(size)
        assert raw_memory.bytes_of(view) == view


def test_where_no_thread_can_be_had_one_copies_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    view = unlike(SHARED + 1)
    assert raw_memory.bytes_of(view) == view


def test_others_help_with_what_is_large_and_with_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = list[str]()
    move = ctypes.memmove

    def noted(to: int, source: int, size: int) -> int:
        threads.append(threading.current_thread().name)
        return move(to, source, size)

    monkeypatch.setattr(ctypes, "memmove", noted)
    raw_memory.bytes_of(unlike(SHARED - 1))
    assert threads == [threading.current_thread().name]
    del threads[:]
    raw_memory.bytes_of(unlike(SHARED))
    assert sorted(threads) == sorted([threading.current_thread().name, *["monarch-copy"] * 3])
