"""The client's session, from first use to shutdown: its directory, its host agent, its runtime.

Runs in: the client. Owns the agent process and the session directory. After `keep` or `attach`
(`session.keep`) it owns those of the kept session, until it releases it.
Invariants: a process has one session at a time; a fork of the client has none and ends none. Ending
takes bounded time. However the client ends, the agent ends after it, and leaves only meshes that
are kept.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import math
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch._src.actor.background import background
from monarch._src.actor.future import Future
from monarch._src.actor.refs import client_ref
from monarch._src.actor.run.local_actors import LocalActors
from monarch._src.actor.runtime import (
    Runtime,
    runtime_or_none,
    set_runtime,
    set_starter,
)
from monarch._src.config import raw_environment, settings
from monarch._src.events import Output, bus
from monarch._src.failures.report import RankFailure
from monarch._src.mesh.agent_process import AgentProcess
from monarch._src.mesh.procs import end_meshes_of
from monarch._src.net import session_directory as sessions
from monarch._src.net.local.waitable import Waitable
from monarch._src.system.main_programs import AGENT as AGENT_PROGRAM
from monarch._src.system.main_programs import command
from monarch._src.system.process import CHILD_VARIABLE, undebugged
from monarch._src.system.process_table import began_of
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import Heard, Shutdown

if TYPE_CHECKING:
    from monarch._src.mesh.host_links import GatewayAddress, HostLinks, RemoteMeshes

# `sessions.make` needs it: imported here, since a client waits while its session starts.
importlib.import_module("tempfile")
log = logging.getLogger("monarch.session")
LOSS_S = 5.0


class ClientSession:
    """One host agent and the runtime of this process that talks to it."""

    def __init__(
        self,
        directory: Path,
        agent: AgentProcess,
        runtime: Runtime,
        environment: dict[str, str] | None = None,
    ) -> None:
        """Args:
        environment: the environment that the agent was started with, if this process started it.
        """
        self._environment = _environment() if environment is None else environment
        self._seen_environment: dict[bytes, bytes] | None = None  # when this was last told:
        self._changed: dict[str, str | None] = {}
        self.directory = directory
        self.agent = agent
        self.runtime = runtime
        self.cleanup_s = settings().cleanup_s  # the longest time to clean up of any mesh
        self.lost: str | None = None
        self.kept_as = ""  # the name under which it is kept
        self.keeps_new = False  # whether meshes that are spawned from now on are kept too
        self.kept_session: object = None  # the KeptSession of `session.keep`, once it is kept
        self.away: RemoteMeshes | None = None  # the kept meshes on workers
        # Called, once the session is kept, with a ProcMesh on workers that is to be kept before it
        # is spawned, and with None after such a mesh has ended.
        self.on_remote_mesh: Callable[[Any], None] = lambda _: None
        self.agent_ended_callbacks: list[Callable[[], None]] = []
        self.sites: HostLinks | None = None  # the worker hosts of this process
        self.via: GatewayAddress | None = None  # the gateway through which they are reached
        self._released = False  # whether this process no longer holds the agent and its procs
        self._closed = False
        self._loss_known = Waitable()  # done when `lost` is known
        self._fd_lock = threading.Lock()
        self.actors = LocalActors(runtime)
        runtime.terminations.on_failures = self._on_heard
        node = runtime.node
        node.expect(AGENT)
        node.start()
        self._agent_fd = agent.descriptor()
        # Whether the descriptor of the agent reports its end.
        self._end_is_watched = self._agent_fd is not None
        if self._agent_fd is not None:
            node.leader.watch(self._agent_fd, self._on_agent_ended)

    @staticmethod
    def started() -> ClientSession:
        """A new session, with an agent of its own."""
        directory = sessions.make()
        name = new_client_name()
        try:
            environment = _environment()
            agent = _launch(directory, name, environment)
            runtime = client_runtime(name, directory)
        except BaseException:
            sessions.remove(directory)
            raise
        return ClientSession(directory, agent, runtime, environment)

    def _on_heard(self, mesh: int, actor: int, failures: list[RankFailure]) -> None:
        # Sent before supervision runs, since that may end this process: the next client would get
        # the same failures again.
        self.runtime.node.send(AGENT, Heard(mesh, actor, [f.rank for f in failures]))

    def _on_agent_ended(self) -> None:
        self._drop_agent_fd()
        for tell in self.agent_ended_callbacks:
            tell()
        if self._released:
            return
        lost = self.agent.end_text()
        last_line = self._last_log_line()
        if last_line and not self._closed:
            lost += f"; its log ends with: {last_line}"
        self.lost = lost
        self.runtime.on_host_lost(lost, expected=self._closed)
        self._loss_known.finish()

    def on_taken_over(self, why: str) -> None:
        """Another client holds the session now. On the receiving thread."""
        self._drop_agent_fd()
        self._released = True
        self.lost = why
        self.runtime.ownership.on_unhandled = None
        self.runtime.on_host_lost(why, expected=True, let_go=True)
        if self.sites is not None:
            self.sites.out_of_reach(why)

    def _drop_agent_fd(self) -> None:
        # Called by both the receiving thread and the closing thread.
        with self._fd_lock:
            fd, self._agent_fd = self._agent_fd, None
        if fd is not None:
            self.runtime.node.leader.unwatch(fd)
            os.close(fd)

    def _last_log_line(self) -> str:
        try:
            lines = (self.directory / sessions.AGENT_LOG).read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    @property
    def agent_pid(self) -> int:
        """The pid of the host agent."""
        return self.agent.pid

    @property
    def is_ending(self) -> bool:
        """Whether this process is ending or releasing the session, or has done so."""
        return self._closed

    def changed_environment(self) -> dict[str, str | None]:
        """The variables that this process has set, or removed (None), since the session started."""
        raw = raw_environment()
        if raw != self._seen_environment:
            before, now = self._environment, _environment()
            changed: dict[str, str | None] = dict.fromkeys(before.keys() - now.keys())
            changed.update((key, text) for key, text in now.items() if before.get(key) != text)
            self._seen_environment, self._changed = raw, changed
        return dict(self._changed)

    def check(self) -> None:
        """Notice an agent that has ended, before the next request to it."""
        if self.lost is not None or self._released:
            return
        if not self.agent.has_ended():
            return
        if self._end_is_watched:  # the descriptor is about to become readable
            self.runtime.node.wait(self._loss_known, LOSS_S)
        else:  # there is no such descriptor on macOS
            self._on_agent_ended()

    def close(self, reason: str, bound: float | None = None) -> None:
        """End every mesh, the agent, and this process's runtime. Idempotent, bounded in time.

        For a session that another client has taken over, only the runtime ends.

        Args:
            bound: how many seconds meshes may take to clean up; None: the longest of their own
                limits.
        """
        if self._closed:
            return
        self._closed = True
        lost = self.lost is not None
        runtime = self.runtime
        bound = self.cleanup_s if bound is None else bound
        self._end_own_actors(reason, bound)
        self._release_sites(bound)
        if self.lost is None:
            if self.away is not None:
                self.away.tell()  # the agent ends what could not be released in time
            runtime.node.send(AGENT, Shutdown(reason))
            try:
                if not self.agent.wait(bound + 2.0):
                    log.warning("the host agent did not end in %.1f s and was killed", bound + 2.0)
            finally:  # also after an interrupt
                self.agent.kill()
        self._drop_agent_fd()
        background.close()
        runtime.close()
        if self._released:
            self.agent.let_live()
        else:  # the agent's end may not have been noticed yet
            runtime.on_host_lost(reason, expected=True)
            sessions.remove(self.directory)
        end_meshes_of(runtime, None if lost else reason)

    def _release_sites(self, bound: float, *, keeping: bool = False) -> None:
        """Release worker hosts. Hosts neither kept nor released in time end with their links.

        `keeping`: hosts that keep meshes are released together with those.
        """
        if self.sites is None:
            return
        until = time.monotonic() + bound + 2.0
        leaving = self.away.detach() if keeping and self.away is not None else []
        for left in [*leaving, *self.sites.let_go(self.sites.held())]:
            self.runtime.node.wait(left, max(0.0, until - time.monotonic()))

    def release(
        self, ask: Callable[[], Future[None]], why: str, bound: float | None = None
    ) -> None:
        """End this process's part of the session, and all that is not kept. Bounded in time.

        `ask` sends the request to the agent; its future is done when all that is not kept has
        ended.
        """
        if self._closed:
            return
        self._closed = True
        runtime = self.runtime
        self._end_own_actors("the client has released its session", self.cleanup_s)
        self._release_sites(self.cleanup_s, keeping=True)
        self._released = True
        bound = self.cleanup_s + 2.0 if bound is None else bound
        try:
            if not runtime.node.wait(ask(), bound):
                # Unlike the agent of a session that is not kept, it is not killed.
                log.warning(
                    "the host agent (pid %d) of the kept session %r did not answer in %.1f s; it "
                    "will notice that this client has ended", self.agent.pid, self.kept_as, bound,
                )  # fmt: skip
        finally:
            self._drop_agent_fd()
            background.close()
            runtime.close(linger_s=0.2)
            self.agent.let_live()
            runtime.on_host_lost(why, expected=True, let_go=True)
            end_meshes_of(runtime, None)

    def _end_own_actors(self, reason: str, bound: float) -> None:
        """End the actors of this process, then show the output that ranks have written by now."""
        runtime = self.runtime
        runtime.ownership.on_unhandled = None  # from here on ends are expected, and no failures
        self.actors.stop(reason, bound)
        self.actors.join(bound)
        if self.lost is None:
            try:
                if bus.wanted(Output):
                    # Not `get`, which warns in a running event loop that it should be awaited.
                    runtime.node.wait(runtime.agent.flush_output(), min(1.0, bound))
            except Exception as error:
                log.debug("last output was not flushed: %s", error)


def new_client_name() -> str:
    """A new, unique node name for this process as a client."""
    return f"client-{os.urandom(6).hex()}"


def client_runtime(name: str, directory: Path) -> Runtime:
    """The runtime of a client of the session in that directory."""
    runtime = Runtime(name, "client", str(directory))
    runtime.client_ref = client_ref(name, str(directory), runtime.host)
    return runtime


def _environment() -> dict[str, str]:
    """The environment of processes that are started now."""
    return {"OMP_NUM_THREADS": "1", **os.environ}


def _launch(directory: Path, client: str, environment: dict[str, str]) -> AgentProcess:
    # The client goes on while the agent starts Python; the agent connects once it is up.
    env = {**environment, CHILD_VARIABLE: str(directory)}
    arguments = [str(directory), client, str(os.getpid())]
    with open(directory / sessions.AGENT_LOG, "ab") as agent_log:
        child = subprocess.Popen(
            undebugged(command(AGENT_PROGRAM, arguments, collects=False)),
            stdin=subprocess.DEVNULL,
            stdout=agent_log,
            stderr=agent_log,
            cwd="/",
            env=env,
            start_new_session=True,
        )
    return AgentProcess(child.pid, began_of(child.pid), child)


_session: ClientSession | None = None
_session_pid = 0
lock = threading.RLock()  # held while a session starts, is taken up, or ends
_on_start: list[Callable[[ClientSession], None]] = []


def on_start(hook: Callable[[ClientSession], None]) -> None:
    """Call `hook` with every session that starts from now on."""
    _on_start.append(hook)


def session() -> ClientSession:
    """This process's session. Started on first use, and again after its agent was lost."""
    with lock:
        if _session is not None and _session_pid == os.getpid():
            _session.check()
            if _session.lost is None:
                return _session
            _session.close("its agent was lost")
        started = ClientSession.started()
        adopt(started)
        return started


