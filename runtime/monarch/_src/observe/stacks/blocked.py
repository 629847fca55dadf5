"""The object that the thread of an actor blocks on, in words.

Runs in: a process with actors, on the receiving thread, beside the blocked thread. The code
reads its frames and runs no user code: no repr, no property.

The runtime knows the future that a thread waits for. Otherwise the innermost frame tells: that of
the runtime's `time.sleep`, or one of a module of the standard library that waits. The library's
function that the user's code has called names the wait. A wait in C has no frame: `with lock:` and
`lock.acquire()` are told by the instruction at which the thread is, and others are not told from a
computation.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Mapping
from time import monotonic
from types import FrameType
from typing import Any

from monarch._src.actor.context import ActorInstance
from monarch._src.actor.inspect.safe_repr import attributes_of, items_of
from monarch._src.actor.run.interruptible_sleep import sleep_of
from monarch._src.observe.stacks.awaited import Awaited, as_future, attribute_text, of_future
from monarch._src.observe.stacks.state.grouping import is_library
from monarch._src.wire.messages import StackFrame

_LOCKS = ("threading", "queue", "concurrent.futures")
_WAITING = (
    "threading", "queue", "selectors", "socket", "ssl", "subprocess", "multiprocessing.connection",
    "multiprocessing.popen_fork", "multiprocessing.synchronize",
)  # fmt: skip


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
