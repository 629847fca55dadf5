"""A rank that stands still in an editor ends as any other, and nothing of the debugger is left."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable

import psutil
import pytest

from monarch.actor import Actor, ActorError, ProcMesh, SupervisionError, endpoint
from monarch.debug import DebugError, open_bridge, waiting
from monarch.observe import cancel_calls, kill_procs, open_calls
from tests.conftest import Faults
from tests.integration import debugging as actors
from tests.integration.dap_client import debugging
from tests.integration.debugging import AsyncStepper, Stepper
from tests.integration.programs import PATIENCE_S

Spawn = Callable[..., ProcMesh]
FILE = inspect.getsourcefile(actors) or ""
LINES = [
    number
    for number, line in enumerate(inspect.getsource(actors).splitlines(), 1)
    if "doubled = value * 2" in line
]


class Inside(Actor):
    """Looks at the process that it is in."""

    @endpoint
    def threads(self) -> list[str]:
        return sorted(thread.name for thread in threading.enumerate())

    @endpoint
    def has(self, module: str) -> bool:
        return module in sys.modules

    @endpoint
    def is_traced(self) -> bool:
        return sys.gettrace() is not None

    @endpoint
    def forget(self, module: str) -> None:
        sys.modules[module] = None  # pyright: ignore[reportArgumentType]  # as an import that fails


def stepper_of(spawn_procs: Spawn, kind: type[Stepper], second: bool) -> tuple[ProcMesh, Stepper]:
    procs = spawn_procs({"gpus": 1}, name="workers")
    if second:  # the first has the main thread
        procs.spawn("first", Stepper).ping.call().get(timeout=PATIENCE_S)
    steppers = procs.spawn("steppers", kind)
    steppers.initialized.get(timeout=PATIENCE_S)
    return procs, steppers


@pytest.mark.parametrize("kind", [Stepper, AsyncStepper])
@pytest.mark.parametrize("second", [False, True])
def test_the_stop_of_a_mesh_waits_for_no_editor(
    spawn_procs: Spawn, kind: type[Stepper], second: bool
) -> None:
    procs, steppers = stepper_of(spawn_procs, kind, second)
    with debugging(procs) as client:
        client.set_breakpoints(FILE, *LINES)
        answer = steppers.step.call(5)
        thread = client.event("stopped")["threadId"]
        procs.stop().get(timeout=PATIENCE_S)
        with pytest.raises(SupervisionError, match="was told to end at a breakpoint"):
            answer.get(timeout=PATIENCE_S)
        assert client.event("continued")["threadId"] == thread
        client.event("terminated")
        assert not client.ask("stackTrace", threadId=thread)["success"]


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("kind", [Stepper, AsyncStepper])
def test_a_cancelled_call_leaves_its_stop_and_the_next_one_stops_again(
    spawn_procs: Spawn, kind: type[Stepper], second: bool
) -> None:
    procs, steppers = stepper_of(spawn_procs, kind, second)
    with debugging(procs) as client:
        client.set_breakpoints(FILE, *LINES)
        for _ in range(2):
            answer = steppers.step.call(5)
            client.event("stopped")
            cancel_calls(open_calls())
            with pytest.raises(ActorError, match="Cancelled"):
                answer.get(timeout=PATIENCE_S)
        assert steppers.ping.call().get(timeout=PATIENCE_S).values() == ["here"]
        assert not waiting()


def test_a_rank_that_is_killed_while_an_editor_has_stopped_it_is_told_to_both(
    spawn_procs: Spawn, faults: Faults
) -> None:
    procs = spawn_procs({"gpus": 2}, name="workers")
    steppers = procs.spawn("steppers", Stepper)
    with debugging(procs) as client:
        client.set_breakpoints(FILE, *LINES)
        answer = steppers.step.call(5, ())
        threads = {client.event("stopped")["threadId"] for _ in range(2)}
        names = {one["name"]: one["id"] for one in client.do("threads")["threads"]}
        kill_procs(procs, [1])
        with pytest.raises(SupervisionError, match="killed by SIGKILL"):
            answer.get(timeout=PATIENCE_S)
        faults.take()
        killed = names["workers[gpus=1]"]
        assert client.event("continued")["threadId"] == killed
        assert not client.ask("stackTrace", threadId=killed)["success"]
        (left,) = threads - {killed}
        assert client.stack(left)
        client.do("continue", threadId=left)
    assert steppers.slice(gpus=0).ping.call_one().get(timeout=PATIENCE_S) == "here"


def test_a_bridge_that_is_closed_leaves_the_rank_as_it_was(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 1}, name="workers")
    steppers, inside = procs.spawn("steppers", Stepper), procs.spawn("inside", Inside)
    before = inside.threads.call_one().get(timeout=PATIENCE_S)
    assert not inside.has.call_one("pydevd").get(timeout=PATIENCE_S)
    with debugging(procs) as client:
        client.set_breakpoints(FILE, *LINES)
        answer = steppers.step.call(5, ())
        client.event("stopped")
    assert answer.get(timeout=PATIENCE_S).values() == [110]
    assert not waiting()
    assert inside.threads.call_one().get(timeout=PATIENCE_S) == before
    assert not inside.is_traced.call_one().get(timeout=PATIENCE_S)


def test_a_rank_without_debugpy_says_what_to_install(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 2}, name="workers")
    procs.slice(gpus=1).spawn("inside", Inside).forget.call("debugpy").get(timeout=PATIENCE_S)
    with pytest.raises(DebugError, match=r"workers\[gpus=1\]: debugpy is not installed"):
        open_bridge(procs, lambda _: None)


def test_nothing_listens_for_a_bridge(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 1}, name="workers")
    with debugging(procs):
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        found = [one for process in family for one in process.net_connections("inet")]
        assert not found
