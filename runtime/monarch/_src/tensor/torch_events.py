"""Events of torch's profiler in this process: operations, annotations, and kernels of devices.

Runs in: any process that has imported torch, on its receiving thread. It sees all threads.
Owns: the profiler that a profile has begun.
Invariants: torch has one profiler in a process. One of the program is left alone: ours does
not begin beside it. If the program begins one while ours runs, torch gives it all events, and ours
ends without.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from monarch._src.actor.state.history import HISTORY, LONGEST_NAME, TorchEvent
from monarch._src.system.epoch import epoch_ns

# torch's own context managers end on the thread of their begin and see that thread alone.
torch: Any = import_module("torch")
_flag: Any = import_module("torch.autograd.profiler")
_autograd: Any = import_module("torch._C._autograd")
_profiling: Any = import_module("torch._C._profiler")

OURS: Any = "monarch profile"
"""The value of torch's own flag while our profiler runs. A profiler of the program sets another."""
LOG_LEVEL = "6"
BUSY = "a torch.profiler of the program was running; end it before the profile begins"
TAKEN = "the program began a torch.profiler of its own, which got the events"


def quiet_kineto() -> None:
    """Leave out Kineto's line on stderr at each begin and end, unless the user has set a level."""
    os.environ.setdefault("KINETO_LOG_LEVEL", LOG_LEVEL)


class _Profiler:
    """The profiler of this process."""

    def __init__(self) -> None:
        self.runs = False

    def begin(self) -> None:
        """Let torch's profiler run; `HISTORY.torch_problem` says why it does not."""
        if _flag._is_profiler_enabled:
            HISTORY.torch_problem = BUSY
            return
        quiet_kineto()
        every_thread = _profiling._ExperimentalConfig(profile_all_threads=True)
        shapes = memory = stack = flops = modules = False
        config = _profiling.ProfilerConfig(
            _profiling.ProfilerState.KINETO, shapes, memory, stack, flops, modules, every_thread
        )
        activities = set(torch.profiler.supported_activities())
        try:
            _autograd._prepare_profiler(config, activities)
            _autograd._enable_profiler(config, activities)
        except RuntimeError as error:
            HISTORY.torch_problem = f"torch's profiler does not begin: {error}"
            return
        _flag._set_is_profiler_enabled(OURS)
        HISTORY.torch_problem, self.runs = "", True

    def end(self) -> None:
        """End it, and keep its events."""
        self.runs = False
        if _flag._is_profiler_enabled is not OURS:
            HISTORY.torch_problem = TAKEN
            return
        _flag._set_is_profiler_enabled(False)
        ring = HISTORY.torch_events
        events = _autograd._disable_profiler().events()
        if ring is not None:
            for row in _rows(events):
                ring.add(row)


_profiler = _Profiler()


def follow(on: bool) -> None:
    """Begin or end the profiler. Idempotent."""
    if on and not _profiler.runs:
        _profiler.begin()
    elif not on and _profiler.runs:
        _profiler.end()


def _rows(events: Any) -> Iterator[TorchEvent]:
    """The events of a profiler, in the order of their ends."""
    zero_ns = epoch_ns()
    threads: dict[int, str] = {
        one.native_id: one.name for one in threading.enumerate() if one.native_id is not None
    }
    for event in sorted(events, key=lambda event: event.end_ns()):
        if event.is_hidden_event():
            continue
        number, device = event.device_resource_id(), event.device_type()
        if device == _autograd.DeviceType.CPU:
            place, thread = "cpu", threads.get(number) or threads.setdefault(number, _name(number))
        else:
            place = f"{device.name.lower()}:{event.device_index()}"
            thread = f"stream {number}"
        yield TorchEvent(
            event.end_ns() - zero_ns, event.start_ns() - zero_ns,
            event.name()[:LONGEST_NAME], event.activity_type(), place, thread,
        )  # fmt: skip


def _name(thread: int) -> str:
    """The name of a thread that Python has not started, such as one of autograd."""
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text().strip()
    except OSError:  # it has ended, or the system has no such file
        return f"thread {thread}"
