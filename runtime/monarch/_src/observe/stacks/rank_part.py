"""The endpoints of this process that wait, the object of each wait, and the calls queued behind.

Runs in: a proc, on the receiving thread, beside the code of its actors and the loop or thread that
waits. The first request for stacks loads this module. The code reads suspended frames and runs no
user code: no repr, no property.

A task: each coroutine refers to the object that it awaits, and the last object is a future. The
user's coroutines come first. The first coroutine of a library, or the future, names the awaited
object. An unknown internal of asyncio gives the name of its class at most.

A thread: the runtime knows the future that it waits for. Otherwise the innermost frame tells: that
of the runtime's `time.sleep`, or one of a module of the standard library that waits. The library's
function that the user's code has called names the wait. A wait in C has no frame: `with lock:` and
`lock.acquire()` are told by the instruction at which the thread is, and others are not told from a
computation.
"""

from __future__ import annotations

import asyncio
import dis
import inspect
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic, monotonic_ns
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, cast

from monarch._src.actor.context import ActorInstance
from monarch._src.actor.future import Future, owing_text
from monarch._src.actor.inspect.safe_repr import attributes_of, items_of
from monarch._src.actor.ports import is_of_port
from monarch._src.actor.run.interruptible_sleep import sleep_of
from monarch._src.observe.stacks.state.grouping import is_library, is_runtime
from monarch._src.wire.messages import Call, EndpointWait, StackFrame

if TYPE_CHECKING:
    from monarch._src.actor.run.cell import ActorCell
    from monarch._src.actor.runtime import Runtime

MOST_COROUTINES = 200
MOST_OF_SEVERAL = 3
# Awaited functions of asyncio that end only when the program of this loop does something.
_LOCAL = ("Event.wait", "Condition.wait", "Lock.acquire", "Semaphore.acquire", "Queue.get",
          "Queue.put", "Queue.join", "Barrier.wait")  # fmt: skip
_LOCKS = ("threading", "queue", "concurrent.futures")
_WAITING = (
    "threading", "queue", "selectors", "socket", "ssl", "subprocess", "multiprocessing.connection",
    "multiprocessing.popen_fork", "multiprocessing.synchronize",
)  # fmt: skip
MOST = 32
"""The maximal number of waits that are described; the oldest come first."""


def endpoint_waits(run: Runtime) -> list[EndpointWait]:
    """The waits of this process, longest first."""
    begun: dict[tuple[bytes, bytes], list[int]] = {}
    for since_ns, actor, endpoint in run.slot.running():
        begun.setdefault((actor, endpoint), []).append(since_ns)
    found: list[EndpointWait] = []
    for cell in list(run.cells.values()):
        found += _waits_of(cast("ActorCell", cell), begun)
    return sorted(found, key=lambda wait: -wait.for_s)[:MOST]


def _waits_of(cell: ActorCell, begun: dict[tuple[bytes, bytes], list[int]]) -> list[EndpointWait]:
    queued = [item[1].endpoint for item in cell.mailbox.items() if isinstance(item, tuple)]
    found: list[EndpointWait] = []
    for call, awaited in _running(cell):
        since = begun.get((cell.board_name, call.endpoint.encode()))
        for_s = (monotonic_ns() - since.pop(0)) / 1e9 if since else 0.0
        if awaited is None:
            continue
        endpoints = cell.endpoints
        overlaps = endpoints is not None and endpoints.is_concurrent(call.endpoint)
        found.append(
            EndpointWait(
                cell.spec.class_name, call.endpoint, for_s, awaited.what, awaited.frames,
                [] if overlaps else list(dict.fromkeys(queued)), awaited.is_local,
                0 if overlaps else len(queued), awaited.waited_s,
                "" if awaited.frames else _thread_name(cell.instance.thread),
            )
        )  # fmt: skip
    return found


def _running(cell: ActorCell) -> list[tuple[Call, Awaited | None]]:
    """The running calls of an actor, each with its wait."""
    tasks = cell.tasks
    attributes = {str(n): v for n, v in items_of(attributes_of(cell.instance_object))}
    if tasks is None:
        calls = [item[1] for item in list(cell.running_calls.calls.values())]
        own = task_on(cell.instance.thread) if calls and "asyncio" in sys.modules else None
        awaited = None if own is None else awaited_by(own, attributes)
        awaited = awaited or blocked_on(cell.instance, attributes)
        return [(call, awaited) for call in calls]
    return [
        # A task that does not await blocks the thread of the loop, if it does not compute.
        (work, awaited_by(task, attributes) or blocked_on(cell.instance, attributes))
        for task, work in list(tasks.work.items())
        if isinstance(work, Call) and task is not None
    ]


