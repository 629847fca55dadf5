"""The plan of a process group: its backend, the GPU of each rank, and how ranks join. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from monarch._src.spmd.rendezvous import FilePlace, TcpPlace
from monarch._src.spmd.state.group_watch import Absence

CPU, GPU = "gloo", "cpu:gloo,cuda:nccl"


def backend_names(backend: str) -> tuple[str, ...]:
    """The backends of `"gloo"` or `"cpu:gloo,cuda:nccl"`.

    Raises:
        TypeError: it is no text.
        ValueError: it is no such text.
    """
    if not isinstance(backend, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"backend is text such as 'gloo', not {type(backend).__name__}")
    names = tuple(part.rpartition(":")[2].strip().lower() for part in backend.split(","))
    if not all(names):
        raise ValueError(f"backend is text such as 'gloo' or {GPU!r}, not {backend!r}")
    return names


def own_devices(gpus: Sequence[Sequence[str]], hosts: Sequence[str]) -> tuple[int, ...]:
    """A GPU for each rank, by its number in that process; empty unless each has one of its own.

    Args:
        gpus: the identities of the GPUs that each rank sees.
        hosts: where each rank runs.
    """
    found: list[int] = []
    taken: set[tuple[str, str]] = set()
    before: dict[str, int] = {}  # ranks of that host so far
    for seen, host in zip(gpus, hosts, strict=True):
        at = before.get(host, 0)
        before[host] = at + 1
        device = 0 if len(seen) == 1 else at
        if device >= len(seen) or (host, seen[device]) in taken:
            return ()
        taken.add((host, seen[device]))
        found.append(device)
    return tuple(found)


def shared_gpus(name: str, gpus: Sequence[Sequence[str]], backend: str | None) -> str:
    """The text of the error for NCCL on ranks that do not have a GPU each."""
    ranks, seen = len(gpus), len({one for each in gpus for one in each})
    return (
        f"backend {backend!r}: nccl needs a GPU of its own for each rank, and the {ranks} ranks of "
        f"{name} see {seen}; leave backend out, which then takes gloo, or use as many ranks as "
        "there are GPUs"
    )


class JoinPlan(msgspec.Struct, frozen=True):
    """How all ranks make the default process group. `devices`: a GPU for each rank, or none.

    `first` is the number of the first rank of this mesh, in a group of several meshes.
    """

    backend: str
    world_size: int
    place: FilePlace | TcpPlace
    timeout_s: float
    devices: tuple[int, ...] = ()
    first: int = 0

    @property
    def kind(self) -> tuple[str, int, float, tuple[int, ...]]:
        """All that matters to its user."""
        return self.backend, self.world_size, self.timeout_s, self.devices


class RankLook(msgspec.Struct, frozen=True):
    """The report of a rank: why it has no torch, the backends of its torch, its GPUs, its group.

    `group` is that of the last `join` while it is in good order, else None; `foreign` says that
    code of the user has made a group; `raised` are calls that this rank has left by an exception;
    `has_late_calls` says that calls to a rank that has died have not ended here.
    """

    no_torch: str = ""
    host: str = ""
    missing: tuple[str, ...] = ()
    available: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    group: JoinPlan | None = None
    foreign: bool = False
    joining: bool = False
    raised: tuple[Absence, ...] = ()
    has_late_calls: bool = False
