"""A mesh belongs to the actor whose context made it: what ends, fails or hangs with whom."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    ActorError,
    MeshStoppedError,
    ProcMesh,
    SupervisionError,
    get_or_spawn_controller,
    this_proc,
)
from monarch.config import configured
from tests.conftest import Faults
from tests.contract.owners import AsyncOwner, Late, Leaf, Owner, Restarting, Slow
from tests.integration.gates import GateKeeper
from tests.integration.programs import watched

Spawn = Callable[..., ProcMesh]
KINDS = [Owner, AsyncOwner]
ILL = "Leaf.fail on below_owner[gpus=1] died of ValueError: the leaf is ill"
DEAD = r"below_owner\[gpus=1\] \(pid \d+\) died while it ran Leaf.die: exited with status 7"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where actors write what they do."""
    return tmp_path / "said"


def end(owner: Any, way: str) -> None:
    """End an owner in that way."""
    match way:
        case "is stopped":
            owner.stop("not needed").get(timeout=60)
        case "stops itself":
            owner.stop_self.call_one().get(timeout=60)
        case "gives up":
            assert owner.abort_self.call_one().exception(timeout=60) is not None
        case _:
            owner.raise_it.broadcast()


# --- meshes that end with their owner -------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("way", "after"),
    [
        ("is stopped", "NoneType"),
        ("stops itself", "NoneType"),
        ("gives up", "SupervisionError"),
        ("dies", "KeyError"),
    ],
)
def test_what_an_actor_owns_ends_before_it_while_its_process_lives(
    spawn_procs: Spawn, faults: Faults, path: Path, kind: type[Any], way: str, after: str
) -> None:
    procs = spawn_procs(name="above")
    owner = procs.spawn("owner", kind, str(path))
    leaves = owner.own.call_one(2, Leaf).get(timeout=60)
    pids = leaves.pid.call().get(timeout=60).values()
    with watched(pids) as processes:
        end(owner, way)
        processes.wait_all_ended()
    if after != "NoneType":
        (failure,) = faults.take().failures
        assert not failure.causes
    procs.stop().get(timeout=60)
    assert path.read_text().splitlines() == [
        "leaf cleaned up", "leaf cleaned up", f"owner cleaned up after {after}",
    ]  # fmt: skip
    assert faults.untaken() == []


@pytest.mark.parametrize("way", ["is stopped", "gives up"])
def test_owners_of_owners_end_from_below(
    spawn_procs: Spawn, faults: Faults, path: Path, way: str
) -> None:
    procs = spawn_procs(name="above")
    top = procs.spawn("top", Owner, str(path), "top")
    top.own.call_one(1, AsyncOwner, "middle").get(timeout=60)
    leaf = top.do.call_one("own", 1, Leaf).get(timeout=60)
    with watched(leaf.pid.call().get(timeout=60).values()) as processes:
        end(top, way)
        processes.wait_all_ended()
    procs.stop().get(timeout=60)
    said = [line.split()[0] for line in path.read_text().splitlines()]
    assert said == ["leaf", "middle", "top"]


def test_stopping_the_procs_of_an_owner_ends_what_it_owns_first(
    spawn_procs: Spawn, path: Path
) -> None:
    procs = spawn_procs(name="above")
    top = procs.spawn("top", Owner, str(path), "top")
    top.own.call_one(1, Owner, "middle").get(timeout=60)
    top.do.call_one("own", 2, Leaf).get(timeout=60)
    procs.stop().get(timeout=60)
    said = [line.split()[0] for line in path.read_text().splitlines()]
    assert said == ["leaf", "leaf", "middle", "top"]


@pytest.mark.parametrize("kind", KINDS)
def test_actors_on_procs_of_somebody_else_end_with_their_owner_and_the_procs_live(
    spawn_procs: Spawn, four: ProcMesh, path: Path, kind: type[Any]
) -> None:
    owner = spawn_procs(name="above").spawn("owner", kind, str(path))
    leaves = owner.own_on.call_one(four).get(timeout=60)
    pids = leaves.pid.call().get(timeout=60).values()
    owner.stop().get(timeout=60)
    said = ["leaf cleaned up"] * 4 + ["owner cleaned up after NoneType"]
    assert path.read_text().splitlines() == said
    with pytest.raises(SupervisionError, match="was stopped: stopped by client"):
        leaves.pid.call().get(timeout=60)
    again = four.spawn("again", Leaf, str(path))
    assert again.pid.call().get(timeout=60).values() == pids
    again.stop().get(timeout=60)


