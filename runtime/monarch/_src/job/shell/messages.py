"""The messages between a terminal and the shell on a host. They travel through ports."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from monarch._src.actor.ports import Port


class Opened(NamedTuple):
    """The shell runs; `typed` is the port for the input of the terminal."""

    typed: Port[Message]


class Data(NamedTuple):
    """Bytes for the other side to write."""

    data: bytes


class Taken(NamedTuple):
    """The other side has written that many bytes."""

    written: int


class Resized(NamedTuple):
    """The size of the terminal, in characters."""

    rows: int
    columns: int


class HungUp(NamedTuple):
    """The terminal was closed; the shell is to end."""


class Ended(NamedTuple):
    """No more messages come."""


Message: TypeAlias = "Opened | Data | Taken | Resized | HungUp | Ended"
