"""Faults injected on purpose (`monarch.testing`)."""

import msgspec

from monarch._src.wire.messages.base import Message


class SignalProcs(Message, tag=82):
    """Send a signal to these ranks of a mesh, as its owner or the client; answered by Signalled.

    `group`: to their process groups, with the processes that they have started.
    """

    request: int
    mesh: int
    ranks: list[int]
    number: int
    group: bool = False


class Signalled(Message, tag=83):
    """The answer to SignalProcs: the ranks that got the signal; `problem`: why none did."""

    request: int
    ranks: list[int]
    problem: str = ""


class LinkRule(msgspec.Struct, array_like=True, frozen=True):
    """A fault on the links of one process to `peers`, or (`others`) to all but those.

    The links hold messages, delay them, or lose a fraction of calls (`loses_on` "in") or of answers
    ("out"), drawn from `seed`. Without `both`, the peers do the same with messages of this process.
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
    """Begin these faults, end those. Answered by Reply, whose payload is MessagePack: an error (or
    an empty text), and how many messages were lost by the faults that ended.
    """

    call: int
    rank: int
    add: list[LinkRule]
    lift: list[int]
