"""Starts an admin server beside this process, for the session of this process.

Runs in: a client. Owns: the server's process, until it is stopped or the session ends, which ends
the server. A session has one server: a second request gets the one that runs.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import monarch
from monarch._src.actor.runtime import runtime_or_none
from monarch._src.admin.http_client import AdminAPIError, AdminClient
from monarch._src.admin.server_files import ServerRecord, dashboard_url, read_record
from monarch._src.net.session_directory import PREFIX
from monarch._src.system import process_table
from monarch._src.system.process import pidfd

INSTALL = "pip install 'monarch-jupyter[admin]'"
STOP_S = 10.0
_starting = threading.Lock()  # so that two threads start one server
_reapers: dict[int, threading.Thread] = {}  # by pid, of the servers that this process has started


@dataclass(frozen=True)
class MeshAdminConfig:
    """Where the admin server of a job listens.

    Attributes:
        admin_addr: `HOST:PORT` (port 0: a free one) or `unix:PATH`; None: a Unix socket in the
            directory of the session. Beyond loopback the server refuses to start without TLS.

    Raises:
        TypeError: `admin_addr` is no text.
    """

    admin_addr: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.admin_addr, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"admin_addr={self.admin_addr!r}: give 'HOST:PORT' or 'unix:PATH'")


@dataclass(frozen=True)
class AdminServer:
    """A running admin server.

    Attributes:
        url: its address: `http://HOST:PORT`, or `http+unix://` and an escaped path.
        observer_token: the token that reads; needed over TCP.
        owner_token: the token that also stops and kills.
        dashboard_url: the address of the web page, with the token that reads; None over a Unix
            socket, which a browser cannot open.
    """

    url: str
    observer_token: str = field(repr=False)
    owner_token: str = field(repr=False)
    dashboard_url: str | None = field(default=None, repr=False)

    def get(self, path: str) -> Any:
        """The answer to a GET, from JSON: `server.get("/v1/root")`.

        Raises:
            RuntimeError: the server does not answer, or refuses.
        """
        try:
            return AdminClient(self.url, self.observer_token).get(path, object)
        except AdminAPIError as error:
            raise RuntimeError(str(error)) from None


def start_admin(config: MeshAdminConfig | None = None) -> AdminServer:
    """Start the admin server of this process's session, or find the one that runs.

    Raises:
        RuntimeError: there is no session, a package is missing, or the server cannot listen there.
    """
    run = runtime_or_none()
    if run is None or run.proc_ref is not None:
        raise RuntimeError(
            "the admin server needs a session: spawn a mesh, or attach to one, first"
        )
    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise RuntimeError(f"the admin server needs {name}, which is not installed; {INSTALL}")
    directory = Path(run.directory)
    with _starting:
        record = read_record(directory) or _started(directory, config or MeshAdminConfig())
    return AdminServer(record.url, record.observer_token, record.owner_token, dashboard_url(record))


def _started(directory: Path, config: MeshAdminConfig) -> ServerRecord:
    name = directory.name.removeprefix(PREFIX)
    listen = [] if config.admin_addr is None else ["--listen", config.admin_addr]
    root = str(Path(monarch.__file__).parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    process = subprocess.Popen(
        [
            sys.executable, "-m", "monarch", "admin", "--in", str(directory.parent),
            "--session", name, "--workers", "--quiet", *listen,
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that an interrupt of this program does not end it
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    process.stdout.close()
    record = read_record(directory)
    if not line or record is None:
        problem = process.stderr.read().decode(errors="replace").strip()
        process.stderr.close()
        process.wait()
        raise RuntimeError(f"the admin server has not started: {problem}")
    reaper = threading.Thread(target=_reap, args=(process,), name="monarch-admin", daemon=True)
    _reapers[process.pid] = reaper
    reaper.start()
    return record


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Read and drop the error output of the server, which keeps its pipe empty, until its end.

    A child of the server may keep the pipe open for longer, so the end of the process counts.
    """
    assert process.stderr is not None
    ended = pidfd(process.pid)
    with process.stderr as errors, selectors.DefaultSelector() as selector:
        selector.register(errors, selectors.EVENT_READ)
        if ended is not None:
            selector.register(ended, selectors.EVENT_READ)
        while ended not in {key.fd for key, _ in selector.select()}:
            if not os.read(errors.fileno(), 65536):
                break
    if ended is not None:
        os.close(ended)
    process.wait()
    _reapers.pop(process.pid, None)


def dashboard(admin_addr: str = "127.0.0.1:0") -> AdminServer:
    """Serve the web page over this session until the session ends; at `AdminServer.dashboard_url`.

    If a server of this session runs already, it is used.

    Args:
        admin_addr: see `MeshAdminConfig`; by default a free port of this machine.

    Raises:
        RuntimeError: there is no session, a package is missing, the server cannot listen there, or
            the server that runs listens at a Unix socket.
    """
    found = start_admin(MeshAdminConfig(admin_addr))
    if found.dashboard_url is None:
        raise RuntimeError(
            f"the admin server of this session listens at {found.url}, which a browser cannot "
            "open; run `monarch dashboard` in a terminal"
        )
    return found


@contextlib.contextmanager
def admin(admin_addr: str | None = None) -> Generator[AdminServer]:
    """Serve the state of this session over HTTP while the block runs.

    Over a Unix socket in the directory of the session, or at `admin_addr`; see `MeshAdminConfig`.
    If a server of this session runs already, the block uses it and leaves it running.

    Raises:
        RuntimeError: there is no session, a package is missing, or the server cannot listen there.
    """
    run = runtime_or_none()
    before = None if run is None else read_record(Path(run.directory))
    found = start_admin(MeshAdminConfig(admin_addr))
    try:
        yield found
    finally:
        if before is None and run is not None:
            _stop(Path(run.directory))


def _stop(directory: Path) -> None:
    record = read_record(directory)
    if record is None:
        return
    known = process_table.entry(record.pid)
    if known is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, signal.SIGTERM)
        process_table.wait_ended([known], STOP_S)
        reaper = _reapers.get(record.pid)
        if reaper is not None:
            reaper.join(STOP_S)
