"""What dies, when, and how: every cell ends with the stated error, and with nothing left.

The cells, and what has to come of each, stand in `matrix.py`. No cell is timed: each ends by the
product's own bounds, or fails at the far end of the patience that tests have.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from monarch._src.actor.deliver import routes
from monarch.actor import (
    ActorError,
    Future,
    ProcMesh,
    SupervisionError,
    shutdown_context,
    this_host,
)
from monarch.config import configured
from monarch.observe import MeshSnapshot, snapshot
from monarch.testing import MessageLostError, faults
from tests.conftest import Faults
from tests.fault import matrix
from tests.fault.matrix import (
    CELLS,
    FROM_OUTSIDE,
    LEFT_OUT,
    RANKS,
    VICTIM,
    WHEN,
    Cell,
    Doom,
    Doomed,
    DoomedInCleanup,
    DoomedInConstructor,
    Outcome,
    Owner,
    outcome,
)
from tests.fault.test_host_deaths import agent
from tests.integration.failing_actors import HoldsInConstructor
from tests.integration.gates import GateKeeper
from tests.integration.programs import running, watched

pytestmark = pytest.mark.slow

Spawn = Callable[..., ProcMesh]
PATIENCE_S = 60.0
SHORT = "200ms"  # for what will never clean up in time, because it stands still


def of(what: str) -> Any:
    """One test a cell of that sort."""
    cells = [cell for cell in CELLS if cell.what == what]
    return pytest.mark.parametrize("cell", cells, ids=str)


def test_there_are_enough_cells_and_each_rule_leaves_some_out() -> None:
    assert len(CELLS) >= 100
    assert len({str(cell) for cell in CELLS}) == len(CELLS)
    for why, left_out in LEFT_OUT:
        assert any(left_out(cell) for cell in matrix.ALL), why
    assert {cell.when for cell in CELLS} == set(WHEN)


# --- where the victim is brought ------------------------------------------------------------------


class Scene:
    """A mesh whose victim stands at the gate, at the moment that a cell is about."""

    def __init__(self, cell: Cell, gate: GateKeeper, patch: pytest.MonkeyPatch) -> None:
        self.cell = cell
        self.gate = gate
        self.doom = Doom(gate.gate, cell.how)
        if cell.when in ("cast", "broadcast"):  # as in a mesh of 32 ranks and more
            patch.setattr(routes, "CAST_FROM", 2)
        self.answer: Future[Any] | None = None
        self.stopping: Future[None] | None = None
        self.actor: Any = None
        self.mesh: Any = None

    def set(self, kind: type[Doomed] = Doomed) -> None:
        """Bring the victim there."""
        when, doom = self.cell.when, self.doom
        first = partial(matrix.bootstrap, doom) if when == "spawning" else None
        self.mesh = this_host().spawn_procs({"gpus": RANKS}, bootstrap=first, name="doomed")
        if when == "constructing":
            self.actor = self.mesh.spawn("actor", DoomedInConstructor, doom)
        elif issubclass(kind, DoomedInCleanup) or when == "stopping":
            cls = kind if issubclass(kind, DoomedInCleanup) else DoomedInCleanup
            self.actor = self.mesh.spawn("actor", cls, doom)
        else:
            self.actor = self.mesh.spawn("actor", Doomed)
        if when not in ("constructing", "spawning"):
            assert self.actor.rank.call().get(timeout=PATIENCE_S).values() == [0, 1, 2]

    def bring(self) -> None:
        """Begin what is interrupted, and wait until the victim is at the gate."""
        match self.cell.when:
            case "constructing" | "spawning":
                self.answer = self.actor.rank.call()
            case "idle":
                self.actor.begin_thread.call(self.doom).get(timeout=PATIENCE_S)
            case "call" | "cast":
                self.answer = self.actor.meet.call(self.doom)
            case "broadcast":
                self.actor.meet.broadcast(self.doom)
            case _:
                self.stopping = self.mesh.stop()
        self.gate.wait_entered()

    def seen(self) -> MeshSnapshot:
        """The mesh as its host agent sees it, also while it is being stopped."""
        return next(found for found in snapshot() if found.uid == self.mesh.uid)

    def end(self) -> None:
        """Nothing of the mesh is left."""
        stopping: Any = self.stopping
        if stopping is None:
            stopping = self.mesh.stop()
        assert stopping.get(timeout=PATIENCE_S) is None


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, gate: GateKeeper, monkeypatch: pytest.MonkeyPatch,
    recorded_faults: Faults,
) -> Iterator[Scene]:  # fmt: skip
    """The scene of the cell of this test."""
    recorded_faults.expected = True
    cell: Cell = request.getfixturevalue("cell")
    # A victim that stands still never cleans up: it is killed after this.
    lasts = cell.how in ("SIGSTOP", "gil", *FROM_OUTSIDE) or cell.what in ("agent", "link")
    with configured(
        fault_injection=cell.what == "link", **({"cleanup_timeout": SHORT} if lasts else {})
    ):
        found = Scene(cell, gate, monkeypatch)
        yield found
        if found.mesh is not None:
            found.mesh.stop("the test has ended")  # again; or it has failed before


def pids_of(scene: Scene) -> list[int]:
    """Its processes, by rank, once all have been forked."""
    while True:
        pids = [row.pid for row in scene.seen().rows if row.pid is not None]
        if len(pids) == RANKS:
            return pids


# --- procs and actors -----------------------------------------------------------------------------


@of("proc")
def test_a_proc_ends(cell: Cell, scene: Scene, recorded_faults: Faults) -> None:
    strike(cell, scene, recorded_faults)


@of("actor")
def test_an_actor_ends(cell: Cell, scene: Scene, recorded_faults: Faults) -> None:
    strike(cell, scene, recorded_faults)


def strike(cell: Cell, scene: Scene, told: Faults) -> None:
    """Let it happen, and see that all that follows is as stated."""
    scene.set()
    pids = pids_of(scene)
    with watched(pids) as processes:
        scene.bring()
        if cell.how in FROM_OUTSIDE:
            os.kill(pids[VICTIM], getattr(signal, cell.how))
        else:
            scene.gate.open()
        if cell.how == "gil":
            scene.gate.wait_entered()
        expected = outcome(cell)
        if cell.when != "stopping":
            if cell.how in ("SIGSTOP", "gil"):
                check_only_busy(scene)
                if cell.how == "SIGSTOP":
                    os.kill(pids[VICTIM], signal.SIGCONT)
                scene.gate.open()
            check_answer(scene, expected, pids[VICTIM])
            if expected.fault:
                check_failure(told.take().failures[0], expected, pids[VICTIM])
            check_later_calls(scene, expected)
        scene.end()
        processes.wait_all_ended()


def check_only_busy(scene: Scene) -> None:
    """One that stands still is busy, and others work."""
    assert "failed" not in {row.state for row in scene.seen().rows}
    if scene.cell.when in ("idle", "call", "cast", "broadcast"):
        others = scene.actor.slice(gpus=slice(0, VICTIM))
        assert others.rank.call().get(timeout=PATIENCE_S).values() == [0]
    if scene.answer is not None:
        assert not scene.answer.done


def check_answer(scene: Scene, expected: Outcome, pid: int) -> None:
    """What the call gets during which it happened; without one, the next call."""
    if not expected.error:
        if scene.answer is not None:
            assert scene.answer.get(timeout=PATIENCE_S).values() == [0, 1, 2]
        return
    answer = scene.answer
    if answer is None:
        # Nobody waited: calls go on until the end is known here.
        for _ in range(100_000):
            answer = scene.actor.rank.call()
            if answer.exception(timeout=PATIENCE_S) is not None:
                break
    assert answer is not None
    error = answer.exception(timeout=PATIENCE_S)
    assert isinstance(error, ActorError if expected.error == "ActorError" else SupervisionError)
    check_failure(error.failures[0], expected, pid)


def check_failure(failure: Any, expected: Outcome, pid: int) -> None:
    """That it tells of the victim, in the words that are stated."""
    assert (failure.kind, failure.rank, failure.point) == (expected.kind, VICTIM, {"gpus": VICTIM})
    assert failure.pid == pid
    if expected.kind == "proc died":
        assert failure.message == expected.says
        if expected.endpoint:
            assert failure.death.endpoint.rpartition(".")[2] == expected.endpoint
    else:
        assert failure.exception_type == expected.says


def check_later_calls(scene: Scene, expected: Outcome) -> None:
    """Others work on; the victim answers, or says why it never will."""
    for rank in range(RANKS):
        answer = scene.actor.slice(gpus=rank).rank.call_one()
        if rank != VICTIM or expected.lives:
            assert answer.get(timeout=PATIENCE_S) == rank
        else:
            error = answer.exception(timeout=PATIENCE_S)
            assert isinstance(error, SupervisionError)
            assert error.failures[0].kind == expected.kind


# --- the host agent -------------------------------------------------------------------------------


@of("agent")
def test_a_host_agent_ends(cell: Cell, scene: Scene, recorded_faults: Faults) -> None:
    scene.set()
    pids = pids_of(scene)
    process = agent()  # has forked all that it forks
    with watched([process.pid, *pids]) as processes:
        scene.bring()
        os.kill(process.pid, getattr(signal, cell.how))
        if cell.how == "SIGSTOP":
            check_nothing_is_wrong_with_the_procs(scene)
            os.kill(process.pid, signal.SIGCONT)
            scene.gate.open()
            if scene.answer is not None:
                assert scene.answer.get(timeout=PATIENCE_S).values() == [0, 1, 2]
        else:
            if scene.answer is not None:
                check_host_lost(scene.answer.exception(timeout=PATIENCE_S))
            if cell.when != "stopping":
                assert recorded_faults.take().failures[0].kind in ("host lost", "proc died")
                check_host_lost(scene.actor.rank.call().exception(timeout=PATIENCE_S))
            processes.wait_all_ended()
        scene.end()
    if cell.how != "SIGSTOP":
        again = this_host().spawn_procs({"gpus": 2})
        again.initialized.get(timeout=PATIENCE_S)
        again.stop().get(timeout=PATIENCE_S)


def check_nothing_is_wrong_with_the_procs(scene: Scene) -> None:
    """They answer directly while their host agent stands still."""
    if scene.cell.when in ("call", "idle"):
        assert scene.actor.slice(gpus=0).rank.call_one().get(timeout=PATIENCE_S) == 0
    if scene.answer is not None:
        assert not scene.answer.done


def check_host_lost(error: BaseException | None) -> None:
    """Procs end with their agent; whichever is noticed first is told."""
    assert isinstance(error, SupervisionError), error
    assert {failure.kind for failure in error.failures} <= {"host lost", "proc died", "stopped"}


# --- the client -----------------------------------------------------------------------------------

CLIENT = """
    import sys
    from functools import partial
    import psutil
    from monarch._src.actor.deliver import routes
    from monarch.actor import this_host
    from monarch.config import configure
    from monarch.observe import snapshot
    from tests.fault import matrix
    from tests.integration.gates import Gate

    when, how = sys.argv[1], sys.argv[2]
    doom = matrix.Doom(Gate(sys.argv[3], sys.argv[4]), "nothing")
    configure(cleanup_timeout="200ms")
    if when in ("cast", "broadcast"):
        routes.CAST_FROM = 2
    first = partial(matrix.bootstrap, doom) if when == "spawning" else None
    procs = this_host().spawn_procs({"gpus": matrix.RANKS}, bootstrap=first)
    if when == "constructing":
        actor = procs.spawn("actor", matrix.DoomedInConstructor, doom)
    elif when == "stopping":
        actor = procs.spawn("actor", matrix.DoomedInCleanup, doom)
    else:
        actor = procs.spawn("actor", matrix.Doomed)
    if when not in ("constructing", "spawning"):
        actor.rank.call().get()
    while not all(row.pid for row in snapshot()[0].rows):
        pass
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    match when:
        case "constructing" | "spawning":
            answer = actor.rank.call()
        case "idle":
            actor.begin_thread.call(doom).get()
        case "call" | "cast":
            answer = actor.meet.call(doom)
        case "broadcast":
            actor.meet.broadcast(doom)
        case _:
            stopping = procs.stop()
    sys.stdin.readline()
    matrix.Doom(doom.gate, how).happen()
