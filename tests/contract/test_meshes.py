"""Meshes: hosts, procs, actors and their references, beyond tests/unit/shape and integration."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    Extent,
    HostMesh,
    ProcMesh,
    ValueMesh,
    endpoint,
    get_or_spawn_controller,
    this_host,
    this_proc,
)
from tests.integration.callers import Spawner
from tests.integration.gates import GateKeeper
from tests.integration.programs import run, watched
from tests.integration.sample_actors import Counter, Echo, Teller

Spawn = Callable[..., ProcMesh]


# --- shapes of all kinds of meshes ----------------------------------------------------------------


def test_what_has_one_place_has_no_dims_and_length_one(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)
    controller: Any = get_or_spawn_controller("counter", Counter).get(timeout=60)
    for mesh in (
        this_host(), this_proc(), controller, four.slice(gpus=1), echo.slice(gpus=1),
        echo.rank.call().get().slice(gpus=1),
    ):  # fmt: skip
        assert (mesh.sizes, len(mesh), mesh.size()) == ({}, 1, 1)
        assert mesh.extent == Extent([], [])


def test_meshes_of_the_same_hosts_are_equal() -> None:
    assert this_host() == this_host()
    assert {this_host(): "known"}[this_host()] == "known"
    assert pickle.loads(pickle.dumps(this_host())) == this_host()
    assert this_host() != this_host().with_python_executable(sys.executable)
    assert this_host() != this_host().flatten("hosts")
    assert this_host() != "this host"


def test_hosts_show_the_output_of_their_procs() -> None:
    assert this_host().stream_logs is True
    assert this_host().flatten("hosts").stream_logs is True


def test_hosts_and_procs_that_are_there_say_true_and_actors_nothing(four: ProcMesh) -> None:
    assert this_host().initialized.get(timeout=60) is True
    assert four.initialized.get(timeout=60) is True
    echo: Any = four.spawn("echo", Echo)
    assert echo.initialized.get(timeout=60) is None
    assert this_host().region.extent == this_host().extent


def test_procs_actors_and_values_have_the_same_operations(grid: ProcMesh) -> None:
    echo: Any = grid.spawn("echo", Echo)
    values: Any = echo.rank.call().get()
    for mesh in (grid, echo, values):
        assert mesh.sizes == {"hosts": 2, "gpus": 3}
        assert mesh.extent == Extent(["hosts", "gpus"], [2, 3])
        assert (len(mesh), mesh.size("gpus"), mesh.size()) == (6, 3, 6)
        assert mesh.slice(hosts=1).sizes == {"gpus": 3}
        assert mesh.slice(gpus=slice(0, 3, 2)).sizes == {"hosts": 2, "gpus": 2}
        assert mesh.flatten("rank").sizes == {"rank": 6}
        assert mesh.rename(hosts="nodes").sizes == {"nodes": 2, "gpus": 3}
        assert mesh.split(gpus=("a", "b"), b=3).sizes == {"hosts": 2, "a": 1, "b": 3}
        assert type(mesh.slice(hosts=0)) is type(mesh)


def test_a_view_of_a_mesh_calls_the_ranks_that_a_view_of_its_values_shows(grid: ProcMesh) -> None:
    teller = grid.spawn("teller", Teller)
    pids = teller.pid.call().get()

    def views(mesh: Any) -> list[Any]:
        return [
            mesh.slice(hosts=1, gpus=slice(0, 2)),
            mesh.flatten("rank").slice(rank=slice(1, 6, 2)),
            mesh.rename(gpus="g").slice(g=2),
            mesh.split(gpus=("a", "b"), a=3).slice(b=0, hosts=0),
        ]

    for actors, values in zip(views(teller), views(pids), strict=True):
        called = actors.pid.call().get()
        assert called.values() == values.values()
        assert called.extent == values.extent


# --- hosts ----------------------------------------------------------------------------------------


def test_procs_know_the_hosts_they_were_spawned_on(four: ProcMesh) -> None:
    assert isinstance(four.host_mesh, HostMesh)
    assert four.slice(gpus=1).host_mesh is four.host_mesh
    more = four.host_mesh.spawn_procs({"gpus": 2})
    assert more.spawn("echo", Echo).rank.call().get().values() == [0, 1]
    more.stop().get(timeout=60)


STOPPED_HOST = """
    import asyncio
    from pathlib import Path
    from monarch.actor import Actor, endpoint, this_host
    import os

    class Pid(Actor):
        @endpoint
        def pid(self):
            return os.getpid()

    def spawn():
        procs = this_host().spawn_procs({"gpus": 2})
        return procs, procs.spawn("pid", Pid).pid.call().get().values()

    def alive(pids):
        return [Path(f"/proc/{pid}").exists() for pid in pids]