def _thread_name(thread: int) -> str:
    """The name of a thread; of the main thread, empty."""
    if thread == threading.main_thread().ident:
        return ""
    return next((one.name for one in threading.enumerate() if one.ident == thread), "")


# --- the object of a wait, in words ---------------------------------------------------------------


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


def blocked_on(instance: ActorInstance, attributes: Mapping[str, object]) -> Awaited | None:
    """The wait of the thread of an actor; None if it is not known to wait.

    `attributes`: the attributes of the actor, for the name of a lock.
    """
    future = as_future(instance.blocked_on)
    if future is not None:
        return of_future(future, monotonic() - instance.blocked_since)
    frame = sys._current_frames().get(instance.thread)  # pyright: ignore[reportPrivateUsage]
    if frame is None:
        return None
    slept = sleep_of(frame)
    if slept is not None:
        return Awaited((), f"time.sleep({slept[0]:g})", waited_s=slept[1])
    return _in_library(frame, attributes) if _module(frame) in _WAITING else _of_lock(frame)


def _in_library(frame: FrameType, attributes: Mapping[str, object]) -> Awaited:
    """The wait of a thread whose innermost frame is in the standard library."""
    called = frame
    while called.f_back is not None and is_library(
        StackFrame("", called.f_back.f_code.co_filename, 0)
    ):
        called = called.f_back
    local: Mapping[str, Any] = called.f_locals
    name = _name(called, local)
    public = ".".join(part for part in _module(called).split(".") if not part.startswith("_"))
    what = f"{public}.{name}{attribute_text(local.get('self'), attributes)}"
    timeout = local.get("timeout")
    if type(timeout) in (int, float):
        what += f", for at most {timeout:g} s"
    return Awaited((), what, public in _LOCKS and not name.startswith("Thread."))


def _of_lock(frame: FrameType) -> Awaited | None:
    """The wait of a thread that is at an instruction which acquires a lock."""
    names = _acquired(frame)
    if not names:
        return None
    found: object = frame.f_locals.get(names[0], frame.f_globals.get(names[0]))
    for name in names[1:]:
        found = next((value for key, value in items_of(attributes_of(found)) if key == name), None)
    kind = _LOCK_TYPES.get(type(found))
    if kind is None:
        return None
    return Awaited((), f"threading.{kind}.acquire of {'.'.join(names)}", is_local=True)


def _acquired(frame: FrameType) -> list[str]:
    """The names, such as `self` and `lock`, of the object that the instruction acquires, if any."""
    done = [one for one in dis.get_instructions(frame.f_code) if one.offset <= frame.f_lasti]
    last = done.pop() if done else None
    if last is None or not last.opname.startswith(("BEFORE_WITH", "SETUP_WITH", "CALL")):
        return []
    enters = not last.opname.startswith("CALL")
    while done and done[-1].opname in _ARGUMENTS:
        enters = done.pop().opname == "LOAD_SPECIAL" or enters
    if not enters and (not done or done.pop().argval != "acquire"):
        return []
    names: list[str] = []
    while done and done[-1].opname == "LOAD_ATTR":
        names.insert(0, str(done.pop().argval))
    if done and done[-1].opname.startswith(_LOADS) and type(done[-1].argval) is str:
        return [done[-1].argval, *names]
    return []


_ARGUMENTS = ("COPY", "KW_NAMES", "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_SPECIAL", "PRECALL",
              "PUSH_NULL", "SWAP")  # fmt: skip
_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME")
_LOCK_TYPES: dict[type, str] = {type(threading.Lock()): "Lock", type(threading.RLock()): "RLock"}


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _name(frame: FrameType, local: Mapping[str, Any]) -> str:
    if sys.version_info >= (3, 11):
        return frame.f_code.co_qualname
    name = frame.f_code.co_name
    return f"{type(local['self']).__name__}.{name}" if "self" in local else name
