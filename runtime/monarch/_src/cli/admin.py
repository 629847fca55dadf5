"""`monarch admin`: serve the state of sessions over HTTP, to programs and to Prometheus."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from monarch._src.admin.cluster_reader import ClusterReader, NoSessionError, find_live
from monarch._src.admin.server_files import ServerRecord, write_private
from monarch._src.session.directories import Session

if TYPE_CHECKING:
    from monarch._src.admin.remote_hosts import RemoteHosts

INSTALL = "pip install 'monarch-jupyter[admin]'"


def run(
    bases: Sequence[str] | None,
    names: Sequence[str],
    listen: str,
    *,
    audit: str | None,
    token_file: str | None,
    certificate: str,
    key: str,
    workers: bool,
    remote: Callable[[], RemoteHosts | None],
    form: str,
) -> int:
    """Serve until a signal or the end of the session; return 1 if the server cannot start."""
    try:
        from monarch._src.admin.server import AdminServerError, ServerOptions, serve
    except ModuleNotFoundError as error:
        return missing_package("admin", error)
    try:
        chosen = find_live(bases, names)
        options = ServerOptions(
            listen, _home(chosen, bool(names)), None if audit is None else Path(audit),
            certificate, key,
        )  # fmt: skip
        reader = ClusterReader(
            SessionFinder(bases, chosen if names else None, workers=workers), remote=remote()
        )
        serve(reader, options, lambda record: _announce(record, token_file, form))
    except (NoSessionError, AdminServerError, ValueError, OSError) as error:
        print(f"monarch admin: {error}", file=sys.stderr)
        return 1
    return 0


def missing_package(command: str, error: ModuleNotFoundError) -> int:
    """Print which package of the extra is missing; return 1. Raises `error` if it is another."""
    if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "anyio"):
        raise error
    print(
        f"monarch {command}: the server needs {error.name}, which is not installed; {INSTALL}",
        file=sys.stderr,
    )
    return 1


def _home(chosen: Sequence[Session], is_named: bool) -> Session | None:
    """The session whose directory holds the server's files, and whose end ends the server."""
    if is_named:
        return chosen[0]
    clients = [one for one in chosen if one.record is None or not one.record.serves]
    return clients[0] if len(clients) == 1 else None


class SessionFinder:
    """Finds the sessions anew. Named ones that have ended stay listed, as hosts without answer."""

    def __init__(
        self, bases: Sequence[str] | None, named: Sequence[Session] | None, *, workers: bool
    ) -> None:
        self._bases = bases
        self._named = named
        self._workers = workers

    def __call__(self) -> Sequence[Session]:
        if self._named is None:
            return find_live(self._bases, ())
        if not self._workers:
            return self._named
        names = {one.name for one in self._named}
        more = [
            one
            for one in find_live(self._bases, ())
            if one.record is not None and one.record.serves and one.name not in names
        ]
        return [*self._named, *more]


def _announce(record: ServerRecord, token_file: str | None, form: str) -> None:
    """Say once where the server listens, and with which tokens."""
    if token_file is not None:
        write_private(Path(token_file), msgspec.json.encode(record))
    if form == "quiet":
        print(record.url, flush=True)
        return
    if form == "json":
        data = {"url": record.url, "socket": record.socket, "pid": record.pid}
        if token_file is None and not record.socket:
            data |= {"observer_token": record.observer_token, "owner_token": record.owner_token}
        print(msgspec.json.encode(data).decode(), flush=True)
        return
    print(f"Mesh admin server listening on {record.url}")
    if record.socket:
        print(f"read: curl --unix-socket {record.socket} http://monarch/v1/tree")
    elif token_file is None:
        print(f"observer's token: {record.observer_token}")
        print(f"owner's token: {record.owner_token}")
    print(f"actions are logged in {record.audit}", flush=True)
