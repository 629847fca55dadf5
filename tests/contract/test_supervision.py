"""Supervision as far as it concerns calls: who hears of a failure, and what can still be called."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    MeshFailure,
    ProcMesh,
    SupervisionError,
    current_rank,
    endpoint,
    this_host,
)
from tests.conftest import Faults
from tests.integration.gates import Gate, GateKeeper, write_byte
from tests.integration.sample_actors import Echo, Recorder, Tidy, append

Spawn = Callable[..., ProcMesh]


class Child(Actor):
    """Fails as it is told."""

    @endpoint
    def fail(self) -> None:
        raise ValueError("the child is ill")

    @endpoint
    def die(self) -> None:
        os._exit(7)

    @endpoint
    def fine(self) -> str:
        return "fine"


class Parent(Actor):
    """Owns children, and says `handled` when one of them fails."""

    def __init__(self, path: str, handled: Any, told: str = "") -> None:
        self.path = path
        self.handled = handled
        self.told = told

    @endpoint
    def spawn(self) -> Any:
        self.procs = this_host().spawn_procs({"gpus": 2}, name="children")
        self.children = self.procs.spawn("child", Child)
        return self.children

    @endpoint
    def provoke(self, how: str) -> None:
        getattr(self.children.slice(gpus=1), how).broadcast()

    @endpoint
    def provoke_and_wait(self, how: str) -> str:
        try:
            getattr(self.children.slice(gpus=1), how).call_one().get()
        except SupervisionError as error:
            return str(error)
        return "no error"

    @endpoint
    def fine(self) -> str:
        return "parent is fine"

    def __supervise__(self, failure: MeshFailure) -> Any:
        append(self.path, f"{failure.mesh_name}: {failure.report().splitlines()[0]}")
        if self.told:
            write_byte(self.told)
        if isinstance(self.handled, BaseException):
            raise self.handled
        return self.handled


class AsyncParent(Actor):
    """The same on an event loop."""

    def __init__(self, path: str, handled: Any, told: str = "") -> None:
        self.path = path
        self.handled = handled
        self.told = told

    @endpoint
    async def spawn(self) -> Any:
        self.procs = this_host().spawn_procs({"gpus": 2}, name="children")
        self.children = self.procs.spawn("child", Child)
        return self.children

    @endpoint
    async def provoke(self, how: str) -> None:
        getattr(self.children.slice(gpus=1), how).broadcast()

    @endpoint
    async def provoke_and_wait(self, how: str) -> str:
        try:
            await getattr(self.children.slice(gpus=1), how).call_one()
        except SupervisionError as error:
            return str(error)
        return "no error"

    @endpoint
    async def fine(self) -> str:
        return "parent is fine"

    async def __supervise__(self, failure: MeshFailure) -> Any:
        await asyncio.sleep(0)
        append(self.path, f"{failure.mesh_name}: {failure.report().splitlines()[0]}")
        if self.told:
            write_byte(self.told)
        if isinstance(self.handled, BaseException):
            raise self.handled
        return self.handled


class Careless(Actor):
    """Owns children and says nothing about failures."""

    @endpoint
    def spawn(self) -> Any:
        self.procs = this_host().spawn_procs({"gpus": 2}, name="children")
        self.children = self.procs.spawn("child", Child)
        return self.children

    @endpoint
    def provoke(self, how: str) -> None:
        getattr(self.children.slice(gpus=1), how).broadcast()


FAILS = "died of ValueError: the child is ill"
DIES = "died while it ran Child.die: exited with status 7"


@pytest.mark.parametrize("kind", [Parent, AsyncParent])
@pytest.mark.parametrize(("how", "said"), [("fail", FAILS), ("die", DIES)])
def test_an_owner_that_handles_a_failure_lives_and_calls_what_is_left(
    spawn_procs: Spawn, tmp_path: Path, gate: GateKeeper, kind: type[Any], how: str, said: str
) -> None:
    path = tmp_path / "said"
    parent = spawn_procs().spawn("parent", kind, str(path), True, gate.gate.entered)
    children = parent.spawn.call_one().get(timeout=60)
    assert children.fine.call().get(timeout=60).values() == ["fine", "fine"]
    parent.provoke.call_one(how).get()
    gate.wait_entered()
    # This process learns of the death before its call or after it.
    later = said.replace("died while", "died (earlier, )?while")
    with pytest.raises(SupervisionError, match=r"children\[gpus=1\].*" + later):
        children.slice(gpus=1).fine.call_one().get(timeout=60)
    assert parent.fine.call_one().get(timeout=60) == "parent is fine"
    (line,) = path.read_text().splitlines()
    assert line.startswith("child" if how == "fail" else "children")
    assert said in line
    assert children.slice(gpus=0).fine.call_one().get(timeout=60) == "fine"


@pytest.mark.parametrize("kind", [Parent, AsyncParent])
def test_an_owner_may_wait_for_the_call_that_fails_and_be_asked_about_the_failure(
    spawn_procs: Spawn, tmp_path: Path, gate: GateKeeper, kind: type[Any]
) -> None:
    path = tmp_path / "said"
    parent = spawn_procs().spawn("parent", kind, str(path), "truthy", gate.gate.entered)
    parent.spawn.call_one().get(timeout=60)
    assert DIES in parent.provoke_and_wait.call_one("die").get(timeout=60)
    gate.wait_entered()
    assert parent.fine.call_one().get(timeout=60) == "parent is fine"
    assert DIES in path.read_text()


@pytest.mark.parametrize("kind", [Parent, AsyncParent])
@pytest.mark.parametrize("handled", [False, None])
def test_an_owner_that_does_not_handle_a_failure_fails_too(
    spawn_procs: Spawn, faults: Faults, tmp_path: Path, kind: type[Any], handled: Any
) -> None:
    parent = spawn_procs(name="above").spawn("parent", kind, str(tmp_path / "said"), handled)
    parent.spawn.call_one().get(timeout=60)
    parent.provoke.call_one("fail").get()
    fault = faults.take()
    assert fault.mesh_name == "parent"
    said = f"so {kind.__name__} on above, its owner, failed: its __supervise__ returned {handled}"
    assert said in fault.report()
    assert fault.report().startswith("Child.fail on children[gpus=1] " + FAILS)
    assert fault.report().count(FAILS) == 1, "the first cause is told first, and once"
    with pytest.raises(SupervisionError, match=FAILS):
        parent.fine.call_one().get(timeout=60)


def test_an_owner_without_a_supervisor_fails_too(spawn_procs: Spawn, faults: Faults) -> None:
    parent = spawn_procs(name="above").spawn("careless", Careless)
    parent.spawn.call_one().get(timeout=60)
    parent.provoke.call_one("fail").get()
    assert FAILS in faults.take().report()
    with pytest.raises(SupervisionError, match=FAILS):
        parent.provoke.call_one("fail").get(timeout=60)


@pytest.mark.parametrize("kind", [Parent, AsyncParent])
def test_what_a_supervisor_raises_is_a_new_failure_chained_to_the_first(
    spawn_procs: Spawn, faults: Faults, tmp_path: Path, kind: type[Any]
) -> None:
    handled = KeyError("no plan")
    parent = spawn_procs(name="above").spawn("parent", kind, str(tmp_path / "said"), handled)
    parent.spawn.call_one().get(timeout=60)
    parent.provoke.call_one("fail").get()
    (failure,) = faults.take().failures
    assert (failure.exception_type, failure.endpoint) == ("KeyError", "__supervise__")
    assert FAILS in failure.traceback
    assert failure.traceback.index(FAILS) < failure.traceback.index("KeyError: 'no plan'")


# --- calls after a failure ------------------------------------------------------------------------


def test_a_broadcast_that_includes_a_failed_rank_reaches_nobody(
    spawn_procs: Spawn, faults: Faults
) -> None:
    procs = spawn_procs({"gpus": 3}, name="broken")
    recorder, child = procs.spawn("recorder", Recorder), procs.spawn("child", Child)
    with pytest.raises(SupervisionError):
        child.slice(gpus=1).die.call_one().get(timeout=60)
    faults.take()
    for part in (recorder, recorder.slice(gpus=slice(0, 2)), recorder.slice(gpus=1)):
        with pytest.raises(SupervisionError, match=r"broken\[gpus=1\].*exited with status 7"):
            part.note.broadcast("lost")
    recorder.slice(gpus=slice(0, 3, 2)).note.broadcast("heard")
    for rank in (0, 2):
        assert recorder.slice(gpus=rank).take.call_one().get() == ["heard"]


def test_a_mesh_whose_actor_failed_is_callable_in_all_its_other_parts(
    spawn_procs: Spawn, faults: Faults
) -> None:
    grid = spawn_procs({"hosts": 2, "gpus": 2}, name="broken")
    child, echo = grid.spawn("child", Child), grid.spawn("echo", Echo)
    child.slice(hosts=1, gpus=0).fail.broadcast()
    faults.take()
    for part in (child, child.slice(hosts=1), child.slice(gpus=0), child.flatten("all")):
        with pytest.raises(SupervisionError, match=r"broken\[hosts=1, gpus=0\] " + FAILS):
            part.fine.call().get(timeout=60)
    assert child.slice(hosts=0).fine.call().get().values() == ["fine"] * 2
    assert child.slice(gpus=1).fine.call().get().values() == ["fine"] * 2
    assert echo.rank.call().get().values() == [0, 1, 2, 3]
    assert grid.spawn("more", Echo).rank.call().get().values() == [0, 1, 2, 3]


def test_a_failed_mesh_that_is_stopped_is_nobodys_trouble_any_more(
    spawn_procs: Spawn, faults: Faults, tmp_path: Path
) -> None:
    procs = spawn_procs({"gpus": 2}, name="mended")
    child, tidy = procs.spawn("child", Child), procs.spawn("tidy", Tidy, str(tmp_path / "said"))
    child.slice(gpus=1).fail.broadcast()
    faults.take()
    child.stop().get(timeout=60)
    assert procs.spawn("child", Child).fine.call().get().values() == ["fine"] * 2
    tidy.note.call("untouched").get()


def test_calls_in_flight_to_ranks_that_live_are_answered_when_another_dies(
    spawn_procs: Spawn, faults: Faults, gate: GateKeeper
) -> None:
    procs = spawn_procs({"gpus": 3}, name="broken")
    echo, child = procs.spawn("echo", Echo), procs.spawn("child", Child)
    held = [echo.slice(gpus=rank).pass_gate.call_one(gate.gate, rank) for rank in (0, 2)]
    gate.wait_entered(2)
    with pytest.raises(SupervisionError, match="exited with status 7"):
        child.slice(gpus=1).die.call_one().get(timeout=60)
    gate.open(2)
    assert [answer.get() for answer in held] == [0, 2]
    faults.take()


# --- constructors, and the order of what is told -------------------------------------------------


class Stillborn(Actor):
    """Its constructor raises on the ranks that it is told."""

    def __init__(self, ranks: list[int]) -> None:
        if current_rank().rank in ranks:
            raise LookupError("no data here")

    @endpoint
    def fine(self) -> str:
        return "fine"


def test_a_constructor_that_raises_reaches_the_hook_without_a_call_once_for_each_rank(
    four: ProcMesh, faults: Faults
) -> None:
    mesh = four.spawn("stillborn", Stillborn, [1, 3])
    ranks: list[int] = []
    while len(ranks) < 2:
        fault = faults.take()
        assert fault.mesh_name == "stillborn"
        assert "Stillborn.__init__ on workers" in fault.report()
        ranks += [failure.rank for failure in fault.failures]
    assert sorted(ranks) == [1, 3]
    with pytest.raises(SupervisionError, match="no data here"):
        mesh.fine.call().get(timeout=60)
    mesh.stop().get(timeout=60)
    assert faults.untaken() == []


class Mother(Actor):
    """Owns an actor whose constructor raises, and is told of it."""

    def __init__(self, procs: ProcMesh, told: str) -> None:
        self.seen: list[str] = []
        self.told = told
        self.child = procs.spawn("child", Stillborn, [0])

    @endpoint
    def heard(self) -> list[str]:
        return self.seen

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.seen.append(failure.failures[0].kind)
        write_byte(self.told)
        return True


def test_the_owner_of_an_actor_whose_constructor_raises_is_asked_first_and_without_a_call(
    four: ProcMesh, gate: GateKeeper, faults: Faults
) -> None:
    mother = four.slice(gpus=0).spawn("mother", Mother, four.slice(gpus=1), gate.gate.entered)
    gate.wait_entered()
    assert mother.heard.call_one().get(timeout=60) == ["constructor"]
    assert faults.untaken() == []


class Busy(Actor):
    """An async owner that writes down in which order things reach it."""

    def __init__(self, procs: ProcMesh) -> None:
        self.log: list[str] = []
        self.child = procs.spawn("child", Dying)
        self.answered = asyncio.Event()

    @endpoint
    async def let_die(self, gate: Gate) -> None:
        self.child.die.broadcast(gate)

    @endpoint
    async def hold(self, gate: Gate) -> None:
        gate.pass_through()  # the loop does not turn meanwhile
        self.log.append("held")

    @endpoint
    async def note(self, text: str) -> None:
        self.log.append(text)

    @endpoint
    async def logged(self) -> list[str]:
        return self.log

    async def __supervise__(self, failure: MeshFailure) -> bool:
        self.log.append("asked")
        for _ in range(10):
            await asyncio.sleep(0)
        self.log.append("answered")
        return True


class Dying(Actor):
    """Passes a gate and dies."""

    @endpoint
    def die(self, gate: Gate) -> None:
        gate.pass_through()
        raise ValueError("the child is ill")

    def __cleanup__(self, exception: BaseException | None) -> None:
        """Its owner is told after this."""


def test_an_async_owner_is_asked_before_the_messages_that_wait(
    four: ProcMesh, gate: GateKeeper
) -> None:
    busy = four.slice(gpus=0).spawn("busy", Busy, four.slice(gpus=1))
    busy.let_die.call_one(gate.gate).get(timeout=60)
    gate.wait_entered()
    held = busy.hold.call_one(gate.gate)
    gate.wait_entered()
    notes = [busy.note.call_one(f"note {number}") for number in range(20)]
    gate.open(1)  # one of the two goes on, and the other one after it
    gate.open(1)
    held.get(timeout=60)
    for note in notes:
        note.get(timeout=60)
    log: list[str] = []
    while "answered" not in log:
        log = busy.logged.call_one().get(timeout=60)
    at = log.index("asked")
    assert log[at : at + 2] == ["asked", "answered"], "a message ran in between"


class CallsBack(Busy):
    """Its hook waits for an answer that needs another message of it."""

    async def __supervise__(self, failure: MeshFailure) -> bool:
        self.log.append("asked")
        await self.helper.forward.call_one(self.own)
        self.log.append("answered")
        return True

    @endpoint
    async def meet(self, own: CallsBack, helper: Any) -> None:
        self.own, self.helper = own, helper


class Forwards(Actor):
    """Calls back whoever calls it."""

    @endpoint
    async def forward(self, to: CallsBack) -> None:
        await to.note.call_one("called back")


def test_a_hook_that_waits_for_an_actor_lets_messages_go_on(
    four: ProcMesh, gate: GateKeeper
) -> None:
    owner = four.slice(gpus=0).spawn("owner", CallsBack, four.slice(gpus=1))
    helper = four.slice(gpus=2).spawn("helper", Forwards)
    owner.meet.call_one(owner, helper).get(timeout=60)
    owner.let_die.call_one(gate.gate).get(timeout=60)
    gate.open(1)
    log: list[str] = []
    while "answered" not in log:
        log = owner.logged.call_one().get(timeout=60)
    assert log == ["asked", "called back", "answered"]
