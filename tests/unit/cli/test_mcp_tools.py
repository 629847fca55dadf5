"""The schemas and texts of the tools of `monarch mcp`, without a server."""

from __future__ import annotations

import jsonschema
import msgspec
import pytest

from monarch._src.cli.mcp import tool_schemas as schema
from monarch._src.cli.mcp.server import LONGEST, short_text
from monarch._src.cli.mcp.tools import MOST_FAILED, TOOLS, Tool, mesh_summary, mesh_text
from monarch._src.wire.messages import MeshState, RankState

TOOL = pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)


@TOOL
def test_a_tool_has_objects_as_arguments_and_answer(tool: Tool) -> None:
    for struct in (tool.arguments, tool.answer):
        found = schema.schema_of(struct)
        assert found["type"] == "object"
        jsonschema.Draft202012Validator.check_schema(found)


@TOOL
def test_the_schema_of_arguments_refuses_what_the_tool_refuses(tool: Tool) -> None:
    found = schema.schema_of(tool.arguments)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"nonsense": 1}, found)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"nonsense": 1}, tool.arguments)


@TOOL
def test_a_tool_is_described_in_one_paragraph(tool: Tool) -> None:
    assert "\n" not in tool.description
    assert tool.description.endswith(".")
    assert tool.acts == ("Ask the user before." in tool.description)


def test_arguments_that_are_left_out_select_everything() -> None:
    for tool in TOOLS:
        if not tool.acts and tool.name != "query":
            msgspec.convert({}, tool.arguments)
    wanted = msgspec.convert({"sql": "SELECT 1"}, schema.Query)
    assert (wanted.session, wanted.limit) == ("", 200)


def test_only_what_acts_has_a_target() -> None:
    assert schema.KillRank("workers[gpus=1]").target == "workers[gpus=1]"
    assert schema.KillSession("abc").target == "abc"
    assert schema.Explain("abc").target == ""


def test_failed_ranks_are_named_and_counted() -> None:
    ranks = [
        *(RankState(rank, 0, "failed", "", "", 0.0, 0, 0, "it died") for rank in range(25)),
        *(RankState(rank, 0, "idle", "", "", 0.0, 0, 0, "") for rank in range(25, 30)),
    ]
    found = mesh_summary(MeshState(1, "live", 2.0, ranks, "workers", ["hosts", "gpus"], [5, 6]))
    assert (found.sizes, found.states) == ({"hosts": 5, "gpus": 6}, {"failed": 25, "idle": 5})
    assert len(found.failed) == MOST_FAILED
    lines = mesh_text(found).splitlines()
    assert lines[0] == "  workers (hosts=5, gpus=6): 25 failed, 5 idle"
    assert lines[8] == "    workers[hosts=1, gpus=1]: it died"
    assert lines[-1] == "    and 5 more"


def test_a_long_text_is_cut_and_says_so() -> None:
    assert short_text("x" * LONGEST) == "x" * LONGEST
    found = short_text("x" * (LONGEST + 5))
    assert found.endswith("\n... 5 more characters; select fewer ranks, lines or rows")
