"""The client's session: its directory, its host agent, its runtime; from first use to shutdown.

Runs in: the client. Owns the agent process and the session directory.
Invariants: one session a process at a time; a fork of the client has none and ends none. Ending is
bounded in time, and whatever way the client ends, the agent ends after it and leaves nothing.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import monarch
from monarch._src.actor.background import background
from monarch._src.actor.local import LocalActors
from monarch._src.actor.refs import client_ref
from monarch._src.actor.runtime import (
    Runtime,
    runtime_or_none,
    set_runtime,
    set_starter,
)
from monarch._src.config import settings
from monarch._src.core.ids import AGENT
from monarch._src.events import Output, bus
from monarch._src.mesh.proc_mesh import end_meshes_of
from monarch._src.net import directory as sessions
from monarch._src.proc.system import TERMINATED, pidfd
from monarch._src.wire.messages import Shutdown

log = logging.getLogger("monarch.session")
_ROOT = str(Path(monarch.__file__).parent.parent)
_PROGRAM = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "root = sys.argv.pop(); root in sys.path or sys.path.append(root); "
    "from monarch._src.proc.agent import main; main()"
)


class Session:
    """One host agent and this process's runtime that talks to it."""

    def __init__(self) -> None:
        self.cleanup_s = settings().cleanup_s  # the longest that any mesh was given
        self.directory = sessions.make()
        self.lost: str | None = None
        self._closed = False
        self._fd_lock = threading.Lock()
        name = f"client-{os.urandom(6).hex()}"
        try:
            self._agent = self._launch(name)
            self.runtime = Runtime(name, "client", str(self.directory))
            self.runtime.client_ref = client_ref(name, str(self.directory), self.runtime.host)
        except BaseException:
            sessions.remove(self.directory)
            raise
        self.actors = LocalActors(self.runtime)
        node = self.runtime.node
        node.expect(AGENT)
        node.start()
        self._agent_fd = pidfd(self._agent.pid)
        if self._agent_fd is not None:
            node.baton.watch(self._agent_fd, self._agent_gone)

    def _launch(self, name: str) -> subprocess.Popen[bytes]:
        # The agent starts Python while we go on; it connects to us, so neither waits for the other.
        env = dict(os.environ)
        env.setdefault("OMP_NUM_THREADS", "1")
        env["MONARCH_CHILD"] = "1"
        arguments = [str(self.directory), name, str(os.getpid()), _ROOT]
        with open(self.directory / "agent.log", "ab") as agent_log:
            return subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=agent_log,
                stderr=agent_log,
                cwd="/",
                env=env,
                start_new_session=True,
            )

    def _agent_gone(self) -> None:
        self._drop_agent_fd()
        status = self._agent.wait()
        self.lost = f"its process (pid {self._agent.pid}) ended with status {status}"
        if status in (TERMINATED, -signal.SIGTERM):
            self.lost += ", since it was told to (SIGTERM, as `monarch kill` sends it)"
        said = self._last_words()
        if said and not self._closed:
            self.lost += f"; its log ends with: {said}"
        self.runtime.host_lost(self.lost, expected=self._closed)

    def _drop_agent_fd(self) -> None:
        # Both the thread that receives and the one that closes may come here.
        with self._fd_lock:
            fd, self._agent_fd = self._agent_fd, None
        if fd is not None:
            self.runtime.node.baton.unwatch(fd)
            os.close(fd)

    def _last_words(self) -> str:
        try:
            lines = (self.directory / "agent.log").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    def check(self) -> None:
        """Notice an agent that has ended, where no descriptor tells (macOS)."""
        if self.lost is None and self._agent_fd is None and self._agent.poll() is not None:
            self._agent_gone()

    def close(self, reason: str) -> None:
        """End every mesh, the agent, and this process's runtime. Idempotent, bounded in time."""
        if self._closed:
            return
        self._closed = True
        lost = self.lost is not None
        runtime = self.runtime
        runtime.ends.on_failure = None  # what ends from here on ends because we end it
        bound = self.cleanup_s
        self.actors.stop(reason)
        self.actors.join(bound)
        if self.lost is None:
            try:
                if bus.wanted(Output):
                    # Not `get`, which warns where a loop runs: nobody could await it here.
                    runtime.node.wait(runtime.agent.flush_output(), min(1.0, bound))
            except Exception as error:
                log.debug("last output was not flushed: %s", error)
            runtime.node.send(AGENT, Shutdown(reason))
            try:
                self._agent.wait(timeout=bound + 2.0)
            except subprocess.TimeoutExpired:
                log.warning("the host agent did not end in %.1f s and was killed", bound + 2.0)
                self._agent.kill()
            except KeyboardInterrupt:
                self._agent.kill()
                raise
            finally:
                self._agent.wait()
        self._drop_agent_fd()
        background.close()
        runtime.close()
        runtime.host_lost(reason, expected=True)  # the news of it may not have come before the end
        end_meshes_of(runtime, None if lost else reason)
        sessions.remove(self.directory)


_session: Session | None = None
_session_pid = 0
_lock = threading.RLock()
_on_start: list[Callable[[Session], None]] = []


def on_start(hook: Callable[[Session], None]) -> None:
    """Call `hook` with every session that starts from now on."""
    _on_start.append(hook)


def session() -> Session:
    """This process's session, started on first use and again after its agent was lost."""
    global _session, _session_pid
    with _lock:
        if _session is not None and _session_pid == os.getpid():
            _session.check()
            if _session.lost is None:
                return _session
            _session.close("its agent was lost")
        started = Session()
        _session, _session_pid = started, os.getpid()
        set_runtime(started.runtime)
        for hook in _on_start:
            hook(started)
        return started


def session_for_client() -> None:
    """In a client, have a session whose agent lives; elsewhere there is nothing to do."""
    run = runtime_or_none()
    if run is None or run.proc_ref is None:
        session()


def allow_cleanup(seconds: float) -> None:
    """A mesh of this process may take that long to clean up, so its session has to wait for it."""
    found = current_session()
    if found is not None:
        found.cleanup_s = max(found.cleanup_s, seconds)


def current_session() -> Session | None:
    """The session if one is running; starts none."""
    return _session if _session_pid == os.getpid() else None


def shutdown_context(reason: str = "the client ended") -> None:
    """End everything this process started. Idempotent; also runs at exit."""
    global _session
    with _lock:
        ending = current_session()
        if ending is None:
            return
        _session = None
        try:
            ending.close(reason)
        finally:
            if runtime_or_none() is ending.runtime:
                set_runtime(None)


def _at_exit() -> None:
    started = time.monotonic()
    shutdown_context()
    log.debug("shut down in %.3f s", time.monotonic() - started)


set_starter(lambda: session().runtime)
atexit.register(_at_exit)
