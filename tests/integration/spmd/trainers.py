"""Actors that run collectives, for the tests of SPMD programs."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from monarch.actor import Actor, concurrent_endpoint, context, endpoint
from tests.integration.gates import Gate, write_byte

TORCH = ("torch", "torch.distributed")  # preloaded, so that ranks begin at once


class Trainer(Actor):
    """One rank of a program; imports torch where it is used, as pytest's process need not."""

    @endpoint
    def variables(self, names: Sequence[str]) -> dict[str, str | None]:
        """These variables of its environment."""
        return {name: os.environ.get(name) for name in names}

    @endpoint
    def init(self, backend: str = "gloo") -> int:
        """Make a group as a program for torchrun does; the sum of all ranks."""
        import torch.distributed as dist

        dist.init_process_group(backend)
        try:
            return self._sum(dist.get_rank())
        finally:
            dist.destroy_process_group()

    @endpoint
    def make_own_group(self) -> None:
        """Make a group as a program for torchrun does, and keep it."""
        import torch.distributed as dist

        dist.init_process_group("gloo")

    @endpoint
    def add(self, value: float) -> float:
        """The sum of `value` over all ranks."""
        return self._sum(value)

    @endpoint
    def place(self) -> tuple[int, int, str]:
        """Rank, size and backend of the default group."""
        import torch.distributed as dist

        return dist.get_rank(), dist.get_world_size(), dist.get_backend()

    @endpoint
    def identity(self) -> int:
        """A number of the default group."""
        import torch.distributed as dist

        return id(dist.group.WORLD)

    @endpoint
    def is_initialized(self) -> bool:
        """Whether there is a default group."""
        import torch.distributed as dist

        return bool(dist.is_initialized())

    def _sum(self, value: float) -> Any:
        import torch
        import torch.distributed as dist

        tensor = torch.full((1 << 18,), float(value))  # larger than what sockets buffer
        dist.all_reduce(tensor)
        return tensor[0].item()

    @endpoint
    def add_unless(self, absent: int, how: str, gate: Gate) -> float:
        """The sum of ones; but rank `absent` is held at the gate, and then dies or raises.

        The others say at the gate that they are about to begin.
        """
        if context().message_rank.rank == absent:
            gate.pass_through()
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "raises":
                raise ValueError("a bad batch")
            raise SystemExit(how)
        write_byte(gate.entered)
        return float(self._sum(1.0))

    @endpoint
    def die_before_it_connects(self) -> None:
        """Die in the next group once this rank has told its address, and reads that of a peer."""
        from monarch._src.spmd import gloo_sockets

        calls = iter(range(1000))

        def keep(_value: Any) -> None:
            if next(calls):
                os.kill(os.getpid(), signal.SIGKILL)

        gloo_sockets._keep = keep

    @endpoint
    def die_when_it_joins(self, gate: Gate) -> None:
        """Have the next `init_process_group` here stand at the gate, and then end the process."""
        import torch.distributed as dist

        def die(*_args: Any, **_options: Any) -> None:
            gate.pass_through()
            os.kill(os.getpid(), signal.SIGKILL)

        dist.init_process_group = die  # pyright: ignore[reportPrivateImportUsage]

    @endpoint
    def add_behind(self, gate: Gate) -> float:
        """The sum of ones, from when the gate is open."""
        gate.pass_through()
        return float(self._sum(1.0))

    @endpoint
    def hold(self, gate: Gate) -> None:
        """Keep this actor busy until the gate is open."""
        gate.pass_through()

    @endpoint
    def raise_before(self, absent: int) -> float:
        """The sum of ones; rank `absent` raises instead."""
        if context().message_rank.rank == absent:
            raise ValueError("a bad batch")
        return float(self._sum(1.0))

    @endpoint
    def kill_before(self, absent: int) -> float:
        """The sum of ones; rank `absent` kills its process instead."""
        if context().message_rank.rank == absent:
            os.kill(os.getpid(), signal.SIGKILL)
        return float(self._sum(1.0))

    @endpoint
    def raise_after(self, absent: int) -> float:
        """The sum of ones; rank `absent` raises when it has it."""
        found = float(self._sum(1.0))
        if context().message_rank.rank == absent:
            raise ValueError("a bad batch")
        return found

    @endpoint
    def meet(self) -> None:
        """Come to a barrier that rank 0 monitors, for a second."""
        import torch.distributed as dist

        dist.monitored_barrier(timeout=timedelta(seconds=1))

    @endpoint
    def leave(self) -> None:
        """Destroy the groups of this process."""
        import torch.distributed as dist

        dist.destroy_process_group()

    @endpoint
    def states_of_ended_connections(self) -> list[int]:
        """The TCP states of the connections that were shut down, as Linux numbers them."""
        from monarch._src.spmd import gloo_sockets

        found: list[int] = []
        for fd in gloo_sockets.kept_open:
            with socket.socket(fileno=os.dup(fd)) as copy:
                found += copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[:1]
        return found

    @endpoint
    def fail(self, text: str) -> None:
        """Raise a RuntimeError with that text."""
        raise RuntimeError(text)

    @endpoint
    def coordinates(self, device_mesh: Any) -> tuple[str, Mapping[str, int], float]:
        """What it was given, its coordinates there, and a sum over the last dim."""
        import torch
        import torch.distributed as dist

        names = device_mesh.mesh_dim_names
        tensor = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(tensor, group=device_mesh.get_group(names[-1]))
        here = {name: device_mesh.get_local_rank(name) for name in names}
        return type(device_mesh).__name__, here, tensor.item()


class AsyncTrainer(Actor):
    """As `Trainer`, on a loop."""

    @concurrent_endpoint
    async def add_on_broken_connections(self) -> None:
        """Break the connections of this rank's groups, and sum; waits long for a reason."""
        import torch
        import torch.distributed as dist

        from monarch._src.spmd import gloo_sockets, rank_watch

        rank_watch.REASON_S = 600.0
        gloo_sockets.shut_down()
        dist.all_reduce(torch.ones(1 << 18))

    @concurrent_endpoint
    async def end_groups(self, why: str) -> bool:
        """End the groups of this rank for that reason."""
        from monarch._src.spmd import rank_watch

        watch = rank_watch.active()
        return watch is not None and watch.end_groups(why)

    @concurrent_endpoint
    async def add_unless(self, absent: int) -> float:
        """The sum of ones; but rank `absent` raises."""
        import torch
        import torch.distributed as dist

        if context().message_rank.rank == absent:
            raise ValueError("a bad batch")
        tensor = torch.ones(1 << 18)
        dist.all_reduce(tensor)
        return float(tensor[0].item())
