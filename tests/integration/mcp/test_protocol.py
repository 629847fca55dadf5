"""What `monarch mcp` says on its standard output, byte by byte, to clients of older protocols."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from monarch._src.version import VERSION

pytestmark = pytest.mark.slow
PATIENCE_S = 60.0


class Connection:
    """The server, and JSON-RPC by hand."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._number = 0

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def notify(self, method: str) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", "method": method}))

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a request: the next line with its number."""
        self._number += 1
        request = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self.write(json.dumps(request))
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = json.loads(line)
            assert found["jsonrpc"] == "2.0"
            if found.get("id") == self._number:
                return found
        raise AssertionError(f"the server ended before it answered {method}")

    def begin(self, version: str) -> dict[str, Any]:
        """The handshake; returns what the server says of itself."""
        client = {"name": "by hand", "version": "1"}
        found = self.ask(
            "initialize", protocolVersion=version, capabilities={}, clientInfo=client
        )["result"]  # fmt: skip
        self.notify("notifications/initialized")
        return found


@contextmanager
def connected(folder: Path) -> Iterator[Connection]:
    path = os.pathsep.join(one for one in sys.path if one)
    process = subprocess.Popen(
        [sys.executable, "-m", "monarch", "mcp", "--in", str(folder)], text=True,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        yield Connection(process)
        out, err = process.communicate(timeout=PATIENCE_S)  # closes its standard input
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25"])
def test_a_client_of_an_older_protocol_is_served(version: str, tmp_path: Path) -> None:
    with connected(tmp_path) as server:
        found = server.begin(version)
        assert found["protocolVersion"] == version
        assert (found["serverInfo"]["name"], found["serverInfo"]["version"]) == ("monarch", VERSION)
        assert "list_sessions" in found["instructions"]
        tools = server.ask("tools/list")["result"]["tools"]
        assert {one["inputSchema"]["type"] for one in tools} == {"object"}
        result = server.ask("tools/call", name="list_sessions", arguments={})["result"]
        assert result["content"][0]["text"] == "you have no sessions on this machine"
        assert not result.get("isError")
        failed = server.ask("tools/call", name="query", arguments={"sql": "DROP TABLE procs"})
        assert failed["result"]["isError"]


def test_a_line_that_is_no_message_does_not_end_the_server(tmp_path: Path) -> None:
    with connected(tmp_path) as server:
        server.begin("2025-06-18")
        server.write("this is no JSON")
        assert server.ask("resources/read", uri="monarch://nope")["error"]["message"] == (
            "there is no resource monarch://nope; read monarch://skill"
        )
        assert "error" in server.ask("no/such/method")
        assert server.ask("ping")["result"] == {}
