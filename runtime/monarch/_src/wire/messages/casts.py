"""One message to many ranks, relayed by their host agent, and the answers on their way back."""

from typing import ClassVar, TypeAlias

from monarch._src.wire.messages.actors import Call, SpawnActor, StopActor, StopProc
from monarch._src.wire.messages.base import Message

AnswerRun: TypeAlias = tuple[int, int, int, int]  # first position, count, status, bytes


class Cast(Message, tag=40):
    """A message for every rank of a region; the agent passes it on, each receiver fills in `rank`.

    `number` counts the casts of the sender to that mesh; `fences` names the ranks for which so many
    direct messages come before it (see `net.state.message_order`). If `call` is not 0 the agent
    gathers the answers, merged; with `each`, as they come. It is for the processes that have the
    ranks in these `lives`; a rank that is in another one does not get it.
    """

    carries_payload: ClassVar[bool] = True
    sender: str
    address: str
    owner: str  # whose mesh it is
    mesh: int
    number: int
    region: tuple[int, tuple[int, ...], tuple[int, ...]]  # offset, sizes, strides
    fences: list[tuple[int, int]]
    call: int
    each: bool
    message: Call | SpawnActor | StopActor | StopProc
    lives: list[tuple[int, int]] = []  # (rank, life), of those that have been restarted


class CastTree(Message, tag=107):
    """A cast over a tree of agents, sent to the head of a range (`host.state.cast_tree`).

    The hosts of the cast, in order, are those with ranks of its region, but for `without` (numbers
    in the mesh); the stretch are `count` of them from the place `first`. `before`: for runs of
    hosts of the stretch, the sender's cast before this one. `standing`: which of those before it
    the sender still waits for, in rows; None: no news of that.
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
    """The stretch whose head is at `place` is done with a cast, but for what is behind `missing`.

    To who has passed it on, and last to its sender. `call` and `runs` are those of Answers.
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
    """To who has cast: I can't pass that on to the host at this place."""

    mesh: int
    number: int
    place: int


class Answer(Message, tag=41):
    """The answer of one rank to a cast, to who gathers them. Payload as of a Reply.

    `to` made the call; `position` is the rank's place in the region. Status ELSEWHERE: the rank has
    answered the caller itself.
    """

    carries_payload: ClassVar[bool] = True
    to: str
    call: int
    position: int
    status: int


class Answers(Message, tag=42):
    """Answers to a cast, those of neighbours that are equal once. Payload: theirs, end to end."""

    carries_payload: ClassVar[bool] = True
    call: int
    runs: list[AnswerRun]
