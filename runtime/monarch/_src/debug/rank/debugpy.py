"""Run debugpy in this proc, connected through runtime messages in place of a socket.

Runs in: a proc; loaded when a bridge to it is opened. The bridge thread loads and unloads debugpy.
debugpy's own threads read and write through `_Pipe`, which is a queue in one direction and messages
to the host agent in the other. A stopped thread waits inside debugpy, not in `PausedThread`.
Owns: the debugger of this process, and the changes that it makes to the process, until `close`.
Invariants: a thread stops only if all its frames down to the endpoint are user code, so it holds no
lock of the runtime and messages are still delivered. The host agent is notified before each stop
and after it. When its call, actor or process ends, a stopped thread resumes and raises the reason.

debugpy is imported by name, so procs run without it. Only this module uses its private parts
(`PyDB`); `tests/integration/debug/test_bridges.py` fails if they change.
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

from monarch._src.debug.rank.pauses import Stop
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import BridgeBytes, BridgeSet, Debugged
from monarch._src.wire.messages.debugger import ENDED, IN_EDITOR, PIECE, STOPPED

if TYPE_CHECKING:
    from monarch._src.actor.run.cell import ActorCell
    from monarch._src.debug.rank.pauses import ProcPauses

log = logging.getLogger("monarch.debug")
MISSING = "debugpy is not installed where the rank runs: pip install 'monarch-jupyter[debug]' there"
OWN = "the program has connected a debugger of its own"
_HEADER = b"Content-Length: "


class _Pipe:
    """The object that debugpy uses as its socket."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._incoming: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._header = b""

    def put(self, data: bytes) -> None:
        """Pass bytes to debugpy; empty bytes mean the end."""
        self._incoming.put(data)

    def recv(self, _most: int) -> bytes:
        """See `socket.recv`; debugpy accepts more bytes than it has asked for."""
        return self._incoming.get()

    def sendall(self, data: bytes) -> None:
        """See `socket.sendall`. A header is sent together with its body."""
        if data.startswith(_HEADER) and not self._header:
            self._header = data
            return
        whole, self._header = self._header + data, b""
        for begin in range(0, len(whole), PIECE):
            self._send(whole[begin : begin + PIECE])

    def settimeout(self, _seconds: float | None) -> None:
        """Do nothing: a queue has no time-out."""

    def shutdown(self, _how: int) -> None:
        """Do nothing: bytes are sent at once."""

    def close(self) -> None:
        """Do nothing: there is no descriptor."""


