"""The admin server: a process that serves the state of sessions over HTTP.

Runs in: a process of its own (`monarch admin`), which observes agents and is no part of a session.
Owns: its socket, and the files with its tokens and its address, which it removes at its end.
Invariants: a Unix socket has mode 0600, and a request over it needs no token to read; over TCP
every request needs a token; TCP beyond loopback needs TLS, since a token would pass in clear.
Acting needs the owner's token everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import socket
import stat
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from monarch._src.admin.app import AdminService, make_app
from monarch._src.admin.audit import ActionLog, usual_path
from monarch._src.admin.cluster_reader import ClusterReader, address_of_socket
from monarch._src.admin.server_files import (
    RECORD,
    SOCKET,
    ServerRecord,
    read_record,
    write_private,
)
from monarch._src.admin.state.access import AdminRole, Tokens
from monarch._src.net import session_directory
from monarch._src.session.directories import Session
from monarch._src.system.process_table import began_of

WATCH_S = 0.5
GRACE_S = 2
_TCP = re.compile(r"(?:tcp://)?(?P<host>\[[0-9a-fA-F:.%]+\]|[^:/\s\[\]]+):(?P<port>\d{1,5})")


class AdminServerError(Exception):
    """The server cannot listen as it was told to, with the remedy."""


@dataclass(frozen=True)
class ServerOptions:
    """Where a server listens, and which files it uses.

    `listen`: `HOST:PORT`, `unix:PATH`, or empty for a socket in the directory of `home`. `home` is
    the session whose end ends the server.
    """

    listen: str = ""
    home: Session | None = None
    audit: Path | None = None
    certificate: str = ""
    key: str = ""


def serve(
    reader: ClusterReader, options: ServerOptions, announce: Callable[[ServerRecord], None]
) -> None:
    """Serve until a signal, or until the session `home` ends; `announce` is called once it listens.

    Raises:
        AdminServerError: it cannot listen there. OSError: a file cannot be written.
    """
    with contextlib.ExitStack() as stack:
        listener, url, path = _listen(options)
        stack.callback(listener.close)
        is_tcp = path is None
        if path is not None:
            stack.callback(_unlink, path)
        actions = ActionLog(options.audit or usual_path())
        stack.callback(actions.close)
        tokens = Tokens(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        record = ServerRecord(
            url, str(path or ""), tokens.observer, tokens.owner, os.getpid(), began_of(os.getpid()),
            str(actions.path),
        )  # fmt: skip
        # The first server of a session is the one that its programs find.
        if options.home is not None and read_record(options.home.directory) is None:
            file = options.home.directory / RECORD
            write_private(file, msgspec.json.encode(record))
            stack.callback(_unlink, file)
        service = AdminService(
            reader, tokens, AdminRole.STRANGER if is_tcp else AdminRole.OBSERVER, actions,
            os.uname().nodename, url, os.getpid(),
        )  # fmt: skip
        config = uvicorn.Config(
            make_app(service), log_level="error", access_log=False, server_header=False,
            date_header=False, lifespan="off", ws="none", timeout_graceful_shutdown=GRACE_S,
            proxy_headers=False, ssl_certfile=options.certificate or None,
            ssl_keyfile=options.key or None, limit_concurrency=256,
        )  # fmt: skip
        server = uvicorn.Server(config)
        with _terminated():
            asyncio.run(_run(server, listener, options.home, lambda: announce(record)))


async def _run(
    server: uvicorn.Server,
    listener: socket.socket,
    home: Session | None,
    announce: Callable[[], None],
) -> None:
    watcher = asyncio.create_task(_watch(server, home))
    serving = asyncio.create_task(server.serve([listener]))
    try:
        while not server.started and not serving.done():
            await asyncio.wait([serving], timeout=0.01)
        if server.started:
            announce()
        await serving
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


async def _watch(server: uvicorn.Server, home: Session | None) -> None:
    """End the server with its session."""
    while home is not None:
        await asyncio.sleep(WATCH_S)
        if not session_directory.is_held(home.directory):
            server.should_exit = True
            return


@contextlib.contextmanager
def _terminated() -> Generator[None]:
    """SIGTERM ends the block as an exception, so that files are removed."""

    def end(_number: int, _frame: object) -> None:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- listening ------------------------------------------------------------------------------------


def _listen(options: ServerOptions) -> tuple[socket.socket, str, Path | None]:
    """A listening socket, its URL, and its path if it is a Unix socket."""
    if options.listen.startswith("unix:"):
        return _listen_unix(Path(options.listen.removeprefix("unix:")))
    if options.listen:
        return _listen_tcp(options)
    if options.home is None:
        raise AdminServerError(
            "there is no single session whose directory could hold the socket; name one with "
            "--session, or give --listen HOST:PORT or --listen unix:PATH"
        )
    return _listen_unix(options.home.directory / SOCKET)


def _listen_unix(path: Path) -> tuple[socket.socket, str, Path]:
    path = path.absolute()
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)  # from the moment at which it exists
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise AdminServerError(f"cannot listen at {path}: {error.strerror or error}") from None
    return listener, address_of_socket(path), path


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that has ended without removing it."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise AdminServerError(f"{path} exists and is no socket; name another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            _unlink(path)
            return
        except OSError as error:
            raise AdminServerError(f"cannot listen at {path}: {error}") from None
    raise AdminServerError(f"another server listens at {path}; `monarch admin` runs already")


def _listen_tcp(options: ServerOptions) -> tuple[socket.socket, str, None]:
    match = _TCP.fullmatch(options.listen)
    if match is None or int(match["port"]) > 65535:
        raise AdminServerError(
            f"{options.listen!r} is no address; give HOST:PORT, such as 127.0.0.1:1729, [::1]:1729 "
            "or 127.0.0.1:0 for a free port, or unix:PATH"
        )
    host = match["host"].strip("[]")
    if not options.certificate and not _is_loopback(host):
        raise AdminServerError(
            f"at {host} the token would pass in clear; give --tls-cert and --tls-key, or listen at "
            "127.0.0.1 and forward the port with `ssh -L`"
        )
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, int(match["port"]), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
        except BaseException:  # an interrupt too: the port would stay taken
            listener.close()
            raise
    except OSError as error:
        raise AdminServerError(
            f"cannot listen at {options.listen}: {error.strerror or error}"
        ) from None
    scheme = "https" if options.certificate else "http"
    name: Sequence[Any] = listener.getsockname()
    shown = f"[{name[0]}]" if family == socket.AF_INET6 else str(name[0])
    return listener, f"{scheme}://{shown}:{name[1]}", None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
