"""An actor that makes process groups, and dies or raises on the way."""

from __future__ import annotations

import os
import random
import signal
import threading
from typing import Any, Literal

from monarch.actor import Actor, context, endpoint

Kind = Literal["new_group", "pairs", "file", "environment", "device_mesh", "with_barrier"]
Moment = Literal["before", "connects", "random", "raises"]
KINDS: tuple[Kind, ...] = (
    "new_group", "pairs", "file", "environment", "device_mesh", "with_barrier",
)  # fmt: skip
LONGEST_S = 0.05  # of a random moment; a group takes a few milliseconds


class GroupMaker(Actor):
    """One rank; `make_until_lost` is called on all ranks at once."""

    @endpoint
    def begin(self) -> float:
        """Make a default group in place of an earlier one, as a program does; a sum over it."""
        import torch
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        return float(total.item())

    @endpoint
    def leave(self) -> None:
        """Destroy the groups of this process."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()

    @endpoint
    def add(self) -> float:
        """The sum of ones over the default group."""
        import torch
        import torch.distributed as dist

        total = torch.ones(1)
        dist.all_reduce(total)
        return float(total.item())

    @endpoint
    def make_until_lost(
        self, kind: Kind, lost: int, moment: Moment, seed: int, folder: str
    ) -> None:
        """Make groups of that kind again and again; rank `lost` dies or raises at that moment."""
        if context().message_rank.rank == lost:
            match moment:
                case "before":
                    die()
                case "raises":
                    raise ValueError("a bad batch")
                case "connects":
                    die_at_address()
                case "random":
                    moment_s = random.Random(seed).uniform(0, LONGEST_S)
                    threading.Timer(moment_s, die).start()
        make = {
            "new_group": make_new_group, "pairs": make_pairs, "file": make_default,
            "environment": make_from_environment, "device_mesh": make_device_mesh,
            "with_barrier": make_with_barrier,
        }[kind]  # fmt: skip
        number = 0
        while True:
            make(f"{folder}/{seed}-{number}")
            number += 1


def die() -> None:
    """End this process as a machine that kills it would."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_address() -> None:
    """Die in the next group once this rank has told its address, and reads that of a peer."""
    from monarch._src.spmd import gloo_sockets

    calls = iter(range(1000))

    def keep(_value: Any) -> None:
        if next(calls):
            die()

    gloo_sockets._keep = keep


def make_new_group(_path: str) -> None:
    """A group of all ranks beside the default group."""
    import torch.distributed as dist

    made: Any = dist.new_group()
    dist.destroy_process_group(made)


def make_pairs(_path: str) -> None:
    """A group of two neighbours, as `new_subgroups` makes them."""
    import torch.distributed as dist

    own: Any = dist.new_subgroups(2)[0]
    dist.barrier(own)


def make_device_mesh(_path: str) -> None:
    """The groups of a DeviceMesh of two dims."""
    from torch.distributed.device_mesh import init_device_mesh

    made = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert made["tp"].size() == 2


def make_with_barrier(path: str) -> None:
    """As `make_new_group`, with torch's barrier at the store."""
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    try:
        make_new_group(path)
    finally:
        del os.environ["TORCH_DIST_INIT_BARRIER"]


def make_default(path: str) -> None:
    """A default group in place of the one that there is, at a store in a file."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    dist.barrier()


def make_from_environment(_path: str) -> None:
    """A default group at the store of the environment, unless there is one; and a sum."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
