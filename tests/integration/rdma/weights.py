"""Who publishes weights and who pulls them, as actors; of numpy, which is imported sooner."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy

from monarch._src.actor.runtime import runtime
from monarch._src.rdma import peer_transports
from monarch._src.rdma.plane import plane_of
from monarch.actor import Actor, Port, context, current_rank, endpoint
from monarch.rdma import (
    PulledStateDict,
    StateDictHandle,
    StateDictReader,
    StateDictSource,
    TensorSlice,
    get_state_dict,
    put_state_dict,
)
from tests.integration.rdma.parties import open_things

MIB = 1 << 20
SHAPES = {"embed": (64, 96), "layer.weight": (96, 40), "layer.bias": (40,), "scale": ()}


Array = numpy.ndarray[Any, Any]


def weights(version: int) -> dict[str, Array]:
    """Elements that say of which version, tensor and place they are."""
    return {
        name: numpy.asarray(
            numpy.arange(float(prod(shape))).reshape(shape) + 100_000 * n + 1_000_000 * version
        )
        for n, (name, shape) in enumerate(SHAPES.items())
    }


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return list(one) == list(other) and all(
        numpy.array_equal(numpy.asarray(one[n]), numpy.asarray(other[n])) for n in one
    )


class Publisher(Actor):
    """Has a state dict, or its rank's part of each tensor along a dim, of as many as there are."""

    def __init__(self) -> None:
        self.source: StateDictSource | None = None
        self.dim: int | None = None
        self.looping: threading.Thread | None = None

    def part(self, version: int) -> tuple[dict[str, Array], dict[str, TensorSlice]]:
        whole = weights(version)
        if self.dim is None:
            return whole, {}
        point = context().actor_instance.rank  # whichever slice of the mesh is called
        me, count = point.rank, point.extent.nelements
        slices = {
            name: TensorSlice.shard(tensor.shape, self.dim % tensor.ndim, me, count)
            for name, tensor in whole.items()
            if tensor.ndim
        }
        # Strided views of the whole, as a shard may well be.
        return {n: t[slices[n].index] if n in slices else t for n, t in whole.items()}, slices

    @endpoint
    def publish(self, dim: int | None = None, **options: Any) -> StateDictHandle:
        self.dim = dim
        tensors, slices = self.part(options.get("version", 0))
        self.source = put_state_dict(tensors, slices=slices, **options)
        return self.source.handle

    @endpoint
    def refresh(self, version: int) -> int:
        assert self.source is not None
        return self.source.refresh(self.part(version)[0], version=version)

    @endpoint
    def fill(self, size: int, count: int, buffers: int = 2) -> StateDictHandle:
        """`count` tensors of `size` bytes whose elements all are the version."""
        self.tensors = {f"t{n}": numpy.zeros(size // 8, numpy.int64) for n in range(count)}
        self.source = put_state_dict(self.tensors, buffers=buffers)
        return self.source.handle

    @endpoint
    def bump(self, times: int = 1) -> int:
        """Train, that is: add one everywhere; publish that, so many times."""
        assert self.source is not None
        for _ in range(times):
            for tensor in self.tensors.values():
                tensor += 1
            self.source.refresh()
        assert self.source.version is not None
        return self.source.version

    @endpoint
    def train_on(self, *, stop: bool = False) -> None:
        """Bump and bump, on another thread, until told to stop."""
        if not stop:
            self.going = True
            self.looping = threading.Thread(target=self._train)
            self.looping.start()
        else:
            self.going = False
            assert self.looping is not None
            self.looping.join()

    def _train(self) -> None:
        assert self.source is not None
        while self.going:
            for _ in range(3):  # faster than any reader, then a while nothing, as training is
                for tensor in self.tensors.values():
                    tensor += 1
                self.source.refresh()
            time.sleep(0.003)

    @endpoint
    def live_in(self) -> StateDictHandle:
        """A model whose parameters lie in the memory that is published."""
        self.source = put_state_dict(weights(0), buffers=1)
        with self.source.update() as self.model:
            for parameter in self.model.values():
                parameter += 1
        return self.source.handle

    @contextmanager
    def stepping(self) -> Iterator[None]:
        assert self.source is not None
        with self.source.update():
            for parameter in self.model.values():
                parameter += 1
            yield

    @endpoint
    def step_in_place(self, *, fails: bool = False) -> dict[str, Array]:
        with self.stepping():
            if fails:
                raise ArithmeticError("the loss is not a number")
        return {name: parameter.copy() for name, parameter in self.model.items()}

    @endpoint
    def begin_step(self) -> None:
        self.open = self.stepping()
        self.open.__enter__()

    @endpoint
    def end_step(self) -> None:
        self.open.__exit__(None, None, None)

    @endpoint
    def drop(self) -> None:
        assert self.source is not None
        self.source.drop().get()

    @endpoint
    def forget(self) -> None:
        self.source = None

    @endpoint
    def facts(self) -> dict[str, int]:
        return {**open_things(), "registered": plane_of(runtime()).regions.registered}


class Puller(Actor):
    """Pulls what others publish."""

    @endpoint
    def only(self, *names: str) -> None:
        """Know no other transports; to be said before the first transfer."""
        peer_transports.ORDER = tuple(names)

    @endpoint
    def pull(
        self, handles: StateDictHandle | list[StateDictHandle], **options: Any
    ) -> PulledStateDict:
        return get_state_dict(handles, **options).get()

    @endpoint
    def version(self, handle: StateDictHandle) -> int:
        """Of what is pulled, and not sent on."""
        return get_state_dict(handle).get().version

    @endpoint
    def shard(self, handles: list[StateDictHandle], dim: int, **options: Any) -> PulledStateDict:
        """This rank's part along a dim, into memory of its own."""
        me, count = current_rank().rank, current_rank().extent.nelements
        slices = {
            name: TensorSlice.shard(part.global_shape, dim % len(part.global_shape), me, count)
            for name, part in handles[0].slices.items()
            if part.global_shape
        }
        room = {
            name: numpy.zeros(slices[name].local_shape if name in slices else ())
            for name in handles[0].names
        }
        return get_state_dict(handles, room, slices=slices, **options).get()

    @endpoint
    def pull_again(self, handle: StateDictHandle, times: int) -> tuple[int, int]:
        """Pull that often, and until ten versions were published meanwhile.

        Each has to be of one version, and none older than the one before.
        """
        reader = StateDictReader(handle)
        last = torn = pulls = 0
        while pulls < times or last < 10:
            pulls += 1
            pulled = reader.pull().get()
            seen = {int(n) for array in pulled.values() for n in numpy.unique(array)}
            assert seen == {pulled.version}, f"version {pulled.version} has {seen}"
            assert pulled.version >= last
            last, torn = pulled.version, torn + pulled.torn
        return last, torn

    @endpoint
    def facts(self) -> dict[str, int]:
        return open_things()


class AsyncPuller(Actor):
    """Pulls on a loop, and tells of it."""

    @endpoint
    async def pull(self, handle: StateDictHandle, port: Port[Any]) -> int:
        return (await get_state_dict(handle, on_progress=port.send)).version