"""
STATUS = {"exit-3": 3}


@of("client")
def test_a_client_ends(
    cell: Cell, gate: GateKeeper, tmp_path: Path, own_base_directory: Path
) -> None:
    shutdown_context()  # what the tests before left open is not what is looked at
    arguments = (cell.when, cell.how, gate.gate.entered, gate.gate.leave)
    with running(tmp_path, CLIENT, *arguments) as program:
        pids = [int(pid) for pid in program.line().split()]
        with watched(pids) as processes:
            gate.wait_entered()
            if cell.how in FROM_OUTSIDE:
                program.signal(getattr(signal, cell.how))
            else:
                program.say("go on")
            number = getattr(signal, cell.how, 0)
            assert program.end()[0] == STATUS.get(cell.how, -number)
            processes.wait_all_ended()
    assert list(own_base_directory.glob("monarch-*")) == []


# --- an owner -------------------------------------------------------------------------------------


@of("owner")
def test_what_an_owner_owned_ends_with_it(
    cell: Cell, scene: Scene, recorded_faults: Faults
) -> None:
    scene.set(Owner)
    owned = scene.actor.slice(gpus=VICTIM).own.call_one().get(timeout=PATIENCE_S)
    pids = pids_of(scene)
    with watched(owned) as processes:
        scene.bring()
        if cell.how in FROM_OUTSIDE:
            os.kill(pids[VICTIM], getattr(signal, cell.how))
        else:
            scene.gate.open()
        processes.wait_all_ended()
        if cell.when != "stopping":
            check_failure(recorded_faults.take().failures[0], outcome(cell), pids[VICTIM])
        others = scene.actor.slice(gpus=0)
        if cell.when != "stopping":
            assert others.rank.call_one().get(timeout=PATIENCE_S) == 0
        scene.end()


# --- links ----------------------------------------------------------------------------------------


def fault_on_the_link(cell: Cell, mesh: ProcMesh) -> AbstractContextManager[None]:
    """Between the victim and everybody else."""
    match cell.how:
        case "partition":
            return faults.partition(mesh)
        case "slow":
            return faults.slow(mesh, 0.02)
        case _:
            return faults.drop(mesh)


@of("link")
def test_a_link_fails(cell: Cell, scene: Scene) -> None:
    scene.set()
    victim = scene.mesh.slice(gpus=VICTIM)
    scene.bring()
    if cell.when == "stopping":
        # What stops is not told any more; a rank that is cut off is killed in the end.
        scene.end()
        return
    later: Future[Any] | None = None
    with fault_on_the_link(cell, victim):
        scene.gate.open()
        assert scene.actor.slice(gpus=0).rank.call_one().get(timeout=PATIENCE_S) == 0
        if cell.when in ("call", "cast", "broadcast", "idle"):
            later = scene.actor.rank.call()
        if cell.how == "slow":
            check_all_answered(scene, later)
        else:
            for answer in (scene.answer if cell.how == "partition" else None, later):
                if answer is not None:
                    with pytest.raises(TimeoutError):
                        answer.get(timeout=0.01)
        if cell.how == "drop":
            # What ends a fault takes no detour by way of the agent, as a cast does: one that comes
            # behind the call, and is never lost, says that the call has come.
            scene.mesh.spawn("behind it", HoldsInConstructor, scene.gate.gate, [VICTIM])
            scene.gate.wait_entered()
            scene.gate.open()
    if cell.how == "drop" and later is not None:
        assert isinstance(later.exception(timeout=PATIENCE_S), MessageLostError)
        later = None
    check_all_answered(scene, later)
    check_later_calls(scene, outcome(Cell("proc", cell.when, "SIGSTOP")))
    scene.end()


def check_all_answered(scene: Scene, later: Future[Any] | None) -> None:
    """Nothing was lost."""
    for answer in (scene.answer, later):
        if answer is not None:
            assert answer.get(timeout=PATIENCE_S).values() == [0, 1, 2]