def test_actors_on_procs_of_somebody_else_end_with_the_process_of_their_owner(
    spawn_procs: Spawn, faults: Faults, four: ProcMesh, path: Path
) -> None:
    above = spawn_procs(name="above")
    owner, beside = above.spawn("owner", Owner, str(path)), above.spawn("beside", Leaf, str(path))
    leaves = owner.own_on.call_one(four).get(timeout=60)
    leaves.note.call("here").get(timeout=60)
    assert beside.die.call_one().exception(timeout=60) is not None
    faults.take()
    while leaves.pid.call().exception(timeout=60) is None:
        pass
    with pytest.raises(SupervisionError, match=r"was stopped: the process of its owner, .* ended"):
        leaves.pid.call().get(timeout=60)
    assert four.spawn("again", Leaf, str(path)).pid.call().exception(timeout=60) is None


def test_tasks_and_threads_of_an_actor_make_what_is_the_actors(
    spawn_procs: Spawn, path: Path
) -> None:
    owner = spawn_procs(name="above").spawn("owner", AsyncOwner, str(path))
    leaf = owner.own_in_task_and_thread.call_one().get(timeout=60)
    with watched(leaf.pid.call().get(timeout=60).values()) as processes:
        owner.stop().get(timeout=60)
        processes.wait_all_ended()
    assert path.read_text().splitlines() == ["leaf cleaned up", "owner cleaned up after NoneType"]


def test_what_a_constructor_made_before_it_raised_ends_with_it(
    spawn_procs: Spawn, faults: Faults, path: Path
) -> None:
    made = spawn_procs(name="above").spawn("made", BadOwner, str(path))
    with pytest.raises(SupervisionError, match=r"BadOwner\.__init__ on above raised LookupError"):
        made.fine.call_one().get(timeout=60)
    pid = int(path.read_text().splitlines()[0])
    while Path(f"/proc/{pid}").exists():
        os.sched_yield()
    faults.take_ranks({0})


