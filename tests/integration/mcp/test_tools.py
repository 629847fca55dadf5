"""The tools of `monarch mcp` on sessions that run, hang and fail, as an AI agent calls them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import jsonschema
import pytest

from monarch._src.cli.mcp.tools import TOOLS
from monarch.actor import ProcMesh
from tests.conftest import Faults
from tests.integration.admin_server import session_name
from tests.integration.failing_actors import Faulty
from tests.integration.gates import GateKeeper
from tests.integration.tool_client import ToolClient, tool_client

pytestmark = pytest.mark.slow
Spawn = Callable[..., ProcMesh]
PATIENCE_S = 60.0
READING = {one.name for one in TOOLS if not one.acts}


@pytest.fixture(scope="module")
def reader(four: ProcMesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolClient]:
    """A client that may look at the session of `four`."""
    four.initialized.get()
    with tool_client(tmp_path_factory.mktemp("mcp"), "--session", session_name()) as found:
        yield found
    assert found.errors.read_text() == ""


def test_tools_only_read_and_describe_themselves(reader: ToolClient) -> None:
    tools = reader.tools()
    assert set(tools) == READING == {
        "list_sessions", "explain", "read_stacks", "read_logs", "query", "sample_stacks"
    }  # fmt: skip
    for one in tools.values():
        assert one.annotations is not None
        assert one.annotations.read_only_hint
        assert one.description
        assert one.title
        assert one.output_schema is not None
        for schema in (one.input_schema, one.output_schema):
            assert schema["type"] == "object"
            jsonschema.Draft202012Validator.check_schema(schema)


def test_the_guide_is_a_resource(reader: ToolClient) -> None:
    (listed,) = reader.portal.call(reader.client.list_resources).resources
    assert listed.mime_type == "text/markdown"
    (found,) = reader.portal.call(reader.client.read_resource, listed.uri).contents
    assert "# Look into a Monarch program" in found.model_dump()["text"]


def test_sessions_have_the_states_of_ranks(reader: ToolClient) -> None:
    (session,) = reader.ask("list_sessions")["sessions"]
    assert (session["session"], session["state"]) == (session_name(), "live")
    assert session["client_pid"] == os.getpid()
    mesh = next(one for one in session["meshes"] if one["name"] == "workers")
    assert mesh["sizes"] == {"gpus": 4}
    assert sum(mesh["states"].values()) == 4
    assert mesh["failed"] == []
    assert "  workers (gpus=4): " in reader.text("list_sessions")


def test_a_failed_rank_is_named_with_the_reason(
    reader: ToolClient, spawn_procs: Spawn, faults: Faults
) -> None:
    mesh = spawn_procs({"gpus": 2}, name="trainers")
    faulty = mesh.spawn("faulty", Faulty)
    os.kill(faulty.slice(gpus=1).pid.call_one().get(PATIENCE_S), signal.SIGKILL)
    faults.take_ranks({1})
    (session,) = reader.ask("list_sessions")["sessions"]
    (failed,) = [one for mesh in session["meshes"] for one in mesh["failed"]]
    assert failed["where"] == "trainers[gpus=1]"
    assert "SIGKILL" in failed["failure"]
    assert "    trainers[gpus=1]: " in reader.text("list_sessions")
    verdict = reader.ask("explain", stacks=False)["verdict"]
    assert verdict.startswith("trainers[gpus=1] failed first:")


def test_a_hang_is_explained_and_its_stack_shown(
    reader: ToolClient, four: ProcMesh, gate: GateKeeper
) -> None:
    faulty = four.spawn("faulty", Faulty)
    answer = faulty.slice(gpus=2).hold.call_one(gate.gate)
    gate.wait_entered()
    case = reader.ask("explain", session=session_name()[:4])
    assert "the stack of workers[gpus=2] differs from the others'" in case["verdict"]
    (group,) = [one for one in reader.ask("read_stacks")["groups"] if one["threads"]]
    assert (group["mesh"], group["ranks"]) == ("workers", [2])
    assert group["threads"][0]["frames"][0]["name"] == "Faulty.hold"
    assert "Faulty.hold" in reader.text("read_stacks", where="workers[gpus=2]")
    assert "Faulty.hold" not in reader.text("read_stacks", where="workers[gpus=0:2]", idle=True)
    samples = reader.ask("sample_stacks", where="workers[gpus=2]", seconds=1)
    assert samples["samples"] > 0
    assert "pass_through" in samples["folded"][0]
    gate.open()
    answer.get(timeout=PATIENCE_S)


def test_lines_of_ranks_are_read(reader: ToolClient, four: ProcMesh) -> None:
    four.spawn("speaker", Faulty).say_on_stderr.call("first", "second").get(PATIENCE_S)
    lines = reader.ask("read_logs", where="workers[gpus=3]", grep="^(first|second)$")["lines"]
    assert [(one["where"], one["rank"], one["stream"], one["text"]) for one in lines] == [
        ("workers[gpus=3]", 3, "stderr", "first"), ("workers[gpus=3]", 3, "stderr", "second"),
    ]  # fmt: skip
    assert len(reader.ask("read_logs", where="workers", tail=3)["lines"]) == 3
    assert reader.text("read_logs", grep="no such line") == "no lines"
    found = reader.text("read_logs", where="workers[gpus=1]", tail=1)
    assert found == "[workers[gpus=1]] second"


def test_a_query_has_rows_and_says_how_many_there_are(reader: ToolClient) -> None:
    sql = "SELECT rank, mesh FROM procs WHERE mesh = 'workers' ORDER BY rank"
    found = reader.ask("query", sql=sql)
    assert found["columns"] == ["rank", "mesh"]
    assert found["rows"] == [[rank, "workers"] for rank in range(4)]
    few = reader.ask("query", sql="SELECT unnest(range(1000)) AS n", limit=2)
    assert (few["rows"], few["count"]) == ([[0], [1]], 1000)
    text = reader.text("query", sql="SELECT unnest(range(1000)) AS n", limit=2)
    assert text.splitlines() == ["n", "0", "1", "(1000 rows, 998 not shown)"]
    odd = reader.ask("query", sql="SELECT 'nan'::DOUBLE, DATE '2026-01-02', 1::DECIMAL(3,1), NULL")
    assert odd["rows"] == [[None, "2026-01-02", "1.0", None]]


@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        ("query", {"sql": "DELETE FROM procs"}, "SELECT"),
        ("query", {"sql": "SELECT nothing FROM procs"}, "nothing"),
        ("query", {}, "query: Object missing required field `sql`"),
        ("query", {"sql": "SELECT 1", "limit": 0}, "`int` >= 1 - at `$.limit`"),
        ("query", {"sql": "SELECT 1", "mesh": "x"}, "unknown field `mesh`"),
        ("query", {"sql": "SELECT 1", "session": "nope"}, "there is no session 'nope'; sessions: "),
        ("explain", {"stacks": "yes"}, "Expected `bool`, got `str` - at `$.stacks`"),
        ("read_stacks", {"where": "nope"}, "there is no session or mesh 'nope'; meshes: "),
        ("read_stacks", {"where": "workers[gpus=9]"}, "workers: "),
        ("read_logs", {"grep": "("}, "'(' is not a regular expression: "),
        ("read_logs", {"where": "workers[3]"}, "write dim=3 or dim=0:4"),
        ("sample_stacks", {"where": "nope"}, "there is no session or mesh 'nope'"),
        ("nope", {}, "there is no tool 'nope'; there are list_sessions, explain"),
        ("kill_rank", {"where": "workers[gpus=0]"}, "start the server with `monarch mcp --owner`"),
    ],
)
def test_a_wrong_call_is_an_error_with_the_remedy(
    reader: ToolClient, tool: str, arguments: dict[str, object], why: str
) -> None:
    assert why in reader.refusal(tool, **arguments)
    assert len(reader.ask("list_sessions")["sessions"]) == 1, "the server goes on"


def test_a_call_that_is_cancelled_leaves_the_server_responsive(reader: ToolClient) -> None:
    future = reader.portal.start_task_soon(
        reader.client.call_tool, "sample_stacks", {"where": "workers", "seconds": 30}
    )
    assert len(reader.ask("list_sessions")["sessions"]) == 1, "answered beside the other call"
    future.cancel()
    assert len(reader.ask("list_sessions")["sessions"]) == 1
