"""What ranks tell before they join a process group, and how they join it. No I/O."""

from __future__ import annotations

import msgspec

from monarch._src.spmd.rendezvous import FilePlace, TcpPlace


class JoinPlan(msgspec.Struct, frozen=True):
    """How all ranks make the default process group. `devices`: a GPU for each rank, or none."""

    backend: str
    world_size: int
    place: FilePlace | TcpPlace
    timeout_s: float
    devices: tuple[int, ...] = ()

    @property
    def kind(self) -> tuple[str, int, float, tuple[int, ...]]:
        """All that matters to its user."""
        return self.backend, self.world_size, self.timeout_s, self.devices


class RankLook(msgspec.Struct, frozen=True):
    """What a rank has: why it has no torch, the backends of its torch, its GPUs, its group.

    `group` is that of the last `join` while it is in good order, else None; `foreign` says that
    code of the user has made a group.
    """

    no_torch: str = ""
    host: str = ""
    missing: tuple[str, ...] = ()
    available: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    group: JoinPlan | None = None
    foreign: bool = False
    joining: bool = False
