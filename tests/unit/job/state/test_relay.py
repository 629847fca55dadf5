"""RelayState: one end of a forwarded connection."""

from __future__ import annotations

import pytest

from monarch._src.job.state.relay import RelayState


def test_it_is_over_when_both_directions_have_ended_in_either_order() -> None:
    for read_first in (True, False):
        relay = RelayState()
        relay.on_read(5)
        for step in (0, 1):
            assert not relay.is_over
            if (step == 0) == read_first:
                relay.on_read(0)
            else:
                relay.on_end_written()
        assert relay.is_over


def test_it_reads_no_more_than_the_other_end_can_take() -> None:
    relay = RelayState(limit=10)
    relay.on_read(10)
    assert relay.room == 0
    relay.on_taken(4)
    assert relay.room == 4


def test_nothing_is_read_after_the_end() -> None:
    relay = RelayState()
    relay.on_read(0)
    assert relay.has_read_all
    assert relay.room == 0
    with pytest.raises(ValueError, match="nothing can be read after the end"):
        relay.on_read(1)
