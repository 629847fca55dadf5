"""Kept sessions: who holds one, and what it takes up (`session.state.lease`)."""

from typing import ClassVar

from monarch._src.failures.report import RankFailure
from monarch._src.wire.messages.base import Message


class Keep(Message, tag=60):
    """Let these meshes outlive me, in a session of that name; answered by Kept."""

    request: int
    name: str
    meshes: list[int]


class Kept(Message, tag=61):
    """The answer to Keep, Attach, Detach or AskKnown. `refusal`: why not; empty if it is done."""

    request: int
    refusal: str = ""


class KeptActors(Message, tag=62):
    """An actor mesh of a kept mesh, for who attaches. Payload: its class.

    A client tells its agent of those that it makes; the agent tells the next client. `region` is
    where it stands in the proc mesh (offset, sizes, strides), `failures` those of its actors.
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
    """That actor mesh has been stopped: the next client needs no handle on it."""

    actor: int


class Attach(Message, tag=64):
    """Let me hold your session; `began` tells two lives of my pid apart.

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
    sites: list[str] = []  # where it is, if not where the client runs


class KeptWorker(Message, tag=178):
    """A worker host that a kept session has, and where its client has dialled it.

    `lost`: it counts as lost to the session, and is only told to end what it has.
    """

    site: str
    address: str
    lost: bool = False


class Attached(Message, tag=66):
    """The session is yours. `number`: how many clients held it before you.

    `workers` are to be asked for what they have of it, by its `token`; `keys` are the paths of
    those with which they were dialled (`attach_to_workers`: ca, private_key), `gateway` the address
    through which, if so (`attach`).
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
    """I let go. Answered by Kept when what is tied to me has ended."""

    request: int


class TakenOver(Message, tag=68):
    """You hold this session no more; `why` says who does."""

    why: str


class ClientIs(Message, tag=69):
    """To procs: the client has gone, for that reason. `node` is the new one, empty if none is.

    Answered by ClientKnown if there is one.
    """

    node: str
    address: str
    number: int
    why: str


class ClientKnown(Message, tag=71):
    """A proc to its agent: I know the client of that number, of which ClientIs has told me."""

    number: int


class AskKnown(Message, tag=72):
    """Say when all procs of your host know that I am the client; answered by Kept.

    Also if some of them have not said so in time.
    """

    request: int


class Heard(Message, tag=70):
    """What failed there has reached somebody: do not tell it to the next client as news.

    `actor` 0: procs of that mesh. Else actors, by their ranks in their own mesh; `mesh` is 0.
    """

    mesh: int
    actor: int
    ranks: list[int]


class KeepSite(Message, tag=176):
    """To a worker: let these meshes outlive my link, in the session of that name; see HoldSite.

    Answered by Kept. `limit_s`: for how long, if nobody comes for them; 0: for ever.
    """

    request: int
    name: str
    token: str
    limit_s: float
    meshes: list[int]


class KeptAway(Message, tag=177):
    """To the agent of a kept session: all of it that is on workers now. Replaces the one before."""

    token: str
    keys: list[str]
    workers: list[KeptWorker]
    meshes: list[KeptMesh]
    gateway: str = ""


class SiteTaken(Message, tag=179):
    """A worker to the next client: what it has of the session; what failed there comes next.

    `kept`: the meshes of the session that are there; `failures` were told to an earlier client, by
    actor mesh. `lost`: sites that an earlier client has lost, which the procs here hold for gone.
    """

    request: int
    kept: list[int]
    failures: list[tuple[int, list[RankFailure]]]
    lost: list[str]
