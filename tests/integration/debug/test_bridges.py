"""Editors debug ranks: breakpoints, stacks, variables, steps, over the control plane."""

from __future__ import annotations

import inspect
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monarch._src.net.observer import AgentLink
from monarch._src.session.directories import find_sessions
from monarch._src.wire.dap_codec import Unpacker, packed
from monarch._src.wire.messages import AskBridge, BridgeAnswered
from monarch.actor import ActorError, ProcMesh
from monarch.debug import DebugError, open_bridge, post_mortem, resume, waiting
from tests.integration import debugging as actors
from tests.integration.commands import monarch
from tests.integration.dap_client import DapClient, Message, debugging
from tests.integration.debugging import Stepper, news
from tests.integration.programs import PATIENCE_S

FILE = inspect.getsourcefile(actors) or ""


def line_of(text: str) -> int:
    """The first line of the actors that has that text."""
    lines = inspect.getsource(actors).splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


STEP = line_of("doubled = value * 2")


@pytest.fixture(scope="module")
def steppers(four: ProcMesh) -> Stepper:
    return four.spawn("steppers", Stepper)


def test_an_editor_stops_a_rank_looks_steps_changes_and_lets_it_go(steppers: Stepper) -> None:
    one = steppers.slice(gpus=slice(1, 2))
    with debugging(one) as client:
        (found,) = client.set_breakpoints(FILE, STEP)
        assert found["verified"]
        answer = steppers.step.call(5, ())
        stopped = client.event("stopped")
        thread = stopped["threadId"]
        assert stopped["reason"] == "breakpoint"
        (waits,) = waiting()
        assert (waits.name, waits.why) == ("workers[gpus=1]", "debugger")
        frames = client.stack(thread)
        assert [(one["name"], one["line"]) for one in frames] == [("step", STEP)]
        assert client.variables(frames[0]["id"])["value"] == "5"
        client.do("next", threadId=thread)
        client.event("stopped")
        (frame,) = client.stack(thread)
        assert client.variables(frame["id"])["doubled"] == "10"
        client.do("setExpression", expression="doubled", value="1000", frameId=frame["id"])
        client.do("continue", threadId=thread)
        assert answer.get(timeout=PATIENCE_S).values() == [110, 1100, 110, 110]
        assert not waiting()


def test_ranks_are_threads_of_one_session_and_each_goes_its_own_way(steppers: Stepper) -> None:
    with debugging(steppers) as client:
        client.set_breakpoints(FILE, STEP, condition="value > 1")
        assert steppers.step.call(1, ()).get(timeout=PATIENCE_S).values() == [102] * 4
        answer = steppers.step.call(5, ())
        threads = {client.event("stopped")["threadId"] for _ in range(4)}
        names = {one["id"]: one["name"] for one in client.do("threads")["threads"]}
        assert sorted(names[one] for one in threads) == [f"workers[gpus={at}]" for at in range(4)]
        by_name = {names[one]: one for one in threads}
        first, second = by_name["workers[gpus=0]"], by_name["workers[gpus=1]"]
        (frame,), (other,) = client.stack(first), client.stack(second)
        assert frame["id"] != other["id"]
        client.do("setExpression", expression="value", value="0", frameId=frame["id"])
        assert client.variables(other["id"])["value"] == "5"
        client.do("stepIn", threadId=first)
        assert client.event("stopped")["threadId"] == first
        client.do("continue", threadId=first)
        while len(waiting()) > 3:  # it goes on a moment after it was told to
            pass
        for one in threads - {first}:
            client.do("continue", threadId=one)
        assert answer.get(timeout=PATIENCE_S).values() == [100, 110, 110, 110]


def test_breakpoint_stops_in_the_editor_that_is_there(steppers: Stepper) -> None:
    with debugging(steppers.slice(gpus=0)) as client:
        answer = steppers.slice(gpus=0).step.call(5)
        thread = client.event("stopped")["threadId"]
        (frame,) = client.stack(thread)
        assert frame["line"] == line_of("result = doubled + self.total")
        found = client.do("evaluate", expression="doubled + 1", frameId=frame["id"], context="repl")
        assert found["result"] == "11"
        client.do("continue", threadId=thread)
        assert answer.get(timeout=PATIENCE_S).values() == [110]


