"""torch's profiler on the ranks of a mesh, with Monarch's names. A rank writes its own files.

Runs in: the client. `ranks.torch_profiler` is the part of the ranks.
"""

from __future__ import annotations

import inspect
import itertools
import os
from contextlib import suppress
from typing import Any, NamedTuple

from monarch._src.tensor.active_mesh import get_active_mesh
from monarch._src.tensor.channels.driver import known_driver
from monarch._src.tensor.ranks import torch_profiler
from monarch._src.tensor.remote.functions import no_result, remote
from monarch._src.tensor.torch_modules import torch

_numbers = itertools.count(1)
_begin = remote(torch_profiler.begin, propagate=no_result)
_step = remote(torch_profiler.step, propagate=no_result)
_end = remote(torch_profiler.end, propagate=no_result)
_drop = remote(torch_profiler.drop, propagate=no_result)
_begin_block = remote(torch_profiler.begin_block, propagate=no_result)
_end_block = remote(torch_profiler.end_block, propagate=no_result)


class Schedule(NamedTuple):
    """Which steps a profile records, as in `torch.profiler.schedule`. All are counts of steps.

    It skips `skip_first` steps. Then it waits for `wait`, warms up for `warmup` and records
    `active`, `repeat` times, or until the profile ends if that is 0.
    """

    wait: int
    warmup: int
    active: int
    repeat: int = 0
    skip_first: int = 0


class profile:  # the names are those of torch and of Monarch
    """A profile by torch on every rank of the active mesh, as `torch.profiler.profile` of each.

    with monarch.profiler.profile(on_trace_ready="traces", record_shapes=True) as prof:
        for batch in batches:
            step(batch)
            prof.step()

    Each rank writes `trace_<rank>.json`, in the folder `on_trace_ready` of its host, and for each
    further cycle of the schedule `trace_<rank>.<cycle>.json`. The files are there when the block
    ends. They open in Perfetto and in Chrome.
    """

    def __init__(
        self,
        *,
        on_trace_ready: str | os.PathLike[str],
        schedule: Schedule | None = None,
        **options: Any,
    ) -> None:
        """`on_trace_ready`: a folder; `options`: those of `torch.profiler.profile`.

        Raises:
            TypeError: `on_trace_ready` is no path, `schedule` is no `Schedule`, or torch has no
                such option.
        """
        if not isinstance(on_trace_ready, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                "profile(on_trace_ready=...) takes the folder for the traces of the ranks, not "
                f"{type(on_trace_ready).__name__}"
            )
        if schedule is not None and not isinstance(schedule, Schedule):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                "profile(schedule=...) takes a monarch.profiler.Schedule(wait, warmup, active), "
                f"not {type(schedule).__name__}"
            )
        known = inspect.signature(torch.profiler.profile).parameters
        unknown = [name for name in options if name not in known]
        if unknown:
            raise TypeError(f"torch.profiler.profile has no option {unknown[0]!r}: {list(known)}")
        self._folder = os.fspath(on_trace_ready)
        self._schedule = schedule
        self._options = options
        self._number = 0
        self._mesh: Any = None

    def __enter__(self) -> profile:
        """Begin on every rank.

        Raises:
            ValueError: no mesh is active.
            RuntimeError: this profile runs already.
            ActorError: a rank has a profiler that runs already, or torch refuses the options.
        """
        if self._number:
            raise RuntimeError("this profile runs already; make another one")
        number, self._mesh = next(_numbers), get_active_mesh()
        schedule = None if self._schedule is None else self._schedule._asdict()
        try:
            _begin.call(number, self._folder, schedule, self._options).get()
        except BaseException:  # an interrupt too: ranks that have begun would profile on
            with suppress(Exception):
                _drop.call(number).get()
            raise
        self._number = number
        return self

    def __exit__(self, *error: object) -> None:
        """End on every rank, and return when the traces are written.

        Raises:
            ActorError: a rank could not write its trace.
        """
        number, self._number = self._number, 0
        known_driver(self._mesh).wait_for_streams(self._mesh)
        with self._mesh.activate():
            _end.call(number).get()

    def step(self) -> None:
        """Say that a step has ended, for the schedule."""
        if not self._number:
            raise RuntimeError("this profile does not run: call step() within its `with`")
        with self._mesh.activate():
            _step(self._number)


class record_function:
    """A name for what every rank of the active mesh does in a block, in the profile of torch.

    with monarch.profiler.record_function("forward"):
        loss = model(batch)
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        """`name`, `args`: as for `torch.profiler.record_function`."""
        self._name = name
        self._args = args
        self._open: list[tuple[int, Any]] = []

    def __enter__(self) -> record_function:
        """Begin the block. Raises ValueError if no mesh is active."""
        number, mesh = next(_numbers), get_active_mesh()
        _begin_block(number, self._name, self._args)
        self._open.append((number, mesh))
        return self

    def __exit__(self, *error: object) -> None:
        number, mesh = self._open.pop()
        with mesh.activate():
            _end_block(number)
