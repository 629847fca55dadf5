"""Breaking into what runs: a pause that the program did not ask for.

Runs in: a proc. `break_in` on the thread that receives, which never waits; what it arranges runs on
the threads that are to pause.
Invariants: a thread pauses only where it is in code of the user all the way down to its endpoint,
so it holds no lock of the runtime, and messages go on; elsewhere it pauses at the next such line.

There are three ways, by where the endpoint is. On the main thread a signal, whose handler stands on
the very line that runs, also under a `time.sleep`. In a `.get()` the safe point at which a
supervisor would be asked. In a coroutine that awaits, its loop. CPython has no way into the Python
that another thread runs, but to raise something in it, and that could not go on afterwards.
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
from monarch._src.actor.run.running_calls import CallAborted
from monarch._src.debug.rank.frames import is_all_users, is_runtime, is_users
from monarch._src.debug.rank.pauses import ENTRY_CODES, PausesHere
from monarch._src.net.local.interrupt import call_on_main
from monarch._src.wire.messages import Call

log = logging.getLogger("monarch.debug")
IDLE = "nothing runs there"
ELSEWHERE = (
    "it runs in an actor that is not on the main thread of its process, and CPython lets nobody "
    "stop another thread; put a breakpoint() there, or spawn that actor first on its procs"
)
NO_HANDLER = "the program there handles SIGINT itself, which would be needed to stop it"


def break_in(here: PausesHere) -> tuple[int, str]:
    """Have what runs in this process pause: how many threads will, and why others cannot."""
    will = 0
    problems: list[str] = []
    for worker in list(here.runtime.cells.values()):
        if worker.dead is not None or not isinstance(worker, ActorCell) or not _is_busy(worker):
            continue
        why = _break_into(here, worker)
        if why:
            problems.append(why)
        else:
            will += 1
    if here.runtime.bootstrapping and not will:
        why = _on_main(here)
        problems += [why] if why else []
        will += not why
    if not will and not problems:
        problems.append(IDLE)
    return will, "; ".join(dict.fromkeys(problems))


def _is_busy(worker: ActorCell) -> bool:
    return bool(worker.running_calls.calls) or (
        worker.instance.thread != 0 and worker.instance_object is None
    )


def _break_into(here: PausesHere, worker: ActorCell) -> str:
    """Arrange it; why it cannot be."""
    if worker.tasks is not None:
        return _in_loop(here, worker)
    instance = worker.instance
    waits = instance.blocked_on is not None
    on_main = instance.thread == threading.main_thread().ident
    if not waits and not on_main:
        return ELSEWHERE
    # Both, on the main thread: a wait may just have ended, or be about to begin.
    now = _calls(worker)
    worker.pause_at_safe_point = lambda: _pause_at_safe_point(here, worker, now)
    worker.supervision.reach_safe_point()
    why = _on_main(here) if on_main else ""
    return "" if waits else why


# --- on the threads that pause --------------------------------------------------------------------


def _calls(worker: ActorCell) -> list[Call]:
    return [call for _, call, _ in list(worker.running_calls.calls.values())]


def _pause_at_safe_point(here: PausesHere, worker: ActorCell, meant: Sequence[Call]) -> None:
    """`meant`: the calls that ran then, if it was not the constructor."""
    if meant and not any(call is one for call in _calls(worker) for one in meant):
        return  # they have ended meanwhile
    frame = _users_above(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
    if frame is not None:
        here.pause(frame, "break")


def _on_main(here: PausesHere) -> str:
    def arrived(frame: FrameType | None) -> None:
        users = _users_above(frame)
        if users is None or frame is None:
            return  # it has ended meanwhile
        if frame is users and is_all_users(frame, ENTRY_CODES):
            here.pause(users, "break")
        else:
            here.arm(users, "break")

    return "" if call_on_main(arrived) else NO_HANDLER


def _in_loop(here: PausesHere, worker: ActorCell) -> str:
    tasks = worker.tasks
    assert tasks is not None
    begun = threading.Event()

    def arrived() -> None:
        begun.set()
        for task, call in list(tasks.work.items()):
            frame = None if task is None else _innermost(task.get_coro())
            if frame is None or task is None:
                continue
            before = current.set(worker.idle_context)
            try:
                here.pause(frame, "break", call=call)
            except asyncio.CancelledError:
                task.cancel()
            except (CallAborted, bdb.BdbQuit) as ended:
                log.debug("the pause of a task has ended: %r", ended)
            finally:
                current.reset(before)
            return

    try:
        tasks.loop.call_soon_threadsafe(arrived)
    except RuntimeError:
        return IDLE  # the loop has ended
    if worker.instance.thread == threading.main_thread().ident:
        _unless_begun(begun, lambda: _on_main(here))
    return ""


def _unless_begun(begun: threading.Event, then: Callable[[], object]) -> None:
    """The loop may be blocked by the very code that is to pause: then from outside of it."""

    def look() -> None:
        if not begun.wait(0.1):
            then()

    threading.Thread(target=look, name="break", daemon=True).start()


def _innermost(coroutine: Any) -> FrameType | None:
    """The user's frame that a suspended coroutine stands in."""
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
    """The frame in which the user's endpoint is, or has called the runtime; None: there is none.

    What the runtime has called in turn, of the standard library too, is no code of the user.
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
