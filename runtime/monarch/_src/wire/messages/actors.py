"""Between processes that run actors, and the client. A cast is one message to many ranks.

Host agents relay casts, and the answers on their way back.

`after`: the cast of the same sender that must be handled first; see `net.state.message_order`.
`relayed`: set by the receiver of a cast whose answers are gathered.
`rank`: the receiver's place in the slice that the message was sent to; `OWN_RANK`: its rank in its
mesh, if all ranks got the same message.
"""

from typing import ClassVar, Literal, TypeAlias

import msgspec

from monarch._src.failures.report import RankFailure
from monarch._src.wire.messages.base import Message

MainThreadUse: TypeAlias = Literal["first", "shared", "never"]
"""How an actor uses the main thread of its process.

`first`: it has that thread to itself, if it is the first actor there. `shared`: it takes turns with
other such actors, unless one of them runs a call as it comes. `never`: it has a thread of its own.
"""
AnswerRun: TypeAlias = tuple[int, int, int, int]  # first position, count, status, bytes


class Creator(msgspec.Struct, array_like=True, frozen=True):
    """An actor that spawns another actor, or a creator of that actor."""

    node: str
    actor: int
    name: str
    class_name: str
    rank: int
    labels: list[str]
    sizes: list[int]
    mesh: int  # the mesh of its procs
    mesh_name: str
    mesh_labels: list[str]
    mesh_sizes: list[int]
    mesh_owner: str
    mesh_sites: list[str] = []


class SpawnActor(Message, tag=30):
    """Make an actor in this proc. Payload: (class, args, kwargs)."""

    carries_payload: ClassVar[bool] = True
    actor: int
    name: str
    class_name: str
    mesh: int
    mesh_name: str
    rank: int
    labels: list[str]
    sizes: list[int]
    creator: str  # gets reports of its failure; "" for a controller, which has no owner
    if_absent: bool = False  # ignore this if there is a living actor of that uid
    after: int = 0
    made_by: list[Creator] = []  # its creators, the nearest first; none: the client, or no owner
    origin: int = 0  # see Call
    main_thread: MainThreadUse = "first"


class StopActor(Message, tag=31):
    """Stop an actor after its queued messages, clean up, then answer `call` with OK.

    `grace_s`: how many seconds its owner waits; 0: the setting of the proc.
    """

    actor: int
    call: int
    rank: int
    reason: str
    after: int = 0
    relayed: bool = False
    grace_s: float = 0.0


class StopProc(Message, tag=32):
    """Stop every actor of this proc, clean up, end the process with status 0."""

    reason: str
    grace_s: float
    rank: int = 0
    after: int = 0


class Call(Message, tag=33):
    """Run an endpoint. `call` 0: no caller waits for the answer. Payload: (args, kwargs).

    `sent_by`: the sending actor (0: the process), if no caller waits: an undelivered message is
    returned to it.

    The answer goes to the sender, or to `reply_to`, which listens at `reply_address`. `by_port`:
    the endpoint gets a port to answer through, and its return value is dropped. `origin`: a number
    that marks the output of the endpoint (`logs.line_origin`). `trace`: the context of the sender's
    span, as W3C's `traceparent`; empty if no traces are exported. `seen_as`: the rank that the
    endpoint sees as its own in `labels` and `sizes`, if it is not `rank`; for a call that a rank
    forwards to an actor beside it.
    """

    carries_payload: ClassVar[bool] = True
    actor: int
    call: int
    endpoint: str
    rank: int
    labels: list[str]
    sizes: list[int]
    by_port: bool = False
    reply_to: str = ""
    reply_address: str = ""
    after: int = 0
    relayed: bool = False
    sent_by: int = 0
    origin: int = 0
    trace: str = ""
    seen_as: int = -1


class Reply(Message, tag=34):
    """The answer of one rank to a call, or a message to the port of that number.

    Payload: the value (OK), a failure (RAISED, DIED), or a pickled exception (THROWN). `status` may
    include the flags WROTE and HEARD.
    """

    carries_payload: ClassVar[bool] = True
    call: int
    rank: int
    status: int
    sent_by: int = -1  # the actor that sent it to a port; gets it back if there is no such port


class ActorFailed(Message, tag=35):
    """An actor died while no caller waited for its answer; goes to the node that spawned it.

    `rank` is that of its proc. `actor` 0: no actor of that proc of `mesh` owned the failed actor,
    and the message goes to the owner of the procs. `told`: in a copy to the agent, the client that
    got the message too.
    """

    actor: int
    rank: int
    failure: RankFailure
    mesh: int = 0
    told: str = ""


class Probe(Message, tag=36):
    """Passed along a chain of actors that wait for each other (`actor.deadlock.state.waits`)."""

    actor: int  # the receiver
    node: str
    initiator: int
    call: int
    round: int
    path: list[str]  # descriptions of actors, each waiting for the next
    along: int = 0  # the call for whose answer the forwarding actor waits


class Bootstrap(Message, tag=37):
    """Run this function before any actor; answered by Bootstrapped. Payload: the function.

    `along`: a pickle to be loaded before; `origin`: as in SpawnActor.
    """

    along: list[bytes] = []
    origin: int = 0

    carries_payload: ClassVar[bool] = True


class Bootstrapped(Message, tag=38):
    """The bootstrap function of a proc has ended; `failure` if it raised."""

    mesh: int
    rank: int
    failure: RankFailure | None = None


class CancelCall(Message, tag=44):
    """Cancel a call of the sender, whether it is queued, running, or not received yet.

    The call is answered as any other, with its outcome. `queued_only`: a call that is not queued is
    left alone, and a queued one is answered with None.
    """

    actor: int
    call: int
    queued_only: bool = False


class Undelivered(Message, tag=43):
    """A message without a waiting caller was not delivered; goes back to the sending actor.

    `failure` says where it was sent and why it did not arrive; the death of the receiver is its
    cause.
    """

    sent_by: int
    to: str  # the id of an actor, or a port, for people
    receiver: int  # the actor mesh; 0: a port
    failure: RankFailure


OK, RAISED, DIED, THROWN, ELSEWHERE = 0, 1, 2, 3, 4
# Flags in the status of an answer: its rank has written output since its last answer to that node,
# or has received an answer with a flag. The client shows that output before the answer.
WROTE, HEARD = 8, 16
STATUS = WROTE - 1  # the bits of the status itself
OWN_RANK = -1


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
