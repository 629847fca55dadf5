"""The threads of this proc that are paused, and what they are told.

Runs in: a proc; loaded with its first breakpoint, or when somebody wants to break in. A thread
pauses where it is: it waits for what a console says as it would for an answer, so messages of the
proc go on, and other actors. What a console says comes in on the thread that receives.
Owns: the sessions of this process, and one debugger a thread.
Invariants: a thread that is paused, and no other, waits in `PausedThread.next_line`; a pause ends
when a console says so, or its call is cancelled, or its actor or process is to end; whatever ends
it, the host agent is told.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from monarch._src.actor.context import ActorInstance, current
from monarch._src.actor.run.async_loop import ENTRY as ASYNC_ENTRY
from monarch._src.actor.run.cell import ActorCell
from monarch._src.actor.run.running_calls import CallAborted
from monarch._src.actor.run.sync_loop import ENTRIES
from monarch._src.actor.runtime import Runtime, runtime_or_none
from monarch._src.debug.rank.frames import code_at, function_of, is_all_users
from monarch._src.errors import CallCancelled
from monarch._src.net.local.interrupt import uninterrupted
from monarch._src.net.local.waitable import Waitable
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import (
    BreakIn,
    BridgeBytes,
    BrokeIn,
    Call,
    DebugCommand,
    Debugged,
    KeepFailures,
    PausedAt,
    SetBridge,
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
    from monarch._src.debug.rank.debugpy import RankBridge, Stop
    from monarch._src.debug.rank.pdb import RankPdb

log = logging.getLogger("monarch.debug")
_ENDINGS = (CallAborted, CallCancelled, asyncio.CancelledError)
ENTRY_CODES = frozenset((*ENTRIES, ASYNC_ENTRY))  # what runs endpoints
Ending = Callable[[], BaseException]
FromAgent: TypeAlias = "DebugCommand | KeepFailures | BreakIn | SetBridge | BridgeBytes"


class PausedThread:
    """One thread that is debugged, from its first stop until it runs on for good."""

    def __init__(self, pauses: PausesHere, worker: ActorCell | None, call: object | None) -> None:
        self.worker = worker
        self.call = call
        self._pauses = pauses
        self._node = pauses.runtime.node
        self._number = 0  # none yet
        self._at: PausedAt | None = None  # of a stop that the agent has not been told of
        self._debugger: RankPdb | None = None
        self._frame: FrameType | None = None  # where it stands
        self._commands: deque[DebugCommand] = deque()
        self._turn = Waitable()  # done: there is a command, or the pause is to end
        self._ending: Ending | None = None
        self.waits = False  # for a command, rather than doing one

    @property
    def is_open(self) -> bool:
        """Whether its thread has stopped and not gone on for good."""
        return self._number != 0

    # --- for the debugger, on its thread ----------------------------------------------------------

    def stopped(self, frame: FrameType, line: int, why: str, debugger: RankPdb) -> None:
        """See `rank_pdb.Talk`."""
        if self.worker is not None:
            self.worker.pause_at_safe_point = None  # this is it
        self._debugger = debugger
        self._frame = frame
        self._at = self._pauses.place_of(frame, line, why, self.worker)
        if not self._number:
            self._number = self._pauses.opened(self)

    def next_line(self, text: str, prompt: str) -> str | None:
        """See `rank_pdb.Talk`: what the console says next."""
        self._tell(STOPPED, text, prompt)
        while True:
            self.waits = True
            self._turn.done = False
            if self._ending is not None:
                raise self._ending()
            if self._commands:
                self.waits = False
                command = self._commands.popleft()
                if command.what == COMMAND:
                    return command.text
                self._tell(STOPPED, self._question(command), prompt)
            elif self._frame is not None and self._pauses.is_taken(self._frame, self.worker):
                return None
            elif not self._node.wait(self._turn):
                raise SystemExit  # this process has left its session

    def runs(self, text: str, *, steps: bool) -> None:
        """See `rank_pdb.Talk`."""
        self._tell(STEPPING if steps else RUNNING, text, "")

    def hand_over(
        self, at: tuple[FrameType, int], error: BaseException | None, gave: Callable[[], None]
    ) -> bool:
        """See `rank_pdb.Talk`."""
        bridge = self._pauses.bridge
        return bridge is not None and bridge.take(at, error, self.worker, self.call, gave)

    def ended(self, text: str) -> None:
        """See `rank_pdb.Talk`."""
        with uninterrupted():
            if self._number:
                self._tell(ENDED, text, "")
                self._pauses.closed(self._number)
            self._number = 0
            self._ending = self._frame = None
            self._commands.clear()
            self.waits = False

    def _question(self, command: DebugCommand) -> str:
        debugger = self._debugger
        assert debugger is not None
        try:
            if command.what == COMPLETE:
                return "\n".join(debugger.completions(command.text))
            source = debugger.source_here()
            return "" if source is None else msgspec.json.encode(source).decode()
        except Exception as error:  # a property of the user may raise whatever it likes
            log.debug("a question at a breakpoint: %r", error)
            return ""

    def _tell(self, state: int, text: str, prompt: str) -> None:
        at, self._at = self._at, None
        self._node.send(AGENT, Debugged(self._number, state, text, prompt, at))

    # --- from the thread that receives ------------------------------------------------------------

    def command(self, command: DebugCommand) -> None:
        """A console says something."""
        self._commands.append(command)
        self._turn.finish()

    def give_way(self) -> None:
        """Look whether somebody debugs from outside now. Any thread."""
        self._turn.finish()

    def end(self, ending: Ending) -> bool:
        """Raise that where it pauses; False if it runs now, and has it raised when it stops."""
        self._ending = ending
        waits = self.waits
        self._turn.finish()
        return waits


class PausesHere:
    """The debugger's part in this process."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._sessions: dict[int, PausedThread | Stop] = {}
        # By thread: debuggers that still trace it, for breakpoints that were set at a console.
        self._debuggers: dict[int, tuple[RankPdb, PausedThread]] = {}
        self._ends = False  # whether this process was told to
        self._breaks: Any = None
        self._keeps = False  # whether failing endpoints pause
        self._bridge: RankBridge | None = None  # while somebody debugs from outside
        runtime.hooks.unpause = self.unpause

    # --- on threads that pause --------------------------------------------------------------------

    def pause(
        self, frame: FrameType, why: str, header: str = "", *, call: object | None = None
    ) -> None:
        """Stop there until a console says otherwise. `call`: what runs, if not on this very line.

        Raises:
            BaseException: what ends the pause from outside, if something does.
        """
        if self._bridge is not None and self._bridge.is_open:
            self._bridge.stop_at(frame)
            return
        debugger = self._debugger_here(frame, call)
        if debugger is not None:
            debugger.stop_at(frame, why, header)
            self._keep(debugger)

    def arm(self, frame: FrameType, why: str) -> None:
        """Stop at the next line of that frame, which is this thread's."""
        if self._bridge is not None and self._bridge.is_open:
            self._bridge.stop_at(frame)
            return
        worker, call = self.running_here()
        known = self._debuggers.get(threading.get_ident())
        if known is not None and known[1].is_open:
            return  # it stands already, or is about to
        if not self.is_to_end(worker):
            self._debugger_for(worker, call).arm(frame, why)

    def _debugger_here(self, frame: FrameType, call: object | None) -> RankPdb | None:
        """This thread's debugger; None where a pause would have no end."""
        worker, found = self.running_here()
        call = found if call is None else call
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        why = ""
        if self.runtime.node.baton.handles():
            why = "it is on the thread that receives messages"
        elif self.is_to_end(worker):
            why = "what it is in was told to end"
        if why:
            sys.stderr.write(f"breakpoint at {place} is passed over: {why}\n")
            return None
        if worker is not None:
            worker.pause_at_safe_point = None  # this is it
        return self._debugger_for(worker, call)

    def _debugger_for(self, worker: ActorCell | None, call: object | None) -> RankPdb:
        known = self._debuggers.get(threading.get_ident())
        if known is not None:
            known[1].worker, known[1].call = worker, call
            return known[0]
        # pdb takes 20 ms to load: on the thread that pauses, not on one that receives.
        from monarch._src.debug.rank.pdb import RankPdb

        session = PausedThread(self, worker, call)
        debugger = RankPdb(session)
        self._debuggers[threading.get_ident()] = debugger, session
        return debugger

    def _keep(self, debugger: RankPdb) -> None:
        if not debugger.is_armed and sys.gettrace() is None:
            self._debuggers.pop(threading.get_ident(), None)

    def running_here(self) -> tuple[ActorCell | None, object | None]:
        """The actor that this code belongs to, and the call (or constructor) that it is."""
        instance = _instance_here()
        worker: Any = None if instance is None else self.runtime.cells.get(instance.actor_id.uid)
        if worker is None or instance is None:
            return None, None
        if worker.tasks is not None:
            return (
                worker,
                worker.tasks.work_here() if threading.get_ident() == instance.thread else None,
            )
        calls = [call for _, call, _ in list(worker.running_calls.calls.values())]
        return worker, calls[0] if len(calls) == 1 else None

    @property
    def bridge(self) -> RankBridge | None:
        """What somebody debugs this process through from outside."""
        return self._bridge

    def is_taken(self, frame: FrameType, worker: ActorCell | None) -> bool:
        """Whether a thread that stands there is to be debugged from outside from now on."""
        bridge = self._bridge
        return bridge is not None and bridge.takes and self.may_stop(frame, worker)

    def give_way(self) -> None:
        """Somebody debugs from outside now: what stands at a prompt goes there. Any thread."""
        for session in list(self._sessions.values()):
            if isinstance(session, PausedThread):
                session.give_way()

    def may_stop(self, frame: FrameType, worker: ActorCell | None) -> bool:
        """Whether a thread may wait there: it is in code of the user, and nobody waits for it."""
        if self.runtime.node.baton.handles() or self.is_to_end(worker):
            return False
        return is_all_users(frame, ENTRY_CODES)

    def place_of(self, frame: FrameType, line: int, why: str, worker: ActorCell | None) -> PausedAt:
        """Where this thread stands."""
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
        """Whether that actor, or all of this process, was told to."""
        return self._ends or (worker is not None and worker.is_ending)

    def opened(self, session: PausedThread | Stop) -> int:
        """A number for a session that begins."""
        with self._lock:
            number = next(self._numbers)
            self._sessions[number] = session
        return number

    def closed(self, number: int) -> None:
        """That session has ended."""
        with self._lock:
            self._sessions.pop(number, None)

    def on_failure(self, worker: ActorCell, error: BaseException) -> None:
        """An endpoint has raised, and that is wanted: look at its frames before it is answered."""
        if self._bridge is not None:
            self._bridge.trace_again()
            if self._bridge.is_open:
                return  # its debugger decides where exceptions pause, and two would trace a thread
        if not self._keeps or isinstance(
            error, (CallAborted, CallCancelled, asyncio.CancelledError)
        ):
            return
        traceback = error.__traceback__
        if traceback is None or type(error).__name__ == "BdbQuit":
            return
        try:
            debugger = self._debugger_here(traceback.tb_frame, None)
            if debugger is not None:
                debugger.look_at(error)
                self._keep(debugger)
        except BaseException as ended:  # what ends the pause does not change what was raised
            log.debug("the look at a failure has ended: %r", ended)

    # --- from the thread that receives ------------------------------------------------------------

    def on_message(self, message: FromAgent) -> None:
        """The host agent wants something, in the name of a console."""
        if isinstance(message, DebugCommand):
            session = self._sessions.get(message.session)
            if isinstance(session, PausedThread):
                session.command(message)
        elif isinstance(message, KeepFailures):
            self._keeps = message.on
            self._hear_failures()
        elif isinstance(message, BreakIn):
            self._break_in(message.request)
        elif isinstance(message, SetBridge):
            self._set_bridge(message)
        elif self._bridge is not None and self._bridge.number == message.bridge:
            self._bridge.received(message.data)

    def _set_bridge(self, message: SetBridge) -> None:
        if message.open:
            module = import_module("monarch._src.debug.rank.debugpy")
            self._bridge = module.RankBridge(self, message.bridge)
            self._hear_failures()
        elif self._bridge is not None and self._bridge.number == message.bridge:
            self._bridge.close()

    def bridge_closed(self, bridge: RankBridge) -> None:
        """That one has taken its debugger out. Its thread."""
        if self._bridge is bridge:
            self._bridge = None
            self._hear_failures()

    def _hear_failures(self) -> None:
        wanted = self._keeps or self._bridge is not None
        self.runtime.hooks.on_endpoint_error = self.on_failure if wanted else None

    def _break_in(self, request: int) -> None:
        if self._breaks is None:
            self._breaks = import_module("monarch._src.debug.rank.break_in")
        threads, problem = self._breaks.break_in(self)
        self.runtime.node.send(AGENT, BrokeIn(request, threads, problem))

    def unpause(self, worker: ActorCell | None, call: Call | None) -> bool:
        """A call is cancelled, or that actor (none: all code that is no actor's) is to end.

        Any thread. Returns whether a thread was paused for it, which then raises.
        """
        if worker is None:
            self._ends = True
        found = False
        for session in list(self._sessions.values()):
            if session.worker is not worker or (call is not None and session.call is not call):
                continue
            found |= session.end(_ending_of(worker, call))
        return found


def _ending_of(worker: ActorCell | None, call: Call | None) -> Ending:
    """What is raised where a thread of that actor is paused."""
    if worker is None:
        return SystemExit
    if call is None:
        why = worker.dead or worker.stopped_failure("it was told to end at a breakpoint")
        return lambda: CallAborted(why)
    return CallCancelled if worker.tasks is None else asyncio.CancelledError


def _instance_here() -> ActorInstance | None:
    context = current.get()
    return None if context is None else context.actor_instance


_here: PausesHere | None = None
_making = threading.Lock()


def pauses_of(runtime: Runtime) -> PausesHere:
    """The debugger's part in the process of that runtime."""
    global _here
    with _making:
        if _here is None or _here.runtime is not runtime:
            _here = PausesHere(runtime)
        return _here


def pause_here(frame: FrameType, *_: Any, header: str = "", **__: Any) -> None:
    """What `breakpoint()` does in a proc. `header`: shown above the first stop, as by pdb."""
    runtime = runtime_or_none()
    if runtime is not None:
        pauses_of(runtime).pause(frame, "breakpoint", header)