class RankBridge:
    """The debugger of this process, for one console. Cannot be reopened."""

    def __init__(self, pauses: ProcPauses, number: int) -> None:
        self.pauses = pauses
        self.number = number
        self._node = pauses.runtime.node
        self._pipe = _Pipe(self._send)
        self._db: Any = None
        self._closing = threading.Event()
        self._stopped_threads: set[int] = set()  # identifiers of stopped threads
        threading.Thread(target=self._run, name="debug-bridge", daemon=True).start()

    # --- on the receiving thread ------------------------------------------------------------------

    def on_bytes(self, data: bytes) -> None:
        """Handle bytes from the console."""
        if data:
            self._pipe.put(data)

    def close(self) -> None:
        """Unload the debugger; stopped threads resume. Idempotent."""
        self._closing.set()

    # --- on stopped threads -----------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the debugger is loaded and not closing."""
        return self._db is not None and not self._closing.is_set()

    def stop_at(self, frame: FrameType) -> None:
        """Stop at the next line of `frame`, a frame of this thread."""
        _pydevd().settrace(
            suspend=True, trace_only_current_thread=True, patch_multiprocessing=False,
            stop_at_frame=frame, notify_stdin=False,
        )  # fmt: skip

    def trace_again(self) -> None:
        """Restore the tracer: Python removes it if it raises, as `wait` below does."""
        if self.is_open:
            self._db.enable_tracing()

    @property
    def is_ready(self) -> bool:
        """Whether the editor is ready for stopped threads."""
        return self.is_open and self._db.is_attached()

    def take_over(
        self, at: tuple[FrameType, int], error: BaseException | None, worker: ActorCell | None,
        call: object | None, on_waiting: Callable[[], None],
    ) -> bool:  # fmt: skip
        """Stop this thread, which is paused at `at` with `error`, in debugpy instead.

        `on_waiting` is called just before the thread waits there. Returns False if it cannot stop.

        Raises:
            BaseException: the exception that ends the pause, if its call, actor or process ends.
        """

        def wait() -> None:
            on_waiting()
            _suspend(self._db, at[0], error)

        return self.is_ready and self._stop_here(*at, worker, call, wait)

    def wait(self, frame: FrameType, wait: Callable[[], None]) -> bool:
        """Let this thread wait at a stop of debugpy. Returns False if it must not stop there.

        Raises:
            BaseException: the exception that ends the pause, if its call, actor or process ends.
        """
        return self._stop_here(frame, frame.f_lineno, *self.pauses.running_here(), wait)

    def _stop_here(
        self, frame: FrameType, line: int, worker: ActorCell | None, call: object | None,
        wait: Callable[[], None],
    ) -> bool:  # fmt: skip
        pauses = self.pauses
        if not self.is_open or not pauses.may_stop(frame, worker):
            return False
        stop = Stop(self.resume, worker, call)
        number = pauses.add_session(stop)
        at = pauses.place_of(frame, line, IN_EDITOR, worker)
        self._node.send(AGENT, Debugged(number, STOPPED, "", "", at))
        outermost = not self.is_stopped_here
        self._stopped_threads.add(threading.get_ident())
        try:
            if not pauses.is_to_end(worker):
                wait()
        finally:
            if outermost:
                self._stopped_threads.discard(threading.get_ident())
            pauses.remove_session(number)
            self._node.send(AGENT, Debugged(number, ENDED, "", "", None))
        if stop.ending is not None:
            error = stop.ending()
            if not isinstance(error, SystemExit):  # debugpy swallows it; the process ends anyway
                raise error
        return True

    @property
    def is_stopped_here(self) -> bool:
        """Whether this thread is stopped in debugpy, whose code then runs on it."""
        return threading.get_ident() in self._stopped_threads

    def resume(self, thread: threading.Thread) -> None:
        """Resume a thread that waits or is about to. Any thread."""
        constants = import_module("_pydevd_bundle.pydevd_constants")
        api = import_module("_pydevd_bundle.pydevd_api").PyDevdAPI()
        api.request_resume_thread(constants.get_thread_id(thread))

    # --- on the bridge thread ---------------------------------------------------------------------

    def _run(self) -> None:
        hook = sys.breakpointhook
        try:
            self._db = _load(self, self._pipe)
        except Exception as error:
            problem = str(error) if isinstance(error, _CannotOpen) else repr(error)
            log.debug("cannot open a bridge to this rank", exc_info=True)
            self._node.send(AGENT, BridgeSet(self.number, False, problem))
            self.pauses.on_bridge_closed(self)
            return
        finally:
            sys.breakpointhook = hook  # importing debugpy replaces it
        self._node.send(AGENT, BridgeSet(self.number, True, ""))
        self._closing.wait()
        try:
            _disconnect(self._db, self._pipe)
        except Exception as error:
            log.warning("cannot unload debugpy cleanly: %r", error)
        self._node.send(AGENT, BridgeSet(self.number, False, ""))
        self.pauses.on_bridge_closed(self)

    def _send(self, data: bytes) -> None:
        self._node.send(AGENT, BridgeBytes(0, 0, self.number, data))


class _CannotOpen(Exception):
    """debugpy cannot be loaded here; the text says why."""


def _pydevd() -> Any:
    return import_module("pydevd")


_changes = itertools.count(0, 1 << 16)


def _load(bridge: RankBridge, pipe: _Pipe) -> Any:
    """Load debugpy and trace all threads of this process; return its debugger."""
    # Suppresses a warning that frozen modules of the standard library have no lines to stop at.
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    try:
        import_module("debugpy._vendored.force_pydevd")  # as `import debugpy.server` does
    except ImportError as error:
        raise _CannotOpen(MISSING) from error
    constants = import_module("_pydevd_bundle.pydevd_constants")
    if constants.get_global_debugger() is not None:
        raise _CannotOpen(OWN)
    _accept_cells()
    db = _debugger_class(bridge)()
    # debugpy caches breakpoints of a function by this number, across debuggers. A number that was
    # used before makes threads stop at breakpoints of an earlier bridge (Python 3.12 and later).
    db.mtime = next(_changes)
    # debugpy replaces `sys.settrace` by a function that writes to stderr whenever pdb resets it.
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


