"""Programs of tensors on a mesh without processes, and actors that compute on one in tests."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import monarch
from monarch.actor import Actor, MeshStoppedError, ProcMesh, context, endpoint
from monarch.simulator import Machine, Simulator, set_meta
from monarch.testing import patch_tensor_engine

EIGHT_BYTES_A_SECOND = Machine(
    flops_per_s=1e3, memory_bytes_per_s=8.0, link_bytes_per_s=4.0, least_s=0.0
)


def names(simulator: Simulator) -> list[str]:
    return [task.operation.partition(".")[0] for task in simulator.tasks]


def test_shapes_are_those_of_torch_and_values_are_not_computed() -> None:
    with Simulator(hosts=2, gpus=4).mesh.activate() as mesh:
        x: Any = torch.ones(3, 5, requires_grad=True)
        y = (x @ torch.randn(5, 7, dtype=torch.float32)).relu()
        y.sum().backward()
        rank = mesh.rank_tensor("gpu")
        every = y.detach().reduce("gpu", reduction="stack")
        part = rank.reshape(1).expand(4).reduce("gpu", scatter=True)
    assert (y.shape, x.grad.shape, every.shape, part.shape) == ((3, 7), (3, 5), (4, 3, 7), ())
    assert torch.isnan(monarch.inspect(y)).all()
    assert monarch.fetch_shard(rank, host=1, gpu=3).get() == torch.tensor(0)
    assert type(y) is monarch.Tensor
    assert y.mesh.sizes == {"host": 2, "gpu": 4}


def test_errors_of_shapes_are_raised_at_their_lines() -> None:
    with Simulator(hosts=1, gpus=2).mesh.activate() as mesh:
        x: Any = torch.ones(2, 3)
        with pytest.raises(RuntimeError, match="must have same reduction dim"):
            x @ x
        with pytest.raises(KeyError, match="no dim 'gpus'"):
            x.reduce("gpus")
        with pytest.raises(RuntimeError, match="depends on values"):
            x.nonzero()
        with pytest.raises(ValueError, match="gpu=2: simulated has gpu=0 to 1"):
            monarch.inspect(x, gpu=2)
        other = Simulator(hosts=1, gpus=2).mesh
        with other.activate():
            z = torch.ones(2, 3)
        with pytest.raises(ValueError, match="two meshes"):
            x + z
        assert (x + x).mesh.sizes == mesh.sizes


def test_time_and_memory_are_those_of_shapes_and_of_the_machine() -> None:
    simulator = Simulator(hosts=1, gpus=4, machine=EIGHT_BYTES_A_SECOND)
    with simulator.mesh.activate():
        x: Any = torch.zeros(2, 2)  # 16 bytes are written: 2 s
        y = x + x  # 32 bytes are read and 16 written: 6 s
        z = y.view(4)  # shares the memory of y
        del y
        total = z.reduce("gpu")  # 24 bytes are sent: 6 s
        del z
        product = total.view(2, 2) @ x  # 48 bytes, and 16 operations: 6 s
        assert names(simulator) == ["zeros", "add", "reduce sum", "mm"]
        report = simulator.report()
    assert [task.begin_s for task in simulator.tasks] == [0.0, 2.0, 8.0, 14.0]
    assert (report.time_s, report.flops, report.sent_bytes) == (20.0, 16, 24.0)
    assert (report.peak_bytes, report.live_bytes) == (48, 48)
    assert product.shape == (2, 2)
    assert str(report).startswith("4 simulated ranks: 20.000 s at least, 0.000 GFLOP a rank")


def test_slices_run_side_by_side_and_wait_for_what_they_are_sent() -> None:
    simulator = Simulator.with_dims({"stage": 2}, machine=EIGHT_BYTES_A_SECOND)
    first, second = (simulator.mesh.slice(stage=stage) for stage in range(2))
    with first.activate():
        x: Any = torch.zeros(4)  # 16 bytes: until 2 s
        x += 1.0  # 32 bytes: until 8 s
    with second.activate():
        own = torch.zeros(8)  # 32 bytes: until 4 s
    sent = x.to_mesh(second)
    assert sent.shape == (4,)
    made, added, other, move = simulator.tasks
    assert names(simulator) == ["zeros", "add_", "zeros", "to_mesh"]
    assert (made.begin_s, made.duration_s, other.begin_s, other.duration_s) == (0.0, 2.0, 0.0, 4.0)
    assert move.begin_s == added.begin_s + added.duration_s > 4.0
    assert [simulator.driver.rank.memory.live[rank] for rank in range(2)] == [16, 48]
    assert own.shape == (8,)


def test_streams_run_side_by_side() -> None:
    simulator = Simulator(hosts=1, gpus=2, machine=EIGHT_BYTES_A_SECOND)
    side = monarch.Stream("side")
    with simulator.mesh.activate():
        x = torch.zeros(2)
        borrowed, borrow = side.borrow(x)
        with side.activate():
            total = borrowed.reduce("gpu")
        y = x * 2
        borrow.drop()
    made, reduced, doubled = simulator.tasks
    assert (reduced.stream, doubled.stream) == ("side", "main")
    assert reduced.begin_s == doubled.begin_s == made.duration_s
    assert total.shape == y.shape


def test_a_training_step_is_counted_as_by_hand() -> None:
    simulator = Simulator(hosts=1, gpus=8)
    with simulator.mesh.activate():
        net = nn.Linear(64, 32, bias=False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loss = net(torch.randn(16, 64)).sum()
        loss.backward()
        weight: Any = net.weight
        weight.grad = weight.grad.reduce("gpu", reduction="avg")
        optimizer.step()
    report = simulator.report()
    assert report.flops == 2 * (2 * 16 * 64 * 32)  # forward, and the gradient of the weight
    assert report.sent_bytes == 2 * 7 / 8 * 4 * 64 * 32
    assert report.operations["reduce avg"].count == 1


def test_a_compiled_region_counts_each_time() -> None:
    simulator = Simulator(hosts=1, gpus=2)

    @monarch.compile
    def twice(x: Any) -> Any:
        return (x + 1) * 2

    with simulator.mesh.activate():
        x = torch.zeros(3)
        for _ in range(4):
            assert twice(x).shape == (3,)
    assert names(simulator).count("mul") == 4


def test_remote_functions_need_a_propagate_and_do_not_run(tmp_path: Path) -> None:
    def write(x: Any) -> Any:
        (tmp_path / "ran").touch()
        return x.sum(0)

    with Simulator(hosts=1, gpus=2).mesh.activate():
        x = torch.ones(3, 4)
        assert monarch.remote(write, propagate=lambda x: x[0])(x).shape == (4,)
        with pytest.raises(monarch.RemoteException, match="does not run functions of the program"):
            monarch.remote(write, propagate="inspect")(x)
        with pytest.raises(RuntimeError, match="does not run functions of the program"):
            monarch.remote(write).call(x)
    assert not (tmp_path / "ran").exists()


def test_a_trace_is_written_at_the_end_and_the_mesh_has_ended_then(tmp_path: Path) -> None:
    simulator = Simulator(hosts=1, gpus=2, trace_path=tmp_path / "trace.json")
    with simulator.mesh.activate():
        with set_meta("step 1"), set_meta("forward"):
            x = torch.ones(2)
        y = x + x
    simulator.mesh.exit()
    simulator.mesh.exit()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tasks = {event["name"]: event for event in events if event["ph"] == "X"}
    assert tasks["ones.default"]["args"]["meta"] == ["step 1", "forward"]
    assert tasks["add.Tensor"]["args"]["meta"] == []
    with pytest.raises(MeshStoppedError, match="the simulation has ended"):
        simulator.mesh.activate()
    with pytest.raises(MeshStoppedError, match="the simulation has ended"):
        y + y


@pytest.mark.parametrize("hosts", [0, -1, 1.5, "2"])
def test_a_mesh_has_whole_sizes_above_zero(hosts: Any) -> None:
    with pytest.raises(ValueError, match="a simulated mesh with host="):
        Simulator(hosts=hosts, gpus=1)


# --- patch_tensor_engine --------------------------------------------------------------------------


class Trainer(Actor):
    """Computes on the procs that it gets."""

    @endpoint
    def train(self, procs: ProcMesh) -> tuple[bool, list[str], int]:
        with procs.activate() as mesh:
            x: Any = torch.ones(3)
            total = x.reduce("gpus") * mesh.rank_tensor("gpus")
        return math.isnan(monarch.inspect(total)[0]), list(mesh.sizes), mesh.size()

    @endpoint
    def train_on_own(self) -> int:
        with context().actor_instance.proc.activate() as mesh:
            return int(monarch.inspect(torch.ones(2).sum()).item()) + mesh.size()


class Manager(Actor):
    """Spawns the trainer, on its own proc."""

    @endpoint
    def train(self, procs: ProcMesh) -> tuple[bool, list[str], int]:
        trainer: Any = context().actor_instance.proc.spawn("trainer", Trainer)
        return trainer.train.call_one(procs).get()


@pytest.mark.slow
def test_actors_of_a_class_compute_without_values(spawn_procs: Callable[..., ProcMesh]) -> None:
    procs = spawn_procs({"gpus": 2}, name="workers", preload=("torch",))
    one = spawn_procs({"gpus": 1}, name="one", preload=("torch",))
    with patch_tensor_engine(Trainer):
        manager: Any = one.spawn("manager", Manager)
        assert manager.train.call_one(procs).get(timeout=60) == (True, ["gpus"], 2)
    with procs.activate():
        x: Any = torch.ones(1)
        assert monarch.inspect(x.reduce("gpus")).tolist() == [2.0]


@pytest.mark.slow
def test_a_factory_of_the_test_makes_the_mesh(spawn_procs: Callable[..., ProcMesh]) -> None:
    one = spawn_procs({"gpus": 1}, name="one", preload=("torch",))

    @patch_tensor_engine(Trainer, lambda procs: Simulator.with_dims({"gpus": 64}).mesh)
    def run() -> tuple[bool, list[str], int]:
        trainer: Any = one.spawn("trainer", Trainer)
        return trainer.train.call_one(one).get(timeout=60)

    assert run() == (True, ["gpus"], 64)


def test_only_actor_classes_can_be_patched() -> None:
    wrong: Any = dict
    with pytest.raises(TypeError, match="takes an actor class, not"):
        patch_tensor_engine(wrong)
    with pytest.raises(TypeError, match="cannot be called"):
        patch_tensor_engine(Trainer, wrong())
