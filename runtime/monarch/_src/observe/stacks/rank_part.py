"""The endpoints of this process that wait, the object of each wait, and the calls queued behind.

Runs in: a proc, on the receiving thread, beside the code of its actors. No user code runs. The
first request for stacks loads this module.
"""

from __future__ import annotations

import sys
import threading
from time import monotonic_ns
from typing import TYPE_CHECKING, cast

from monarch._src.actor.inspect.safe_repr import attributes_of, items_of
from monarch._src.observe.stacks.waiting import Awaited, awaited_by, blocked_on, task_on
from monarch._src.wire.messages import Call, EndpointWait

if TYPE_CHECKING:
    from monarch._src.actor.run.cell import ActorCell
    from monarch._src.actor.runtime import Runtime

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