def _debugger_class(bridge: RankBridge) -> type[Any]:
    base: type[Any] = _pydevd().PyDB
    wait_suspend: Callable[..., None] = base.do_wait_suspend
    on_configured: Callable[..., None] = base.on_configuration_done

    class RankDebugger(base):
        """debugpy's debugger; the bridge decides where its threads may wait."""

        def do_wait_suspend(
            self, thread: Any, frame: Any, event: str, arg: Any, exception_type: Any = None
        ) -> None:
            """See `PyDB`: called on a thread that reaches a stop."""

            def wait() -> None:
                wait_suspend(self, thread, frame, event, arg, exception_type)

            # debugpy's own work on a stopped thread may reach code that it traces, such as an
            # import through a finder of the runtime. The thread stays stopped then.
            if not bridge.wait(frame, wait) and not bridge.is_stopped_here:
                bridge.resume(thread)

        def wait_here(
            self, frame: FrameType, event: str, arg: Any, exception_type: Any = None
        ) -> None:
            """Wait on this thread, which `bridge.take_over` has taken over."""
            wait_suspend(self, threading.current_thread(), frame, event, arg, exception_type)

        def on_configuration_done(self) -> None:
            """See `PyDB`: the editor has sent its whole configuration."""
            on_configured(self)
            bridge.pauses.check_editor()

    return RankDebugger


def _suspend(db: Any, frame: FrameType, error: BaseException | None) -> None:
    """Let this thread wait in `frame`, where pdb and not debugpy has stopped it."""
    thread = threading.current_thread()
    constants = import_module("_pydevd_bundle.pydevd_comm_constants")
    import_module("_pydevd_bundle.pydevd_additional_thread_info").set_additional_thread_info(thread)
    db.set_trace_for_frame_and_parents(thread.ident, frame)
    db.enable_tracing()
    kinds = import_module("_pydevd_bundle.pydevd_constants")
    reason = constants.CMD_SET_BREAK if error is None else constants.CMD_ADD_EXCEPTION_BREAK
    db.set_suspend(thread, reason)
    if kinds.PYDEVD_USE_SYS_MONITORING:  # without breakpoints, line events are off
        monitoring = import_module("_pydevd_sys_monitoring.pydevd_sys_monitoring")
        monitoring.start_monitoring(all_threads=True)
        monitoring.update_monitor_events(suspend_requested=True)
    if error is None:
        db.wait_here(frame, "line", None)
        return
    raised = (type(error), error, error.__traceback__)
    db.wait_here(frame, "exception", raised, kinds.EXCEPTION_TYPE_HANDLED)


def _disconnect(db: Any, pipe: _Pipe) -> None:
    module = _pydevd()
    api = import_module("_pydevd_bundle.pydevd_api").PyDevdAPI()
    api.request_disconnect(db, resume_threads=True)
    pipe.put(b"")
    module.stoptrace()
    if not import_module("_pydevd_bundle.pydevd_constants").PYDEVD_USE_SYS_MONITORING:
        for frame in sys._current_frames().values():  # pyright: ignore[reportPrivateUsage]
            _clear_tracers(frame)  # the tracer of a frame would trace its thread again
        import_module("pydevd_tracing").set_trace_to_threads(_end_of_tracing)


def _clear_tracers(frame: FrameType | None) -> None:
    while frame is not None:
        frame.f_trace = None
        frame = frame.f_back


def _end_of_tracing(_frame: FrameType, _event: str, _arg: Any) -> None:
    """A tracer that stops tracing its thread at the first event."""
    sys.settrace(None)


def _accept_cells() -> None:
    """Make debugpy accept files of notebook cells, which exist on the kernel's host only."""
    files: Any = import_module("pydevd_file_utils")
    exists = files.exists
    if getattr(exists, "accepts_cells", False):
        return

    def exists_or_cell(filename: str) -> bool:
        return bool(exists(filename)) or "/ipykernel_" in filename

    exists_or_cell.accepts_cells = True  # pyright: ignore[reportFunctionMemberAccess]
    files.exists = exists_or_cell
