"""debugpy in this proc, spoken to over the control plane, with no socket between.

Runs in: a proc; loaded when a bridge is opened to it. A thread of ours opens and closes; threads of
debugpy's own read and write, through `_Pipe`, which is a queue on one side and messages to the host
agent on the other. A thread that stops waits inside debugpy, not in `pausing.Session`.
Owns: the debugger of this process, from `open` to `close`, and what that has changed meanwhile.
Invariants: a thread stops only where it is in code of the user all the way down to its endpoint, so
it holds no lock of the runtime and messages go on; the host agent is told of each stop before it
begins and after it has ended; whatever is to end resumes, and raises what ends it.

debugpy is asked for by name, so that a proc without it runs as well. What is used below its public
part (`PyDB`) is used here only; `tests/integration/test_bridges.py` is what notices a change there.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

from monarch._src.debug.rank.types import Stop
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import BridgeBytes, BridgeSet, Debugged
from monarch._src.wire.messages.dap import PIECE
from monarch._src.wire.messages.debugger import ENDED, IN_EDITOR, STOPPED

if TYPE_CHECKING:
    from monarch._src.actor.run.cell import ActorCell
    from monarch._src.debug.rank.pauses import PausesHere

log = logging.getLogger("monarch.debug")
MISSING = (
    "debugpy is not installed where that rank runs: pip install 'monarch-jupyter[debug]' there"
)
OWN = "a debugger that the program has loaded itself is connected there"
_HEADER = b"Content-Length: "


class _Pipe:
    """What debugpy takes for its socket."""

    def __init__(self, say: Callable[[bytes], None]) -> None:
        self._say = say
        self._came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._header = b""

    def put(self, data: bytes) -> None:
        """Bytes for debugpy; none at all: there are no more."""
        self._came.put(data)

    def recv(self, _most: int) -> bytes:
        """See `socket.recv`; debugpy copes with more than it has asked for."""
        return self._came.get()

    def sendall(self, data: bytes) -> None:
        """See `socket.sendall`. A header and what it belongs to become one message."""
        if data.startswith(_HEADER) and not self._header:
            self._header = data
            return
        whole, self._header = self._header + data, b""
        for begin in range(0, len(whole), PIECE):
            self._say(whole[begin : begin + PIECE])

    def settimeout(self, _seconds: float | None) -> None:
        """A queue has none."""

    def shutdown(self, _how: int) -> None:
        """What was sent is sent."""

    def close(self) -> None:
        """There is nothing to close."""


class RankBridge:
    """The debugger of this process, for one console. Closed once, and then done with."""

    def __init__(self, pauses: PausesHere, number: int) -> None:
        self.pauses = pauses
        self.number = number
        self._node = pauses.runtime.node
        self._pipe = _Pipe(self._say)
        self._db: Any = None
        self._closing = threading.Event()
        self._standing: set[int] = set()  # threads
        threading.Thread(target=self._run, name="debug-bridge", daemon=True).start()

    # --- from the thread that receives ------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """The console says something."""
        if data:
            self._pipe.put(data)

    def close(self) -> None:
        """Take the debugger out; what it has stopped goes on. Idempotent."""
        self._closing.set()

    # --- on threads that stop ---------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether there is a debugger to stop in."""
        return self._db is not None and not self._closing.is_set()

    def stop_at(self, frame: FrameType) -> None:
        """Stop at the next line of that frame, which is this thread's."""
        _pydevd().settrace(
            suspend=True, trace_only_current_thread=True, patch_multiprocessing=False,
            stop_at_frame=frame, notify_stdin=False,
        )  # fmt: skip

    def trace_again(self) -> None:
        """Python takes the tracer of a thread away in which it has raised, as `wait` below does."""
        if self.is_open:
            self._db.enable_tracing()

    @property
    def takes(self) -> bool:
        """Whether who debugs is ready to be told of threads that stand still."""
        return self.is_open and self._db.is_attached()

    def take(
        self, at: tuple[FrameType, int], error: BaseException | None, worker: ActorCell | None,
        call: object | None, gave: Callable[[], None],
    ) -> bool:  # fmt: skip
        """Have a thread of ours that stands there, with that error, stand in the debugger.

        `gave` is called when nothing can prevent it any more. False if it cannot.

        Raises:
            BaseException: what ends the pause from outside, if something does.
        """

        def wait() -> None:
            gave()
            _suspend(self._db, at[0], error)

        return self.takes and self._stand(*at, worker, call, wait)

    def wait(self, frame: FrameType, wait: Callable[[], None]) -> bool:
        """A thread of ours has stopped there: wait. False if it cannot, or has to go on.

        Raises:
            BaseException: what ends the pause from outside, if something does.
        """
        return self._stand(frame, frame.f_lineno, *self.pauses.running_here(), wait)

    def _stand(
        self, frame: FrameType, line: int, worker: ActorCell | None, call: object | None,
        wait: Callable[[], None],
    ) -> bool:  # fmt: skip
        pauses = self.pauses
        if not self.is_open or not pauses.may_stop(frame, worker):
            return False
        stop = Stop(self.resume, worker, call)
        number = pauses.opened(stop)
        at = pauses.place_of(frame, line, IN_EDITOR, worker)
        self._node.send(AGENT, Debugged(number, STOPPED, "", "", at))
        outermost = not self.stands_here
        self._standing.add(threading.get_ident())
        try:
            if not pauses.is_to_end(worker):
                wait()
        finally:
            if outermost:
                self._standing.discard(threading.get_ident())
            pauses.closed(number)
            self._node.send(AGENT, Debugged(number, ENDED, "", "", None))
        if stop.ending is not None:
            error = stop.ending()
            if not isinstance(error, SystemExit):  # debugpy keeps that; the process ends anyway
                raise error
        return True

    @property
    def stands_here(self) -> bool:
        """Whether this thread stands in the debugger, which then runs in it."""
        return threading.get_ident() in self._standing

    def resume(self, thread: threading.Thread) -> None:
        """Let a thread go on that waits, or is about to. Any thread."""
        constants = import_module("_pydevd_bundle.pydevd_constants")
        api = import_module("_pydevd_bundle.pydevd_api").PyDevdAPI()
        api.request_resume_thread(constants.get_thread_id(thread))

    # --- on our own thread ------------------------------------------------------------------------

    def _run(self) -> None:
        hook = sys.breakpointhook
        try:
            self._db = _connected(self, self._pipe)
        except Exception as error:
            problem = str(error) if isinstance(error, _CannotOpen) else repr(error)
            log.debug("no bridge to this rank", exc_info=True)
            self._node.send(AGENT, BridgeSet(self.number, False, problem))
            self.pauses.bridge_closed(self)
            return
        finally:
            sys.breakpointhook = hook  # debugpy puts its own there as it is imported
        self._node.send(AGENT, BridgeSet(self.number, True, ""))
        self._closing.wait()
        try:
            _disconnect(self._db, self._pipe)
        except Exception as error:
            log.warning("the debugger did not come out cleanly: %r", error)
        self._node.send(AGENT, BridgeSet(self.number, False, ""))
        self.pauses.bridge_closed(self)

    def _say(self, data: bytes) -> None:
        self._node.send(AGENT, BridgeBytes(0, 0, self.number, data))


