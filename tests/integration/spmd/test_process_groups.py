"""`init_process_group` and `device_mesh` of a proc mesh, on real ranks."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from datetime import timedelta
from typing import Any

import pytest

from monarch.actor import HostMesh
from monarch.observe import snapshot
from monarch.spmd import DeviceMeshRef, device_mesh_async, init_process_group_async
from tests.conftest import Faults
from tests.integration.gates import GateKeeper
from tests.integration.spmd.conftest import Trainers, on
from tests.integration.spmd.trainers import TORCH, Trainer


def test_one_line_makes_a_group_of_all_ranks(trainers: Trainers) -> None:
    procs = trainers(dp=2, tp=2)
    actors = on(procs, Trainer)
    procs.init_process_group()
    assert list(actors.add.call(2.0).get(timeout=60).values()) == [8.0] * 4
    assert list(actors.place.call().get().values()) == [(r, 4, "gloo") for r in range(4)]


def test_a_group_in_good_order_is_left_as_it_is(trainers: Trainers) -> None:
    procs = trainers(gpus=2)
    actors = on(procs, Trainer)
    procs.init_process_group()
    actors.add.call(1.0).get(timeout=60)
    made = actors.identity.call().get()
    procs.init_process_group(timeout=timedelta(minutes=30))
    assert list(actors.identity.call().get().values()) == list(made.values())
    procs.init_process_group(timeout=60)
    assert list(actors.identity.call().get().values()) != list(made.values())
    assert list(actors.add.call(1.0).get(timeout=60).values()) == [2.0] * 2


def test_a_slice_has_a_group_of_its_own_ranks(trainers: Trainers) -> None:
    procs = trainers(gpus=3)
    actors = on(procs, Trainer)
    procs.init_process_group()
    procs.slice(gpus=slice(1, 3)).init_process_group()
    assert list(actors.slice(gpus=slice(1, 3)).place.call().get().values()) == [
        (0, 2, "gloo"), (1, 2, "gloo"),
    ]  # fmt: skip
    assert list(actors.slice(gpus=slice(1, 3)).add.call(1.0).get(timeout=60).values()) == [2.0] * 2
    procs.init_process_group()
    assert list(actors.add.call(1.0).get(timeout=60).values()) == [3.0] * 3


def test_a_device_mesh_has_the_dims_of_the_mesh_and_arrives_as_torchs(trainers: Trainers) -> None:
    procs = trainers(dp=2, tp=2)
    actors = on(procs, Trainer)
    device_mesh = procs.device_mesh()
    assert repr(device_mesh) == "<DeviceMesh {dp: 2, tp: 2} of 'trainers' on cpu>"
    assert (device_mesh.mesh_dim_names, device_mesh.shape) == (("dp", "tp"), (2, 2))
    found = actors.coordinates.call(device_mesh).get(timeout=60)
    assert found.item(dp=1, tp=0) == ("DeviceMesh", {"dp": 1, "tp": 0}, 5.0)
    assert found.item(dp=0, tp=1) == ("DeviceMesh", {"dp": 0, "tp": 1}, 1.0)
    made = actors.identity.call().get()
    assert procs.device_mesh() == device_mesh
    assert list(actors.identity.call().get().values()) == list(made.values())


def test_other_dims_come_from_a_view_of_the_mesh(trainers: Trainers) -> None:
    procs = trainers(gpus=4).split(gpus=("dp", "tp"), tp=2)
    device_mesh = procs.device_mesh()
    found = on(procs, Trainer).coordinates.call(device_mesh).get(timeout=60)
    assert found.item(dp=1, tp=1) == ("DeviceMesh", {"dp": 1, "tp": 1}, 5.0)


def test_a_device_mesh_of_other_ranks_stays_a_reference(trainers: Trainers) -> None:
    device_mesh = trainers(gpus=1).device_mesh()
    assert pickle.loads(pickle.dumps(device_mesh)) == device_mesh
    assert isinstance(device_mesh, DeviceMeshRef)


def test_async_code_awaits_both(trainers: Trainers) -> None:
    procs = trainers(gpus=2)

    async def program() -> Any:
        await init_process_group_async(procs)
        device_mesh = await device_mesh_async(procs)
        return (await on(procs, Trainer).coordinates.call(device_mesh)).item(gpus=1)

    assert asyncio.run(program()) == ("DeviceMesh", {"gpus": 1}, 1.0)


def test_ranks_of_two_hosts_are_one_group(two_hosts: HostMesh) -> None:
    with two_hosts.spawn_procs({"gpus": 2}, name="trainers", preload=TORCH) as procs:
        procs.init_process_group()
        assert list(on(procs, Trainer).add.call(1.0).get(timeout=60).values()) == [4.0] * 4
        device_mesh = procs.device_mesh()
        assert device_mesh.mesh_dim_names == ("hosts", "gpus")


def test_a_mesh_that_is_stopped_finishes_the_steps_that_it_has(
    trainers: Trainers, gate: GateKeeper
) -> None:
    procs = trainers(gpus=2)
    procs.init_process_group()
    actors = on(procs, Trainer)
    running, queued = actors.add_behind.call(gate.gate), actors.add.call(2.0)
    gate.wait_entered(2)
    stopped = procs.stop()
    gate.open(2)
    assert list(running.get(timeout=60).values()) == [2.0, 2.0]
    assert list(queued.get(timeout=60).values()) == [4.0, 4.0]
    stopped.get(timeout=60)


# --- refusals -------------------------------------------------------------------------------------


def test_a_backend_that_torch_lacks_is_named_with_those_that_it_has(trainers: Trainers) -> None:
    procs = trainers(gpus=2)
    with pytest.raises(ValueError, match=r"no mpi; it has .*gloo"):
        procs.init_process_group("mpi")
    assert list(on(procs, Trainer).is_initialized.call().get().values()) == [False, False]
    procs.init_process_group("cpu:gloo")
    assert list(on(procs, Trainer).add.call(1.0).get(timeout=60).values()) == [2.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"backend": 3}, TypeError, "backend is text such as 'gloo', not int"),
        ({"timeout": "1m"}, TypeError, "timeout is seconds or a timedelta, not str"),
        ({"timeout": 0}, ValueError, "timeout is a finite time above 0, not 0"),
        ({"timeout": float("nan")}, ValueError, "timeout is a finite time above 0, not nan"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    trainers: Trainers, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        trainers(gpus=1).init_process_group(**arguments)


def test_a_group_of_the_users_own_code_is_not_replaced(trainers: Trainers) -> None:
    from monarch.spmd import setup_torch_elastic_env

    procs = trainers(gpus=2)
    actors = on(procs, Trainer)
    setup_torch_elastic_env(procs)
    actors.make_own_group.call().get(timeout=60)
    with pytest.raises(RuntimeError, match=r"trainers\[gpus=0\] has made a process group"):
        procs.init_process_group()
    with pytest.raises(RuntimeError, match=r"trainers\[gpus=1\] has made a process group"):
        procs.slice(gpus=slice(1, 2)).init_process_group()
    assert list(actors.add.call(1.0).get(timeout=60).values()) == [2.0] * 2


def test_a_group_is_made_again_when_a_rank_of_it_is_restarted(
    trainers: Trainers, faults: Faults
) -> None:
    procs = trainers(gpus=3)
    actors = on(procs, Trainer)
    procs.init_process_group(timeout=60)
    assert list(actors.add.call(1.0).get(timeout=60).values()) == [3.0] * 3
    os.kill(snapshot()[-1].rows[2].pid or 0, signal.SIGKILL)
    faults.take_ranks({2})
    assert procs.slice(gpus=2).restart().get(timeout=60) == ()
    assert list(actors.add.call(1.0).get(timeout=60).values()) == [3.0] * 3


def test_a_group_that_lacks_another_rank_is_named_when_it_is_not_made_again(
    trainers: Trainers, faults: Faults
) -> None:
    procs = trainers(gpus=3)
    procs.init_process_group()
    for rank in (1, 2):
        os.kill(snapshot()[-1].rows[rank].pid or 0, signal.SIGKILL)
    faults.take_ranks({1, 2})
    (line,) = procs.slice(gpus=1).restart().get(timeout=60)
    assert line.startswith("process group of trainers not made again: trainers[gpus=2] (pid ")
    assert procs.slice(gpus=2).restart().get(timeout=60) == ()
    assert list(on(procs, Trainer).add.call(1.0).get(timeout=60).values()) == [3.0] * 3
