"""The paused threads of this proc.

Runs in: a proc; loaded on its first breakpoint or request of a console. A paused thread waits for
commands as for the answer of a call, so messages are still delivered and other actors run. The
receiving thread delivers commands.
Owns: the debug sessions of this process, and one debugger per thread.
Invariants: exactly the paused threads wait in `PausedThread.next_line`. A pause ends when a console
resumes it, its call is cancelled, or its actor or process ends. The host agent is always notified.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from monarch._src.actor.context import ActorInstance, current
from monarch._src.actor.parts import Debugger
from monarch._src.actor.run.async_loop import ENTRY as ASYNC_ENTRY
from monarch._src.actor.run.cell import ActorCell
from monarch._src.actor.run.running_calls import CallAborted
from monarch._src.actor.run.sync_loop import ENTRIES
from monarch._src.actor.runtime import Runtime, runtime_or_none
from monarch._src.debug.rank.user_frames import code_at, function_of, is_all_users
from monarch._src.errors import CallCancelled
from monarch._src.net.local.interrupt import GuardedLock, uninterrupted
from monarch._src.net.local.waitable import Waitable
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import (
    Call,
    DebugCommand,
    Debugged,
    PausedAt,
)
from monarch._src.wire.messages.debugger import (
    COMMAND,
    COMPLETE,
    ENDED,
    RUNNING,
    STEPPING,
    STOPPED,
)

if TYPE_CHECKING:
    from monarch._src.debug.rank.pdb import RankPdb

ENTRY_CODES = frozenset((*ENTRIES, ASYNC_ENTRY))
"""The code objects that run endpoints."""
Ending: TypeAlias = "Callable[[], BaseException]"
"""Makes the exception that a paused thread raises when its pause is ended for it."""
log = logging.getLogger("monarch.debug")


class Stop:
    """One thread that stands in debugpy; takes the place of a `PausedThread` there."""

    def __init__(
        self,
        resume: Callable[[threading.Thread], None],
        worker: ActorCell | None,
        call: object | None,
    ) -> None:
        self.worker = worker
        self.call = call
        self.ending: Ending | None = None
        self._resume = resume
        self._thread = threading.current_thread()

    def end(self, ending: Ending) -> bool:
        """Have it go on, and raise that then. Any thread."""
        self.ending = ending
        self._resume(self._thread)
        return True


class Bridge(Protocol):
    """A debugger of this proc that one console drives; see `debug.rank.debugpy.RankBridge`."""

    number: int

    @property
    def is_open(self) -> bool: ...
    @property
    def is_ready(self) -> bool: ...
    def take_over(
        self, at: tuple[FrameType, int], error: BaseException | None, worker: ActorCell | None,
        call: object | None, on_waiting: Callable[[], None],
    ) -> bool: ...  # fmt: skip
    def stop_at(self, frame: FrameType) -> None: ...
    def trace_again(self) -> None: ...
    def on_bytes(self, data: bytes) -> None: ...
    def close(self) -> None: ...


class PausedThread:
    """One debugged thread, from its first stop until it resumes for good."""

    def __init__(self, pauses: ProcPauses, worker: ActorCell | None, call: object | None) -> None:
        self.worker = worker
        self.call = call
        self._pauses = pauses
        self._node = pauses.runtime.node
        self._number = 0  # 0: not open
        self._at: PausedAt | None = None  # of a stop not reported yet
        self._debugger: RankPdb | None = None
        self._frame: FrameType | None = None  # the frame where it stopped
        self._commands: deque[DebugCommand] = deque()
        self._wakeup = Waitable()  # done: a command has arrived, or the pause ends
        self._ending: Ending | None = None
        self.is_waiting = False  # for a command; False while it runs one

    @property
    def is_open(self) -> bool:
        """Whether its thread has stopped and not resumed for good."""
        return self._number != 0

    # --- for the debugger, on the paused thread ---------------------------------------------------

    def on_stopped(self, frame: FrameType, line: int, why: str, debugger: RankPdb) -> None:
        """See `ConsoleChannel`."""
        if self.worker is not None:
            self.worker.pause_at_safe_point = None  # the requested pause is this one
        self._debugger = debugger
        self._frame = frame
        self._at = self._pauses.place_of(frame, line, why, self.worker)
        if not self._number:
            self._number = self._pauses.add_session(self)

    def next_line(self, text: str, prompt: str) -> str | None:
        """See `ConsoleChannel`."""
        self._report(STOPPED, text, prompt)
        while True:
            self.is_waiting = True
            self._wakeup.done = False
            if self._ending is not None:
                raise self._ending()
            if self._commands:
                self.is_waiting = False
                command = self._commands.popleft()
                if command.what == COMMAND:
                    return command.text
                self._report(STOPPED, self._answer_query(command), prompt)
            elif self._frame is not None and self._pauses.is_taken_over(self._frame, self.worker):
                return None
            elif not self._node.wait(self._wakeup):
                raise SystemExit  # the process has left its session

    def on_running(self, text: str, *, steps: bool) -> None:
        """See `ConsoleChannel`."""
        self._report(STEPPING if steps else RUNNING, text, "")

    def hand_over(
        self, at: tuple[FrameType, int], error: BaseException | None, on_waiting: Callable[[], None]
    ) -> bool:
        """See `ConsoleChannel`."""
        bridge = self._pauses.bridge
        return bridge is not None and bridge.take_over(
            at, error, self.worker, self.call, on_waiting
        )

    def on_ended(self, text: str) -> None:
        """See `ConsoleChannel`."""
        with uninterrupted():
            if self._number:
                self._report(ENDED, text, "")
                self._pauses.remove_session(self._number)
            self._number = 0
            self._ending = self._frame = None
            self._commands.clear()
            self.is_waiting = False

    def _answer_query(self, command: DebugCommand) -> str:
        debugger = self._debugger
        assert debugger is not None
        try:
            if command.what == COMPLETE:
                return "\n".join(debugger.completions(command.text))
            source = debugger.source_here()
            return "" if source is None else msgspec.json.encode(source).decode()
        except Exception as error:  # a property of the user may raise anything
            log.debug("cannot complete or show source at a breakpoint: %r", error)
            return ""

    def _report(self, state: int, text: str, prompt: str) -> None:
        at, self._at = self._at, None
        self._node.send(AGENT, Debugged(self._number, state, text, prompt, at))

    # --- on the receiving thread ------------------------------------------------------------------

    def command(self, command: DebugCommand) -> None:
        """Queue a command of a console."""
        self._commands.append(command)
        self._wakeup.finish()

    def check_editor(self) -> None:
        """Check whether an editor has connected meanwhile. Any thread."""
        self._wakeup.finish()

    def end(self, ending: Ending) -> bool:
        """End the pause by raising `ending()` on its thread.

        Returns False if the thread runs a command now; it raises at its next stop.
        """
        self._ending = ending
        was_waiting = self.is_waiting
        self._wakeup.finish()
        return was_waiting


class ProcPauses(Debugger):
    """All debug sessions of this process."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._numbers = itertools.count(1)
        self._lock = GuardedLock()
        self._sessions: dict[int, PausedThread | Stop] = {}
        # Debuggers by thread, kept while breakpoints set from a console need tracing.
        self._debuggers: dict[int, tuple[RankPdb, PausedThread]] = {}
        self._is_ending = False  # whether this process is to end
        self._post_mortem = False  # whether failing endpoints pause
        self._pauses_bystanders = False  # whether those of bystanders do, too
        self._bridge: Bridge | None = None  # while an editor is connected
        runtime.hooks.debugger = self

    # --- on paused threads ------------------------------------------------------------------------

    def pause(
        self, frame: FrameType, why: str, header: str = "", *, call: object | None = None
    ) -> None:
        """Pause at `frame` until a console resumes it.

        `call`: the call that runs, if it is not the current one.

        Raises:
            BaseException: the exception that ends the pause, if its call, actor or process ends.
        """
        if self._bridge is not None and self._bridge.is_open:
            self._bridge.stop_at(frame)
            return
        debugger = self._debugger_here(frame, call)
        if debugger is not None:
            debugger.stop_at(frame, why, header)
            self._keep_if_armed(debugger)

    def arm(self, frame: FrameType, why: str) -> None:
        """Stop at the next line of `frame`, a frame of this thread."""
        if self._bridge is not None and self._bridge.is_open:
            self._bridge.stop_at(frame)
            return
        worker, call = self.running_here()
        known = self._debuggers.get(threading.get_ident())
        if known is not None and known[1].is_open:
            return  # stopped already, or about to stop
        if not self.is_to_end(worker):
            self._debugger_for(worker, call).arm(frame, why)

    def _debugger_here(self, frame: FrameType, call: object | None) -> RankPdb | None:
        """The debugger of this thread; None if a pause here could never end."""
        worker, found = self.running_here()
        call = found if call is None else call
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        why = ""
        if self.runtime.node.leader.handles():
            why = "it runs on the receiving thread"
        elif self.is_to_end(worker):
            why = "its actor or process is ending"
        if why:
            sys.stderr.write(f"breakpoint at {place} is skipped: {why}\n")
            return None
        if worker is not None:
            worker.pause_at_safe_point = None  # the requested pause is this one
        return self._debugger_for(worker, call)

    def _debugger_for(self, worker: ActorCell | None, call: object | None) -> RankPdb:
        known = self._debuggers.get(threading.get_ident())
        if known is not None:
            known[1].worker, known[1].call = worker, call
            return known[0]
        # Loading pdb takes 20 ms, so the pausing thread does it, not the receiving thread.
        from monarch._src.debug.rank.pdb import RankPdb

        session = PausedThread(self, worker, call)
        debugger = RankPdb(session)
        self._debuggers[threading.get_ident()] = debugger, session
        return debugger

    def _keep_if_armed(self, debugger: RankPdb) -> None:
        if not debugger.is_armed and sys.gettrace() is None:
            self._debuggers.pop(threading.get_ident(), None)

    def running_here(self) -> tuple[ActorCell | None, object | None]:
        """The actor whose code runs on this thread, and the call, or the constructor."""
        instance = _instance_here()
        worker: Any = None if instance is None else self.runtime.cells.get(instance.actor_id.uid)
        if worker is None or instance is None:
            return None, None
        if worker.tasks is not None:
            return (
                worker,
                worker.tasks.work_here() if threading.get_ident() == instance.thread else None,
            )
        calls = [item[1] for item in list(worker.running_calls.calls.values())]
        return worker, calls[0] if len(calls) == 1 else None

    @property
    def bridge(self) -> Bridge | None:
        """The connection to an editor; None if none is connected."""
        return self._bridge

    def is_taken_over(self, frame: FrameType, worker: ActorCell | None) -> bool:
        """Whether an editor takes over the thread that is paused at `frame`."""
        bridge = self._bridge
        return bridge is not None and bridge.is_ready and self.may_stop(frame, worker)

    def check_editor(self) -> None:
        """Hand paused threads over to the editor that has connected. Any thread."""
        for session in list(self._sessions.values()):
            if isinstance(session, PausedThread):
                session.check_editor()

    def may_stop(self, frame: FrameType, worker: ActorCell | None) -> bool:
        """Whether this thread may wait at `frame`: user code, and the runtime does not need it."""
        if self.runtime.node.leader.handles() or self.is_to_end(worker):
            return False
        return is_all_users(frame, ENTRY_CODES)

    def place_of(self, frame: FrameType, line: int, why: str, worker: ActorCell | None) -> PausedAt:
        """Describe where this thread stands."""
        instance = _instance_here()
        thread = threading.current_thread()
        own = instance is not None and instance.thread == threading.get_ident()
        name = "" if own or thread is threading.main_thread() else thread.name
        where = (
            function_of(frame), frame.f_code.co_filename, line, code_at(frame, line)[:200], name,
            why[:200],
        )  # fmt: skip
        if worker is None or instance is None:
            endpoint = "" if instance is None else instance.endpoint
            return PausedAt("", "", endpoint, [], [], 0, *where)
        point = instance.rank
        return PausedAt(
            instance.name, instance.class_name, instance.endpoint,
            list(point.extent.labels), list(point.extent.sizes), point.rank, *where,
        )  # fmt: skip

    def is_to_end(self, worker: ActorCell | None) -> bool:
        """Whether that actor or this process is to end."""
        return self._is_ending or (worker is not None and worker.is_ending)

    def add_session(self, session: PausedThread | Stop) -> int:
        """Add a session and return its number."""
        with self._lock:
            number = next(self._numbers)
            self._sessions[number] = session
        return number

    def remove_session(self, number: int) -> None:
        """Remove a session."""
        with self._lock:
            self._sessions.pop(number, None)

    def on_endpoint_error(self, cell: ActorCell, error: BaseException) -> None:
        """An endpoint has raised: pause with its frames before the caller gets the exception."""
        if self._bridge is not None:
            self._bridge.trace_again()
            if self._bridge.is_open:
                return  # debugpy decides about exceptions; two debuggers must not trace a thread
        if not self._post_mortem or isinstance(
            error, (CallAborted, CallCancelled, asyncio.CancelledError)
        ):
            return
        traceback = error.__traceback__
        if traceback is None or type(error).__name__ == "BdbQuit":
            return
        if not self._pauses_bystanders and _is_of_bystander(error):
            return
        try:
            debugger = self._debugger_here(traceback.tb_frame, None)
            if debugger is not None:
                debugger.inspect_error(error)
                self._keep_if_armed(debugger)
        except BaseException as ended:  # the endpoint still fails with `error`
            log.debug("a post-mortem pause was ended: %r", ended)

    # --- on the receiving thread ------------------------------------------------------------------

    def command(self, message: DebugCommand) -> None:
        """Pass a command on to the paused thread that it is for."""
        session = self._sessions.get(message.session)
        if isinstance(session, PausedThread):
            session.command(message)

    def keep_failures(self, on: bool, *, bystanders: bool) -> None:
        """Pause endpoints that fail from now on, or no longer; see `KeepFailures`."""
        self._post_mortem = on
        self._pauses_bystanders = bystanders

    def open_bridge(self, bridge: Bridge) -> None:
        """An editor is connected: its debugger takes over."""
        self._bridge = bridge

    def close_bridge(self, number: int) -> None:
        """End the debugger of that bridge, if it is open."""
        if self._bridge is not None and self._bridge.number == number:
            self._bridge.close()

    def on_bridge_bytes(self, number: int, data: bytes) -> None:
        """An editor has sent bytes to that bridge."""
        if self._bridge is not None and self._bridge.number == number:
            self._bridge.on_bytes(data)

    def on_bridge_closed(self, bridge: Bridge) -> None:
        """A bridge has unloaded its debugger. On the bridge thread."""
        if self._bridge is bridge:
            self._bridge = None

    def unpause(self, cell: ActorCell | None, call: Call | None) -> bool:
        """End the pauses of a call that is cancelled, or of an actor or a process that is to end.

        `cell` None: the process ends, with the code outside of actors. Any thread. Returns
        whether a thread was paused for it; that thread then raises.
        """
        if cell is None:
            self._is_ending = True
        found = False
        for session in list(self._sessions.values()):
            if session.worker is not cell or (call is not None and session.call is not call):
                continue
            found |= session.end(_ending_of(cell, call))
        return found


