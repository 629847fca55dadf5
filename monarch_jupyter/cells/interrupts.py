"""The stop button: interrupting a cell also ends its calls on ranks.

Runs in: the kernel. The handler of SIGINT runs in the main thread, records the cell's open calls,
and then calls the kernel's own handler; a thread of this module cancels the calls and reports the
result in one line. Work of futures that an earlier cell has begun goes on, unless this cell waits
for it. An idle kernel ignores SIGINT; this handler ends the work that is under way then, and takes
presses that escalate the last interrupt.
Owns: that thread, the handler while a cell runs and while none does, and the descriptor that wakes
the kernel's loop (a cell that awaits is not interrupted before the loop wakes); from `install`
until `restore`.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from monarch import frontend, observe
from monarch.actor import WorkFuture
from monarch.frontend import endpoint_text, name_ranks
from monarch.observe import OpenCall
from monarch_jupyter.cells.interrupt_policy import InterruptLevel, InterruptPolicy
from monarch_jupyter.ranks.cell_runner import LABEL as CELL_LABEL
from monarch_jupyter.rendering.units import count

SETTLE = 1.0
"""Seconds that ranks have to end their calls before the cell ends and names the others.

`subprocess` alone gives a child 0.25 s of it.
"""
NOTICE_S = 10.0
"""Seconds that the end of a cell waits for the line, which needs longer on a busy machine."""
LOOK = 0.01
NAMED = 3
"""How many futures a line names."""


@dataclass(frozen=True)
class Press:
    """The button was pressed at `at`, and is meant for these calls, and for the work of futures."""

    at: float
    calls: tuple[OpenCall, ...]
    work: tuple[WorkFuture[Any], ...] = ()


class InterruptHandler:
    """Cancels calls when the user presses stop; `say` writes a line into the cell."""

    def __init__(self, shell: Any, say: Callable[[str], None]) -> None:
        self._shell = shell
        self._say = say
        self._policy = InterruptPolicy()
        self._presses: queue.SimpleQueue[Press | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="monarch-interrupt", daemon=True)
        self._since = 0  # calls above this number are those of the cell
        self._chained_handler: Any = None  # the handler of SIGINT when the cell began
        self._pressed = False
        self.presses = 0
        """How often SIGINT has come while a cell ran."""
        self._open_numbers: tuple[int, ...] = ()  # numbers of the calls that the last press was for
        self._idle_before: Any = None
        self._wake_before: int | None = None

    # --- on the main thread -----------------------------------------------------------------------

    def install(self) -> None:
        """Handle SIGINT from the next cell on, and while no cell runs."""
        self._thread.start()
        kernel: Any = getattr(self._shell, "kernel", None)
        # The kernel puts this back whenever a cell has ended.
        if kernel is not None and hasattr(kernel, "saved_sigint_handler"):
            self._idle_before = kernel.saved_sigint_handler
            kernel.saved_sigint_handler = self._on_idle_sigint
        socket = _wake_socket(kernel)
        if socket is not None:
            self._wake_before = signal.set_wakeup_fd(socket.fileno(), warn_on_full_buffer=False)

    def restore(self) -> None:
        """Restore all handlers. Idempotent."""
        kernel: Any = getattr(self._shell, "kernel", None)
        if self._idle_before is not None:
            kernel.saved_sigint_handler = self._idle_before
            self._idle_before = None
        if self._wake_before is not None:
            signal.set_wakeup_fd(self._wake_before)
            self._wake_before = None
        self._restore_handler()
        if self._thread.is_alive():
            self._presses.put(None)
            self._thread.join()

    def on_cell_start(self) -> None:
        """Count calls from now on as those of this cell."""
        if threading.current_thread() is not threading.main_thread():
            return  # a subshell's cell: signals never reach its thread
        self._since = frontend.newest_call()
        before = signal.getsignal(signal.SIGINT)
        if before != self._on_sigint and callable(before):
            self._chained_handler = before
            signal.signal(signal.SIGINT, self._on_sigint)

    def on_cell_end(self) -> None:
        """Wait until the notice about an interrupt in this cell is written."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._restore_handler()
        if self._pressed:
            self._pressed = False
            written = threading.Event()
            self._presses.put(written)
            written.wait(NOTICE_S)

    def _restore_handler(self) -> None:
        # A cell that awaits has had its handler put back by the kernel already.
        if self._chained_handler is not None and signal.getsignal(signal.SIGINT) == self._on_sigint:
            signal.signal(signal.SIGINT, self._chained_handler)
        self._chained_handler = None

    def _on_sigint(self, number: int, frame: FrameType | None) -> None:
        # The cell may wait for a call of an earlier cell, which is meant too. Work that began in an
        # earlier cell goes on, though its calls may be new.
        others = frontend.calls_of_others(self._since)
        open_now = [c for c in observe.open_calls() if c.number not in others]
        work = [w for w in frontend.work_under_way() if w.awaited or w.number > self._since]
        of_work = {number for one in work for number in one.calls}
        calls = [c for c in open_now if c.awaited or c.number > self._since or c.number in of_work]
        self._pressed = True
        self.presses += 1
        self._presses.put(Press(time.monotonic(), tuple(calls), tuple(work)))
        if callable(self._chained_handler):
            self._chained_handler(number, frame)

    def _on_idle_sigint(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        work = tuple(frontend.work_under_way())
        if work or self._policy.escalates(now):
            numbers = frozenset(number for one in work for number in one.calls)
            calls = tuple(call for call in observe.open_calls() if call.number in numbers)
            self._presses.put(Press(now, calls, work))
        elif callable(self._idle_before):
            self._idle_before(number, frame)

    # --- on the interrupt thread ------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            item = self._presses.get()
            if item is None:
                return
            if isinstance(item, threading.Event):
                item.set()
            else:
                self._on_press(item)

    def _on_press(self, press: Press) -> None:
        left = self._still_open(self._open_numbers)
        level = self._policy.press(press.at, calls_open=bool(left))
        if level is InterruptLevel.CANCEL:
            self._open_numbers = tuple(call.number for call in press.calls)
            for work in press.work:
                work.cancel()
            if press.calls:
                observe.cancel_calls(call for call in press.calls if not call.hands_on)
                self._wait_for(self._open_numbers)
                self._say(cancelled_text(press.calls, self._still_open(self._open_numbers)))
            elif press.work:
                self._say(cancelled_work_text(press.work))
        elif level is InterruptLevel.SIGNAL:
            signal_ranks(left)
            self._wait_for(self._open_numbers)
            self._say(signalled_text(left, self._still_open(self._open_numbers)))
        else:
            self._say(offer_text(left))

    def _wait_for(self, numbers: Sequence[int]) -> None:
        # No event tells this thread that a call has ended, so it polls.
        deadline = time.monotonic() + SETTLE
        while self._still_open(numbers) and time.monotonic() < deadline:
            time.sleep(LOOK)

    def _still_open(self, numbers: Sequence[int]) -> list[OpenCall]:
        return [call for call in observe.open_calls() if call.number in numbers]


def signal_ranks(calls: Iterable[OpenCall]) -> None:
    """Send SIGINT to the ranks that have not answered these calls."""
    by_mesh: dict[str, list[dict[str, int]]] = {}
    for call in calls:
        by_mesh.setdefault(call.mesh_uid, []).extend(call.owing)
    for mesh in observe.meshes():
        points = by_mesh.get(mesh.uid)
        if points:
            ranks = [r for r, p in enumerate(mesh.extent.points()) if dict(p) in points]
            observe.interrupt_procs(mesh, ranks)


def cancelled_text(asked: Sequence[OpenCall], left: Sequence[OpenCall]) -> str:
    """One line: the cancelled calls, and those that do not react."""
    done = [
        f"{call_name(call)} on {count(unanswered(call), 'rank', 'ranks')}"
        for call in one_per_endpoint(asked)
    ]
    text = f"monarch: interrupted; cancelled {', '.join(done)}"
    if not left:
        return text
    remedy = "kill these ranks" if all(c.hands_on for c in left) else "send these ranks SIGINT"
    return f"{text}. Still running: {running_text(left)}. Press stop again to {remedy}"


def cancelled_work_text(work: Sequence[WorkFuture[Any]]) -> str:
    """One line: the cancelled work of futures, none of which has an open call yet."""
    names = [one.what for one in work[:NAMED]]
    if len(work) > NAMED:
        names.append(f"{len(work) - NAMED:,} more")
    return f"monarch: interrupted before it began on a rank; cancelled {', '.join(names)}"


def signalled_text(asked: Sequence[OpenCall], left: Sequence[OpenCall]) -> str:
    """One line: the signalled ranks, and those that still do not react."""
    text = f"monarch: sent SIGINT to {running_text(asked)}"
    if not left:
        return f"{text}; all of their calls have ended"
    return f"{text}. Still running: {running_text(left)}. Press stop again to see how to kill them"


def offer_text(left: Sequence[OpenCall]) -> str:
    """One line: how to kill the processes, and that their state is lost then."""
    meshes = dict.fromkeys(call.mesh for call in left)
    kill = "` or `".join(f"%monarch kill {mesh}" for mesh in meshes)
    return (
        f"monarch: {running_text(left)} can't be interrupted. `{kill}` ends the processes of the "
        "mesh, and with them the state of all its actors"
    )


def one_per_endpoint(calls: Iterable[OpenCall]) -> list[OpenCall]:
    """One call for each endpoint of a mesh that was called: with the ranks of all of them."""
    found: dict[tuple[str, str, str], OpenCall] = {}
    for call in calls:
        key = (call.mesh_uid, call.actor, call.endpoint)
        before = found[key].owing if key in found else ()
        points = {tuple(point.items()): point for point in (*before, *call.owing)}
        found[key] = replace(call, owing=tuple(points.values()))
    return list(found.values())


def unanswered(call: OpenCall) -> int:
    """The number of ranks that have not answered."""
    return len(call.owing)


def call_name(call: OpenCall) -> str:
    """`Trainer.step`, or `the cell` for a cell on ranks, or `the map`, or `the script`."""
    return endpoint_text(call.actor_class, call.endpoint)


def is_cell(call: OpenCall) -> bool:
    """Whether this is `%%monarch on`."""
    return call.actor_class == CELL_LABEL


def running_text(calls: Iterable[OpenCall]) -> str:
    """`Trainer.step on workers[gpus=3,5]`."""
    return ", ".join(f"{call_name(call)} on {_where(call)}" for call in one_per_endpoint(calls))


def _where(call: OpenCall) -> str:
    ranks = name_ranks(call.owing)
    return f"{call.mesh}[{ranks}]" if ranks else call.mesh


def _wake_socket(kernel: Any) -> Any:
    """The socket that wakes the kernel's event loop, or None if it is not accessible."""
    if threading.current_thread() is not threading.main_thread():
        return None
    loop = getattr(getattr(kernel, "io_loop", None), "asyncio_loop", None)
    return getattr(loop, "_csock", None)
