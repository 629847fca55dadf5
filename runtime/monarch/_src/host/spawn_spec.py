"""What travels between the host agent, its zygote and a proc that begins."""

from collections.abc import Callable

import msgspec

from monarch._src.wire.messages import Command
from monarch._src.wire.msgpack_text import pack, unpacker

ENTRY = "monarch._src.programs.proc:prepare"


class MeshSpec(msgspec.Struct, tag="mesh"):
    """Agent to zygote: what the procs of one mesh have in common."""

    mesh: int
    name: str
    labels: list[str]
    sizes: list[int]
    directory: str
    cwd: str
    path: list[str]
    preload: list[str]
    entry: str  # "package.module:function"; what that returns runs a proc
    board: str
    bootstrap: bool
    forks: bool  # whether any rank is forked and not executed
    while_restarting: str = ""  # how calls wait for a proc that is started again; "": none is
    site: str = ""  # of this host, which may be another than that of the client
    sites: list[str] = []  # those of the mesh, if it is not all of it where the client runs
    # Where procs listen for bulk data of other hosts, and under which addresses those may dial
    # them; none: they do not.
    serves_at: tuple[str, list[str]] = ("", [])


class Ties(msgspec.Struct):
    """Whose a proc is as it begins. Since its mesh was asked for, another client may have come."""

    client: str
    client_number: int  # how many clients held the session before that one
    owner: str
    owner_address: str


class StartRank(msgspec.Struct, tag="start"):
    """Agent to zygote, with two descriptors (stdout, stderr): make that process."""

    mesh: int
    rank: int
    env: dict[str, str | None]  # a None removes
    affinity: list[int]
    command: Command | None
    ties: Ties
    life: int = 0


class DropMesh(msgspec.Struct, tag="drop"):
    """Agent to zygote: forget that mesh."""

    mesh: int


class Begun(msgspec.Struct, array_like=True):
    """A process that exists."""

    mesh: int
    rank: int
    life: int
    pid: int


class Started(msgspec.Struct, tag="started"):
    """Zygote to agent: these processes exist."""

    begun: list[Begun]


class NotStarted(msgspec.Struct, tag="not started"):
    """Zygote to agent: there will be no process, and why."""

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
    """Zygote to agent: its last word, since what procs need cannot be loaded."""

    why: str


class Boot(msgspec.Struct):
    """What a proc is told as it begins."""

    spec: MeshSpec
    rank: int
    affinity: list[int]
    ties: Ties
    # Of one that is executed: where it imports from, and what PYTHONPATH is to be afterwards.
    path: list[str] = []
    python_path: str | None = None
    life: int = 0


ToZygote = MeshSpec | StartRank | DropMesh
FromZygote = Started | NotStarted | Ended | CannotBegin

encode = pack
decode_to_zygote: Callable[[bytes], ToZygote] = unpacker(ToZygote)
decode_from_zygote: Callable[[bytes], FromZygote] = unpacker(FromZygote)
_unpack_boot = unpacker(Boot)


def encode_boot(boot: Boot) -> str:
    """As the value of a variable of the environment."""
    import binascii  # two libraries, which each fork would have to be given

    return binascii.b2a_base64(pack(boot), newline=False).decode()


def decode_boot(text: str) -> Boot:
    """What `encode_boot` was given."""
    import binascii

    return _unpack_boot(binascii.a2b_base64(text))
