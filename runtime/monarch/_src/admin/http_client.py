"""A client of the admin API, over a Unix socket or TCP.

Runs in: the command line; any thread. Each request has a connection of its own, which is bounded in
time.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

import msgspec

from monarch._src.admin.state import openapi
from monarch._src.admin.state.case_file import CaseFile
from monarch._src.admin.state.nodes import Cluster, NodePayload

TIMEOUT_S = 60.0
T = TypeVar("T")


class AdminAPIError(Exception):
    """The server cannot be reached, or refuses; with the remedy where there is one."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("monarch", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


class AdminClient:
    """The server at a URL: `http+unix://PATH` with escapes, `http://HOST:PORT` or `https://`."""

    def __init__(self, url: str, token: str = "") -> None:
        """A client of the server at that URL; connects with the first request.

        Raises:
            AdminAPIError: the text is no such URL.
        """
        self.url = url if "://" in url else f"http://{url}"
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https", "http+unix") or not parts.netloc:
            raise AdminAPIError(
                f"{url!r} is no address of an admin server; give HOST:PORT, or the URL that "
                "`monarch admin` has printed"
            )
        self._parts = parts
        self._token = token

    def _connection(self) -> http.client.HTTPConnection:
        parts = self._parts
        if parts.scheme == "http+unix":
            return _UnixConnection(unquote(parts.netloc))
        if parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(parts.netloc, timeout=TIMEOUT_S, context=context)
        return http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_S)

    def get(self, path: str, kind: type[T]) -> T:
        """The answer to a GET.

        Raises:
            AdminAPIError: the server does not answer, or answers with an error.
        """
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        connection = self._connection()
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            status, body = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise AdminAPIError(f"no admin server answers at {self.url}: {error}") from None
        finally:
            connection.close()
        try:
            if status == 200:
                return msgspec.json.decode(body, type=kind)
            message = msgspec.json.decode(body, type=openapi.ErrorAnswer).error.message
        except msgspec.DecodeError:
            message = f"it is no admin server (status {status})"
        hint = "; give --token-file" if status == 401 else ""
        raise AdminAPIError(f"the admin server at {self.url}: {message}{hint}")

    # --- as a source of the terminal view ---------------------------------------------------------

    def cluster(self) -> Cluster:
        """A snapshot with all its nodes."""
        nodes: dict[str, NodePayload] = {}
        page: openapi.NodeList | None = None
        while page is None or page.next_cursor is not None:
            after = "" if page is None else f"&cursor={page.next_cursor}"
            page = self.get(f"/v1/nodes?limit=1000{after}", openapi.NodeList)
            nodes |= {node.identity: node for node in page.nodes}
        for node in nodes.values():
            if node.parent is not None and node.parent in nodes:
                nodes[node.parent].children.append(node.identity)
        return Cluster(page.snapshot, nodes["root"].as_of, nodes, tuple(page.missing))

    def stacks(self, reference: str) -> openapi.StacksAnswer:
        """The stacks of a proc, idle or not."""
        return self.get(f"/v1/pyspy/{quote(reference, safe='')}?idle=1", openapi.StacksAnswer)

    def case(self, *, stacks: bool = True) -> CaseFile:
        """The case file."""
        return self.get(f"/v1/explain?stacks={int(stacks)}", CaseFile)