def _ending_of(worker: ActorCell | None, call: Call | None) -> Ending:
    """The exception to raise on a paused thread of that actor."""
    if worker is None:
        return SystemExit
    if call is None:
        why = worker.dead or worker.stopped_failure("it was told to end at a breakpoint")
        return lambda: CallAborted(why)
    return CallCancelled if worker.tasks is None else asyncio.CancelledError


def _is_of_bystander(error: BaseException) -> bool:
    """Whether the rank has failed only because another one has left a collective."""
    if "torch.distributed" not in sys.modules:
        return False
    from monarch._src.spmd.rank_watch import is_of_bystander  # most programs have no process group

    return is_of_bystander(error)


def _instance_here() -> ActorInstance | None:
    context = current.get()
    return None if context is None else context.actor_instance


_pauses: ProcPauses | None = None
_making = GuardedLock()


def pauses_of(runtime: Runtime) -> ProcPauses:
    """The debug sessions of the process with that runtime; created on first use."""
    global _pauses
    with _making:
        if _pauses is None or _pauses.runtime is not runtime:
            _pauses = ProcPauses(runtime)
        return _pauses


def pause_here(frame: FrameType, *_: Any, header: str = "", **__: Any) -> None:
    """The `breakpoint()` hook of a proc. `header` is shown above the first stop, as in pdb."""
    runtime = runtime_or_none()
    if runtime is not None:
        pauses_of(runtime).pause(frame, "breakpoint", header)
