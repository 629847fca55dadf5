"""What stands at a console is given to an editor, as it stands, and the console is told."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch._src.debug.terminal_connection import TerminalConnection
from monarch._src.session.directories import find_sessions
from monarch.actor import ActorError, ProcMesh
from monarch.debug import (
    DebugCommands,
    DebugError,
    WaitingRanks,
    attach,
    cast,
    open_bridge,
    post_mortem,
    resume,
    waiting,
)
from monarch.observe import cancel_calls, open_calls
from tests.integration import debugging as actors
from tests.integration.commands import monarch
from tests.integration.dap_client import debugging
from tests.integration.debugging import AsyncStepper, Stepper, news
from tests.integration.programs import PATIENCE_S

Until = Callable[[int], WaitingRanks]
LINES = inspect.getsource(actors).splitlines()
BREAK = 2 + LINES.index("        if current_rank().rank in ranks:")
HELD = "debugs it in an editor, which must resume it first"


@pytest.fixture(scope="module")
def steppers(four: ProcMesh) -> Stepper:
    return four.spawn("steppers", Stepper)


@pytest.fixture
def until() -> Iterator[Until]:
    with news() as found:
        yield found
        resume()


def test_a_paused_rank_stands_in_the_editor_on_the_same_line_and_is_stepped_there(
    steppers: Stepper, until: Until
) -> None:
    answer = steppers.step.call(5, (1, 2))
    before = until(2)
    with debugging(steppers.slice(gpus=1)) as client:
        thread = client.event("stopped")["threadId"]
        (frame,) = client.stack(thread)
        assert (frame["name"], frame["line"]) == ("step", BREAK)
        assert client.variables(frame["id"])["doubled"] == "10"
        here, other = waiting()
        assert (here.rank, here.line, here.why) == (1, BREAK, "debugger")
        assert (other.rank, other.why) == (2, "breakpoint")
        client.do("next", threadId=thread)
        assert client.event("stopped")["reason"] == "step"
        (frame,) = client.stack(thread)
        assert frame["line"] == BREAK + 1
        client.do("setExpression", expression="doubled", value="1000", frameId=frame["id"])
        client.do("continue", threadId=thread)
        attach(before[1]).send("continue")  # a rank that the editor is not on, as ever
        assert answer.get(timeout=PATIENCE_S).values() == [110, 1100, 110, 110]


def test_who_holds_a_rank_is_listed_and_no_console_commands_it_meanwhile(
    steppers: Stepper, until: Until, own_base_directory: Path
) -> None:
    answer = steppers.step.call(5, (1,))
    (before,) = until(1)
    console = attach()
    with debugging(steppers.slice(gpus=1)) as client:
        thread = client.event("stopped")["threadId"]
        with pytest.raises(DebugError, match="it is no longer paused there"):
            console.send("p doubled")
        (now,) = waiting()
        assert now.session != before.session
        assert now.holder.startswith("client-")
        assert f"debugger, held by {now.holder}" in str(waiting())
        with pytest.raises(DebugError, match=HELD):
            attach(now, take=True)
        assert HELD in str(cast("p doubled"))
        status, out, err = monarch("debug", "--in", str(own_base_directory), "-c", "continue")
        assert (status, out) == (1, "resumed 0 ranks\n")
        assert HELD in err
        client.do("continue", threadId=thread)
        assert answer.get(timeout=PATIENCE_S).values() == [110] * 4


def test_a_rank_that_another_terminal_talks_to_is_not_taken_from_it(
    steppers: Stepper, until: Until, own_base_directory: Path
) -> None:
    answer = steppers.step.call(5, (1,))
    (one,) = until(1)
    (session,) = find_sessions([str(own_base_directory)])
    line = TerminalConnection(session)
    try:
        with DebugCommands(line).attach(one) as console:
            with pytest.raises(DebugError, match=r"debugger-.* is attached to it; `detach` there"):
                open_bridge(steppers.slice(gpus=1), lambda _: None)
            assert console.send("p doubled") == "10\n"
        with debugging(steppers.slice(gpus=1)) as client:
            client.event("stopped")
    finally:
        line.close()
    assert answer.get(timeout=PATIENCE_S).values() == [110] * 4
    assert not waiting()


def test_a_coroutine_that_was_stepped_at_a_console_is_stepped_on_in_the_editor(
    four: ProcMesh, until: Until
) -> None:
    one = four.slice(gpus=0).spawn("async_steppers", AsyncStepper)
    answer = one.step.call_one(5)
    until(1)
    with attach() as console:
        console.send("next")
        console.send("next")
        console.send(f"b {waiting()[0].line + 1}")
    with debugging(one) as client:
        thread = client.event("stopped")["threadId"]
        (frame,) = client.stack(thread)
        assert frame["line"] == 1 + LINES.index("        doubled += 1")
        client.do("next", threadId=thread)
        client.event("stopped")
        (frame,) = client.stack(thread)
        assert client.variables(frame["id"])["doubled"] == "11"
        client.do("continue", threadId=thread)
        assert answer.get(timeout=PATIENCE_S) == 11
    assert one.ping.call_one().get(timeout=PATIENCE_S) == "here"


def test_the_prompt_of_interact_is_left_too(steppers: Stepper, until: Until) -> None:
    answer = steppers.step.call(5, (3,))
    until(1)
    with attach() as console:
        console.send("interact")
        assert console.prompt == ">>> "
    with debugging(steppers.slice(gpus=3)) as client:
        thread = client.event("stopped")["threadId"]
        assert client.stack(thread)[0]["line"] == BREAK
    assert answer.get(timeout=PATIENCE_S).values() == [110] * 4  # a bridge that is closed lets go


def test_the_frames_of_a_failure_are_looked_at_in_the_editor(
    steppers: Stepper, until: Until
) -> None:
    post_mortem()
    try:
        answer = steppers.slice(gpus=1).fail.call_one(6)
        until(1)
        with debugging(steppers.slice(gpus=1)) as client:
            stopped = client.event("stopped")
            assert (stopped["reason"], stopped["description"]) == ("exception", "no 7")
            frame = client.stack(stopped["threadId"])[0]
            assert frame["name"] == "fail"
            assert client.variables(frame["id"])["kept"] == "7"
            client.do("continue", threadId=stopped["threadId"])
            with pytest.raises(ActorError, match="no 7"):
                answer.get(timeout=PATIENCE_S)
    finally:
        post_mortem(False)


@pytest.mark.parametrize("kind", [Stepper, AsyncStepper])
def test_a_cancelled_call_leaves_the_editor_that_it_was_given_to(
    four: ProcMesh, until: Until, kind: type[Stepper]
) -> None:
    one = four.slice(gpus=2).spawn(f"cancelled_{kind.__name__}", kind)
    answer = one.step.call_one(5)
    until(1)
    with debugging(one) as client:
        thread = client.event("stopped")["threadId"]
        cancel_calls(open_calls())
        with pytest.raises(ActorError, match="Cancelled"):
            answer.get(timeout=PATIENCE_S)
        assert client.event("continued")["threadId"] == thread
        assert one.ping.call_one().get(timeout=PATIENCE_S) == "here"
    assert not waiting()