class BadOwner(Owner):
    """Fails when it has made something."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        from monarch.actor import this_host
        from tests.integration.sample_actors import append

        leaf = this_host().spawn_procs(name="early").spawn("leaf", Leaf, path)
        append(path, str(leaf.pid.call_one().get(timeout=60)))
        raise LookupError("no plan")


def test_a_controller_and_an_actor_in_the_client_end_what_they_own(path: Path) -> None:
    controller = get_or_spawn_controller("keeper", Owner, str(path)).get(timeout=60)
    beside = this_proc().spawn("beside", AsyncOwner, str(path))
    for owner in (controller, beside):
        leaf = owner.own.call_one(1, Leaf).get(timeout=60)
        with watched(leaf.pid.call().get(timeout=60).values()) as processes:
            owner.stop_self.call_one().get(timeout=60)
            processes.wait_all_ended()


def test_what_its_owner_has_stopped_is_not_stopped_again(spawn_procs: Spawn, path: Path) -> None:
    owner = spawn_procs(name="above").spawn("owner", Owner, str(path))
    leaves = owner.own.call_one(2, Leaf).get(timeout=60)
    leaves.pid.call().get(timeout=60)
    owner.stop_below.call_one().get(timeout=60)
    owner.stop().get(timeout=60)
    assert path.read_text().splitlines() == ["leaf cleaned up"] * 2 + [
        "owner cleaned up after NoneType"
    ]


def test_what_does_not_clean_up_in_time_is_killed_and_its_owner_still_cleans_up(
    spawn_procs: Spawn, path: Path
) -> None:
    with configured(cleanup_timeout="2s"):
        procs = spawn_procs(name="above")
        owner = procs.spawn("owner", Owner, str(path))
        leaf = owner.own.call_one(1, Slow).get(timeout=60)
        with watched(leaf.pid.call().get(timeout=60).values()) as processes:
            procs.stop().get(timeout=60)
            processes.wait_all_ended()
    assert path.read_text().splitlines() == [
        "leaf begins to clean up", "owner cleaned up after NoneType",
    ]  # fmt: skip


def test_an_actor_that_ends_can_make_nothing_more(spawn_procs: Spawn, path: Path) -> None:
    spawn_procs(name="above").spawn("late", Late, str(path)).stop("done").get(timeout=60)
    assert path.read_text() == (
        "'late' cannot be made: the actor that asks for it is ending (done), and would leave it "
        "behind\n"
    )


def test_what_no_actor_has_made_belongs_to_its_process(
    spawn_procs: Spawn, faults: Faults, path: Path
) -> None:
    procs = spawn_procs(name="above")
    late = procs.spawn("late", Late, str(path))
    late.let_a_thread_own.call_one().get(timeout=60)
    fault = faults.take()
    assert fault.mesh_name == "above"
    assert fault.report().startswith(ILL)
    assert fault.report().endswith(
        "no actor of that process owns it, so above is reported as failed"
    )
    assert late.fine.call_one().get(timeout=60) == "fine"
    procs.stop().get(timeout=60)
    assert "leaf cleaned up" in path.read_text()


# --- owners and failures --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["fail", "die"])
def test_an_owner_that_waits_for_what_only_its_supervisor_brings_about_gets_it(
    spawn_procs: Spawn, path: Path, gate: GateKeeper, kind: type[Any], how: str
) -> None:
    owner = spawn_procs(name="above").spawn("owner", kind, str(path), "owner", True)
    owner.own.call_one(2, Leaf).get(timeout=60)
    assert owner.hold_while.call_one(gate.gate, how).get(timeout=60) == "let go"
    (said,) = owner.told.call_one().get(timeout=60)
    assert re.search(re.escape(ILL) if how == "fail" else DEAD, said)


@pytest.mark.parametrize("kind", KINDS)
def test_so_does_one_that_reads_a_port_with_a_time_out(
    spawn_procs: Spawn, path: Path, kind: type[Any]
) -> None:
    owner = spawn_procs(name="above").spawn("owner", kind, str(path), "owner", True)
    owner.own.call_one(2, Leaf).get(timeout=60)
    assert owner.receive_while.call_one("die").get(timeout=60) == "from the supervisor"
    assert len(owner.told.call_one().get(timeout=60)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_of_an_owner_that_does_not_handle_a_failure_ends_with_it(
    spawn_procs: Spawn, faults: Faults, path: Path, gate: GateKeeper, kind: type[Any]
) -> None:
    procs = spawn_procs(name="above")
    owner = procs.spawn("owner", kind, str(path), "owner", False)
    owner.own.call_one(2, Leaf).get(timeout=60)
    held = owner.hold_while.call_one(gate.gate, "fail")
    with pytest.raises(SupervisionError, match=re.escape(ILL)):
        held.get(timeout=60)
    assert faults.take().report().startswith(ILL)
    procs.stop().get(timeout=60)
    assert path.read_text().splitlines()[-1] == "owner cleaned up after SupervisionError"


@pytest.mark.parametrize("kind", KINDS)
def test_failures_of_many_ranks_are_judged_in_one_call_to_as_many(
    spawn_procs: Spawn, path: Path, kind: type[Any]
) -> None:
    owner = spawn_procs(name="above").spawn("owner", kind, str(path), "owner", True)
    leaves = owner.own.call_one(4, Leaf).get(timeout=60)
    leaves.die.call().exception(timeout=60)
    told: list[int] = []
    while sum(told) < 4:
        told = [int(said.split(": ")[1]) for said in owner.told.call_one().get(timeout=60)]
    assert sum(told) == 4
    assert 1 <= len(told) <= 4


def test_a_supervisor_may_replace_what_has_failed(spawn_procs: Spawn, path: Path) -> None:
    owner = spawn_procs(name="above").spawn("owner", Restarting, str(path))
    owner.own.call_one(2, Leaf).get(timeout=60)
    for died in range(1, 4):
        error = owner.do.call_one("die", rank=1).exception(timeout=60)
        assert "exited with status 7" in str(error)
        while len(owner.told.call_one().get(timeout=60)) < died:
            pass
        assert isinstance(owner.do.call_one("pid", rank=1).get(timeout=60), int)
    owner.stop().get(timeout=60)


def test_the_first_cause_is_told_first_and_then_every_owner_once(
    spawn_procs: Spawn, faults: Faults, path: Path
) -> None:
    top = spawn_procs(name="above").spawn("top", AsyncOwner, str(path), "top", False)
    top.own.call_one(1, Owner, "owner", KeyError("no plan")).get(timeout=60)
    leaves = top.do.call_one("own", 2, Leaf).get(timeout=60)
    leaves.slice(gpus=1).fail.broadcast()
    fault = faults.take()
    (failure,) = fault.failures
    assert failure.kind == "not handled"
    assert failure.first_cause.message == "the leaf is ill"
    assert failure.causes[0].exception_type == "KeyError"
    lines = [line for line in fault.report().splitlines() if not line.startswith("  ")]
    assert lines == [
        f"{ILL} (no caller waited for its answer)",
        "so Owner.__supervise__ on below_top[gpus=0] died of KeyError: 'no plan'",
        "so AsyncOwner on above, its owner, failed: its __supervise__ returned False",
    ]
    assert faults.untaken() == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_owner_that_dies_of_what_its_call_was_told_tells_the_first_cause(
    spawn_procs: Spawn, faults: Faults, path: Path, kind: type[Any]
) -> None:
    owner = spawn_procs(name="above").spawn("owner", kind, str(path), "owner", True)
    owner.own.call_one(2, Leaf).get(timeout=60)
    owner.do.broadcast("die", rank=1)
    report = faults.take().report()
    assert re.match(DEAD, report)
    assert report.count("exited with status 7") == 1
    assert f"so {kind.__name__}.do on above died of SupervisionError (no caller waited" in report


@pytest.mark.parametrize("kind", KINDS)
def test_a_mesh_of_an_actor_takes_new_actors_when_one_of_it_has_failed(
    spawn_procs: Spawn, path: Path, kind: type[Any]
) -> None:
    owner = spawn_procs(name="above").spawn("owner", kind, str(path), "owner", True)
    leaves = owner.own.call_one(2, Leaf).get(timeout=60)
    owner.do.call_one("fail", rank=1, way="broadcast").get(timeout=60)
    while not owner.told.call_one().get(timeout=60):
        pass
    pids = owner.spawn_more.call_one().get(timeout=60)
    assert len(pids) == 2
    assert owner.do.call_one("pid").get(timeout=60) == pids[0]
    assert leaves.slice(gpus=0).pid.call_one().get() == pids[0]


@pytest.mark.parametrize("kind", KINDS)
def test_an_owner_is_told_that_its_procs_will_not_all_be_up(
    spawn_procs: Spawn, path: Path, kind: type[Any]
) -> None:
    owner = spawn_procs(name="above").spawn("owner", kind, str(path), "owner", True)
    with pytest.raises(ActorError, match=r"never\[gpus=\d\] never started: exited with status 1"):
        owner.own_what_never_starts.call_one().get(timeout=60)


def test_what_fails_while_it_is_stopped_is_no_failure(
    spawn_procs: Spawn, faults: Faults, path: Path, gate: GateKeeper
) -> None:
    owner = spawn_procs(name="above").spawn("owner", Owner, str(path))
    leaves = owner.own.call_one(1, Slow).get(timeout=60)
    pid = leaves.pid.call_one().get(timeout=60)
    stopping = owner.stop_below.call_one()
    while "leaf begins" not in (path.read_text() if path.exists() else ""):
        os.sched_yield()
    os.kill(pid, signal.SIGKILL)
    stopping.get(timeout=60)
    assert owner.fine.call_one().get(timeout=60) == "fine"
    assert faults.untaken() == []


def test_who_owns_actors_on_procs_of_somebody_else_is_told_that_one_of_those_died(
    spawn_procs: Spawn, faults: Faults, path: Path
) -> None:
    lent = spawn_procs({"gpus": 2}, name="lent")
    owner = spawn_procs(name="above").spawn("owner", Owner, str(path), "owner", True)
    leaves = owner.own_on.call_one(lent).get(timeout=60)
    leaves.slice(gpus=1).die.call_one().exception(timeout=60)
    assert faults.take().mesh_name == "lent"
    while not (told := owner.told.call_one().get(timeout=60)):
        pass
    assert re.match(r"below: 1: lent\[gpus=1\] \(pid \d+\) died", told[0])


def test_a_stopped_mesh_of_an_owner_that_has_ended_says_so(spawn_procs: Spawn, path: Path) -> None:
    owner = this_proc().spawn("beside", Owner, str(path))
    owner.own.call_one(1, Leaf).get(timeout=60)
    owner.stop().get(timeout=60)
    with pytest.raises(MeshStoppedError):
        owner.fine.call_one()
