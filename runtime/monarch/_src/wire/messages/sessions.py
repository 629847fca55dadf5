"""Kept sessions: their holders, and the meshes that a new holder gets (`session.state.lease`)."""

from typing import ClassVar

from monarch._src.failures.report import RankFailure
from monarch._src.wire.messages.base import Message


class Keep(Message, tag=60):
    """Let these meshes outlive the sender, in a session of that name; answered by Kept."""

    request: int
    name: str
    meshes: list[int]


class Kept(Message, tag=61):
    """The answer to Keep, Attach, Detach or AskKnown. `refusal`: a reason; empty on success."""

    request: int
    refusal: str = ""


class KeptActors(Message, tag=62):
    """An actor mesh of a kept mesh, for the next client. Payload: its class.

    A client reports its actor meshes to its agent; the agent passes them to the next client.
    `region` is its part of the proc mesh (offset, sizes, strides), `failures` those of its actors.
    """

    carries_payload: ClassVar[bool] = True
    actor: int
    name: str
    class_name: str
    mesh: int
    labels: list[str]
    region: tuple[int, tuple[int, ...], tuple[int, ...]]
    failures: list[RankFailure] = []


class ForgetActors(Message, tag=63):
    """That actor mesh was stopped: the next client needs no handle for it."""

    actor: int


class Attach(Message, tag=64):
    """Let the sender hold the session; `began` distinguishes two processes with one pid.

    Answered by KeptActors for each actor mesh, then Attached; or by Kept, with a refusal.
    """

    request: int
    pid: int
    began: str
    program: str
    host: str
    take: bool


class KeptMesh(Message, tag=65):
    """A proc mesh in Attached."""

    mesh: int
    name: str
    labels: list[str]
    sizes: list[int]
    cleanup_s: float
    age_s: float
    sites: list[str] = []  # its sites, unless it is on the client's site only


class KeptWorker(Message, tag=178):
    """A worker host of a kept session, and the address at which its client dialled it.

    `lost`: the session has lost it; it is only asked to end its part of the session.
    """

    site: str
    address: str
    lost: bool = False


class Attached(Message, tag=66):
    """The receiver holds the session. `number`: how many clients held it before.

    The new client asks `workers` for their part of the session, by its `token`. `keys` are the
    paths of the keys for dialling them (`attach_to_workers`: ca, private_key), `gateway` the
    address of the gateway to them, if there is one (`attach`).
    """

    request: int
    name: str
    number: int
    meshes: list[KeptMesh]
    token: str = ""
    workers: list[KeptWorker] = []
    keys: list[str] = []
    gateway: str = ""


class Detach(Message, tag=67):
    """The sender releases the session. Answered by Kept when all that depends on it has ended."""

    request: int


class TakenOver(Message, tag=68):
    """The receiver no longer holds this session; `why` names the new holder."""

    why: str


class ClientIs(Message, tag=69):
    """To procs: the client has gone, for that reason. `node` is the new client, or empty.

    Answered by ClientKnown if there is one.
    """

    node: str
    address: str
    number: int
    why: str


class ClientKnown(Message, tag=71):
    """A proc to its agent: the proc has handled ClientIs for the client of that number."""

    number: int


class AskKnown(Message, tag=72):
    """Answer with Kept when all procs of the host know that the sender is the client.

    Answered also if some of them do not confirm in time.
    """

    request: int


class Heard(Message, tag=70):
    """The client has seen these failures: do not report them to the next client as new.

    `actor` 0: of procs of that mesh. Else of actors, by their ranks in their mesh; `mesh` is 0.
    """

    mesh: int
    actor: int
    ranks: list[int]


class KeepSite(Message, tag=176):
    """To a worker: let these meshes outlive the link, in the session of that name; see HoldSite.

    Answered by Kept. `limit_s`: for how many seconds without a client; 0: for ever.
    """

    request: int
    name: str
    token: str
    limit_s: float
    meshes: list[int]


class KeptAway(Message, tag=177):
    """To the agent of a kept session: its parts on workers. Replaces the last such message."""

    token: str
    keys: list[str]
    workers: list[KeptWorker]
    meshes: list[KeptMesh]
    gateway: str = ""


class SiteTaken(Message, tag=179):
    """A worker to the next client: its part of the session; new failures follow.

    `kept`: its meshes of the session; `failures`: those that an earlier client has seen, by actor
    mesh. `lost`: sites that an earlier client has lost, and that the procs here treat as gone.
    """

    request: int
    kept: list[int]
    failures: list[tuple[int, list[RankFailure]]]
    lost: list[str]
