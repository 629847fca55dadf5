"""Faults on purpose (`monarch.testing`)."""

import msgspec

from monarch._src.wire.messages.base import Message


class SignalProcs(Message, tag=82):
    """Send a signal to these ranks of a mesh, as its owner or the client; answered by Signalled."""

    request: int
    mesh: int
    ranks: list[int]
    number: int


class Signalled(Message, tag=83):
    """The answer to SignalProcs: who got it, and why nobody did."""

    request: int
    ranks: list[int]
    problem: str = ""


class LinkRule(msgspec.Struct, array_like=True, frozen=True):
    """A fault on the links of one process to `peers`, or (`others`) to all but those.

    They hold what is sent, or delay it, or lose such a part of calls (`loses_on` "in") or of
    answers ("out"), drawn from `seed`. Without `both`, the peers do the same with what we send.
    """

    number: int
    peers: tuple[str, ...] = ()
    others: bool = False
    holds: bool = False
    delay_s: float = 0.0
    loses: float = 0.0
    loses_on: str = "in"
    seed: int = 0
    both: bool = True


class SetLinks(Message, tag=84):
    """Begin these faults, lift those; answered by Reply, whose payload is MessagePack: why not (or
    empty), and how many messages the lifted ones have lost.
    """

    call: int
    rank: int
    add: list[LinkRule]
    lift: list[int]
