"""Messages between the host agent, its zygote and a proc that starts."""

from collections.abc import Callable

import msgspec

from monarch._src.wire.messages import Command
from monarch._src.wire.msgpack_text import pack, unpacker


class MeshSpec(msgspec.Struct, tag="mesh"):
    """Agent to zygote: the properties that all procs of a mesh share."""

    mesh: int
    name: str
    labels: list[str]
    sizes: list[int]
    directory: str
    cwd: str
    path: list[str]
    preload: list[str]
    entry: str  # "package.module:function"; the result runs a proc
    board: str
    bootstrap: bool
    forks: bool  # whether any rank is a fork
    while_restarting: str = ""  # how calls wait for a restarting proc; "": no restarts
    site: str = ""  # of this host; empty on the client's host
    sites: list[str] = []  # all sites of the mesh; empty if all of it is on the client's host
    # Where procs listen for bulk data of other hosts, and the addresses that those dial; empty:
    # procs do not listen.
    serves_at: tuple[str, list[str]] = ("", [])


class Ties(msgspec.Struct):
    """The client and owner of a proc that starts; the client may be another than at its spawn."""

    client: str
    client_number: int  # how many clients held the session before that one
    owner: str
    owner_address: str


class StartRank(msgspec.Struct, tag="start"):
    """Agent to zygote, with two descriptors (stdout, stderr): start that rank."""

    mesh: int
    rank: int
    env: dict[str, str | None]  # None removes a variable
    affinity: list[int]
    command: Command | None
    ties: Ties
    life: int = 0


class DropMesh(msgspec.Struct, tag="drop"):
    """Agent to zygote: forget that mesh."""

    mesh: int


class MakeZygote(msgspec.Struct, tag="make zygote"):
    """Agent to zygote, with one descriptor (a socket to the agent): fork a zygote with modules.

    `env` has changes to the environment, in force during the imports.
    """

    zygote: int
    modules: list[str]
    path: list[str]
    env: dict[str, str | None]


class EndZygote(msgspec.Struct, tag="end zygote"):
    """Agent to zygote: kill that zygote, which the receiver has forked."""

    zygote: int


class Importing(msgspec.Struct, tag="importing"):
    """A zygote that was forked to the agent: it begins to import that module."""

    module: str


class Imported(msgspec.Struct, tag="imported"):
    """A zygote to the agent: it has imported its modules, which have read these variables."""

    reads: list[str]


class Spoiled(msgspec.Struct, tag="spoiled"):
    """A zygote to the agent, its last message: it cannot fork after that module, and why."""

    module: str
    why: str


class Begun(msgspec.Struct, array_like=True):
    """A process that was forked."""

    mesh: int
    rank: int
    life: int
    pid: int


class Started(msgspec.Struct, tag="started"):
    """Zygote to agent: these processes exist."""

    begun: list[Begun]


class NotStarted(msgspec.Struct, tag="not started"):
    """Zygote to agent: that rank could not be started, and why."""

    mesh: int
    rank: int
    reason: str
    life: int = 0


class Ended(msgspec.Struct, tag="ended"):
    """Zygote to agent: the process has ended and been reaped. `status` as from `waitpid`.

    `peak_bytes`: the most memory that it held resident.
    """

    mesh: int
    rank: int
    pid: int
    status: int
    life: int = 0
    peak_bytes: int = 0


class CannotBegin(msgspec.Struct, tag="cannot begin"):
    """Zygote to agent, its last message: it cannot load what procs need."""

    why: str


class Boot(msgspec.Struct):
    """The parameters of a proc that starts."""

    spec: MeshSpec
    rank: int
    affinity: list[int]
    ties: Ties
    # For an executed proc: its import path, and the PYTHONPATH to restore.
    path: list[str] = []
    python_path: str | None = None
    life: int = 0


ToZygote = MeshSpec | StartRank | DropMesh | MakeZygote | EndZygote
FromZygote = Started | NotStarted | Ended | CannotBegin | Importing | Imported | Spoiled

encode = pack
decode_to_zygote: Callable[[bytes], ToZygote] = unpacker(ToZygote)
decode_from_zygote: Callable[[bytes], FromZygote] = unpacker(FromZygote)
_unpack_boot = unpacker(Boot)


def encode_boot(boot: Boot) -> str:
    """As the value of an environment variable."""
    import binascii  # two libraries that each fork would load

    return binascii.b2a_base64(pack(boot), newline=False).decode()


def decode_boot(text: str) -> Boot:
    """The inverse of `encode_boot`."""
    import binascii

    return _unpack_boot(binascii.a2b_base64(text))
