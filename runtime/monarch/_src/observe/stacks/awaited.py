"""The line at which a task awaits, and the object that it awaits, in words.

Runs in: a process with actors, on the receiving thread, beside the loop that runs the task. The
code reads suspended frames and runs no user code: no repr, no property.

Each coroutine refers to the object that it awaits, and the last object is a future. The user's
coroutines come first. The first coroutine of a library, or the future, names the awaited object. An
unknown internal of asyncio gives the name of its class at most.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic
from types import CodeType, FrameType
from typing import Any, cast

from monarch._src.actor.future import Future, owing_text
from monarch._src.actor.ports import is_of_port
from monarch._src.observe.stacks.state.grouping import is_library, is_runtime
from monarch._src.wire.messages import StackFrame

MOST_COROUTINES = 200
MOST_OF_SEVERAL = 3
# Awaited functions of asyncio that end only when the program of this loop does something.
_LOCAL = ("Event.wait", "Condition.wait", "Lock.acquire", "Semaphore.acquire", "Queue.get",
          "Queue.put", "Queue.join", "Barrier.wait")  # fmt: skip


@dataclass(frozen=True)
class Awaited:
    """The user's frames, outermost first, and the object that the innermost awaits, in words.

    `is_local`: code of this process has to end the wait: a lock, a plain future, a port.
    `waited_s`: the seconds since the wait began, None if that is not known.
    """

    frames: tuple[StackFrame, ...]
    what: str
    is_local: bool = False
    waited_s: float | None = None


def awaited_by(task: asyncio.Task[Any], attributes: Mapping[str, object]) -> Awaited | None:
    """The wait of a task; None if the task runs at this moment.

    `attributes`: the attributes of the actor, for the name of a lock.
    """
    frames: list[StackFrame] = []
    library: tuple[str, CodeType, Mapping[str, Any]] | None = None  # below the user's last frame
    limited: Mapping[str, Any] | None = None  # the arguments of `wait_for`, in which it is awaited
    found: Any = task.get_coro()
    for _ in range(MOST_COROUTINES):
        frame, code, inner, runs = _parts(found)
        if runs:
            return None
        if frame is None or code is None:
            break  # the iterator of a future
        line = StackFrame(_qualified(found, code), code.co_filename, frame.f_lineno or 0)
        if is_runtime(line):
            future = as_future(frame.f_locals.get("self"))
            if future is not None:
                began = frame.f_locals.get("_began")
                waited_s = None if began is None else monotonic() - began
                return _limited(of_future(future, waited_s, tuple(frames)), limited)
        elif not is_library(line):
            frames.append(line)
            library = None
        elif line.name == "wait_for" and "asyncio" in line.filename:
            limited = frame.f_locals
        elif library is None:
            library = line.name, code, frame.f_locals
        found = inner
    if library is not None:
        return _limited(_of_library(frames, *library, attributes), limited)
    waiter = getattr(task, "_fut_waiter", None)
    if limited is not None:  # before Python 3.12 it waits for a task of its own
        waiter = limited.get("fut", waiter)
    if waiter is None:
        return None
    return _limited(Awaited(tuple(frames), *_waiter_text(waiter, attributes)), limited)


def _limited(awaited: Awaited, limited: Mapping[str, Any] | None) -> Awaited:
    """The same, with a limit that ends it by itself, if there is one."""
    if limited is None:
        return awaited
    return replace(awaited, what=f"asyncio.wait_for, and in it {awaited.what}", is_local=False)


def task_on(thread: int) -> asyncio.Task[Any] | None:
    """The task that a thread runs an event loop for, such as that of `asyncio.run`, if it does."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code is _RUNS_LOOP:
            found = frame.f_locals.get("future")
            return cast("asyncio.Task[Any]", found) if isinstance(found, asyncio.Task) else None
        frame = frame.f_back
    return None


_RUNS_LOOP = asyncio.BaseEventLoop.run_until_complete.__code__


def of_future(
    future: Future[Any], waited_s: float | None, frames: tuple[StackFrame, ...] = ()
) -> Awaited:
    """The wait for a future of the runtime."""
    return Awaited(frames, _future_text(future), is_of_port(future), waited_s)


def as_future(found: object) -> Future[Any] | None:
    """The same if it is a future of the runtime; otherwise None."""
    return cast("Future[Any]", found) if isinstance(found, Future) else None