def adopt(started: ClientSession) -> None:
    """Make a session that of this process, which has none."""
    global _session, _session_pid
    with lock:
        _session, _session_pid = started, os.getpid()
        set_runtime(started.runtime)
        for hook in _on_start:
            hook(started)


def drop_session() -> ClientSession | None:
    """Detach this process from its session. Returns the session, for the caller to end."""
    global _session
    with lock:
        ending, _session = current_session(), None
        if ending is not None and runtime_or_none() is ending.runtime:
            set_runtime(None)
        return ending


def session_for_client() -> None:
    """In a client, start a session unless one with a live agent exists. Elsewhere does nothing."""
    run = runtime_or_none()
    if run is None or run.proc_ref is None:
        session()


def allow_cleanup(seconds: float) -> None:
    """Make the session wait at least that many seconds for meshes to clean up when it ends."""
    found = current_session()
    if found is not None:
        found.cleanup_s = max(found.cleanup_s, seconds)


KEPT_AND_RESTARTED = (
    "the mesh {!r} has restart=, and this process holds the constructor arguments that restarts "
    "need: a mesh is either kept or restarted, not both"
)


def keeps_new_meshes() -> bool:
    """Whether meshes that this process spawns are to outlive it."""
    found = current_session()
    return found is not None and found.keeps_new


