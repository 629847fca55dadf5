"""The zero of the monotonic clock, as a time of day."""

from __future__ import annotations

from time import monotonic_ns, time_ns

import pytest

from monarch._src.system import epoch


def test_it_is_the_distance_of_the_two_clocks() -> None:
    assert abs(epoch.epoch_ns() + monotonic_ns() - time_ns()) < 10**9


def test_a_reading_that_was_interrupted_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    steady = iter([0, 5_000_000, 10_000_000, 10_001_000])  # the first pair has 5 ms in between
    wall = iter([1_004_900_000, 1_010_000_500])
    monkeypatch.setattr(epoch, "monotonic_ns", lambda: next(steady))
    monkeypatch.setattr(epoch, "time_ns", lambda: next(wall))
    assert epoch.epoch_ns() == 1_000_000_000