class _CannotOpen(Exception):
    """Why there can be no debugger here."""


def _pydevd() -> Any:
    return import_module("pydevd")


_changes = itertools.count(0, 1 << 16)


def _connected(bridge: RankBridge, pipe: _Pipe) -> Any:
    """debugpy's debugger, in all threads of this process."""
    # Frozen modules of the standard library have no lines to stop at; nobody needs to be warned.
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    try:
        import_module("debugpy._vendored.force_pydevd")  # as `import debugpy.server` does
    except ImportError as error:
        raise _CannotOpen(MISSING) from error
    constants = import_module("_pydevd_bundle.pydevd_constants")
    if constants.get_global_debugger() is not None:
        raise _CannotOpen(OWN)
    _know_cells()
    db = _class(bridge)()
    # What it knows of a function it knows by this number, and over several debuggers: with one that
    # had been used, breakpoints of the one before were still stopped at (Python 3.12 and later).
    db.mtime = next(_changes)
    # It has put its own in place of `sys.settrace`, which writes to stderr whenever pdb lets go.
    import_module("pydevd_tracing").restore_sys_set_trace_func()
    module = _pydevd()
    module.pydevd_vm_type.setup_type()
    if module.SetupHolder.setup is None:
        module.SetupHolder.setup = {"client": "", "server": False, "port": 0, "multiprocess": False}
    db.initialize_network(pipe, terminate_on_socket_close=False)
    db.ready_to_run = True
    db._create_pydb_command_thread()
    db.patch_threads()
    db.enable_tracing(db.trace_dispatch, apply_to_all_threads=True)
    db.set_tracing_for_untraced_contexts()
    return db


