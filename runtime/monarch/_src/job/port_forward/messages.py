"""The messages between the two ends of a forwarded connection. They travel through ports."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Data(NamedTuple):
    """Bytes for the other end to write."""

    data: bytes


class Taken(NamedTuple):
    """The other end has written that many bytes."""

    written: int


class EndOfData(NamedTuple):
    """No more data comes; the other direction goes on."""


class Reset(NamedTuple):
    """The connection has broken at the other end."""


Message: TypeAlias = "Data | Taken | EndOfData | Reset"
