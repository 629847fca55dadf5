"""One message to many ranks, relayed by their host agent, and the answers on their way back."""

from typing import ClassVar, TypeAlias

from monarch._src.wire.messages.actors import Call, SpawnActor, StopActor, StopProc
from monarch._src.wire.messages.base import Message

AnswerRun: TypeAlias = tuple[int, int, int, int]  # first position, count, status, bytes


class Cast(Message, tag=40):
    """A message for every rank of a region; the agent relays it, each receiver fills in `rank`.

    `number` counts the casts of the sender to that mesh; `fences` has the ranks to which the sender
    sent direct messages before, with their number (see `net.state.message_order`). If `call` is not
    0 the agent gathers the answers, merged; with `each`, as they come. The message is for the
    incarnations of ranks in `lives`; a rank that is in another incarnation does not get it.
    """

    carries_payload: ClassVar[bool] = True
    sender: str
    address: str
    owner: str  # the owner of the mesh
    mesh: int
    number: int
    region: tuple[int, tuple[int, ...], tuple[int, ...]]  # offset, sizes, strides
    fences: list[tuple[int, int]]
    call: int
    each: bool
    message: Call | SpawnActor | StopActor | StopProc
    lives: list[tuple[int, int]] = []  # (rank, incarnation), of ranks that have been restarted


class CastTree(Message, tag=107):
    """A cast over a tree of agents, sent to the head of a range (`host.state.cast_tree`).

    The hosts of the cast, in order, are those with ranks of its region, except `without` (numbers
    in the mesh); the range are `count` of them from index `first`. `before`: for runs of hosts of
    the range, the sender's cast before this one. `standing`: the rows of earlier casts that the
    sender still waits for; None: no change.
    """

    carries_payload: ClassVar[bool] = True
    first: int
    count: int
    fanout: int
    without: tuple[int, ...]
    before: list[tuple[int, int]]
    standing: list[tuple[int, int]] | None
    cast: Cast


class TreeDone(Message, tag=108):
    """The range whose head is at `place` is done with a cast, except the parts below `missing`.

    The message goes to the agent that relayed the cast, and finally to its sender. `call` and
    `runs`: as in Answers.
    """

    carries_payload: ClassVar[bool] = True
    sender: str
    mesh: int
    number: int
    place: int
    call: int
    runs: list[AnswerRun]
    missing: tuple[int, ...] = ()


class TreeStuck(Message, tag=109):
    """To the sender of a cast: the agent cannot relay it to the host at that index."""

    mesh: int
    number: int
    place: int


class Answer(Message, tag=41):
    """The answer of one rank to a cast, for the agent that gathers them. Payload: as in Reply.

    `to` made the call; `position` is the rank's place in the region. Status ELSEWHERE: the rank has
    answered the caller itself.
    """

    carries_payload: ClassVar[bool] = True
    to: str
    call: int
    position: int
    status: int


class Answers(Message, tag=42):
    """Answers to a cast, equal neighbours merged. Payload: theirs, concatenated."""

    carries_payload: ClassVar[bool] = True
    call: int
    runs: list[AnswerRun]
