"""The tools that act, which `monarch mcp --owner` offers, and the log of their calls."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch._src.system import process_table
from monarch.actor import ProcMesh
from tests.conftest import Faults
from tests.integration.admin_server import session_name
from tests.integration.commands import monarch
from tests.integration.failing_actors import Faulty
from tests.integration.programs import running
from tests.integration.tool_client import tool_client

pytestmark = pytest.mark.slow
Spawn = Callable[..., ProcMesh]
PATIENCE_S = 60.0


def logged(path: Path) -> list[dict[str, Any]]:
    """The events of a log."""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_owner_kills_one_rank_and_it_is_logged(
    spawn_procs: Spawn, faults: Faults, tmp_path: Path
) -> None:
    mesh = spawn_procs({"gpus": 2}, name="trainers")
    pid = mesh.spawn("faulty", Faulty).slice(gpus=1).pid.call_one().get(PATIENCE_S)
    log = tmp_path / "actions"
    options = ("--session", session_name(), "--owner", "--audit", str(log))
    with tool_client(tmp_path, *options) as owner:
        tool = owner.tools()["kill_rank"]
        assert tool.annotations is not None
        assert (tool.annotations.read_only_hint, tool.annotations.destructive_hint) == (False, True)
        for where in ("trainers", "trainers[gpus=0:2]", ""):
            assert "is not one rank" in owner.refusal("kill_rank", where=where)
        assert owner.ask("kill_rank", where="trainers[gpus=1]")["done"] == [
            f"killed process {pid} of trainers[gpus=1]"
        ]
        faults.take_ranks({1})
        again = owner.refusal("kill_rank", where="trainers[gpus=1]")
        assert again.startswith("trainers[gpus=1] has failed already: ")
        assert "SIGKILL" in again
    events = logged(log)
    assert [(one["event"], one["target"]) for one in events[-4:]] == [
        (event, "trainers[gpus=1]") for event in ("begun", "ended") * 2
    ]
    assert events[-3]["done"].startswith(f"killed process {pid}")
    assert {(one["action"], one["peer"]) for one in events} == {("kill_rank", "mcp")}


def test_an_owner_ends_a_session_in_order(tmp_path: Path) -> None:
    log = tmp_path / "actions"
    with (
        running(tmp_path / "program", PROGRAM) as program,
        tool_client(tmp_path, "--owner", "--audit", str(log)) as owner,
    ):
        name, pid = program.line().split()
        assert "there is no session 'nope'" in owner.refusal("kill_session", session="nope")
        done = owner.ask("kill_session", session=name)["done"]
        assert any(name in line for line in done)
        assert process_table.entry(int(pid)) is None
        assert name not in owner.text("list_sessions")
        assert program.end() == (0, "its call failed\n", "")
    assert [one["event"] for one in logged(log)] == ["begun", "ended"] * 2
    assert "there is no session" in logged(log)[1]["problem"]


PROGRAM = """
import monarch.actor
from monarch._src.actor.runtime import runtime
from monarch.actor import Actor, SupervisionError, endpoint, this_host

class Waiter(Actor):
    @endpoint
    async def pid(self) -> int:
        import os
        return os.getpid()

    @endpoint
    async def wait(self) -> None:
        import asyncio
        await asyncio.Event().wait()

monarch.actor.unhandled_fault_hook = lambda failure: None
waiter = this_host().spawn_procs({"gpus": 1}).spawn("waiter", Waiter)
pid = waiter.pid.call_one().get()
print(str(runtime().directory).rpartition("-")[2], pid, flush=True)
try:
    waiter.wait.call_one().get()
except SupervisionError:
    print("its call failed")
"""


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    status, out, err = monarch("mcp", "--audit", str(tmp_path / "log"))
    assert (status, out) == (1, "")
    assert err == "monarch mcp: --audit logs the actions of an owner; give --owner too\n"
    (tmp_path / "open").touch(mode=0o644)
    status, out, err = monarch("mcp", "--owner", "--audit", str(tmp_path / "open"))
    assert (status, out) == (1, "")
    assert str(tmp_path / "open") in err


def test_the_server_ends_with_its_standard_input(tmp_path: Path) -> None:
    assert monarch("mcp", "--in", str(tmp_path)) == (0, "", "")


WITHOUT = """
import sys
sys.modules["mcp_types"] = None
sys.stderr = sys.stdout
from monarch.__main__ import main
print(main(["mcp"]))
"""


def test_without_the_package_the_command_says_what_to_install(
    run_python: Callable[..., str],
) -> None:
    missing = "the server needs mcp_types, which is not installed"
    remedy = "pip install 'monarch-jupyter[mcp]'"
    assert run_python(WITHOUT).splitlines() == [f"monarch mcp: {missing}; {remedy}", "1"]
