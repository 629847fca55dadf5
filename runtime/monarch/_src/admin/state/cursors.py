"""Cursors: the position in a list of one snapshot. No I/O.

A cursor names the snapshot that the first page came from, so that the pages of one list fit
together while the cluster changes. It is opaque to clients.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import msgspec

LONGEST = 64
MOST = 1000
USUAL = 200
T = TypeVar("T")


class Cursor(NamedTuple):
    """The number of a snapshot, and the number of items that earlier pages had."""

    snapshot: int
    offset: int


class BadCursorError(ValueError):
    """The text is no cursor of this API."""


_decoder = msgspec.msgpack.Decoder(tuple[int, int])


def encode(cursor: Cursor) -> str:
    """The cursor as text for a URL."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(tuple(cursor))).decode().rstrip("=")


def decode(text: str) -> Cursor:
    """The inverse of `encode`.

    Raises:
        BadCursorError: `encode` has not made this text.
    """
    try:
        if not 0 < len(text) <= LONGEST or not text.isascii():
            raise ValueError
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        found = Cursor(*_decoder.decode(data))
        if found.snapshot < 1 or found.offset < 0 or encode(found) != text:
            raise ValueError
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise BadCursorError(
            "the cursor is not one that this server has given; leave it out to begin anew"
        ) from None
    return found


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list, and the cursor of the next part; None at the end."""

    items: Sequence[T]
    next_cursor: str | None


def page_of(items: Sequence[T], snapshot: int, offset: int, limit: int) -> Page[T]:
    """The `limit` items from `offset` on, of a list of that snapshot."""
    end = offset + limit
    more = encode(Cursor(snapshot, end)) if end < len(items) else None
    return Page(items[offset:end], more)


def parse_limit(text: str | None) -> int:
    """The number of items that a page may have.

    Raises:
        ValueError: it is no number from 1 to `MOST`.
    """
    if text is None:
        return USUAL
    if not (text.isascii() and text.isdigit()) or len(text) > 4 or not 1 <= int(text) <= MOST:
        raise ValueError(f"limit must be a number from 1 to {MOST}")
    return int(text)
