"""JupyterLab's debugger on ranks, driven over the kernel's channels as JupyterLab drives it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.notebook.kernel import PATIENCE, Kernel

pytestmark = pytest.mark.slow

ACTOR = """
from monarch.actor import Actor, endpoint

class Doubler(Actor):
    @endpoint
    def double(self, value):
        doubled = value * 2
        return doubled + 1

doublers = workers.spawn("doublers", Doubler)
"""
LINE = 1 + ACTOR.splitlines().index("        doubled = value * 2")


class LabDebuggerPage:
    """What JupyterLab's debugger says to a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._numbers = itertools.count(1)

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """The whole answer to a question."""
        content = {
            "type": "request", "seq": next(self._numbers), "command": command,
            "arguments": arguments,
        }  # fmt: skip
        return self.kernel.control("debug_request", content)

    def do(self, command: str, **arguments: Any) -> dict[str, Any]:
        """The body of an answer that has to be well."""
        answer = self.ask(command, **arguments)
        assert answer["success"], answer
        return answer.get("body", {})

    def event(self, name: str) -> dict[str, Any]:
        """The body of the next such event."""
        while True:
            message = self.kernel.client.get_iopub_msg(timeout=PATIENCE)
            if message["msg_type"] == "debug_event" and message["content"]["event"] == name:
                return message["content"]["body"]

    def end_of(self, request: str) -> str:
        """The output of the cell of that request, once it has ended."""
        text = ""
        while True:
            message = self.kernel.client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") != request:
                continue
            text += message["content"].get("text", "")
            if message["content"].get("execution_state") == "idle":
                return text

    def variables(self) -> dict[str, str]:
        """The locals of where the thread stands that is shown."""
        (thread,) = self.do("debugInfo")["stoppedThreads"]
        frame = self.do("stackTrace", threadId=thread)["stackFrames"][0]
        scopes = self.do("scopes", frameId=frame["id"])["scopes"]
        found = self.do("variables", variablesReference=scopes[0]["variablesReference"])
        return {one["name"]: one["value"] for one in found["variables"]}


@pytest.fixture
def page(kernel: Kernel) -> Iterator[LabDebuggerPage]:
    """A kernel with four ranks, and its debugger begun."""
    kernel.ok("%monarch spawn workers gpus=4")
    found = LabDebuggerPage(kernel)
    found.do("initialize", clientID="jupyterlab", adapterID="", linesStartAt1=True)
    found.do("attach")
    yield found
    kernel.ok("%monarch debug --lab off")
    found.do("disconnect", restart=False, terminateDebuggee=False)
    kernel.ok("%monarch stop workers")


def test_a_breakpoint_in_a_cell_stops_the_endpoint_of_a_rank(page: LabDebuggerPage) -> None:
    kernel = page.kernel
    kernel.ok(ACTOR)
    path = page.do("dumpCell", code=ACTOR)["sourcePath"]
    said = kernel.ok("%monarch debug --lab workers[gpus=3]").stdout
    assert "JupyterLab's debugger is on workers[gpus=3]" in said
    page.do("setBreakpoints", source={"path": path}, breakpoints=[{"line": LINE}])
    request = kernel.client.execute("print(doublers.double.call(4).get().values())")
    thread = page.event("stopped")["threadId"]
    assert page.do("debugInfo")["stoppedThreads"] == [thread]
    (frame,) = page.do("stackTrace", threadId=thread)["stackFrames"]
    assert (frame["source"]["path"], frame["line"], frame["name"]) == (path, LINE, "double")
    assert page.variables()["value"] == "4"
    page.do("next", threadId=thread)
    page.event("stopped")
    assert page.variables()["doubled"] == "8"
    (frame,) = page.do("stackTrace", threadId=thread)["stackFrames"]
    rich = page.do("richInspectVariables", variableName="doubled", frameId=frame["id"])
    assert rich["data"] == {"text/plain": "8"}
    page.do("continue", threadId=thread)
    assert page.end_of(request) == "[9, 9, 9, 9]\n"


def test_ranks_that_stop_together_are_shown_one_after_the_other(page: LabDebuggerPage) -> None:
    kernel = page.kernel
    kernel.ok(ACTOR)
    path = page.do("dumpCell", code=ACTOR)["sourcePath"]
    page.do("setBreakpoints", source={"path": path}, breakpoints=[{"line": LINE}])
    kernel.ok("%monarch debug --lab workers[gpus=0:2]")  # takes the page's breakpoints over
    request = kernel.client.execute("print(doublers.double.call(4).get().values())")
    first = page.event("stopped")["threadId"]
    page.do("continue", threadId=first)
    second = page.event("stopped")["threadId"]
    assert first != second
    page.do("continue", threadId=second)
    assert page.end_of(request) == "[9, 9, 9, 9]\n"


PAUSES = ACTOR.replace("doublers", "pausers").replace("return", "breakpoint(); return")


def test_a_rank_that_waits_at_a_console_is_shown_where_it_stands(page: LabDebuggerPage) -> None:
    kernel = page.kernel
    kernel.ok(PAUSES)
    path = page.do("dumpCell", code=PAUSES)["sourcePath"]
    kernel.ok(
        "import monarch_jupyter as mj\nanswer = pausers.slice(gpus=2).double.call_one(4)\n"
        "while not mj.debug(): pass"
    )
    kernel.client.execute("%monarch debug --lab workers[gpus=2]")
    thread = page.event("stopped")["threadId"]
    (frame,) = page.do("stackTrace", threadId=thread)["stackFrames"]
    assert (frame["source"]["path"], frame["line"]) == (path, LINE + 1)
    assert page.variables()["doubled"] == "8"
    assert "(in an editor)" in kernel.ok("%monarch debug").result["text/plain"]
    page.do("continue", threadId=thread)
    assert kernel.value("answer.get()") == "9"


def test_afterwards_the_kernels_own_debugger_stops_in_the_kernel(page: LabDebuggerPage) -> None:
    kernel = page.kernel
    kernel.ok("%monarch debug --lab workers")
    code = "local = 7\nprint(local + 1)"
    path = page.do("dumpCell", code=code)["sourcePath"]
    page.do("setBreakpoints", source={"path": path}, breakpoints=[{"line": 2}])
    assert "8" in kernel.ok(code).stdout  # nothing stops the kernel meanwhile
    kernel.ok("%monarch debug --lab off")
    assert page.do("debugInfo")["breakpoints"] == [{"source": path, "breakpoints": [{"line": 2}]}]
    request = kernel.client.execute(code)
    thread = page.event("stopped")["threadId"]
    page.do("continue", threadId=thread)
    assert page.end_of(request) == "8\n"


def test_a_mesh_that_ends_while_its_rank_is_shown_gives_the_debugger_back(
    page: LabDebuggerPage,
) -> None:
    kernel = page.kernel
    kernel.ok(ACTOR)
    path = page.do("dumpCell", code=ACTOR)["sourcePath"]
    kernel.ok("%monarch debug --lab workers[gpus=1]")
    page.do("setBreakpoints", source={"path": path}, breakpoints=[{"line": LINE}])
    kernel.client.execute("answer = doublers.double.call(4)")
    page.event("stopped")
    kernel.client.execute("workers.kill().get()")
    page.event("continued")
    assert page.do("debugInfo")["stoppedThreads"] == []
    kernel.ok("%monarch spawn workers gpus=1")
    assert page.do("inspectVariables")["variables"]
