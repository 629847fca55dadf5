from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.admin.state.cursors import (
    BadCursorError,
    Cursor,
    decode,
    encode,
    page_of,
    parse_limit,
)

NUMBERS = st.integers(0, 2**63)


@given(st.integers(1, 2**63), NUMBERS)
def test_a_cursor_is_the_same_after_it_was_text(snapshot: int, offset: int) -> None:
    assert decode(encode(Cursor(snapshot, offset))) == (snapshot, offset)


@given(st.text(max_size=100))
def test_any_other_text_is_refused(text: str) -> None:
    try:
        found = decode(text)
    except BadCursorError:
        return
    assert encode(found) == text


@pytest.mark.parametrize("text", ["", "A" * 65, "kgEC=", "kgEC\n", "é", "//8", "kv8B"])
def test_hostile_cursors_are_refused(text: str) -> None:
    with pytest.raises(BadCursorError):
        decode(text)


@given(st.lists(st.integers(), max_size=50), st.integers(1, 7))
def test_pages_make_up_the_list(items: list[int], limit: int) -> None:
    found: list[int] = []
    offset = 0
    while True:
        page = page_of(items, 3, offset, limit)
        found += page.items
        if page.next_cursor is None:
            break
        cursor = decode(page.next_cursor)
        assert cursor.snapshot == 3
        assert cursor.offset == len(found)
        offset = cursor.offset
    assert found == items


def test_a_cursor_beyond_the_end_gives_an_empty_last_page() -> None:
    page = page_of([1, 2], 1, 2**60, 10)
    assert (list(page.items), page.next_cursor) == ([], None)


@pytest.mark.parametrize("text", ["", "0", "-1", "1001", "1e3", " 5", "٣", "9" * 4000])
def test_a_limit_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="from 1 to 1000"):
        parse_limit(text)
