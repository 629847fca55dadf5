"""Tensors in memory of a GPU: as buffers, as arguments and answers, and in what observers see."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.actor import ActorError, ProcMesh
from monarch.observe import query
from tests.gpu.trainers import Holder, numbers

COUNT = 1 << 18


@pytest.fixture
def holders(pair: ProcMesh) -> Any:
    return pair.spawn("holders", Holder)


def test_a_tensor_goes_from_gpu_memory_to_gpu_memory_of_a_peer(holders: Any) -> None:
    one, other = holders.slice(gpus=0), holders.slice(gpus=1)
    buffer = one.make.call_one(COUNT, 3).get()
    assert other.read.call_one(buffer, COUNT, 3).get() == (True, "cuda_ipc")


def test_the_client_reads_and_writes_gpu_memory_of_a_rank(holders: Any) -> None:
    import torch

    holder = holders.slice(gpus=0)
    buffer = holder.make.call_one(COUNT, 1).get()
    room = torch.zeros(COUNT, device="cuda")
    buffer.read_into(room).get()
    assert torch.equal(room, numbers(COUNT, 1))
    buffer.write_from(numbers(COUNT, 5)).get()
    assert holder.is_as_made.call_one(5).get()


def test_gpu_memory_is_read_into_memory_of_the_host(holders: Any) -> None:
    import torch

    buffer = holders.slice(gpus=1).make.call_one(COUNT, 2).get()
    room = torch.zeros(COUNT)
    buffer.read_into(room).get()
    assert torch.equal(room, numbers(COUNT, 2).cpu())


@pytest.mark.parametrize("count", [3, COUNT])
def test_a_tensor_of_a_gpu_is_an_argument_and_an_answer(holders: Any, count: int) -> None:
    import torch

    sent = numbers(count, 1)
    answers = list(holders.double.call(sent).get().values())
    assert [answer.device.type for answer in answers] == ["cuda", "cuda"]
    assert all(torch.equal(answer, sent * 2) for answer in answers)
    assert set(holders.device_of.call(sent[1:3]).get().values()) == {"cuda:0"}


def test_observers_see_the_gpu_memory_of_a_rank(holders: Any) -> None:
    pid = holders.slice(gpus=1).allocate.call_one(64 << 20).get()
    (row,) = query(f"select gpu_bytes from procs where pid = {pid}").rows
    assert row[0] >= 64 << 20


def test_a_gpu_without_memory_left_is_named_as_the_cause(holders: Any) -> None:
    with pytest.raises(ActorError, match="out of GPU memory"):
        holders.slice(gpus=0).exhaust.call_one().get()
    assert holders.slice(gpus=0).double.call_one(2).get() == 4
