"""Objects that stay on the ranks, and process groups for functions of the program."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import monarch
from monarch.actor import Actor, ProcMesh, context, endpoint
from monarch.tensors import OpaqueObject, OpaqueRef, RemoteException, opaque_method

pytestmark = pytest.mark.slow


class Counter:
    """An object with state."""

    living = 0

    def __init__(self, start: int) -> None:
        self.count = start
        Counter.living += 1

    def __del__(self) -> None:
        Counter.living -= 1

    def add(self, x: Any) -> Any:
        self.count += 1
        return x + self.count

    def fail(self) -> None:
        raise LookupError("the counter is lost")


class Counted(OpaqueObject):
    """The same for the client."""

    @opaque_method
    def add(self, x: Any) -> Any:
        return x

    @opaque_method
    def fail(self) -> None: ...


@monarch.remote(propagate=lambda *_: OpaqueRef())
def made(start: Any) -> OpaqueRef:
    return OpaqueRef(Counter(int(start)))


@monarch.remote(propagate=lambda ref, x: x)
def added(ref: OpaqueRef, x: Any) -> Any:
    return ref.value.add(x)


@monarch.remote
def living() -> int:
    return Counter.living


def _writer_in(folder: OpaqueRef) -> OpaqueRef:
    from torch.utils.tensorboard import SummaryWriter

    return OpaqueRef(SummaryWriter(folder.value))


def _write(writer: OpaqueRef, loss: Any, step: int) -> None:
    writer.value.add_scalar("loss", loss, step)
    writer.value.flush()


def shards(mesh: ProcMesh, tensor: Any) -> list[Any]:
    return [
        monarch.fetch_shard(tensor, dict(point)).get().tolist() for point in mesh.extent.points()
    ]


def test_an_object_stays_on_its_rank_and_keeps_its_state(pair: ProcMesh) -> None:
    with pair.activate():
        ref = made(10 * pair.rank_tensor("gpus"))
        first = added(ref, torch.zeros(2))
        second = added(ref, torch.zeros(2))
    assert shards(pair, first) == [[1, 1], [11, 11]]
    assert shards(pair, second) == [[2, 2], [12, 12]]
    assert repr(ref) == "<monarch.OpaqueRef on pair>"


def test_the_ranks_free_an_object_without_references(pair: ProcMesh) -> None:
    with pair.activate():
        before = living.call().get().values()
        ref: Any = made(0)
        assert living.call().get().values() == [one + 1 for one in before]
        del ref
        gc.collect()
        monarch.inspect(torch.zeros(1))
        assert living.call().get().values() == before


def test_a_result_may_have_objects_among_its_tensors(pair: ProcMesh) -> None:
    def both(x: Any) -> Any:
        return {"sum": x.sum(), "model": OpaqueRef(torch.nn.Linear(2, 2)), "none": None}

    def shape(model: OpaqueRef) -> Any:
        return tuple(model.value.weight.shape)

    with pair.activate():
        found = [
            monarch.remote(both)(torch.ones(3)),
            monarch.remote(both, propagate="inspect")(torch.ones(3)),
        ]
        for one in found:
            assert monarch.inspect(one["sum"]).item() == 3
            assert monarch.remote(shape).call(one["model"]).get().values() == [(2, 2)] * 2


def test_a_function_may_hand_an_object_back(pair: ProcMesh) -> None:
    with pair.activate():
        ref = made(1)
        again = monarch.remote(lambda one: one)(ref)
        added(again, torch.zeros(1))
        assert monarch.inspect(added(ref, torch.zeros(1))).tolist() == [3]


def test_an_object_that_could_not_be_made_fails_what_uses_it(pair: ProcMesh) -> None:
    with pair.activate():
        ref = made("no number")
        result, other = added(ref, torch.zeros(1)), torch.ones(1) + 1
    with pytest.raises(RemoteException, match="invalid literal for int"):
        monarch.inspect(result)
    assert monarch.inspect(other).tolist() == [2]


def f(ref: OpaqueRef) -> Any:
    return added(ref, torch.zeros(1))


def refusals() -> dict[str, Callable[[OpaqueRef], object]]:
    return {
        "is on the ranks; use .value in a remote function": lambda ref: ref.value,
        "an OpaqueRef has no values to fetch": lambda ref: monarch.fetch_shard({"a": ref}),
        "cannot be pickled: its object is on the ranks": pickle.dumps,
        "f is a compiled function, and a call with an OpaqueRef cannot be": monarch.compile(f),
    }


@pytest.mark.parametrize("text", refusals())
def test_what_cannot_be_done_with_a_reference(pair: ProcMesh, text: str) -> None:
    with pair.activate():
        ref = made(0)
        with pytest.raises((RuntimeError, TypeError), match=text):
            refusals()[text](ref)
        assert monarch.inspect(added(ref, torch.zeros(1))).tolist() == [1]


def test_an_object_does_not_leave_its_rank(pair: ProcMesh) -> None:
    with pair.activate(), pytest.raises(Exception, match="an OpaqueRef stays on its rank"):
        made.call(0).get()


class Keeper(Actor):
    """Beside the tensors."""

    @endpoint
    def count(self, ref: OpaqueRef) -> int:
        ref.value.count += context().actor_instance.rank.rank
        return ref.value.count


def test_cells_on_the_ranks_get_an_object_that_is_pushed(pair: ProcMesh) -> None:
    with pair.activate():
        ref = made(8)
        pair.push(counter=ref)
        found = pair.map(lambda _: __import__("__main__").counter.value.count, range(2))
    assert list(found) == [8, 8]


def test_an_actor_on_the_same_ranks_gets_the_object_itself(pair: ProcMesh) -> None:
    keeper = pair.spawn("keeper", Keeper)
    with pair.activate():
        ref = made(5)
        assert keeper.count.call(ref).get().values() == [5, 6]
        assert shards(pair, added(ref, torch.zeros(1))) == [[6], [7]]


def test_methods_of_an_object_are_called_on_the_ranks(pair: ProcMesh) -> None:
    with pair.activate():
        counted = Counted(Counter, 3)
        assert monarch.inspect(counted.add(torch.zeros(2))).tolist() == [4, 4]
        counted.fail()
        assert monarch.inspect(counted.add(torch.zeros(3))).tolist() == [5, 5, 5]
        one = counted.call_method("add", lambda x: x, torch.zeros(1))
        assert monarch.inspect(one).tolist() == [6]
        found = counted.call_method_on_shard_and_fetch("add", torch.zeros(1), shard={"gpus": 1})
        assert found.get().tolist() == [7]
        linear = OpaqueObject("torch.nn.Linear", 4, 2)
        result = linear.call_method("forward", lambda x: x[:, :2], torch.zeros(3, 4))
        assert tuple(monarch.inspect(result).shape) == (3, 2)


def test_a_writer_of_tensorboard_is_an_object_on_each_rank(pair: ProcMesh, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with pair.activate():
        folders = monarch.remote(lambda rank: OpaqueRef(f"{tmp_path}/{int(rank)}"))
        make = monarch.remote(_writer_in, propagate=lambda _: OpaqueRef())
        writer = make(folders.with_propagate(lambda _: OpaqueRef())(pair.rank_tensor("gpus")))
        loss = pair.rank_tensor("gpus") + 0.5
        for step in range(2):
            monarch.remote(_write, propagate=lambda *_: None)(writer, loss, step)
        for rank in range(2):  # each writes on its own
            monarch.inspect(loss, gpus=rank)
    for rank in range(2):
        read = accumulator.EventAccumulator(str(tmp_path / str(rank)))
        read.Reload()
        assert [(one.step, one.value) for one in read.Scalars("loss")] == [
            (step, rank + 0.5) for step in range(2)
        ]


def test_names_are_those_of_monarch() -> None:
    space: dict[str, Any] = {}
    exec(
        "from monarch import OpaqueRef, RemoteProcessGroup\n"
        "from monarch.common.opaque_ref import OpaqueRef as Ref\n"
        "from monarch.opaque_object import OpaqueObject, opaque_method",
        space,
    )
    assert space["Ref"] is space["OpaqueRef"] is OpaqueRef
    assert space["OpaqueObject"] is OpaqueObject


# --- process groups -------------------------------------------------------------------------------


@monarch.remote(propagate=lambda x, group: x)
def summed(x: Any, group: Any) -> Any:
    found = x.clone()
    dist.all_reduce(found, group=group)
    return found * 10 + group.rank()


def test_functions_on_ranks_call_torch_distributed_along_dims(square: ProcMesh) -> None:
    with square.activate():
        x = (2 * square.rank_tensor("dp") + square.rank_tensor("tp")).reshape(1)
        along = square.process_group("tp")
        assert along.size() == 2
        assert repr(along) == "<monarch.RemoteProcessGroup of square along tp>"
        assert shards(square, summed(x, along)) == [[10], [11], [50], [51]]
        whole = square.process_group()
        assert (whole.dims, whole.size()) == (("dp", "tp"), 4)
        assert shards(square, summed(x, whole)) == [[60], [61], [62], [63]]


def test_a_group_of_one_rank_and_one_of_a_slice(square: ProcMesh) -> None:
    part = square.slice(dp=1)
    with part.activate():
        assert shards(part, summed(torch.ones(1), part.process_group(["tp"]))) == [[20], [21]]
    one = square.slice(dp=0, tp=1)
    with one.activate():
        assert shards(one, summed(torch.ones(1), one.process_group())) == [[10]]


def test_ddp_trains_in_a_remote_function(pair: ProcMesh) -> None:
    def trained(group: Any, seed: Any) -> Any:
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Linear(2, 1), process_group=group
        )
        torch.manual_seed(int(seed))
        model(torch.randn(4, 2)).sum().backward()
        return model.module.weight.grad

    with pair.activate():
        group = pair.process_group("gpus")
        function = monarch.remote(trained, propagate=lambda group, seed: torch.empty(1, 2))
        first, second = shards(pair, function(group, pair.rank_tensor("gpus")))
    assert first == second
    assert first != [[0.0, 0.0]]


def test_a_rank_that_does_not_come_ends_the_collective_of_the_others(pair: ProcMesh) -> None:
    def late(x: Any, group: Any) -> Any:
        if group.rank() == 0:
            raise LookupError("not today")
        dist.all_reduce(x, group=group)
        return x

    with pair.activate():
        group = pair.process_group("gpus", timeout="1s")
        result = monarch.remote(late, propagate=lambda x, _: x)(torch.ones(1), group)
        with pytest.raises(RemoteException, match="not today"):
            monarch.fetch_shard(result, gpus=0).get()
        with pytest.raises(RemoteException, match=r"(?i)timed out|timeout"):
            monarch.fetch_shard(result, gpus=1).get()
        fresh = pair.process_group("gpus")
        assert shards(pair, summed(torch.ones(1), fresh)) == [[20], [21]]


@pytest.mark.parametrize(
    ("dims", "options", "error", "text"),
    [
        ("dp", {}, KeyError, "process_group: pair has no dim 'dp'; it has gpus"),
        (["gpus", "gpus"], {}, ValueError, "a dim is named twice"),
        ("gpus", {"timeout": "soon"}, TypeError, "timeout"),
    ],
)
def test_groups_that_cannot_be_made(
    pair: ProcMesh, dims: Any, options: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        pair.process_group(dims, **options)


def test_a_group_of_another_mesh_is_refused(square: ProcMesh) -> None:
    group = square.slice(dp=1).process_group("tp")
    with square.activate(), pytest.raises(ValueError, match="two meshes"):
        summed(torch.ones(1), group)