"""


def test_a_host_that_is_stopped_ends_its_procs_and_takes_new_ones(tmp_path: Path) -> None:
    program = (
        STOPPED_HOST
        + """
    one, pids = spawn()
    two, more = spawn()
    one.stop("on its way")
    assert this_host().stop().get() is None
    print(alive([*pids, *more]), one.stopped, two.stopped)
    assert this_host().stop().get() is None
    print(spawn()[1] != pids)
    """
    )
    assert run(tmp_path, program) == (0, "[False, False, False, False] True True\nTrue\n", "")


def test_a_host_that_is_shut_down_ends_all_and_the_next_use_starts_anew(tmp_path: Path) -> None:
    program = (
        STOPPED_HOST
        + """
    import psutil
    host = this_host()
    procs, pids = spawn()
    assert host.shutdown().get() is None
    print(alive(pids), procs.stopped, psutil.Process().children(recursive=True))
    assert host.shutdown().get() is None and host.stop().get() is None
    print(len(spawn()[1]))
    """
    )
    assert run(tmp_path, program) == (0, "[False, False] True []\n2\n", "")


def test_hosts_are_ended_from_a_loop_too_and_nobody_is_warned(tmp_path: Path) -> None:
    program = (
        STOPPED_HOST
        + """
    async def main():
        async with this_host() as host:
            procs = host.spawn_procs({"gpus": 2})
            pids = (await procs.spawn("pid", Pid).pid.call()).values()
        print(alive(pids), procs.stopped)
        await host.spawn_procs().initialized
        await host.stop()
        await host.spawn_procs().initialized
        await host.shutdown()

    asyncio.run(main())
    """
    )
    assert run(tmp_path, program, command=[sys.executable, "-W", "error"]) == (
        0, "[False, False] True\n", "",
    )  # fmt: skip


# --- meshes as arguments --------------------------------------------------------------------------


class Holding(Actor):
    """Keeps a mesh that it was given when it was made."""

    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh

    @endpoint
    def ranks(self) -> list[int]:
        return self.mesh.rank.call().get().values()

    @endpoint
    def spawn_on(self, procs: ProcMesh) -> tuple[list[int], str]:
        echo = procs.spawn("echo of mine", Echo)
        ranks = echo.rank.call().get().values()
        echo.stop().get()
        try:
            procs.stop()
        except ValueError as error:
            return ranks, str(error)
        return ranks, "stopped it"

    @endpoint
    def dims(self, host: HostMesh) -> tuple[dict[str, int], int]:
        procs = host.spawn_procs({"gpus": 2})
        found = procs.spawn("teller", Teller).pid.call().get().values()
        procs.stop().get()
        return host.sizes, len(set(found) - {os.getpid()})


def test_a_mesh_can_be_given_to_a_constructor_before_its_processes_exist(
    four: ProcMesh, spawn_procs: Spawn
) -> None:
    pending = spawn_procs({"gpus": 3}).spawn("echo", Echo)
    holding = four.spawn("holding", Holding, pending.slice(gpus=slice(1, 3)))
    assert holding.ranks.call().get(timeout=60).values() == [[0, 1]] * 4


def test_who_is_given_procs_may_spawn_on_them_but_not_stop_them(
    four: ProcMesh, spawn_procs: Spawn
) -> None:
    holding = four.slice(gpus=0).spawn("holding", Holding, None)
    procs = spawn_procs({"gpus": 2})
    ranks, said = holding.spawn_on.call_one(procs).get(timeout=60)
    assert ranks == [0, 1]
    assert "only its owner may stop it" in said
    ranks, _ = holding.spawn_on.call_one(procs.slice(gpus=1)).get(timeout=60)
    assert ranks == [0]
    assert procs.spawn("echo", Echo).rank.call().get().values() == [0, 1]


def test_a_host_can_be_given_to_an_actor_which_spawns_there(four: ProcMesh) -> None:
    holding = four.slice(gpus=0).spawn("holding", Holding, None)
    assert holding.dims.call_one(this_host()).get(timeout=60) == ({}, 2)


def test_values_of_a_call_can_be_sent_and_pickled_as_a_part(four: ProcMesh) -> None:
    values: ValueMesh[int] = four.spawn("echo", Echo).rank.call().get()
    part = pickle.loads(pickle.dumps(values.slice(gpus=slice(2, 4))))
    assert [(dict(point), value) for point, value in part.items()] == [
        ({"gpus": 0}, 2), ({"gpus": 1}, 3),
    ]  # fmt: skip


# --- ends -----------------------------------------------------------------------------------------


def test_a_reason_may_be_left_out_and_is_told(spawn_procs: Spawn) -> None:
    for stop, said in (
        (lambda mesh: mesh.stop(), "stopped by client"),
        (lambda mesh: mesh.stop(None), "stopped by client"),
        (lambda mesh: mesh.stop("enough"), "enough"),
        (lambda mesh: mesh.stop(reason="enough"), "enough"),
    ):
        procs = spawn_procs()
        echo: Any = procs.spawn("echo", Echo)
        stop(echo).get(timeout=60)
        with pytest.raises(RuntimeError, match=f"has been stopped: {said}"):
            echo.rank.call()
        stop(procs).get(timeout=60)
        with pytest.raises(RuntimeError, match=f"has been stopped: {said}"):
            procs.spawn("echo", Echo)


def test_a_stopped_mesh_of_actors_has_no_initialized_any_more(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)
    assert echo.initialized.get(timeout=60) is None
    echo.stop().get(timeout=60)
    with pytest.raises(RuntimeError, match="has been stopped"):
        echo.initialized  # noqa: B018


def test_stop_waits_for_what_an_endpoint_still_does(spawn_procs: Spawn, gate: GateKeeper) -> None:
    procs = spawn_procs({"gpus": 2})
    echo = procs.spawn("echo", Echo)
    held = echo.pass_gate.call(gate.gate, "done")
    gate.wait_entered(2)
    stopping = procs.stop()
    assert not stopping.done
    gate.open(2)
    stopping.get(timeout=60)
    assert held.get().values() == ["done", "done"]


def test_the_procs_of_an_actor_end_when_its_process_ends(spawn_procs: Spawn) -> None:
    procs = spawn_procs()
    pids = procs.spawn("spawner", Spawner).spawn.call_one(2).get(timeout=60)
    children = procs.spawn("other", Spawner).spawn.call_one(1).get(timeout=60)
    with watched([*pids, *children]) as ends:
        procs.stop().get(timeout=60)
        ends.wait_all_ended()
