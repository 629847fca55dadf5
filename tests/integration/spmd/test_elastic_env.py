"""The elastic environment on real ranks: code for torchrun makes its groups, and sums."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.actor import ActorError, HostMesh, ProcMesh
from monarch.spmd import SPMDActor, setup_torch_elastic_env, setup_torch_elastic_env_async
from tests.integration.spmd.conftest import Trainers, on
from tests.integration.spmd.trainers import TORCH, Trainer


def test_code_for_torchrun_makes_its_group_again_and_again(trainers: Trainers) -> None:
    procs = trainers(hosts=2, gpus=2)
    actors = on(procs, Trainer)
    for _ in range(2):
        setup_torch_elastic_env(procs)
        assert list(actors.init.call().get(timeout=60).values()) == [6.0] * 4
    found = actors.variables.call(["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"]).get()
    assert found.item(hosts=1, gpus=0) == {
        "RANK": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4",
    }  # fmt: skip


def test_ranks_of_a_slice_are_numbered_in_it(trainers: Trainers) -> None:
    procs = trainers(gpus=4).slice(gpus=slice(1, 4))
    setup_torch_elastic_env(procs)
    assert list(on(procs, Trainer).init.call().get(timeout=60).values()) == [3.0] * 3


def test_async_code_awaits_it(trainers: Trainers) -> None:
    procs = trainers(gpus=2)

    async def program() -> list[float]:
        await setup_torch_elastic_env_async(procs)
        return list((await on(procs, Trainer).init.call()).values())

    assert asyncio.run(program()) == [1.0, 1.0]


def test_a_port_of_the_callers_choice_is_bound_at_once(trainers: Trainers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    procs = trainers(gpus=2)
    setup_torch_elastic_env(procs, "127.0.0.1", port)
    with pytest.raises(OSError, match="in use"), socket.create_server(("127.0.0.1", port)):
        pass
    actors = on(procs, Trainer)
    assert list(actors.init.call().get(timeout=60).values()) == [1.0, 1.0]
    found = actors.variables.call(["MASTER_PORT"]).get().item(gpus=1)
    assert found == {"MASTER_PORT": str(port)}


def test_a_port_that_is_taken_is_one_error_with_the_remedy(trainers: Trainers) -> None:
    procs = trainers(gpus=2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match=rf"port {port} of .*; leave the port out"):
            setup_torch_elastic_env(procs, master_port=port)
    setup_torch_elastic_env(procs)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"use_ipaddr": "IPv5"}, "use_ipaddr is None, 'IPv4' or 'IPv6', not 'IPv5'"),
        ({"master_port": 70000}, "master_port is a port from 0 to 65535, not 70000"),
        ({"master_addr": "h1"}, "master_addr without master_port"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    trainers: Trainers, arguments: dict[str, object], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        setup_torch_elastic_env(trainers(gpus=2), **arguments)  # pyright: ignore[reportArgumentType]


def test_ranks_of_two_hosts_find_each_other(two_hosts: HostMesh) -> None:
    with two_hosts.spawn_procs({"gpus": 2}, name="trainers", preload=TORCH) as procs:
        setup_torch_elastic_env(procs)
        actors = on(procs, Trainer)
        assert list(actors.init.call().get(timeout=60).values()) == [6.0] * 4
        found = actors.variables.call(["GROUP_RANK", "MASTER_ADDR"]).get()
        assert [one["GROUP_RANK"] for one in found.values()] == ["0", "0", "1", "1"]
        assert len({one["MASTER_ADDR"] for one in found.values()}) == 1


# --- SPMDActor, as programs for Monarch use it ----------------------------------------------------

SCRIPT = """
import os, sys
import torch, torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.tensor([float(dist.get_rank())])
dist.all_reduce(tensor)
with open(f"{sys.argv[1]}/{os.environ['RANK']}", "w") as file:
    file.write(f"{tensor.item()} {__name__}")
dist.destroy_process_group()
"""


def test_a_script_runs_on_every_rank(trainers: Trainers, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    procs = trainers(hosts=1, gpus=2)
    actors = procs.spawn("spmd", SPMDActor)
    first = dict.fromkeys(procs._labels, 0)  # as Monarch's own programs write it
    host, port = actors.slice(**first).get_host_port.call_one(None).get()
    done = actors.main.call(host, port, [str(script), str(tmp_path)]).get(timeout=60)
    assert list(done.values()) == [True, True]
    assert [(tmp_path / rank).read_text() for rank in ("0", "1")] == ["1.0 __main__"] * 2


def test_nothing_to_run_is_monarchs_error(trainers: Trainers) -> None:
    actors = trainers(gpus=1).spawn("spmd", SPMDActor)
    with pytest.raises(ActorError, match="No script or module specified"):
        actors.main.call("127.0.0.1", 1, []).get()
    actors.setup_env.call("trainer-0", 4711).get()


# --- without torch --------------------------------------------------------------------------------


@pytest.fixture
def without_torch(tmp_path: Path) -> str:
    """A folder in which a `torch` stands that is not installed."""
    (tmp_path / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
    )
    return str(tmp_path)


def test_ranks_without_torch_are_one_error_that_names_the_extra(
    spawn_procs: Callable[..., ProcMesh], without_torch: str
) -> None:
    path = os.pathsep.join([without_torch, *filter(None, sys.path)])
    procs = spawn_procs({"gpus": 2}, name="trainers", env={"PYTHONPATH": path})
    for attempt in (setup_torch_elastic_env, ProcMesh.init_process_group, ProcMesh.device_mesh):
        with pytest.raises(ModuleNotFoundError) as raised:
            attempt(procs)
        assert str(raised.value).startswith("trainers[gpus=0]: torch is not installed on ")
        assert str(raised.value).endswith(
            "install it where the ranks run, with `pip install 'monarch-jupyter[torch]'`"
        )
