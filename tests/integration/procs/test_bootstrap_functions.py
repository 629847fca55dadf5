"""Bootstrap functions: run on each proc before any actor, and told where they fail."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    ActorError,
    BootstrapError,
    ProcMesh,
    SupervisionError,
    context,
    current_rank,
    current_size,
    this_host,
    this_proc,
)
from monarch.observe import meshes, snapshot
from tests.conftest import Faults
from tests.integration import environments as shared
from tests.integration.environments import KEY, Spawn, environments
from tests.integration.gates import GateKeeper
from tests.integration.sample_actors import Counter, Echo, Teller, Tidy, append


def fails_on_one() -> None:
    """A bootstrap function that raises on the second rank."""
    if current_rank().rank == 1:
        raise LookupError("no licence")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


# --- bootstrap ------------------------------------------------------------------------------------


def test_a_bootstrap_function_runs_once_on_each_proc_before_any_actor(
    spawn_procs: Spawn, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    def set_up() -> None:
        append(str(log), f"bootstrap {current_rank()['gpus']}")

    procs = spawn_procs({"gpus": 2}, set_up)
    first = procs.spawn("first", Tidy, str(log))
    second = procs.spawn("second", Tidy, str(log))
    for actors in (second, first):
        for rank in range(2):
            actors.slice(gpus=rank).note.call_one(f"actor {rank}").get(timeout=60)
    for rank in range(2):
        said = [line.split()[0] for line in lines(log) if line.endswith(f" {rank}")]
        assert said == ["bootstrap", "actor", "actor"]


def test_actors_wait_for_a_bootstrap_function_that_takes_its_time(
    spawn_procs: Spawn, tmp_path: Path, gate: GateKeeper
) -> None:
    log, door = tmp_path / "log", gate.gate

    def set_up() -> None:
        door.pass_through()
        append(str(log), "bootstrap")

    procs = spawn_procs(None, set_up)
    notes = [
        procs.spawn(f"actor{number}", Tidy, str(log)).note.call_one("actor") for number in range(3)
    ]
    gate.wait_entered()
    assert not log.exists()
    assert not any(note.done for note in notes)
    gate.open()
    for note in notes:
        note.get(timeout=60)
    assert lines(log) == ["bootstrap", *["actor"] * 3]


def test_what_a_bootstrap_function_sets_up_is_there_for_actors(spawn_procs: Spawn) -> None:
    def set_up() -> None:
        os.environ[KEY] = f"{dict(current_rank())} of {dict(current_size())}"

    found = environments(spawn_procs({"hosts": 2, "gpus": 1}, bootstrap=set_up))
    assert [env[KEY] for env in found] == [
        f"{ {'hosts': host, 'gpus': 0} } of { {'hosts': 2, 'gpus': 1} }" for host in range(2)
    ]


def test_a_bootstrap_function_may_be_async(spawn_procs: Spawn) -> None:
    async def set_up() -> None:
        await asyncio.sleep(0)
        os.environ[KEY] = str(context().actor_instance.rank["gpus"])

    found = environments(spawn_procs({"gpus": 2}, bootstrap=set_up))
    assert [env[KEY] for env in found] == ["0", "1"]


def test_a_bootstrap_function_runs_on_the_main_thread(spawn_procs: Spawn) -> None:
    def set_up() -> None:
        assert threading.current_thread() is threading.main_thread()

    assert spawn_procs({"gpus": 2}, bootstrap=set_up).initialized.get(timeout=60) is True


def test_a_bootstrap_function_may_call_actors_elsewhere(spawn_procs: Spawn, four: ProcMesh) -> None:
    counter = four.slice(gpus=0).spawn("counter", Counter)

    def set_up() -> None:
        counter.add.call_one().get()

    spawn_procs({"gpus": 3}, bootstrap=set_up).initialized.get(timeout=60)
    assert counter.value_now.call_one().get() == 3
    counter.stop().get(timeout=60)


def test_initialized_waits_for_the_bootstrap_function(spawn_procs: Spawn, gate: GateKeeper) -> None:
    door = gate.gate
    procs = spawn_procs({"gpus": 2}, bootstrap=door.pass_through)
    initialized = procs.initialized
    gate.wait_entered(2)
    gate.open(1)
    assert not initialized.done
    gate.open(1)
    assert initialized.get(timeout=60) is True


def test_an_actor_can_wait_for_a_mesh_of_its_own_to_be_bootstrapped(four: ProcMesh) -> None:
    def spawn_and_wait() -> str:
        def set_up() -> None:
            os.environ[KEY] = "set"

        procs = this_host().spawn_procs({"gpus": 2}, set_up)
        procs.initialized.get(timeout=60)
        found = procs.spawn("teller", Teller).process_world.call().get(timeout=60).values()
        procs.stop().get(timeout=60)
        return ",".join(world["env"][KEY] for world in found)

    echo = four.slice(gpus=0).spawn("echo", Echo)
    assert echo.apply.call_one(spawn_and_wait).get(timeout=60) == "set,set"
    echo.stop().get(timeout=60)


def test_a_rank_shows_that_it_runs_its_bootstrap_function(
    spawn_procs: Spawn, gate: GateKeeper
) -> None:
    door = gate.gate
    procs = spawn_procs({"gpus": 1}, bootstrap=door.pass_through)
    gate.wait_entered()
    (seen,) = [mesh for mesh in snapshot() if mesh.uid == procs.uid]
    row = seen.rows[0]
    assert (row.state, row.actor, row.endpoint, row.messages) == ("busy", None, "bootstrap", 0)
    gate.open()
    procs.initialized.get(timeout=60)


def test_a_mesh_that_is_stopped_meanwhile_still_does_what_it_was_sent(
    spawn_procs: Spawn, tmp_path: Path, gate: GateKeeper
) -> None:
    log, door = tmp_path / "log", gate.gate
    procs = spawn_procs({"gpus": 1}, bootstrap=door.pass_through)
    note = procs.spawn("tidy", Tidy, str(log)).note.call("noted")
    gate.wait_entered()
    stopped = procs.stop()
    gate.open()
    note.get(timeout=60)
    stopped.get(timeout=60)
    assert lines(log) == ["noted", "cleaned up 0 after None"]


# --- a bootstrap function that fails --------------------------------------------------------------


def test_one_that_raises_is_told_by_the_first_call_with_its_traceback(spawn_procs: Spawn) -> None:
    def set_up() -> None:
        if current_rank().rank == 1:
            raise LookupError("no licence")  # told

    procs = spawn_procs({"gpus": 2}, bootstrap=set_up, name="workers")
    teller = procs.spawn("teller", Teller)
    with pytest.raises(SupervisionError) as caught:
        teller.pid.call().get(timeout=60)
    (failure,) = caught.value.failures
    assert failure.what == "bootstrap on workers[gpus=1] raised LookupError: no licence"
    assert (failure.kind, failure.exception_type, failure.rank) == ("constructor", "LookupError", 1)
    assert [(f.name, f.line) for f in failure.frames if f.user] == [
        ("set_up", 'raise LookupError("no licence")  # told')
    ]
    assert failure.pid is not None
    assert str(caught.value).endswith('raise LookupError("no licence")  # told')


def test_the_other_ranks_work(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 3}, bootstrap=fails_on_one)
    teller = procs.spawn("teller", Teller)
    for rank in (0, 2):
        assert teller.slice(gpus=rank).pid.call_one().get(timeout=60) > 0
    with pytest.raises(SupervisionError, match="no licence"):
        teller.slice(gpus=1).pid.call_one().get(timeout=60)


def test_actors_spawned_later_are_refused_but_not_on_the_ranks_that_work(
    spawn_procs: Spawn,
) -> None:
    procs = spawn_procs({"gpus": 2}, bootstrap=fails_on_one, name="workers")
    with pytest.raises(SupervisionError, match=r"bootstrap on workers\[gpus=1\] raised"):
        procs.initialized.get(timeout=60)
    with pytest.raises(SupervisionError, match=r"bootstrap on workers\[gpus=1\] raised"):
        procs.spawn("teller", Teller)
    with pytest.raises(SupervisionError, match="no licence"):
        procs.slice(gpus=1).spawn("teller", Teller)
    assert procs.slice(gpus=0).spawn("teller", Teller).pid.call_one().get(timeout=60) > 0


def test_whoever_else_spawns_there_is_told_too(
    spawn_procs: Spawn, four: ProcMesh, faults: Faults
) -> None:
    procs = spawn_procs({"gpus": 2}, bootstrap=fails_on_one, name="workers")

    def use(mesh: ProcMesh) -> str:
        try:
            mesh.spawn("teller", Teller).pid.call().get(timeout=60)
        except SupervisionError as error:
            return error.failures[0].what
        return "it worked"

    echo = four.slice(gpus=0).spawn("echo", Echo)
    said = echo.apply.call_one(use, procs).get(timeout=60)
    assert said == "bootstrap on workers[gpus=1] raised LookupError: no licence"
    # It owns what it spawned, and has no __supervise__ that would handle the failure.
    assert "no licence" in str(faults.take())
    echo.stop().get(timeout=60)


def test_an_async_one_that_raises_is_told_alike(spawn_procs: Spawn) -> None:
    async def set_up() -> None:
        await asyncio.sleep(0)
        raise LookupError("no licence")

    procs = spawn_procs({"gpus": 2}, bootstrap=set_up)
    with pytest.raises(SupervisionError) as caught:
        procs.spawn("teller", Teller).pid.call().get(timeout=60)
    failure = caught.value.failures[0]
    assert failure.exception_type == "LookupError"
    assert [f.name for f in failure.frames if f.user] == ["set_up"]


def test_one_that_ends_the_program_ends_only_itself(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 2}, bootstrap=lambda: sys.exit("enough"))
    with pytest.raises(SupervisionError, match="raised SystemExit: enough"):
        procs.initialized.get(timeout=60)


def test_a_process_that_dies_in_it_says_so(spawn_procs: Spawn, faults: object) -> None:
    procs = spawn_procs({"gpus": 1}, bootstrap=lambda: os._exit(7), name="workers")
    with pytest.raises(SupervisionError, match=r"died while it ran bootstrap: exited .*status 7"):
        procs.spawn("teller", Teller).pid.call().get(timeout=60)


def test_one_may_spawn_on_its_own_proc_and_wait_for_that(spawn_procs: Spawn) -> None:
    def set_up() -> None:
        counter = this_proc().spawn("helper", Counter)
        assert counter.add.call_one(2).get() == 2
        shared.__dict__["helper"] = counter

    def use() -> int:
        return vars(shared)["helper"].add.call_one(1).get()

    procs = spawn_procs({"gpus": 2}, bootstrap=set_up)
    echo = procs.spawn("echo", Echo)
    assert echo.apply.call(use).get(timeout=60).values() == [3, 3]


def test_who_waits_for_a_rank_whose_bootstrap_function_raised_gets_an_actor_error(
    spawn_procs: Spawn,
) -> None:
    procs = spawn_procs({"gpus": 2}, bootstrap=fails_on_one)
    teller = procs.spawn("teller", Teller)
    for answer in (procs.initialized, teller.pid.call(), teller.slice(gpus=1).pid.call_one()):
        with pytest.raises(ActorError, match="no licence") as caught:
            answer.get(timeout=60)
        assert isinstance(caught.value, BootstrapError)
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (type(copy), str(copy)) == (BootstrapError, str(caught.value))


def test_what_cannot_be_a_bootstrap_function_is_refused_before_anything_starts() -> None:
    before = meshes()
    lock = threading.Lock()

    def holds_a_lock() -> None:
        lock.acquire()

    async def later() -> None:
        pass

    begun = later()
    wrong: list[tuple[Any, str]] = [
        (holds_a_lock, "bootstrap function .*holds_a_lock cannot be sent to another process"),
        ("set_up", "bootstrap='set_up': give a function, not what it returns"),
        (begun, "give a function, not what it returns"),
        (lambda rank: None, "is called without arguments: missing .*'rank'"),
    ]
    for bootstrap, said in wrong:
        with pytest.raises(TypeError, match=said):
            this_host().spawn_procs({"gpus": 1}, bootstrap=bootstrap)
    begun.close()
    assert meshes() == before
