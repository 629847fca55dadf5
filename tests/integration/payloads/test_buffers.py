"""Buffers, arrays and tensors between processes: whole, aligned, shared where they can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

from monarch.actor import Actor, ProcMesh, current_rank, endpoint, this_proc
from monarch.buffers import Buffer, FrozenBuffer

Spawn = Callable[..., ProcMesh]
LARGE = bytes(range(256)) * 600  # more than travels in the pickle


class Bytes(Actor):
    """Takes and gives bytes in buffers."""

    @endpoint
    def read(self, frozen: FrozenBuffer) -> tuple[list[int], bytes]:
        return [len(piece) for piece in frozen], frozen.read()

    @endpoint
    def lines(self, frozen: FrozenBuffer) -> list[bytes]:
        return list(iter(frozen.readline, b""))

    @endpoint
    def add(self, buffer: Buffer, data: bytes) -> Buffer:
        buffer.write(data)
        return buffer

    @endpoint
    def made(self) -> FrozenBuffer:
        buffer = Buffer()
        memory = bytearray(LARGE)
        buffer.write(b"%d" % current_rank().rank)
        buffer.write(memory)
        memory[:] = bytes(len(memory))
        return buffer.freeze()

    @endpoint
    def through_a_neighbour(self, frozen: FrozenBuffer) -> tuple[bytes, bool]:
        neighbour = this_proc().spawn("neighbour", Bytes)
        back = neighbour.same.call_one(frozen).get()
        here, there = (numpy.frombuffer(x.getbuffer(), numpy.uint8) for x in (frozen, back))
        return back.read(), numpy.shares_memory(here, there)

    @endpoint
    def same(self, value: Any) -> Any:
        return value

    @endpoint
    def addresses(self, *arrays: Any) -> list[tuple[bool, int]]:
        return [(array.flags.aligned, array.ctypes.data % 8) for array in arrays]

    @endpoint
    def grow(self, tensors: dict[str, Any]) -> dict[str, Any]:
        tensors["all"] += 1
        return {"row": tensors["row"], "sum": float(tensors["all"].sum())}


class AsyncBytes(Actor):
    """The same on an event loop."""

    @endpoint
    async def read(self, frozen: FrozenBuffer) -> bytes:
        return frozen.read()


def frozen(*written: Any) -> FrozenBuffer:
    buffer = Buffer()
    for data in written:
        buffer.write(data)
    return buffer.freeze()


def test_a_frozen_buffer_arrives_at_every_rank_in_its_pieces(four: ProcMesh) -> None:
    value = frozen(b"small", LARGE, b"x" * 300, LARGE + b"more")
    expected = b"small" + LARGE + b"x" * 300 + LARGE + b"more"
    found = four.spawn("bytes", Bytes).read.call(value).get().values()
    assert found == [([5, len(LARGE), 300, len(LARGE) + 4], expected)] * 4
    assert four.spawn("async", AsyncBytes).read.call(value).get().values() == [expected] * 4
    assert value.read() == expected


def test_lines_can_be_read_of_it(four: ProcMesh) -> None:
    value = frozen(b"first\nsec", b"ond\n", LARGE.replace(b"\n", b""), b"\nlast")
    lines = four.slice(gpus=0).spawn("bytes", Bytes).lines.call_one(value).get()
    assert [len(line) for line in lines] == [6, 7, len(LARGE) - LARGE.count(b"\n") + 1, 4]


def test_a_buffer_comes_back_with_what_was_added(four: ProcMesh) -> None:
    buffer = Buffer()
    buffer.write(LARGE)
    for back in four.spawn("bytes", Bytes).add.call(buffer, b"added").get().values():
        assert back.freeze().read() == LARGE + b"added"
    assert len(buffer) == len(LARGE)


def test_each_rank_may_answer_with_one(four: ProcMesh) -> None:
    answers = four.spawn("bytes", Bytes).made.call().get().values()
    assert [answer.read() for answer in answers] == [b"%d" % rank + LARGE for rank in range(4)]


def test_a_call_sends_what_was_written_whatever_is_done_to_its_source_then(four: ProcMesh) -> None:
    actor = four.slice(gpus=0).spawn("bytes", Bytes)
    memory = bytearray(LARGE)
    buffer = Buffer()
    buffer.write(memory)
    value = buffer.freeze()
    answers = []
    for _ in range(20):
        answers.append(actor.read.call_one(value))
        memory[:] = bytes(len(memory))
    assert all(answer.get() == ([len(LARGE)], LARGE) for answer in answers)


def test_an_actor_of_the_same_process_is_given_the_same_memory(four: ProcMesh) -> None:
    actor = four.slice(gpus=0).spawn("bytes", Bytes)
    assert actor.through_a_neighbour.call_one(frozen(LARGE)).get() == (LARGE, True)


def test_buffers_go_to_many_ranks_at_once(spawn_procs: Spawn, few_are_many: None) -> None:
    actor = spawn_procs({"gpus": 8}).spawn("bytes", Bytes)
    for size in (100, len(LARGE), 2 * len(LARGE), 10 * len(LARGE)):
        value = frozen((LARGE * 10)[:size])
        assert actor.read.call(value).get().values() == [([size], (LARGE * 10)[:size])] * 8


def test_arrays_of_any_size_arrive_aligned(four: ProcMesh) -> None:
    actor = four.slice(gpus=0).spawn("bytes", Bytes)
    answers = [
        actor.addresses.call_one(numpy.zeros(count), numpy.zeros(count + 7))
        for count in range(1, 6000, 37)
    ]
    for answer in answers:
        assert answer.get() == [(True, 0), (True, 0)]


def test_tensors_travel_beside_the_pickle_and_share_what_they_share(four: ProcMesh) -> None:
    torch = pytest.importorskip("torch")
    base = torch.zeros(4, 5000)
    actor = four.slice(gpus=0).spawn("bytes", Bytes)
    back = actor.grow.call_one({"all": base, "row": base[2]}).get(timeout=120)
    assert back["sum"] == 20_000
    assert back["row"].tolist() == [1.0] * 5000
    assert base.sum() == 0
