"""The profiles of torch that the client begins on this rank, and the blocks that they name.

Runs in: ranks, on the thread of a stream of tensors. torch has one profiler in a process, which
begins and ends on one thread. Owns: the profiles and blocks of this rank, by the client's numbers.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from monarch._src.actor.context import current
from monarch._src.tensor.torch_events import quiet_kineto
from monarch._src.tensor.torch_modules import torch

_flag: Any = import_module("torch.autograd.profiler")
_profiling: Any = import_module("torch._C._profiler")


class _RankProfile:
    """The profile of one rank: it numbers the files of further cycles."""

    def __init__(
        self, folder: str, schedule: dict[str, int] | None, options: dict[str, Any]
    ) -> None:
        self._folder = folder
        self._cycles = 0
        self._dropped = False
        plan = None if schedule is None else torch.profiler.schedule(**schedule)
        # Streams run on other threads, which torch leaves out otherwise.
        every_thread = _profiling._ExperimentalConfig(profile_all_threads=True)
        options = {"experimental_config": every_thread, **options}
        self.profiler = torch.profiler.profile(on_trace_ready=self._write, schedule=plan, **options)

    def _write(self, profiler: Any) -> None:
        if self._dropped:
            return
        context = current.get()
        assert context is not None
        self._cycles += 1
        cycle = f".{self._cycles}" if self._cycles > 1 else ""
        os.makedirs(self._folder, exist_ok=True)
        name = f"trace_{context.actor_instance.rank.rank}{cycle}.json"
        profiler.export_chrome_trace(os.path.join(self._folder, name))

    def drop(self) -> None:
        """End it without a file."""
        self._dropped = True
        self.profiler.stop()


_profiles: dict[int, _RankProfile] = {}
_blocks: dict[int, Any] = {}


def begin(
    number: int, folder: str, schedule: dict[str, int] | None, options: dict[str, Any]
) -> None:
    """Begin a profile."""
    if _flag._is_profiler_enabled:
        raise RuntimeError(
            "a profiler of torch runs on this rank already; end it, or the "
            "monarch.observe.profile(torch=True), before another begins"
        )
    quiet_kineto()
    made = _RankProfile(folder, schedule, options)
    made.profiler.start()
    _profiles[number] = made


def step(number: int) -> None:
    """Say that a step has ended."""
    _profiles[number].profiler.step()


def end(number: int) -> None:
    """End a profile and write its trace."""
    _profiles.pop(number).profiler.stop()


def drop(number: int) -> None:
    """End a profile that has not begun on all ranks, without a trace."""
    made = _profiles.pop(number, None)
    if made is not None:
        made.drop()


def begin_block(number: int, name: str, args: str | None) -> None:
    """Begin a block of `record_function`."""
    block = _blocks[number] = torch.profiler.record_function(name, args)
    block.__enter__()


def end_block(number: int) -> None:
    """End a block of `record_function`."""
    _blocks.pop(number).__exit__(None, None, None)