def _class(bridge: RankBridge) -> type[Any]:
    base: type[Any] = _pydevd().PyDB
    waits: Callable[..., None] = base.do_wait_suspend
    configured: Callable[..., None] = base.on_configuration_done

    class RankDebugger(base):
        """debugpy's, but for where and how its threads wait."""

        def do_wait_suspend(
            self, thread: Any, frame: Any, event: str, arg: Any, exception_type: Any = None
        ) -> None:
            """See `PyDB`: what a thread does that is to stop."""

            def wait() -> None:
                waits(self, thread, frame, event, arg, exception_type)

            # What the debugger itself does in a thread that stands may come by code that it takes
            # for the program's: an import by a finder of ours. The thread stands all the same.
            if not bridge.wait(frame, wait) and not bridge.stands_here:
                bridge.resume(thread)

        def stand(self, frame: FrameType, event: str, arg: Any, exception_type: Any = None) -> None:
            """The same for a thread, this one, that `bridge.take` has."""
            waits(self, threading.current_thread(), frame, event, arg, exception_type)

        def on_configuration_done(self) -> None:
            """See `PyDB`: who debugs has said all that is to be known first."""
            configured(self)
            bridge.pauses.give_way()

    return RankDebugger


def _suspend(db: Any, frame: FrameType, error: BaseException | None) -> None:
    """Have this thread wait in that frame, in which something else than debugpy has stopped it."""
    thread = threading.current_thread()
    constants = import_module("_pydevd_bundle.pydevd_comm_constants")
    import_module("_pydevd_bundle.pydevd_additional_thread_info").set_additional_thread_info(thread)
    db.set_trace_for_frame_and_parents(thread.ident, frame)
    db.enable_tracing()
    kinds = import_module("_pydevd_bundle.pydevd_constants")
    reason = constants.CMD_SET_BREAK if error is None else constants.CMD_ADD_EXCEPTION_BREAK
    db.set_suspend(thread, reason)
    if kinds.PYDEVD_USE_SYS_MONITORING:  # without breakpoints it would be told of no line
        monitoring = import_module("_pydevd_sys_monitoring.pydevd_sys_monitoring")
        monitoring.start_monitoring(all_threads=True)
        monitoring.update_monitor_events(suspend_requested=True)
    if error is None:
        db.stand(frame, "line", None)
        return
    raised = (type(error), error, error.__traceback__)
    db.stand(frame, "exception", raised, kinds.EXCEPTION_TYPE_HANDLED)


def _disconnect(db: Any, pipe: _Pipe) -> None:
    module = _pydevd()
    api = import_module("_pydevd_bundle.pydevd_api").PyDevdAPI()
    api.request_disconnect(db, resume_threads=True)
    pipe.put(b"")
    module.stoptrace()
    if not import_module("_pydevd_bundle.pydevd_constants").PYDEVD_USE_SYS_MONITORING:
        for frame in sys._current_frames().values():  # pyright: ignore[reportPrivateUsage]
            _forget(frame)  # the tracer of a frame would have its thread traced again
        import_module("pydevd_tracing").set_trace_to_threads(_end_of_tracing)


def _forget(frame: FrameType | None) -> None:
    while frame is not None:
        frame.f_trace = None
        frame = frame.f_back


def _end_of_tracing(_frame: FrameType, _event: str, _arg: Any) -> None:
    """The first event in a thread after all: it is traced no more."""
    sys.settrace(None)


def _know_cells() -> None:
    """A cell has the name of a file that is on the kernel's host, and only there."""
    files: Any = import_module("pydevd_file_utils")
    exists = files.exists
    if getattr(exists, "knows_cells", False):
        return

    def exists_or_cell(filename: str) -> bool:
        return bool(exists(filename)) or "/ipykernel_" in filename

    exists_or_cell.knows_cells = True  # pyright: ignore[reportFunctionMemberAccess]
    files.exists = exists_or_cell
