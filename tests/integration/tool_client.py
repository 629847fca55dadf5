"""A program of an AI agent: it starts `monarch mcp` and calls tools, by the client of `mcp`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import mcp_types as types
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

PATIENCE_S = 120.0


@dataclass
class ToolClient:
    """A connected client, whose calls block."""

    portal: BlockingPortal
    client: Client
    errors: Path

    def tools(self) -> dict[str, types.Tool]:
        """The tools that the server offers, by name."""
        return {one.name: one for one in self.portal.call(self.client.list_tools).tools}

    def call(self, tool: str, **arguments: Any) -> types.CallToolResult:
        """The result of a tool."""
        return self.portal.call(partial(self.client.call_tool, tool, arguments))

    def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The data of a tool that succeeds, which its schema describes."""
        result = self.call(tool, **arguments)
        assert not result.is_error, result.content
        schema = self.tools()[tool].output_schema
        assert schema is not None
        jsonschema.validate(result.structured_content, schema)
        return result.structured_content

    def text(self, tool: str, **arguments: Any) -> str:
        """The text of a tool that succeeds."""
        result = self.call(tool, **arguments)
        assert not result.is_error, result.content
        return text_of(result)

    def refusal(self, tool: str, **arguments: Any) -> str:
        """The text of a tool that fails."""
        result = self.call(tool, **arguments)
        assert result.is_error, result.content
        assert result.structured_content is None
        return text_of(result)


def text_of(result: types.CallToolResult) -> str:
    """The one text of a result."""
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    return content.text


def command(*options: str) -> StdioServerParameters:
    """The server as the program of an AI agent starts it."""
    path = os.pathsep.join(one for one in sys.path if one)
    return StdioServerParameters(
        command=sys.executable, args=["-m", "monarch", "mcp", *options],
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


@contextmanager
def tool_client(folder: Path, *options: str) -> Iterator[ToolClient]:
    """A client that is connected to a server with these options."""
    errors = folder / "mcp-errors"
    with (
        open(errors, "w") as log,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            Client(stdio_client(command(*options), log), read_timeout_seconds=PATIENCE_S)
        ) as client,
    ):
        yield ToolClient(portal, client, errors)
