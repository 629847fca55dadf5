"""Pause endpoints that are running, without a `breakpoint()` in the program.

Runs in: a proc. `break_in` runs on the receiving thread and never blocks; the pauses that it
arranges run on the threads that will pause.
Invariants: a thread pauses only if all its frames down to the endpoint are user code, so it holds
no lock of the runtime and messages are still delivered. Elsewhere it pauses at the next such line.

There are three ways, depending on where the endpoint is. On the main thread, a signal handler
pauses at the current line, also inside `time.sleep`. In a `.get()`, the thread pauses at the safe
point where supervision is checked. A coroutine that awaits is paused by its event loop. CPython
cannot interrupt Python code on another thread except by raising an exception, after which the code
could not continue.
"""

from __future__ import annotations

import asyncio
import bdb
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from monarch._src.actor.context import current
from monarch._src.actor.run.cell import ActorCell
from monarch._src.actor.run.interruptible_sleep import sleep
from monarch._src.actor.run.running_calls import CallAborted
from monarch._src.debug.rank.pauses import ENTRY_CODES, ProcPauses
from monarch._src.debug.rank.user_frames import is_all_users, is_runtime, is_users
from monarch._src.net.local.interrupt import call_on_main_thread
from monarch._src.wire.messages import Call

log = logging.getLogger("monarch.debug")
IDLE = "no endpoint is running there"
ELSEWHERE = (
    "the actor does not run on the main thread of its process, and CPython cannot pause other "
    "threads; put a breakpoint() in its code, or spawn that actor first on its procs"
)
NO_HANDLER = "the program handles SIGINT itself, which the debugger needs to pause it"


def break_in(pauses: ProcPauses) -> tuple[int, str]:
    """Pause the endpoints of this process.

    Returns how many threads will pause, and why the others cannot.
    """
    count = 0
    problems: list[str] = []
    for worker in list(pauses.runtime.cells.values()):
        if worker.dead is not None or not isinstance(worker, ActorCell) or not _is_busy(worker):
            continue
        why = _break_into(pauses, worker)
        if why:
            problems.append(why)
        else:
            count += 1
    if pauses.runtime.bootstrapping and not count:
        why = _on_main(pauses)
        problems += [why] if why else []
        count += not why
    if not count and not problems:
        problems.append(IDLE)
    return count, "; ".join(dict.fromkeys(problems))


def _is_busy(worker: ActorCell) -> bool:
    return bool(worker.running_calls.calls) or (
        worker.instance.thread != 0 and worker.instance_object is None
    )


def _break_into(pauses: ProcPauses, worker: ActorCell) -> str:
    """Arrange a pause of that actor; return why it cannot be paused, or an empty string."""
    if worker.tasks is not None:
        return _in_loop(pauses, worker)
    instance = worker.instance
    waits = instance.blocked_on is not None
    on_main = instance.thread == threading.main_thread().ident
    if not waits and not on_main:
        return ELSEWHERE
    # On the main thread use both: a wait may just have ended, or be about to begin.
    now = _calls(worker)
    worker.pause_at_safe_point = lambda: _pause_at_safe_point(pauses, worker, now)
    worker.supervision.reach_safe_point()
    why = _on_main(pauses) if on_main else ""
    return "" if waits else why


# --- on the threads that pause --------------------------------------------------------------------


def _calls(worker: ActorCell) -> list[Call]:
    return [item[1] for item in list(worker.running_calls.calls.values())]


def _pause_at_safe_point(pauses: ProcPauses, worker: ActorCell, calls: Sequence[Call]) -> None:
    """`calls`: the calls that ran at the request; empty if the constructor ran."""
    if calls and not any(call is one for call in _calls(worker) for one in calls):
        return  # the calls have ended meanwhile
    frame = _users_above(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
    if frame is not None:
        pauses.pause(frame, "break")


def _on_main(pauses: ProcPauses) -> str:
    def on_signal(frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is sleep.__code__:
            frame = frame.f_back  # on the main thread it only calls CPython's
        users = _users_above(frame)
        if users is None or frame is None:
            return  # the endpoint has ended meanwhile
        if frame is users and is_all_users(frame, ENTRY_CODES):
            pauses.pause(users, "break")
        else:
            pauses.arm(users, "break")

    return "" if call_on_main_thread(on_signal) else NO_HANDLER


def _in_loop(pauses: ProcPauses, worker: ActorCell) -> str:
    tasks = worker.tasks
    assert tasks is not None
    begun = threading.Event()

    def on_loop() -> None:
        begun.set()
        for task, call in list(tasks.work.items()):
            frame = None if task is None else _innermost(task.get_coro())
            if frame is None or task is None:
                continue
            before = current.set(worker.idle_context)
            try:
                pauses.pause(frame, "break", call=call)
            except asyncio.CancelledError:
                task.cancel()
            except (CallAborted, bdb.BdbQuit) as ended:
                log.debug("the pause of a task has ended: %r", ended)
            finally:
                current.reset(before)
            return

    try:
        tasks.loop.call_soon_threadsafe(on_loop)
    except RuntimeError:
        return IDLE  # the loop has ended
    if worker.instance.thread == threading.main_thread().ident:
        _unless_begun(begun, lambda: _on_main(pauses))
    return ""


def _unless_begun(begun: threading.Event, then: Callable[[], object]) -> None:
    """Call `then` if the loop does not begin soon: the code to pause may block the loop."""

    def watch() -> None:
        if not begun.wait(0.1):
            then()

    threading.Thread(target=watch, name="break", daemon=True).start()


def _innermost(coroutine: Any) -> FrameType | None:
    """The innermost user frame of a suspended coroutine."""
    found: FrameType | None = None
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None and is_users(frame) and not _is_library(frame):
            found = frame
        coroutine = getattr(coroutine, "cr_await", None)
    return found


def _is_library(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] == "asyncio"


def _users_above(frame: FrameType | None) -> FrameType | None:
    """The user frame of the running endpoint, or the one that called the runtime; None if none.

    Code that the runtime has called, the standard library included, is not user code.
    """
    walked, found = frame, None
    while walked is not None:
        if walked.f_code in ENTRY_CODES:
            return found
        if is_runtime(walked):
            found = None
        elif found is None and is_users(walked):
            found = walked
        walked = walked.f_back
    return None
