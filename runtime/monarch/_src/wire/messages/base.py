"""The base of all messages, and the two that begin a link."""

from typing import ClassVar

import msgspec

PROTOCOL = 6
# Modules of records that are decoded omit `from __future__ import annotations`: msgspec would
# compile each annotation from text when it makes the decoder, 5 ms in all at import.


class Message(msgspec.Struct, array_like=True, gc=False, tag=0):
    """Base of all messages."""

    # Whether a payload (pickled user data) travels with it.
    carries_payload: ClassVar[bool] = False


class Hello(Message, tag=1):
    """The first message on every link: the sender, and its versions."""

    protocol: int
    node: str
    kind: str  # "client", "agent", "proc" or "observer"
    pid: int
    address: str
    versions: dict[str, str]
    mesh: int = 0
    rank: int = -1


class Refused(Message, tag=2):
    """The answer to a Hello that is not accepted; `why` is a table of both sides' versions."""

    why: str
