"""Lists of cpus as text, and what there is to bind to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monarch._src.system.hardware import (
    MOST_CPUS,
    list_text,
    nvidia_devices,
    online_cpus,
    parse_cpu_list,
)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", [0]),
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("8,0-3", [0, 1, 2, 3, 8]),
        ("2-2", [2]),
        ("0-2,1-3,3", [0, 1, 2, 3]),
        (" 0 - 1 , 4 ", [0, 1, 4]),
        (str(MOST_CPUS - 1), [MOST_CPUS - 1]),
    ],
)
def test_a_cpu_list_is_read_sorted_and_each_cpu_once(text: str, cpus: list[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "neither a number nor a range"),
        ("a", "'a' in 'a' is neither a number nor a range"),
        ("0,,1", "'' in '0,,1' is neither"),
        ("-1", "'-1' in '-1' is neither"),
        ("0-", "'0-' in '0-' is neither"),
        ("1.5", "neither"),
        ("0-1-2", "neither"),
        ("3-1", "'3-1' in '3-1' ends before it begins"),
        (f"0-{10**18}", f"is beyond {MOST_CPUS - 1}"),
    ],
)
def test_what_is_no_cpu_list_is_refused_with_the_part_that_is_wrong(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_cpu_list(text)


@given(st.sets(st.integers(0, MOST_CPUS - 1), min_size=1))
@example({0, 1, 2, 3, 8})
def test_a_list_is_read_as_it_was_written(cpus: set[int]) -> None:
    assert parse_cpu_list(list_text(list(cpus))) == sorted(cpus)


def test_neighbours_are_written_as_a_range() -> None:
    assert list_text([8, 3, 1, 2, 0]) == "0-3,8"
    assert list_text([]) == ""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="tells no cpus of a process")
def test_the_cpus_that_we_may_use_are_online() -> None:
    assert os.sched_getaffinity(0) <= set(online_cpus())


def test_only_nvidia_devices_that_compute_are_counted(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert nvidia_devices(str(tmp_path)) == 3
    assert nvidia_devices(str(tmp_path / "nowhere")) == 0
