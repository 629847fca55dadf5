"""Between processes that run actors, and the client.

`after`: the cast of the same sender that must have come before; see `net.state.message_order`.
`relayed`: it came as a cast, whose answers are gathered. Its receiver says so to itself.
`rank`: the receiver's place in the slice that it was sent to; `OWN_RANK`: its rank in its mesh,
all of which was sent the same.
"""

from typing import ClassVar

import msgspec

from monarch._src.failures.report import RankFailure
from monarch._src.wire.messages.base import Message


class Creator(msgspec.Struct, array_like=True, frozen=True):
    """An actor that asks for another one, or had asked for the one that does."""

    node: str
    actor: int
    name: str
    class_name: str
    rank: int
    labels: list[str]
    sizes: list[int]
    mesh: int  # the procs it lives on
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
    creator: str  # is told of its failure; "" for a controller, which belongs to nobody
    if_absent: bool = False  # ignore this if there is a living actor of that uid
    after: int = 0
    made_by: list[Creator] = []  # the actors above it, the next first; none: the client, or nobody
    origin: int = 0  # see Call


class StopActor(Message, tag=31):
    """Stop an actor after the messages it has, clean up, then answer `call` with OK.

    `grace_s`: for how long its owner waits for that; 0: as the setting of the proc says.
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
    """Run an endpoint. `call` 0: nobody waits. Payload: (args, kwargs).

    `sent_by`: the actor whose message it is, if nobody waits: what is not delivered goes back to it
    (0: the process).

    The answer goes to the sender, or to `reply_to`, which listens at `reply_address`. `by_port`:
    the endpoint is given a port to answer through, and its return value is dropped. `origin`: for
    what it runs, so that what is written can be told by it (`logs.line_origin`).
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


class Reply(Message, tag=34):
    """The answer of one rank to a call, or a message to the port of that number.

    Payload: the value (OK), a failure (RAISED, DIED), or a pickled exception (THROWN). `status` may
    have WROTE and HEARD added to it: see there.
    """

    carries_payload: ClassVar[bool] = True
    call: int
    rank: int
    status: int
    sent_by: int = -1  # the actor that sent it to a port, and is told if there is no such port


class ActorFailed(Message, tag=35):
    """An actor died with nobody to answer to; goes to the node that spawned it.

    `rank` is that of its proc. `actor` 0: no actor of that proc of `mesh` owned what has failed;
    goes to who owns the procs. `told`: to the agent, the client that was sent the same, if it was.
    """

    actor: int
    rank: int
    failure: RankFailure
    mesh: int = 0
    told: str = ""


class Probe(Message, tag=36):
    """Passed along a chain of actors that wait for each other (`actor.deadlock.state.waits`)."""

    actor: int  # to which it is addressed
    node: str
    initiator: int
    call: int
    round: int
    path: list[str]  # who waits for the next, in words
    along: int = 0  # the call of who passes it on, for whose answer that waits


class Bootstrap(Message, tag=37):
    """Run this function before any actor; answered by Bootstrapped. Payload: the function.

    `along`: pickled, to be unpickled before; `origin`: as of a SpawnActor.
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
    """End that call of mine, wherever it is: queued, running, or still on its way.

    It is answered as any other, with what came of it.
    """

    actor: int
    call: int


class Undelivered(Message, tag=43):
    """A message that nobody waits for has found nobody; goes back to the actor that sent it.

    `failure` says to whom it was sent and why it did not arrive; what its receiver died of is its
    cause.
    """

    sent_by: int
    to: str  # in words that name it: an actor's id, or a port
    receiver: int  # the actor mesh; 0: a port
    failure: RankFailure


OK, RAISED, DIED, THROWN, ELSEWHERE = 0, 1, 2, 3, 4
# Added to the status of an answer: its rank has written output since it last answered there, or has
# had an answer with one of these. That output is shown before the answer is.
WROTE, HEARD = 8, 16
STATUS = WROTE - 1  # the bits of the status itself
OWN_RANK = -1
