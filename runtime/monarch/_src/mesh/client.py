"""The client's session: its directory, its host agent, its runtime; from first use to shutdown.

Runs in: the client. Owns the agent process and the session directory; those of a session that it
has kept or attached to (`session.keep`), until it lets go of it.
Invariants: one session a process at a time; a fork of the client has none and ends none. Ending is
bounded in time, and whatever way the client ends, the agent ends after it and leaves nothing but
what is kept.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import monarch
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
from monarch._src.mesh.proc_mesh import end_meshes_of
from monarch._src.net import session_directory as sessions
from monarch._src.net.local.waitable import Waitable
from monarch._src.session.records import began_of
from monarch._src.system.process import CHILD_VARIABLE, undebugged
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import Heard, Shutdown

if TYPE_CHECKING:
    from monarch._src.mesh.proc_mesh import ProcMesh
    from monarch._src.session.attached_hosts import AttachedHosts
    from monarch._src.session.gateway_route import GatewayAddress
    from monarch._src.session.remote_keep import RemoteKeep

# What `sessions.make` loads is loaded by now: a client that starts a session waits for that.
importlib.import_module("tempfile")
log = logging.getLogger("monarch.session")
_ROOT = str(Path(monarch.__file__).parent.parent)
_PROGRAM = (
    "import gc, sys; gc.disable(); sys.path[:] = [p for p in sys.path if p]; "
    "root = sys.argv.pop(); root in sys.path or sys.path.append(root); "
    "from monarch._src.programs.agent import main; main()"
)


NOTICE_S = 5.0


class ClientSession:
    """One host agent and this process's runtime that talks to it."""

    def __init__(
        self,
        directory: Path,
        agent: AgentProcess,
        runtime: Runtime,
        environment: dict[str, str] | None = None,
    ) -> None:
        """`environment`: what the agent began with, if that was this process's."""
        self._environment = _environment() if environment is None else environment
        self._looked_at: dict[bytes, bytes] | None = None  # when this was last told:
        self._changed: dict[str, str | None] = {}
        self.directory = directory
        self.agent = agent
        self.runtime = runtime
        self.cleanup_s = settings().cleanup_s  # the longest that any mesh was given
        self.lost: str | None = None
        self.kept_as = ""  # the name under which it is kept
        self.keeps_new = False  # whether meshes that are spawned from now on are kept too
        self.custody: object = None  # of `session.keep`, once it is kept
        self.away: RemoteKeep | None = None  # what of it is on workers and kept
        # Once it is kept: a mesh on workers, that is to be kept, comes next; None: one is gone.
        self.note_away: Callable[[ProcMesh | None], None] = lambda _: None
        self.when_agent_ends: list[Callable[[], None]] = []
        self.sites: AttachedHosts | None = None  # the worker hosts that this process has
        self.via: GatewayAddress | None = None  # the gateway through which they are reached
        self._let_go = False  # the agent and what it owns are somebody else's, or nobody's
        self._closed = False
        self._noticed = Waitable()  # done when `lost` is known
        self._fd_lock = threading.Lock()
        self.actors = LocalActors(runtime)
        runtime.terminations.on_failures = self._heard
        node = runtime.node
        node.expect(AGENT)
        node.start()
        self._agent_fd = agent.descriptor()
        self._is_told = self._agent_fd is not None  # of its end, by that descriptor
        if self._agent_fd is not None:
            node.baton.watch(self._agent_fd, self._agent_gone)

    @staticmethod
    def started() -> ClientSession:
        """A new one, with an agent of its own."""
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

    def _heard(self, mesh: int, actor: int, failures: list[RankFailure]) -> None:
        # Before it is judged, since what becomes of it may end this process: it is no news then.
        self.runtime.node.send(AGENT, Heard(mesh, actor, [f.rank for f in failures]))

    def _agent_gone(self) -> None:
        self._drop_agent_fd()
        for tell in self.when_agent_ends:
            tell()
        if self._let_go:
            return
        lost = self.agent.end_text()
        said = self._last_words()
        if said and not self._closed:
            lost += f"; its log ends with: {said}"
        self.lost = lost
        self.runtime.on_host_lost(lost, expected=self._closed)
        self._noticed.finish()

    def taken_over(self, why: str) -> None:
        """Another client holds it now. On the thread that receives."""
        self._drop_agent_fd()
        self._let_go = True
        self.lost = why
        self.runtime.ownership.on_unhandled = None
        self.runtime.on_host_lost(why, expected=True, let_go=True)
        if self.sites is not None:
            self.sites.out_of_reach(why)

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

    @property
    def agent_pid(self) -> int:
        """The process of the host agent."""
        return self.agent.pid

    @property
    def is_ending(self) -> bool:
        """Whether this process ends it, or lets go of it, or has done so."""
        return self._closed

    def changed_environment(self) -> dict[str, str | None]:
        """What this process has set, or removed (None), in its environment since it has this."""
        raw = raw_environment()
        if raw != self._looked_at:
            before, now = self._environment, _environment()
            changed: dict[str, str | None] = dict.fromkeys(before.keys() - now.keys())
            changed.update((key, text) for key, text in now.items() if before.get(key) != text)
            self._looked_at, self._changed = raw, changed
        return dict(self._changed)

    def check(self) -> None:
        """Notice an agent that has ended, before something is asked of it."""
        if self.lost is not None or self._let_go:
            return
        if not self.agent.has_ended():
            return
        if self._is_told:  # in a moment
            self.runtime.node.wait(self._noticed, NOTICE_S)
        else:  # no descriptor tells (macOS)
            self._agent_gone()

    def close(self, reason: str, bound: float | None = None) -> None:
        """End every mesh, the agent, and this process's runtime. Idempotent, bounded in time.

        Of a session that was taken over only the last.

        Args:
            bound: how many seconds what runs there may take; None: as long as any mesh may.
        """
        if self._closed:
            return
        self._closed = True
        lost = self.lost is not None
        runtime = self.runtime
        bound = self.cleanup_s if bound is None else bound
        self._end_own(reason, bound)
        self._leave_sites(bound)
        if self.lost is None:
            if self.away is not None:
                self.away.tell()  # where it was not let go of in time, the agent has it ended
            runtime.node.send(AGENT, Shutdown(reason))
            try:
                if not self.agent.wait(bound + 2.0):
                    log.warning("the host agent did not end in %.1f s and was killed", bound + 2.0)
            finally:  # an interrupt too leaves nothing
                self.agent.kill()
        self._drop_agent_fd()
        background.close()
        runtime.close()
        if self._let_go:
            self.agent.let_live()
        else:  # the news of it may not have come before the end
            runtime.on_host_lost(reason, expected=True)
            sessions.remove(self.directory)
        end_meshes_of(runtime, None if lost else reason)

    def _leave_sites(self, bound: float, *, keeping: bool = False) -> None:
        """Give worker hosts back; what is left there in time, and not kept, ends with the link.

        `keeping`: those that keep something are let go of, with that.
        """
        if self.sites is None:
            return
        until = time.monotonic() + bound + 2.0
        leaving = self.away.detach() if keeping and self.away is not None else []
        for left in [*leaving, *self.sites.let_go(self.sites.held())]:
            self.runtime.node.wait(left, max(0.0, until - time.monotonic()))

    def let_go(self, ask: Callable[[], Future[None]], why: str, bound: float | None = None) -> None:
        """End this process's part, and what is tied to it, but not what is kept. Bounded in time.

        `ask` tells the agent; its future is done when what was tied has ended.
        """
        if self._closed:
            return
        self._closed = True
        runtime = self.runtime
        self._end_own("the client has let go of its session", self.cleanup_s)
        self._leave_sites(self.cleanup_s, keeping=True)
        self._let_go = True
        bound = self.cleanup_s + 2.0 if bound is None else bound
        try:
            if not runtime.node.wait(ask(), bound):
                # It is not killed, as it would be at the end of a session that is tied to us.
                log.warning(
                    "the host agent (pid %d) of the kept session %r did not answer in %.1f s; it "
                    "sees our end itself, once it goes on", self.agent.pid, self.kept_as, bound,
                )  # fmt: skip
        finally:
            self._drop_agent_fd()
            background.close()
            runtime.close(linger_s=0.2)
            self.agent.let_live()
            runtime.on_host_lost(why, expected=True, let_go=True)
            end_meshes_of(runtime, None)

    def _end_own(self, reason: str, bound: float) -> None:
        """What lives in this process ends; then what ranks have written by now is shown."""
        runtime = self.runtime
        runtime.ownership.on_unhandled = None  # what ends from here on ends because we end it
        self.actors.stop(reason, bound)
        self.actors.join(bound)
        if self.lost is None:
            try:
                if bus.wanted(Output):
                    # Not `get`, which warns where a loop runs: nobody could await it here.
                    runtime.node.wait(runtime.agent.flush_output(), min(1.0, bound))
            except Exception as error:
                log.debug("last output was not flushed: %s", error)


