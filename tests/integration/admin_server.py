"""An admin server as a process of its own, and requests to it over real sockets."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from monarch._src.actor.runtime import runtime
from monarch._src.net.session_directory import PREFIX

PATIENCE_S = 60.0
ACTIONS = "actions.jsonl"
"""The log of actions of a server, in its folder."""


def session_directory() -> Path:
    """The directory of the session of this process."""
    return Path(runtime().directory)


def session_name() -> str:
    """The name of the session of this process."""
    return session_directory().name.removeprefix(PREFIX)


@dataclass
class Answer:
    """The answer to one request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[str, str]:
        """The code and the message of an error."""
        assert set(self.json) == {"error"}
        assert set(self.json["error"]) == {"code", "message"}
        return self.json["error"]["code"], self.json["error"]["message"]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("monarch", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(self._path)


def unix_post(url: str, path: str, body: object, token: str) -> Answer:
    """A request to the server at the URL of a Unix socket."""
    connection = _UnixConnection(unquote(urlsplit(url).netloc))
    try:
        connection.request(
            "POST", path, json.dumps(body).encode(), {"Authorization": f"Bearer {token}"}
        )
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


@dataclass
class AdminProcess:
    """A running server: what it has printed, and the tokens that it has written."""

    process: subprocess.Popen[str]
    said: dict[str, Any]
    tokens: dict[str, str] = field(default_factory=dict[str, str])
    folder: Path = Path()

    @property
    def url(self) -> str:
        return self.said["url"]

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request over a connection of its own. `token`: the name of a role, or a token."""
        connection: http.client.HTTPConnection
        if self.said["socket"]:
            connection = _UnixConnection(self.said["socket"])
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {self.tokens.get(token, token)}"
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def get(self, path: str, token: str | None = None) -> Answer:
        return self.request("GET", path, token=token)

    def post(self, path: str, body: object = None, token: str | None = None) -> Answer:
        return self.request("POST", path, body, token)


def command(*arguments: str, name: str = "admin") -> subprocess.Popen[str]:
    """`monarch admin`, or the command of that name, with these arguments, started."""
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(
        [sys.executable, "-m", "monarch", name, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def admin_server(folder: Path, *arguments: str) -> Iterator[AdminProcess]:
    """A server of this process's session, which has ended after the block without a complaint."""
    tokens = folder / "admin-tokens.json"
    process = command(
        "--session", session_name(), "--json", "--token-file", str(tokens),
        "--audit", str(folder / ACTIONS), *arguments,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate(timeout=PATIENCE_S)[1])
        said = json.loads(tokens.read_text())
        found = {"observer": said["observer_token"], "owner": said["owner_token"]}
        yield AdminProcess(process, json.loads(line), found, folder)
    finally:
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE_S)
    assert err == ""


@contextmanager
def dashboard_server(*arguments: str) -> Iterator[AdminProcess]:
    """`monarch dashboard`, which has ended after the block without a complaint.

    Its `said["page"]` is the address that it has printed.
    """
    process = command(*arguments, name="dashboard")
    try:
        assert process.stdout is not None
        page = process.stdout.readline().strip()
        if not page:
            raise AssertionError(process.communicate(timeout=PATIENCE_S)[1])
        url, _, token = page.partition("/dashboard/?token=")
        yield AdminProcess(process, {"url": url, "socket": "", "page": page}, {"page": token})
    finally:
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE_S)
    assert err == ""