def on_remote_mesh(mesh: Any) -> None:
    """A ProcMesh on workers, to be kept, is about to be spawned; None: such a mesh has ended."""
    found = current_session()
    if found is not None:
        found.on_remote_mesh(mesh)


def current_session() -> ClientSession | None:
    """The session, if one is running; starts none."""
    return _session if _session_pid == os.getpid() else None


def shutdown_context(
    host_timeout: float | None = None, *, reason: str = "the client ended"
) -> Future[None]:
    """End everything this process started or holds, kept meshes included. Idempotent.

    Everything is gone when this returns, and the future is already done; it exists so that programs
    for Monarch can await it. At exit the same happens, except that kept meshes live on.

    Args:
        host_timeout: how many seconds processes may clean up before they are killed; the setting
            `cleanup_timeout` if None.
        reason: the reason that pending calls fail with.

    Raises:
        TypeError, ValueError: `host_timeout` is not a time; nothing is ended.
    """
    global _session
    bound = None if host_timeout is None else _checked_s(host_timeout)
    with lock:
        ending = current_session()
        if ending is not None:
            _session = None
            try:
                ending.close(reason, bound)
            finally:
                if runtime_or_none() is ending.runtime:
                    set_runtime(None)
    return Future[None].of(None)


def _checked_s(host_timeout: float) -> float:
    if not isinstance(host_timeout, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"host_timeout={host_timeout!r}: give seconds, or None")
    if not 0 <= host_timeout < math.inf:
        raise ValueError(f"host_timeout={host_timeout}: give seconds of at least 0, or None")
    return float(host_timeout)


# Releases a session that is kept, and returns whether it was; set by `session.keep`.
release_kept: Callable[[ClientSession], bool] = lambda _: False  # noqa: E731


def leave(reason: str = "the client ended") -> None:
    """The client ends: release the kept session, or end everything if none is kept. Idempotent."""
    found = current_session()
    if found is None or not release_kept(found):
        shutdown_context(reason=reason)


def _at_exit() -> None:
    started = time.monotonic()
    leave()
    log.debug("shut down in %.3f s", time.monotonic() - started)


set_starter(lambda: session().runtime)
atexit.register(_at_exit)