def new_client_name() -> str:
    """A node name for this process, that no client had before."""
    return f"client-{os.urandom(6).hex()}"


def client_runtime(name: str, directory: Path) -> Runtime:
    """The runtime of a client of the session in that directory."""
    runtime = Runtime(name, "client", str(directory))
    runtime.client_ref = client_ref(name, str(directory), runtime.host)
    return runtime


def _environment() -> dict[str, str]:
    """That of processes that are started now."""
    return {"OMP_NUM_THREADS": "1", **os.environ}


def _launch(directory: Path, client: str, environment: dict[str, str]) -> AgentProcess:
    # The agent starts Python while we go on; it connects to us, so neither waits for the other.
    env = {**environment, CHILD_VARIABLE: str(directory)}
    arguments = [str(directory), client, str(os.getpid()), _ROOT]
    with open(directory / "agent.log", "ab") as agent_log:
        child = subprocess.Popen(
            undebugged([sys.executable, "-c", _PROGRAM, *arguments]),
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
    """This process's session, started on first use and again after its agent was lost."""
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
    """Make that the session of this process, which has none."""
    global _session, _session_pid
    with lock:
        _session, _session_pid = started, os.getpid()
        set_runtime(started.runtime)
        for hook in _on_start:
            hook(started)


def give_up() -> ClientSession | None:
    """This process has no session from now on; the one that it had, for the caller to end."""
    global _session
    with lock:
        ending, _session = current_session(), None
        if ending is not None and runtime_or_none() is ending.runtime:
            set_runtime(None)
        return ending


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


NOT_BOTH = (
    "the mesh {!r} has restart=, and what its actors are made with anew lives in this process: it "
    "is either kept or restarted, not both"
)


def keeps_new_meshes() -> bool:
    """Whether what this process spawns is to outlive it."""
    found = current_session()
    return found is not None and found.keeps_new


def note_away(mesh: ProcMesh | None) -> None:
    """A mesh on workers is about to be asked for, and is kept; None: such a one is gone."""
    found = current_session()
    if found is not None:
        found.note_away(mesh)


def current_session() -> ClientSession | None:
    """The session if one is running; starts none."""
    return _session if _session_pid == os.getpid() else None


def shutdown_context(
    host_timeout: float | None = None, *, reason: str = "the client ended"
) -> Future[None]:
    """End everything this process started, or holds: what it has kept too. Idempotent.

    Everything is gone when this returns; the future is there to be awaited, as in other programs
    for Monarch. At exit the same is done, but what is kept lives on.

    Args:
        host_timeout: how many seconds processes have to clean up before they are killed; as the
            setting `cleanup_timeout` says if None.
        reason: what whoever still waits is told.

    Raises:
        TypeError, ValueError: `host_timeout` is no time; nothing is ended.
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


# Lets go of the session where something of it is kept; set by `session.keep`.
leave_kept: Callable[[ClientSession], bool] = lambda _: False  # noqa: E731


def leave(reason: str = "the client ended") -> None:
    """The client ends: let go of what is kept, end the rest. Idempotent."""
    found = current_session()
    if found is None or not leave_kept(found):
        shutdown_context(reason=reason)


def _at_exit() -> None:
    started = time.monotonic()
    leave()
    log.debug("shut down in %.3f s", time.monotonic() - started)


set_starter(lambda: session().runtime)
atexit.register(_at_exit)
