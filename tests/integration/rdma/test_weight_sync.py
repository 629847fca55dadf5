"""State dicts that are published in one process and pulled in others, while training goes on."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from monarch._src.system import shared_memory
from monarch.actor import ActorError, Channel, ProcMesh
from monarch.observe import OpenPull, open_pulls
from monarch.rdma import (
    PullProgress,
    RDMAHandleError,
    RDMAOwnerLostError,
    RDMATimeoutError,
    StateDictReader,
    StateDictVersionError,
    TensorSlice,
    get_state_dict,
    put_state_dict,
)
from tests.conftest import Faults
from tests.integration.rdma.parties import TRANSPORTS
from tests.integration.rdma.weights import MIB, AsyncPuller, Publisher, Puller, equal, weights

Spawn = Callable[..., ProcMesh]
pytestmark = pytest.mark.skipif(not shared_memory.PRESENT, reason="shm and cma need Linux")


def elements(state_dict: dict[str, Any]) -> set[int]:
    return {int(n) for array in state_dict.values() for n in numpy.unique(array)}


@pytest.fixture
def trainer(spawn_procs: Spawn) -> Any:
    return spawn_procs({"gpus": 1}, name="trainers").spawn("trainer", Publisher)


def test_all_of_it_is_pulled_as_it_was_published(trainer: Any) -> None:
    handle = trainer.publish.call_one().get()
    pulled = get_state_dict(handle).get()
    assert equal(pulled, weights(0))
    assert (pulled.version, pulled.torn, pulled.bytes_read) == (0, 0, handle.size())
    assert trainer.refresh.call_one(1).get() == 1
    room = {name: numpy.zeros_like(array) for name, array in weights(0).items()}
    again = get_state_dict(handle, room).get()
    assert again.version == 1
    assert equal(room, weights(1))
    assert all(again[name] is room[name] for name in room)


def test_a_model_is_pulled_into_another_ones_parameters() -> None:
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(30, 20), torch.nn.Linear(30, 20)
    source = put_state_dict(ours.state_dict())
    get_state_dict(source.handle, theirs.state_dict()).get()
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)
    with torch.no_grad():
        ours.weight += 1
    assert source.refresh() == 1  # the very tensors that were given first
    get_state_dict(source.handle, theirs.state_dict()).get()
    assert torch.equal(ours.weight, theirs.weight)


AWKWARD = {
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 4),
    "half": torch.arange(50).bfloat16(),
    "flags": torch.arange(33) % 3 == 0,
    "complex": torch.arange(6) * 1j,
    "eighth": torch.arange(16).to(torch.float8_e4m3fn),
    "transposed": torch.arange(600.0).view(20, 30).t(),
    "strided": torch.arange(100)[::3],
    "parameter": torch.nn.Parameter(torch.ones(3, 3)),
}


def test_tensors_of_any_type_and_strides_arrive() -> None:
    source = put_state_dict(AWKWARD)
    new = get_state_dict(source.handle).get()
    for name, tensor in AWKWARD.items():
        assert new[name].dtype == tensor.dtype
        assert torch.equal(new[name].double() if name == "eighth" else new[name],
                           tensor.double() if name == "eighth" else tensor.detach())  # fmt: skip
    room = {n: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for n, t in AWKWARD.items()}
    get_state_dict(source.handle, room).get()
    assert room["transposed"].stride() == (1, 30)
    assert torch.equal(room["transposed"], AWKWARD["transposed"])
    assert torch.equal(room["strided"], AWKWARD["strided"])


def test_arrays_and_tensors_may_stand_on_either_side() -> None:
    arrays = {"a": numpy.arange(12.0).reshape(3, 4), "b": numpy.arange(9, dtype=numpy.int16)[::2]}
    source = put_state_dict(arrays)
    new = get_state_dict(source.handle).get()
    assert all(type(new[n]) is numpy.ndarray and (new[n] == arrays[n]).all() for n in arrays)
    tensors = {"a": torch.zeros(4, 3).t().double(), "b": torch.zeros(5, dtype=torch.int16)}
    get_state_dict(source.handle, tensors).get()
    assert equal(tensors, arrays)
    back = {"a": numpy.zeros((3, 4), order="F"), "b": numpy.zeros(5, numpy.int16)}
    get_state_dict(put_state_dict(tensors).handle, back).get()
    assert equal(back, arrays)


def test_floating_point_tensors_may_travel_as_another_type() -> None:
    tensors = {"w": torch.arange(100.0) / 3, "steps": torch.tensor(7)}
    source = put_state_dict(tensors, transfer_dtype=torch.bfloat16)
    pulled = get_state_dict(source.handle).get()
    assert torch.equal(pulled["w"], tensors["w"].bfloat16())
    assert pulled["steps"].dtype == torch.int64
    arrays = put_state_dict({"w": numpy.arange(5.0)}, transfer_dtype=numpy.float32)
    assert get_state_dict(arrays.handle).get()["w"].dtype == numpy.float32
    with pytest.raises(TypeError, match="has no such floating-point type"):
        put_state_dict(tensors, transfer_dtype=torch.int8)


# --- cut otherwise than it is held ----------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_shards_are_pulled_as_other_shards(spawn_procs: Spawn, transport: str) -> None:
    trainers: Any = spawn_procs({"gpus": 3}, name="trainers").spawn("trainers", Publisher)
    pullers: Any = spawn_procs({"gpus": 2}, name="generators").spawn("pullers", Puller)
    pullers.only.call(transport).get()
    for held, wanted in ((0, -1), (-1, 0), (0, 0)):
        handles = list(trainers.publish.call(held).get().values())
        found = list(pullers.shard.call(handles, wanted).get().values())
        for name, whole in weights(0).items():
            parts = [pulled[name] for pulled in found]
            got = numpy.concatenate(parts, wanted % whole.ndim) if whole.ndim else parts[0]
            assert numpy.array_equal(got, whole), name


def test_a_slice_may_be_any_rectangle_of_what_several_have(spawn_procs: Spawn) -> None:
    trainers: Any = spawn_procs({"gpus": 3}, name="trainers").spawn("trainers", Publisher)
    handles = list(trainers.publish.call(0).get().values())
    part = TensorSlice((10, 20), (50, 30), (64, 96))
    for room in (numpy.zeros((50, 30)), torch.zeros(30, 50).double().t()):
        get_state_dict(handles, {"embed": room}, slices={"embed": part}, strict=False).get()
        assert numpy.array_equal(room, weights(0)["embed"][part.index])


def test_replicas_are_as_good_as_one(spawn_procs: Spawn) -> None:
    trainers: Any = spawn_procs({"gpus": 2}, name="trainers").spawn("trainers", Publisher)
    handles = list(trainers.publish.call().get().values())
    reader = StateDictReader(handles)
    assert reader.size == handles[0].size()  # each element once
    assert equal(reader.pull().get(), weights(0))


def test_all_publishers_are_taken_at_one_version(spawn_procs: Spawn) -> None:
    trainers: Any = spawn_procs({"gpus": 2}, name="trainers").spawn("trainers", Publisher)
    handles = list(trainers.publish.call(0).get().values())
    trainers.refresh.call(1).get()
    trainers.slice(gpus=1).refresh.call_one(2).get()
    pulled = get_state_dict(handles).get()
    assert pulled.version == 1
    assert equal(pulled, weights(1))
    with pytest.raises(RDMATimeoutError, match=r"above 1 was .* versions 0, 1; .* versions 1, 2"):
        get_state_dict(handles, newer_than=1, timeout=0.05).get()
    trainers.slice(gpus=0).refresh.call_one(3).get()
    with pytest.raises(StateDictVersionError) as raised:
        get_state_dict(handles, version=2).get()
    assert (raised.value.wanted, raised.value.newest) == (2, 3)


# --- versions -------------------------------------------------------------------------------------


def test_a_version_is_waited_for_had_while_it_is_kept_and_gone_after_that(trainer: Any) -> None:
    handle = trainer.publish.call_one().get()
    newer = get_state_dict(handle, newer_than=0)
    third = get_state_dict(handle, version=3)
    trainer.refresh.call_one(1).get()
    pulled = newer.get()
    assert pulled.version == 1
    assert equal(pulled, weights(1))
    assert get_state_dict(handle, version=0).get().version == 0
    trainer.refresh.call_one(3).get()
    assert equal(third.get(), weights(3))
    for gone in (0, 2):
        with pytest.raises(StateDictVersionError, match=f"version {gone} .* it is at version 3"):
            get_state_dict(handle, version=gone).get()
    with pytest.raises(RDMATimeoutError, match=r"version 9 was not available within 0 s: .* 1, 3"):
        get_state_dict(handle, version=9, timeout=0).get()
    with pytest.raises(ActorError, match="version 3 after version 3: versions have to grow"):
        trainer.refresh.call_one(3).get()


def test_a_version_that_is_replaced_while_it_is_pulled_is_not_handed_out(trainer: Any) -> None:
    handle = trainer.fill.call_one(10 * MIB, 4).get()
    told: list[PullProgress] = []

    def replace(progress: PullProgress) -> None:
        if not told:
            trainer.bump.call_one(2).get()
        told.append(progress)

    pulled = get_state_dict(handle, on_progress=replace).get()
    assert (pulled.version, pulled.torn) == (2, 1)
    assert elements(pulled) == {2}
    assert told[0].version == 0
    assert (told[-1].version, told[-1].fraction, told[-1].torn) == (2, 1.0, 1)


def test_one_publication_does_not_disturb_a_pull(trainer: Any) -> None:
    handle = trainer.fill.call_one(10 * MIB, 4).get()
    pulled = get_state_dict(handle, on_progress=lambda _: trainer.bump.call_one(0).get()).get()
    assert (pulled.version, pulled.torn) == (0, 0)
    once = iter([1])
    pulled = get_state_dict(
        handle, on_progress=lambda _: trainer.bump.call_one(next(once, 0)).get()
    ).get()
    assert (pulled.version, pulled.torn) == (0, 0)
    assert elements(pulled) == {0}


def test_an_exact_version_that_is_replaced_while_it_is_pulled_is_gone(trainer: Any) -> None:
    handle = trainer.fill.call_one(10 * MIB, 4).get()
    with pytest.raises(StateDictVersionError, match=r"version 0 .* is gone"):
        get_state_dict(
            handle, version=0, on_progress=lambda _: trainer.bump.call_one(2).get()
        ).get()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_pull_sees_two_versions_while_training_goes_on(
    spawn_procs: Spawn, trainer: Any, transport: str
) -> None:
    times = int(os.environ.get("MONARCH_TEST_PULLS", "30"))
    pullers: Any = spawn_procs({"gpus": 2}, name="generators").spawn("pullers", Puller)
    pullers.only.call(transport).get()
    handle = trainer.fill.call_one(64 << 10, 6, buffers=3).get()
    trainer.train_on.call_one().get()
    for last, _ in pullers.pull_again.call(handle, times).get().values():
        assert last >= 10
    trainer.train_on.call_one(stop=True).get()


def test_a_model_that_lives_in_what_is_published_is_seen_between_its_steps(trainer: Any) -> None:
    handle = trainer.live_in.call_one().get()
    before = trainer.step_in_place.call_one().get()
    pulled = get_state_dict(handle).get()
    assert pulled.version == 2
    assert equal(pulled, before)
    trainer.begin_step.call_one().get()
    with pytest.raises(
        RDMATimeoutError, match=r"a version was not available .* none that is complete"
    ):
        get_state_dict(handle, timeout=0.05).get()
    waiting = get_state_dict(handle)
    trainer.end_step.call_one().get()
    after = waiting.get()
    assert after.version == 3
    assert equal(after, {name: numpy.asarray(array + 1) for name, array in before.items()})


def test_a_torch_model_may_live_in_what_is_published() -> None:
    model, other = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)
    source = put_state_dict(model.state_dict(), buffers=1)
    with source.update() as views:
        for name, tensor in model.state_dict().items():
            views[name].copy_(tensor)
        model.load_state_dict(views, assign=True)
    model(torch.ones(8)).sum().backward()
    with source.update(), torch.no_grad():
        assert model.weight.grad is not None
        model.weight -= model.weight.grad
    assert get_state_dict(source.handle, other.state_dict()).get().version == 2
    assert torch.equal(other.weight, model.weight)


def test_a_step_that_fails_publishes_nothing(trainer: Any) -> None:
    handle = trainer.live_in.call_one().get()
    with pytest.raises(ActorError, match="not a number"):
        trainer.step_in_place.call_one(fails=True).get()
    with pytest.raises(RDMATimeoutError, match="none that is complete"):
        get_state_dict(handle, timeout=0).get()
    trainer.step_in_place.call_one().get()
    assert get_state_dict(handle).get().version == 2


# --- progress -------------------------------------------------------------------------------------


def test_progress_is_told_to_a_port_from_another_process(spawn_procs: Spawn, trainer: Any) -> None:
    puller: Any = spawn_procs({"gpus": 1}, name="generators").spawn("puller", AsyncPuller)
    handle = trainer.fill.call_one(6 * MIB, 5).get()
    port, receiver = Channel[PullProgress].open()
    puller.pull.call_one(handle, port).get()
    told = [receiver.recv().get()]
    while told[-1].bytes_done < told[-1].size:
        told.append(receiver.recv().get())
    assert [p.bytes_done for p in told] == sorted({p.bytes_done for p in told})
    assert told[-1].size == handle.size()
    assert str(told[-1]).startswith("version 0: 100% of 30.0 MiB in ")


def test_a_pull_is_seen_while_it_is_under_way_and_only_then(trainer: Any) -> None:
    handle = trainer.fill.call_one(10 * MIB, 4).get()
    seen: list[OpenPull] = []
    get_state_dict(handle, on_progress=lambda _: seen.extend(open_pulls())).get()
    assert {one.size for one in seen} == {handle.size()}
    assert 0 < seen[0].bytes_done <= seen[-1].bytes_done == handle.size()
    assert "trainer" in seen[0].source
    assert open_pulls() == []


def test_what_progress_raises_fails_the_pull_and_not_the_next() -> None:
    source = put_state_dict({"a": torch.ones(5)})
    reader = StateDictReader(source.handle)
    with pytest.raises(ZeroDivisionError):
        reader.pull(on_progress=lambda _: 1 // 0).get()
    assert reader.pull().get()["a"].sum() == 5


# --- ends -----------------------------------------------------------------------------------------


def test_a_publisher_that_dies_during_a_pull_is_told(spawn_procs: Spawn, faults: Faults) -> None:
    trainer: Any = spawn_procs({"gpus": 1}, name="trainers").spawn("trainer", Publisher)
    handle = trainer.fill.call_one(10 * MIB, 4).get()
    victim = handle.buffer.handle().owner.pid
    end = os.pidfd_open(victim)

    def kill(progress: PullProgress) -> None:
        os.kill(victim, signal.SIGKILL)
        select.select([end], [], [])

    with pytest.raises(RDMAOwnerLostError, match="of trainer"):
        get_state_dict(handle, on_progress=kill).get()
    os.close(end)
    with pytest.raises(RDMAOwnerLostError):
        get_state_dict(handle).get()
    faults.take()


def test_a_pull_that_waits_ends_with_the_publisher(spawn_procs: Spawn, faults: Faults) -> None:
    trainer: Any = spawn_procs({"gpus": 1}, name="trainers").spawn("trainer", Publisher)
    handle = trainer.publish.call_one().get()
    waiting = get_state_dict(handle, newer_than=5)
    os.kill(handle.buffer.handle().owner.pid, signal.SIGKILL)
    with pytest.raises(RDMAOwnerLostError):
        waiting.get()
    faults.take()


def test_what_was_dropped_or_freed_is_told(trainer: Any) -> None:
    handle = trainer.publish.call_one().get()
    trainer.drop.call_one().get()
    with pytest.raises(RDMAHandleError, match="it was dropped"):
        get_state_dict(handle).get()
    with pytest.raises(ActorError, match="has been dropped"):
        trainer.refresh.call_one(1).get()
    other = trainer.publish.call_one().get()
    assert get_state_dict(other).get().version == 0
    trainer.forget.call_one().get()
    with pytest.raises(RDMAHandleError, match="its memory was freed"):
        get_state_dict(other).get()


def test_publishing_and_pulling_leave_nothing_open(spawn_procs: Spawn, trainer: Any) -> None:
    puller: Any = spawn_procs({"gpus": 1}, name="generators").spawn("puller", Puller)
    puller.version.call_one(trainer.publish.call_one().get()).get()
    there, here = trainer.facts.call_one().get(), puller.facts.call_one().get()
    for n in range(20):
        handle = trainer.publish.call_one(version=n).get()
        for _ in range(3):
            assert puller.version.call_one(handle).get() == n
    assert trainer.facts.call_one().get() == {**there, "registered": there["registered"] + 20}
    assert puller.facts.call_one().get() == here
