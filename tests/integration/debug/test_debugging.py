"""Breakpoints on ranks: what pauses, what can be said to it, what goes on meanwhile."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch.actor import ActorError, ProcMesh, debug_controller
from monarch.debug import (
    DebugError,
    WaitingRanks,
    attach,
    break_in,
    cast,
    post_mortem,
    resume,
    waiting,
)
from monarch.observe import cancel_calls, open_calls, snapshot
from tests.integration.commands import monarch
from tests.integration.debugging import AsyncStepper, Stepper, news
from tests.integration.gates import GateKeeper
from tests.integration.programs import PATIENCE_S
from tests.integration.sample_actors import Imports

Until = Callable[[int], WaitingRanks]


@pytest.fixture
def until() -> Iterator[Until]:
    """Waits for pauses; what is still paused at the end of a test goes on."""
    with news() as found:
        yield found
        resume()


@pytest.fixture(scope="module")
def steppers(four: ProcMesh) -> Stepper:
    return four.spawn("steppers", Stepper)


def test_two_ranks_of_four_pause_and_the_others_finish(steppers: Stepper, until: Until) -> None:
    answer = steppers.step.call(5, (1, 2))
    found = until(2)
    assert [one.name for one in found] == ["workers[gpus=1]", "workers[gpus=2]"]
    first = found[0]
    assert (first.actor, first.endpoint, first.function) == ("steppers", "step", "Stepper.step")
    assert (first.code, first.why, first.state) == ("breakpoint()", "breakpoint", "paused")
    assert "workers[gpus=1..2]" in str(found)
    assert steppers.slice(gpus=slice(3, 4)).ping.call_one().get(timeout=PATIENCE_S) == "here"
    assert not answer.done
    console = attach("steppers[gpus=1]")
    assert console.send("p doubled") == "10\n"
    assert console.send("!doubled = 1000") == ""
    assert "result = doubled + self.total" in console.send("next")
    assert "return result" in console.send("step")
    assert console.send("p result") == "1100\n"
    assert "step()" in console.send("where")
    assert "_run_endpoint" not in console.send("where")
    source = console.source()
    assert source is not None
    assert source.lines[source.line - source.first].strip().startswith("return result")
    assert "self.total" in console.complete("p self.to")
    assert "where" in console.complete("wh")
    console.send("continue")
    assert console.is_over
    with pytest.raises(DebugError, match="has resumed"):
        console.send("p 1")
    resume("workers[gpus=2]")
    assert answer.get(timeout=PATIENCE_S).values() == [110, 1100, 110, 110]
    assert not waiting()


def test_one_command_goes_to_many_and_equal_answers_are_shown_once(
    steppers: Stepper, until: Until
) -> None:
    answer = steppers.step.call(5)
    until(4)
    replies = cast("p doubled", "workers")
    assert [reply.text for reply in replies] == ["10\n"] * 4
    assert str(replies).splitlines()[0].startswith("4 ranks: workers[gpus=0], ")
    assert len(cast("p self.rank", "workers[gpus=0:2]")) == 2
    assert all(reply.ended for reply in resume())
    answer.get(timeout=PATIENCE_S)


def test_a_paused_rank_shows_as_paused_with_function_file_and_line(
    four: ProcMesh, steppers: Stepper, until: Until, own_base_directory: Path
) -> None:
    answer = steppers.step.call(5, (3,))
    until(1)
    steppers.slice(gpus=slice(0, 3)).ping.call().get(timeout=PATIENCE_S)  # behind their step
    (seen,) = [one for one in snapshot() if one.uid == four.uid]
    row = seen.rows[3]
    assert (row.state, row.actor, row.endpoint) == ("paused", "Stepper", "step")
    assert row.place is not None
    assert row.place.function == "Stepper.step"
    assert row.place.filename.endswith("integration/debugging.py")
    assert linecache.getline(row.place.filename, row.place.line).strip() == "breakpoint()"
    listed = monarch("ps", "--in", str(own_base_directory))[1]
    assert f"Stepper.step (debugging.py:{row.place.line})" in listed
    assert [one.state for one in seen.rows[:3]] == ["idle"] * 3
    resume()
    answer.get(timeout=PATIENCE_S)


def test_other_actors_of_the_process_work_on(
    four: ProcMesh, steppers: Stepper, until: Until
) -> None:
    others = four.spawn("others", Stepper)
    answer = steppers.step.call(5)
    until(4)
    assert others.ping.call().get(timeout=PATIENCE_S).values() == ["here"] * 4
    resume()
    answer.get(timeout=PATIENCE_S)
    # An actor that is not on the main thread of its process pauses as well.
    answer = others.step.call(5)
    assert {one.actor for one in until(4)} == {"others"}
    assert str(cast("p doubled")).endswith("    10")
    resume()
    assert answer.get(timeout=PATIENCE_S).values() == [110] * 4


def test_an_async_endpoint_is_stepped_over_its_awaits(four: ProcMesh, until: Until) -> None:
    answer = four.slice(gpus=0).spawn("loop", AsyncStepper).step.call_one(4)
    until(1)
    with attach("loop") as console:
        assert console.send("p doubled") == "8\n"
        assert "await asyncio.sleep(0)" in console.send("next")
        assert "doubled += 1" in console.send("next")
        console.send("continue")
    assert answer.get(timeout=PATIENCE_S) == 9


def test_a_thread_of_an_actor_pauses_alone(steppers: Stepper, until: Until) -> None:
    answer = steppers.slice(gpus=0).in_thread.call_one(7)
    (one,) = until(1)
    assert one.thread == "loader"
    with attach(one) as console:
        assert console.send("p inner") == "7\n"
        console.send("c")
    assert answer.get(timeout=PATIENCE_S) == 7


def test_a_constructor_pauses(four: ProcMesh, until: Until) -> None:
    made = four.slice(gpus=1).spawn("made", Stepper, True)
    answer = made.ping.call_one()
    (one,) = until(1)
    assert one.function == "Stepper.__init__"
    cast("!self.total = 7")
    resume()
    assert answer.get(timeout=PATIENCE_S) == "here"


def test_a_breakpoint_set_at_a_console_holds_for_later_calls(
    steppers: Stepper, until: Until
) -> None:
    one_rank = steppers.slice(gpus=2)
    answer = one_rank.twice.call_one(5)
    until(1)
    with attach() as console:
        set_at = console.source()
        assert set_at is not None
        assert "Breakpoint" in console.send(f"b {set_at.filename}:{set_at.line + 1}")
        console.send("continue")
    (hit,) = until(1)
    assert hit.line == set_at.line + 1
    resume()
    answer_or_pause = answer
    while not answer_or_pause.done:  # each `breakpoint()` of the program itself still pauses
        if [one for one in waiting() if one.state == "paused"]:
            resume()
    assert answer.get(timeout=PATIENCE_S) == 12


def test_quit_ends_the_call_and_the_actor_lives(steppers: Stepper, until: Until) -> None:
    answer = steppers.slice(gpus=1).step.call_one(5)
    until(1)
    assert attach().send("quit") == ""
    with pytest.raises(ActorError, match="BdbQuit: the debugger was told to quit"):
        answer.get(timeout=PATIENCE_S)
    assert steppers.ping.call().get(timeout=PATIENCE_S).values() == ["here"] * 4


def test_interact_is_a_prompt_of_python(steppers: Stepper, until: Until) -> None:
    answer = steppers.slice(gpus=1).step.call_one(5)
    until(1)
    with attach() as console:
        assert "*interactive*" in console.send("interact")
        assert console.prompt == ">>> "
        assert console.send("doubled + 1") == "11\n"
        assert console.send("for i in range(2):") == ""
        assert console.prompt == "... "
        console.send("    print(i)")
        assert console.send("") == "0\n1\n"
        assert "NameError" in console.send("nothing_of_that_name")
        assert "back in pdb" in console.send("exit()")
        console.send("c")
    answer.get(timeout=PATIENCE_S)


def test_what_one_console_holds_another_cannot_take_unasked(
    steppers: Stepper, until: Until
) -> None:
    answer = steppers.slice(gpus=1).step.call_one(5)
    until(1)
    console = attach()
    assert waiting()[0].holder
    console.close()
    console.close()
    assert not waiting()[0].holder
    with pytest.raises(DebugError, match="closed"):
        console.send("p 1")
    with pytest.raises(DebugError, match="nothing waits at a breakpoint on nobody"):
        attach("nobody")
    with pytest.raises(DebugError, match="no dim 'hosts'"):
        attach("workers[hosts=1]")
    resume()
    answer.get(timeout=PATIENCE_S)


def test_a_failing_endpoint_is_looked_at_with_its_frames(steppers: Stepper, until: Until) -> None:
    post_mortem()
    try:
        answer = steppers.slice(gpus=3).fail.call_one(1)
        (one,) = until(1)
        assert (one.function, one.why) == ("Stepper.fail", "ValueError: no 2")
        assert waiting().keeps_failures
        assert attach().send("p kept") == "2\n"
        assert not answer.done
        resume()
        with pytest.raises(ActorError, match="no 2"):
            answer.get(timeout=PATIENCE_S)
    finally:
        post_mortem(False)
    with pytest.raises(ActorError, match="no 4"):
        steppers.slice(gpus=3).fail.call_one(3).get(timeout=PATIENCE_S)


def test_a_deadline_stands_still_while_its_rank_is_paused(steppers: Stepper, until: Until) -> None:
    answer = steppers.slice(gpus=1).step.call_one(5)
    until(1)
    waited = steppers.slice(gpus=0).wait_for.call_one(steppers.slice(gpus=2), 0.2)
    until(2)
    # Longer than 0.2 s, in which both the client and the actor would have given up.
    assert cast("!import time; time.sleep(0.3)", timeout=PATIENCE_S)
    with pytest.raises(TimeoutError):  # to look once is no deadline
        answer.get(timeout=0)
    assert not waited.done
    resume()
    assert answer.get(timeout=PATIENCE_S) == 110
    assert waited.get(timeout=PATIENCE_S) == 102


def until_broken_into(mesh: ProcMesh) -> WaitingRanks:
    """Break into a rank as soon as its endpoint runs."""
    while True:
        try:
            return break_in(mesh, timeout=PATIENCE_S)
        except DebugError:
            pass  # the call is on its way


def test_a_rank_that_computes_or_waits_is_broken_into(
    four: ProcMesh, steppers: Stepper, until: Until, gate: GateKeeper
) -> None:
    with pytest.raises(DebugError, match="no endpoint is running there"):
        break_in(four)
    answer = steppers.slice(gpus=1).step.call_one(5)
    until(1)
    waits = steppers.slice(gpus=0).wait_for.call_one(steppers.slice(gpus=1), PATIENCE_S)
    while not [row for mesh in snapshot() for row in mesh.rows if row.state == "busy"]:
        pass
    (found,) = break_in(four.slice(gpus=0), timeout=PATIENCE_S)
    assert (found.why, found.function) == ("break", "Stepper.wait_for")
    sleeps = steppers.slice(gpus=2).sleep.call_one()
    (found,) = [*until_broken_into(four.slice(gpus=2))]
    assert (found.why, found.code) == ("break", "time.sleep(600)")
    cancel_calls([one for one in open_calls() if one.endpoint == "sleep"])
    with pytest.raises(ActorError, match="cancelled"):
        sleeps.get(timeout=PATIENCE_S)
    assert attach("workers[gpus=0]").send("p timeout") == f"{PATIENCE_S}\n"
    resume("workers[gpus=0]")
    resume()
    assert answer.get(timeout=PATIENCE_S) == 110
    until(1)
    resume()
    assert waits.get(timeout=PATIENCE_S) == 102


def test_a_rank_that_is_about_to_wait_is_broken_into_where_it_waits(
    four: ProcMesh, steppers: Stepper, until: Until, gate: GateKeeper
) -> None:
    waits = steppers.slice(gpus=0).wait_at.call_one(steppers.slice(gpus=1), gate.gate)
    gate.wait_entered()
    (found,) = break_in(four.slice(gpus=0), timeout=PATIENCE_S)
    assert (found.why, found.function) == ("break", "Stepper.wait_at")
    until(2)
    resume("workers[gpus=0]")
    resume()
    assert waits.get(timeout=PATIENCE_S) == 102
    later = steppers.slice(gpus=0).wait_for.call_one(steppers.slice(gpus=2), PATIENCE_S)
    until(1)  # and not where that waits
    resume()
    assert later.get(timeout=PATIENCE_S) == 102


def test_monarchs_own_controller_lists_what_waits(steppers: Stepper, until: Until) -> None:
    controller = debug_controller()
    pending = controller.wait_pending_session.call_one()
    answer = steppers.slice(gpus=1).step.call_one(5)
    pending.get(timeout=PATIENCE_S)
    (one,) = controller.list.call_one(print_output=False).get(timeout=PATIENCE_S)
    assert (one.actor_name, one.rank, one.coords) == ("steppers", 1, {"gpus": 1})
    assert one.function == "Stepper.step"
    resume()
    answer.get(timeout=PATIENCE_S)


def test_breakpoints_are_off_where_python_says_so(
    spawn_procs: Callable[..., ProcMesh],
) -> None:
    procs = spawn_procs({"gpus": 1}, env={"PYTHONBREAKPOINT": "0"})
    assert procs.spawn("steppers", Stepper).step.call_one(5).get(timeout=PATIENCE_S) == 110


def test_who_never_pauses_loads_no_debugger(spawn_procs: Callable[..., ProcMesh]) -> None:
    imports = spawn_procs({"gpus": 1}).spawn("imports", Imports)
    found = imports.loaded.call_one().get(timeout=PATIENCE_S)
    assert [name for name in found if name in ("pdb", "bdb") or "_src.debug" in name] == []


def test_a_breakpoint_needs_no_thread_and_no_port_of_its_own(
    steppers: Stepper, until: Until
) -> None:
    before = steppers.costs.call().get(timeout=PATIENCE_S).values()
    answer = steppers.step.call(5)
    until(4)
    cast("p doubled")
    resume()
    answer.get(timeout=PATIENCE_S)
    assert steppers.costs.call().get(timeout=PATIENCE_S).values() == before
    assert all(listening == 0 for _, listening in before)
