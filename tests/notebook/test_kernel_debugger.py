"""JupyterLab's debugger, switched on in the kernel itself, is not in the way of meshes."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from jupyter_client.manager import KernelManager

from tests.integration.programs import Watched, watched
from tests.notebook.kernel import PATIENCE, Kernel
from tests.notebook.test_lab_debugger import LabDebuggerPage

pytestmark = pytest.mark.slow

ECHO = """
from monarch.actor import Actor, endpoint, this_host

class Echo(Actor):
    @endpoint
    def say(self, text):
        print("a rank says", text)
        return text

echo = this_host().spawn_procs({"gpus": 2}).spawn("echo", Echo)
print(echo.say.call("hello").get().values())
"""
# The debugger traces each import. Before Python 3.12 `%load_ext` takes nine seconds of a processor
# under it, and says nothing meanwhile.
TRACED_PATIENCE_S = 10 * PATIENCE
LINE = 1 + ECHO.splitlines().index('print(echo.say.call("hello").get().values())')


@contextmanager
def debugged_kernel(folder: Path) -> Iterator[tuple[LabDebuggerPage, KernelManager]]:
    """A kernel whose debugger is on before anything else has run; without the extension."""
    manager = KernelManager(transport="ipc", ip=str(folder / "k"))
    manager.start_kernel(cwd=str(folder))
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=PATIENCE)
        page = LabDebuggerPage(Kernel(manager, client, TRACED_PATIENCE_S))
        page.do(
            "initialize", clientID="jupyterlab", adapterID="python", pathFormat="path",
            linesStartAt1=True, columnsStartAt1=True, supportsVariableType=True,
        )  # fmt: skip
        page.do("attach")
        page.do("configurationDone")
        assert page.do("debugInfo")["isStarted"]
        yield page, manager
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


@pytest.fixture
def debugged() -> Iterator[tuple[LabDebuggerPage, KernelManager]]:
    with tempfile.TemporaryDirectory() as folder, debugged_kernel(Path(folder)) as found:
        yield found


@contextmanager
def below(manager: KernelManager) -> Iterator[Watched]:
    """All processes that the kernel has below it now."""
    pid = getattr(manager.provisioner, "pid", None)
    found = [one.pid for one in psutil.Process(pid).children(recursive=True)]
    assert len(found) >= 4, "an agent, its zygote, two ranks"
    with watched(found) as processes:
        yield processes


@pytest.mark.parametrize("end", ["shutdown", "restart", "SIGKILL"])
def test_a_first_mesh_spawns_and_nothing_of_it_outlives_its_kernel(
    debugged: tuple[LabDebuggerPage, KernelManager], end: str
) -> None:
    page, manager = debugged
    kernel = page.kernel
    kernel.ok("%load_ext monarch_jupyter")
    *said, answer = kernel.ok(ECHO).stdout.splitlines()
    assert {line.partition("] ")[2] for line in said} == {"a rank says hello"}
    assert answer == "['hello', 'hello']"
    kernel.ok("%monarch spawn workers gpus=1")
    with below(manager) as processes:
        if end == "shutdown":
            manager.shutdown_kernel(now=False)
        elif end == "restart":
            manager.restart_kernel(now=False)
            kernel.client.wait_for_ready(timeout=PATIENCE)
        else:
            os.kill(getattr(manager.provisioner, "pid", 0), signal.SIGKILL)
        processes.wait_all_ended()


def test_a_breakpoint_in_the_kernel_stops_the_cell_and_not_the_ranks(
    debugged: tuple[LabDebuggerPage, KernelManager],
) -> None:
    page, _ = debugged
    path = page.do("dumpCell", code=ECHO)["sourcePath"]
    page.do("setBreakpoints", source={"path": path}, breakpoints=[{"line": LINE}])
    request = page.kernel.client.execute(ECHO)
    thread = page.event("stopped")["threadId"]
    page.do("continue", threadId=thread)
    text = page.end_of(request)
    assert "a rank says hello" in text
    assert text.endswith("['hello', 'hello']\n")
