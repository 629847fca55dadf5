"""SendWindow: the bound of what is on its way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.job.state.send_window import PIECE, SendWindow


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3 * PIECE))), st.integers(1, 4 * PIECE))
def test_no_more_than_the_limit_is_ever_on_its_way(
    events: list[tuple[bool, int]], limit: int
) -> None:
    window, pending = SendWindow(limit), 0
    for sends, count in events:
        if sends:
            some = min(count, window.room)
            window.on_sent(some)
            pending += some
        else:
            some = min(count, pending)
            window.on_taken(some)
            pending -= some
        assert window.pending == pending <= limit
        assert window.room == min(PIECE, limit - pending)


def test_a_report_of_more_than_was_sent_is_refused() -> None:
    window = SendWindow()
    window.on_sent(3)
    with pytest.raises(ValueError, match="4 bytes are reported as taken, of 3 sent"):
        window.on_taken(4)
