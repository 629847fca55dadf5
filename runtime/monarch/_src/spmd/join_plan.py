"""The reports of ranks before they join a process group, and the plan of the join. No I/O."""

from __future__ import annotations

import msgspec

from monarch._src.spmd.rendezvous import FilePlace, TcpPlace
from monarch._src.spmd.state.group_watch import Absence


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