def _parts(found: Any) -> tuple[FrameType | None, CodeType | None, Any, bool]:
    """The frame and code of a coroutine or generator, the object it awaits, and whether it runs."""
    if inspect.iscoroutine(found):
        return found.cr_frame, found.cr_code, found.cr_await, found.cr_running
    if inspect.isgenerator(found):
        return found.gi_frame, found.gi_code, found.gi_yieldfrom, found.gi_running
    if inspect.isasyncgen(found):
        return found.ag_frame, found.ag_code, found.ag_await, found.ag_running
    return None, None, None, False


def _qualified(found: Any, code: CodeType) -> str:
    name = getattr(found, "__qualname__", code.co_name)
    return name.rpartition("<locals>.")[2]


def _of_library(
    frames: list[StackFrame],
    name: str,
    code: CodeType,
    local: Mapping[str, Any],
    attributes: Mapping[str, object],
) -> Awaited:
    """The wait of a coroutine of the standard library, from its name and its arguments."""
    if "asyncio" not in code.co_filename:
        return Awaited(tuple(frames), name)
    if name == "sleep" and isinstance(local.get("delay"), int | float):
        what = f"asyncio.sleep({local['delay']:g})"
        return Awaited(tuple(frames), what, waited_s=_slept(local))
    of = attribute_text(local.get("self"), attributes)
    owner = type(local.get("self")).__name__ if "self" in local else ""
    if owner and "." in name:  # a subclass, such as PriorityQueue, is named by its own name
        base, _, method = name.rpartition(".")
        is_local = f"{base.lstrip('_')}.{method}" in _LOCAL or name in _LOCAL
        return Awaited(tuple(frames), f"asyncio.{owner}.{method}{of}", is_local)
    return Awaited(tuple(frames), f"asyncio.{name}")


def _slept(local: Mapping[str, Any]) -> float | None:
    """How long `asyncio.sleep` with these variables has slept."""
    loop, timer = local.get("loop"), local.get("h")
    if not isinstance(loop, asyncio.AbstractEventLoop) or not isinstance(
        timer, asyncio.TimerHandle
    ):
        return None
    return max(0.0, loop.time() - timer.when() + local["delay"])


def attribute_text(awaited: object, attributes: Mapping[str, object]) -> str:
    """` of self.lock` if that object is an attribute of the actor."""
    if awaited is None:
        return ""
    for name, value in list(attributes.items()):
        if value is awaited:
            return f" of self.{name}"
    return ""


def _waiter_text(waiter: Any, attributes: Mapping[str, object]) -> tuple[str, bool]:
    """The wait behind a future of asyncio, and whether code of this process has to settle it."""
    behind = _mirrored(waiter)
    if behind is not None:
        return _future_text(behind), is_of_port(behind)
    if isinstance(waiter, asyncio.Task):
        task = cast("asyncio.Task[Any]", waiter)
        inner, coroutine = awaited_by(task, attributes), cast("Any", task.get_coro())
        name = _qualified(coroutine, getattr(coroutine, "cr_code", _NO_CODE))
        if inner is None:
            return f"the task {name}", False
        if not inner.frames:
            return inner.what, inner.is_local
        return f"the task {name}, which awaits {inner.what}", inner.is_local
    children: Any = getattr(waiter, "_children", None)  # of `asyncio.gather`
    if isinstance(children, list):
        all_ones = cast("list[asyncio.Future[Any]]", children)
        open_ones = [one for one in all_ones if not one.done()]
        texts = [_waiter_text(one, attributes) for one in open_ones[:MOST_OF_SEVERAL]]
        said = "; ".join(dict.fromkeys(text for text, _ in texts)) or "nothing any more"
        return f"{len(open_ones)} of {len(all_ones)} gathered: {said}", all(one for _, one in texts)
    return f"a future{attribute_text(waiter, attributes)}", isinstance(waiter, asyncio.Future)


_NO_CODE = _waiter_text.__code__


def _mirrored(waiter: Any) -> Future[Any] | None:
    """The future of the runtime that an asyncio future stands for (`as_asyncio`)."""
    entries: list[Any] = list(getattr(waiter, "_callbacks", None) or ())
    for entry in entries:
        callback: Any = cast("Any", entry)[0] if isinstance(entry, tuple) else entry
        if inspect.isfunction(callback) and callback.__module__ == Future.__module__:
            held = as_future(inspect.getclosurevars(callback).nonlocals.get("self"))
            if held is not None:
                return held
    return None


def _future_text(future: Future[Any]) -> str:
    if is_of_port(future):
        return "a message to a port"
    text = owing_text(future.pending)
    return f"an answer{text}" if text else "an answer"
