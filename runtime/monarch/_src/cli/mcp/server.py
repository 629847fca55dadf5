"""The server of the tools: the Model Context Protocol over standard input and output.

Runs in: `monarch mcp`, one process for each AI agent, whose program starts it. Tools run on worker
threads, so a client can cancel a tool that waits for stacks. While the server runs, standard output
of this process leads to standard error, so nothing else can mix with the protocol.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from monarch._src.admin.audit import ActionLog
from monarch._src.admin.skill import skill_text
from monarch._src.cli.mcp.tool_schemas import Arguments, schema_of
from monarch._src.cli.mcp.tools import TOOLS, Answer, Scope, Tool, ToolError
from monarch._src.version import VERSION

SKILL = "monarch://skill"
LONGEST = 60_000
"""How many characters of text an answer has; programs of AI agents refuse or cut longer ones."""
INSTRUCTIONS = (
    "Tools for programs that run actors on Monarch, on this machine: which ranks live, hang, fail "
    "or are slow, and what they print. Begin with list_sessions and explain. They read the state "
    "from host agents, so they answer while every rank computes or hangs, and disturb no program. "
    f"The resource {SKILL} has recipes and SQL."
)

Context = ServerRequestContext[dict[str, Any]]


class ToolServer:
    """Answers an AI agent about the sessions of a scope.

    `actions`: the log of what the AI agent does; without one, no tool that acts is offered.
    """

    def __init__(self, scope: Scope, actions: ActionLog | None) -> None:
        self._scope = scope
        self._actions = actions
        self._tools: Mapping[str, Tool] = {
            one.name: one for one in TOOLS if actions is not None or not one.acts
        }

    async def serve(self) -> None:
        """Serve until standard input ends."""
        server = Server(
            "monarch", version=VERSION, title="Monarch", instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools, on_call_tool=self._call_tool,
            on_list_resources=self._list_resources, on_read_resource=self._read_resource,
        )  # fmt: skip
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    async def _list_tools(
        self, _context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(one) for one in self._tools.values()])

    async def _call_tool(
        self, _context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = self._tools.get(params.name)
        if tool is None:
            return _failed(self._why_unknown(params.name))
        try:
            arguments = msgspec.convert(params.arguments or {}, tool.arguments)
            run = partial(self._act, tool) if tool.acts else tool.run
            work = partial(run, self._scope, arguments)
            answer = await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        except msgspec.ValidationError as error:
            return _failed(f"{tool.name}: {error}")
        except ToolError as error:
            return _failed(str(error))
        text = types.TextContent(text=short_text(answer.text))
        return types.CallToolResult(content=[text], structured_content=_data(answer))

    def _act(self, tool: Tool, scope: Scope, arguments: Arguments) -> Answer:
        """Run a tool that acts, and log it before and after."""
        actions = self._actions
        assert actions is not None, "tools that act are offered with a log"
        facts = {"action": tool.name, "target": arguments.target, "peer": "mcp"}
        actions.write("begun", **facts)
        try:
            answer = tool.run(scope, arguments)
        except ToolError as error:
            actions.write("ended", **facts, problem=error)
            raise
        actions.write("ended", **facts, done=answer.text)
        return answer

    def _why_unknown(self, name: str) -> str:
        if any(one.name == name for one in TOOLS):
            return f"{name} acts on sessions; start the server with `monarch mcp --owner`"
        return f"there is no tool {name!r}; there are {', '.join(self._tools)}"

    async def _list_resources(
        self, _context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        skill = types.Resource(
            name="skill", title="Look into a Monarch program", uri=SKILL, mime_type="text/markdown",
            description="Recipes: a hang, a death, a slow rank, growing memory; SQL for each.",
        )  # fmt: skip
        return types.ListResourcesResult(resources=[skill])

    async def _read_resource(
        self, _context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        if str(params.uri) != SKILL:
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {params.uri}; read {SKILL}")
        text = types.TextResourceContents(uri=SKILL, mime_type="text/markdown", text=skill_text())
        return types.ReadResourceResult(contents=[text])


def _described(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=not tool.acts, destructive_hint=tool.acts, open_world_hint=False
    )
    arguments = schema_of(tool.arguments)
    arguments.pop("description", None)  # it is the tool's
    return types.Tool(
        name=tool.name, title=tool.title, description=tool.description, annotations=hints,
        input_schema=arguments, output_schema=schema_of(tool.answer),
    )  # fmt: skip


def _failed(why: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=why)], is_error=True)


def short_text(text: str) -> str:
    """The text, cut after `LONGEST` characters."""
    if len(text) <= LONGEST:
        return text
    left = len(text) - LONGEST
    return f"{text[:LONGEST]}\n... {left} more characters; select fewer ranks, lines or rows"


def _data(answer: Answer) -> dict[str, Any]:
    """The data as JSON has it: no NaN, and values that JSON lacks as text."""
    return json.loads(msgspec.json.encode(answer.data, enc_hook=str))


def serve(scope: Scope, actions: ActionLog | None) -> None:
    """Serve an AI agent until it closes standard input."""
    anyio.run(ToolServer(scope, actions).serve)
