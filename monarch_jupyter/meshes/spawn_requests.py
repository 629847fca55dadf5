"""Meshes to make, checked before any process starts, and how each mesh of this kernel was made.

No I/O.
"""

from __future__ import annotations

import builtins
import keyword
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from monarch import observe
from monarch.actor import ProcMesh
from monarch_jupyter.errors import CommandError

EXAMPLE = "%monarch spawn workers gpus=8"


@dataclass(frozen=True)
class SpawnRequest:
    """A mesh to make: name, dims with sizes, modules to import early, environment.

    `keep`: the mesh outlives the kernel. `job`: the name or path of the job that has the hosts;
    empty for this machine. `hosts`: the mesh of the job, if it has several. `restart`: start a rank
    that dies again.
    """

    name: str
    dims: dict[str, int] = field(default_factory=dict[str, int])
    preload: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict[str, str])
    keep: bool = False
    job: str = ""
    hosts: str = ""
    restart: bool = False

    @property
    def ranks(self) -> int:
        """How many processes this asks for."""
        return math.prod(self.dims.values())


def split_job(text: str) -> tuple[str, str]:
    """The job and its mesh in `JOB[:MESH]`."""
    job, colon, hosts = text.rpartition(":")
    return (job, hosts) if colon and hosts.isidentifier() else (text, "")


def check_name(name: str) -> None:
    """Check that a mesh and a variable of the notebook can have that name.

    Raises:
        CommandError: `name` can't be a variable of the notebook, or hides a function of Python.
    """
    if "=" in name:
        raise CommandError(f"spawn needs a name before {name}; for example `{EXAMPLE}`")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise CommandError(
            f"'{name}' can't name a mesh, because the notebook binds it as a variable; "
            "use letters, digits and _"
        )
    if hasattr(builtins, name):
        raise CommandError(
            f"'{name}' is a Python builtin, which the mesh would hide; choose another name"
        )


def check_dims(name: str, dims: Mapping[str, int]) -> dict[str, int]:
    """The dims as given.

    Raises:
        CommandError: a label that is no identifier, a size that is no whole number above zero.
    """
    for label, size in dims.items():
        check_label(label)
        # bool is a subclass of int, but no user means a size by it.
        if isinstance(size, bool) or not isinstance(size, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CommandError(f"{label}={size!r} is not a size; give a whole number")
        check_size(name, label, size)
    return dict(dims)


def check_label(label: str) -> None:
    if not label.isidentifier() or keyword.iskeyword(label):
        raise CommandError(f"'{label}' can't be a dim; use a name such as gpus=8")


def check_size(name: str, label: str, size: int) -> None:
    if size < 1:
        raise CommandError(
            f"{label}={size} leaves {name} without ranks; a dim has at least one, as in {label}=1"
        )


_requests: dict[str, SpawnRequest] = {}
"""By uid, how the living meshes of this kernel were asked for; only those that it spawned here."""


def remember_request(mesh: ProcMesh, request: SpawnRequest) -> None:
    """Keep the request of a mesh that was spawned, and forget those of meshes that have ended."""
    living = {one.uid for one in observe.meshes()}
    for uid in _requests.keys() - living:
        del _requests[uid]
    _requests[mesh.uid] = request


def request_of(mesh: ProcMesh) -> SpawnRequest | None:
    """How this kernel was asked for that mesh; None if code has spawned it."""
    return _requests.get(mesh.uid)


def can_restart(mesh: ProcMesh) -> bool:
    """Whether `restart` knows how that mesh was spawned."""
    request = request_of(mesh)
    return request is not None and not request.keep


def restarts_ranks(mesh: ProcMesh) -> bool:
    """Whether ranks of that mesh that die are started again by themselves, as far as is known."""
    request = request_of(mesh)
    return request is not None and request.restart
