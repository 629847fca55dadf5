"""A pause ends with what it is in: killed, interrupted, stopped; and nobody has to answer it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch.actor import ActorError, ProcMesh, SupervisionError
from monarch.debug import DebugError, WaitingRanks, attach, resume, waiting
from monarch.observe import cancel_calls, interrupt_procs, open_calls
from tests.conftest import Faults
from tests.integration.debugging import AsyncStepper, Stepper, await_no_pause, news
from tests.integration.programs import PATIENCE_S, running

Spawn = Callable[..., ProcMesh]
Until = Callable[[int], WaitingRanks]


@pytest.fixture
def until() -> Iterator[Until]:
    with news() as found:
        yield found


@pytest.mark.parametrize("kind", [Stepper, AsyncStepper])
@pytest.mark.parametrize("second", [False, True])
def test_the_stop_of_a_mesh_waits_for_no_debugger(
    spawn_procs: Spawn, until: Until, kind: type[Stepper], second: bool
) -> None:
    procs = spawn_procs({"gpus": 2}, name="workers")
    if second:  # the first has the main thread
        procs.spawn("first", Stepper).ping.call().get(timeout=PATIENCE_S)
    answer = procs.spawn("steppers", kind).step.call(5)
    until(2)
    console = attach("workers[gpus=0]")
    procs.stop().get(timeout=PATIENCE_S)
    with pytest.raises(SupervisionError, match="was told to end at a breakpoint"):
        answer.get(timeout=PATIENCE_S)
    assert not waiting()
    with pytest.raises(DebugError):
        console.send("p 1")


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("kind", [Stepper, AsyncStepper])
def test_a_cancelled_call_leaves_the_breakpoint_and_its_actor_lives(
    spawn_procs: Spawn, until: Until, kind: type[Stepper], second: bool
) -> None:
    procs = spawn_procs({"gpus": 2}, name="workers")
    if second:
        procs.spawn("first", Stepper).ping.call().get(timeout=PATIENCE_S)
    steppers = procs.spawn("steppers", kind)
    answer = steppers.step.call(5)
    until(2)
    cancel_calls(open_calls())
    with pytest.raises(ActorError, match="Cancelled"):
        answer.get(timeout=PATIENCE_S)
    assert steppers.ping.call().get(timeout=PATIENCE_S).values() == ["here"] * 2
    await_no_pause()


def test_a_broadcast_that_is_paused_ends_with_its_mesh_and_is_no_fault(
    spawn_procs: Spawn, until: Until
) -> None:
    procs = spawn_procs({"gpus": 2}, name="workers")
    procs.spawn("steppers", Stepper).step.broadcast(5)
    until(2)
    procs.stop().get(timeout=PATIENCE_S)
    assert not waiting()


def test_a_rank_that_is_killed_while_it_is_paused_is_told_as_any_other(
    spawn_procs: Spawn, until: Until, faults: Faults
) -> None:
    procs = spawn_procs({"gpus": 2}, name="workers")
    steppers = procs.spawn("steppers", Stepper)
    answer = steppers.step.call(5)
    until(2)
    console = attach("workers[gpus=0]")
    with pytest.raises(DebugError, match="its process has ended"):
        console.send("!import os; os.kill(os.getpid(), 9)")
    assert console.is_over
    with pytest.raises(SupervisionError, match="killed by SIGKILL"):
        answer.get(timeout=PATIENCE_S)
    faults.take()
    assert [one.name for one in waiting()] == ["workers[gpus=1]"]
    resume()


def test_sigint_at_a_breakpoint_ends_the_call_as_anywhere_else(
    spawn_procs: Spawn, until: Until, faults: Faults
) -> None:
    procs = spawn_procs({"gpus": 1}, name="workers")
    answer = procs.spawn("steppers", Stepper).step.call(5)
    until(1)
    interrupt_procs(procs)
    with pytest.raises(SupervisionError, match="KeyboardInterrupt"):
        answer.get(timeout=PATIENCE_S)
    faults.take()
    assert not waiting()


def test_a_program_that_ends_while_ranks_are_paused_leaves_nothing(tmp_path: Path) -> None:
    with running(
        tmp_path,
        """
        from monarch.actor import Actor, endpoint, this_host
        from monarch.debug import waiting

        class Pauses(Actor):
            @endpoint
            def step(self):
                breakpoint()

            @endpoint
            def pid(self):
                import os
                return os.getpid()

        pauses = this_host().spawn_procs({"gpus": 2}).spawn("pauses", Pauses)
        print(*pauses.pid.call().get().values(), flush=True)
        pauses.step.call()
        while len(waiting()) < 2:
            pass
        print("paused", flush=True)
        input()
        """,
    ) as program:
        pids = [int(word) for word in program.line().split()]
        assert program.line() == "paused"
        fds = [os.pidfd_open(pid) for pid in pids]
        program.say("")
        status, _, err = program.end()
        assert (status, err) == (0, "")
        for fd in fds:
            with pytest.raises(ProcessLookupError):
                signal.pidfd_send_signal(fd, 0)
            os.close(fd)


def test_a_breakpoint_in_what_is_to_end_is_passed_over(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 1}, name="workers")
    procs.spawn("last", PausesAtTheEnd).ping.call_one().get(timeout=PATIENCE_S)
    procs.stop().get(timeout=PATIENCE_S)


class PausesAtTheEnd(Stepper):
    """Has a breakpoint in its clean-up."""

    def __cleanup__(self, cause: BaseException | None) -> None:
        breakpoint()
