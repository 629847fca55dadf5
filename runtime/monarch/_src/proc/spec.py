"""What travels between the host agent, its zygote and a proc that begins."""

from __future__ import annotations

import binascii
from collections.abc import Callable

import msgspec

from monarch._src.wire.messages import Command
from monarch._src.wire.text import pack, unpacker


class MeshSpec(msgspec.Struct, tag="mesh"):
    """Agent to zygote: what the procs of one mesh have in common."""

    mesh: int
    name: str
    labels: list[str]
    sizes: list[int]
    directory: str
    client: str
    owner: str
    owner_address: str
    cwd: str
    path: list[str]
    preload: list[str]
    entry: str  # "package.module:function"
    board: str
    bootstrap: bool
    forks: bool  # whether any rank is forked and not executed


class StartRank(msgspec.Struct, tag="start"):
    """Agent to zygote, with two descriptors (stdout, stderr): make that process."""

    mesh: int
    rank: int
    env: dict[str, str]
    affinity: list[int]
    command: Command | None


class DropMesh(msgspec.Struct, tag="drop"):
    """Agent to zygote: forget that mesh."""

    mesh: int


class Started(msgspec.Struct, tag="started"):
    """Zygote to agent: the process exists."""

    mesh: int
    rank: int
    pid: int


class NotStarted(msgspec.Struct, tag="not started"):
    """Zygote to agent: there will be no process, and why."""

    mesh: int
    rank: int
    reason: str


class Ended(msgspec.Struct, tag="ended"):
    """Zygote to agent: the process has ended and been reaped. `status` as from `waitpid`."""

    mesh: int
    rank: int
    pid: int
    status: int


class Boot(msgspec.Struct):
    """What a proc is told as it begins."""

    spec: MeshSpec
    rank: int
    affinity: list[int]
    # Of one that is executed: where it imports from, and what PYTHONPATH is to be afterwards.
    path: list[str] = []
    python_path: str | None = None


ToZygote = MeshSpec | StartRank | DropMesh
FromZygote = Started | NotStarted | Ended

encode = pack
decode_to_zygote: Callable[[bytes], ToZygote] = unpacker(ToZygote)
decode_from_zygote: Callable[[bytes], FromZygote] = unpacker(FromZygote)
_unpack_boot = unpacker(Boot)


def encode_boot(boot: Boot) -> str:
    """As the value of a variable of the environment."""
    return binascii.b2a_base64(pack(boot), newline=False).decode()


def decode_boot(text: str) -> Boot:
    """What `encode_boot` was given."""
    return _unpack_boot(binascii.a2b_base64(text))