def test_a_failure_is_kept_where_no_editor_is_and_answered_at_once_where_one_is(
    steppers: Stepper,
) -> None:
    two = steppers.slice(gpus=slice(0, 2))
    post_mortem()
    try:
        with debugging(two.slice(gpus=0)), news() as until:
            answer = two.fail.call(6)
            with pytest.raises(ActorError, match="no 7"):
                two.slice(gpus=0).fail.call(6).get(timeout=PATIENCE_S)
            (kept,) = until(1)
            assert (kept.name, kept.why) == ("workers[gpus=1]", "ValueError: no 7")
            resume()
            with pytest.raises(ActorError, match="no 7"):
                answer.get(timeout=PATIENCE_S)
    finally:
        post_mortem(False)


def test_a_second_editor_is_told_who_has_the_rank(steppers: Stepper) -> None:
    one = steppers.slice(gpus=0)
    with debugging(one), pytest.raises(DebugError, match="this console has a bridge to it already"):
        open_bridge(one, lambda _: None)


def test_an_observer_opens_no_bridge(
    four: ProcMesh, own_base_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch._src.net.observer.DEBUGGER", "observer-")
    (session,) = find_sessions([str(own_base_directory)])
    link = AgentLink(session.directory)
    try:
        link.send(AskBridge(1, [(int(four.uid, 16), 0)], True))
        answer = link.receive(PATIENCE_S)
    finally:
        link.close()
    assert isinstance(answer, BridgeAnswered)
    assert "is an observer and may not debug" in answer.problem


@contextmanager
def adapter(base: Path, *words: str) -> Iterator[tuple[DapClient, subprocess.Popen[bytes]]]:
    """`monarch debug --dap` as an editor runs it."""
    command = [sys.executable, "-m", "monarch", "debug", "--in", str(base), "--dap", *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None
    came: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def read() -> None:
        unpacker = Unpacker()
        while data := os.read(stdout.fileno(), 1 << 16):
            for message in unpacker.feed(data):
                came.put(message)

    def send(message: Message) -> None:
        stdin.write(packed(message))
        stdin.flush()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield DapClient(send, came), process
    finally:
        stdin.close()
        process.wait(timeout=PATIENCE_S)
        reader.join()
        stdout.close()


def test_an_editor_runs_the_adapter_on_standard_streams(
    steppers: Stepper, own_base_directory: Path
) -> None:
    steppers.initialized.get(timeout=PATIENCE_S)
    with adapter(own_base_directory, "workers[gpus=1:3]") as (client, process):
        client.begin()
        client.set_breakpoints(FILE, STEP)
        answer = steppers.step.call(5, ())
        threads = [client.event("stopped")["threadId"] for _ in range(2)]
        names = {one["id"]: one["name"] for one in client.do("threads")["threads"]}
        assert sorted(names[one] for one in threads) == ["workers[gpus=1]", "workers[gpus=2]"]
        (frame,) = client.stack(threads[0])
        assert client.variables(frame["id"])["value"] == "5"
        client.do("disconnect")
        assert answer.get(timeout=PATIENCE_S).values() == [110] * 4
        assert process.wait(timeout=PATIENCE_S) == 0
    assert not waiting()


def test_an_adapter_that_is_killed_leaves_no_rank_standing(
    steppers: Stepper, own_base_directory: Path
) -> None:
    steppers.initialized.get(timeout=PATIENCE_S)
    with adapter(own_base_directory, "workers[gpus=0]") as (client, process):
        client.begin()
        client.set_breakpoints(FILE, STEP)
        answer = steppers.step.call(5, ())
        client.event("stopped")
        process.kill()
        process.wait(timeout=PATIENCE_S)
        while waiting():  # whoever looks has the host agent see that it is gone
            pass
    assert answer.get(timeout=PATIENCE_S).values() == [110] * 4


def test_an_adapter_without_ranks_says_what_there_is(
    four: ProcMesh, own_base_directory: Path
) -> None:
    four.initialized.get(timeout=PATIENCE_S)
    status, _, err = monarch("debug", "--in", str(own_base_directory), "--dap", "nobody")
    assert status == 1
    assert "no running process matches; meshes of processes on this host: workers" in err
