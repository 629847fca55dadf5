"""How long parts of a program take on a rank: by events of the GPU, or by the clock of the CPU.

Runs in: any process with torch. A program sends these functions to ranks by `monarch.remote`.
Owns: the times of this process. Invariants: one thread at a time changes them, under a lock.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, ClassVar

from monarch._src.tensor.torch_modules import torch

DEFAULT = "default"
LOGGER = logging.getLogger("monarch.timer")


class _Times:
    """The times of one name: those that are known, and pairs of GPU events that may be ahead."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.pairs: list[tuple[Any, Any]] = []
        self.known_ms: list[float] = []

    def settled_ms(self) -> list[float]:
        """All times, after the GPU has reached their ends."""
        for first, last in self.pairs:
            last.synchronize()
            self.known_ms.append(first.elapsed_time(last))
        self.pairs.clear()
        return self.known_ms


class ExecutionTimer:
    """The times of named parts of this process. Parts of the same name may nest.

    Where there is a GPU, a part takes the time of the current stream of the GPU from `start` to
    `stop`, so that neither waits for it; elsewhere, or with `use_cpu=True`, that of the clock.
    """

    _times: ClassVar[dict[str, _Times]] = {}
    _lock = threading.Lock()

    @classmethod
    @contextmanager
    def time(cls, name: str | None = None, use_cpu: bool = False) -> Generator[None]:
        """Time the block."""
        cls.start(name, use_cpu)
        try:
            yield
        finally:
            cls.stop(name, use_cpu)

    @classmethod
    def start(cls, name: str | None = None, use_cpu: bool = False) -> None:
        """Begin a part."""
        begun = _moment(use_cpu)
        with cls._lock:
            cls._times.setdefault(name or DEFAULT, _Times()).begun.append(begun)

    @classmethod
    def stop(cls, name: str | None = None, use_cpu: bool = False) -> None:
        """End the part that began last.

        Raises:
            RuntimeError: no part of that name has begun, or it began with another `use_cpu`.
        """
        ended = _moment(use_cpu)
        with cls._lock:
            times = cls._times.get(name or DEFAULT)
            if times is None or not times.begun:
                raise RuntimeError(
                    f"no part {name or DEFAULT!r} has begun in this process: call start first"
                )
            begun = times.begun.pop()
            if type(begun) is not type(ended):
                raise RuntimeError(
                    f"the part {name or DEFAULT!r} began with another use_cpu than it ends with"
                )
            if isinstance(ended, float):
                times.known_ms.append((ended - begun) * 1000)
            else:
                times.pairs.append((begun, ended))

    @classmethod
    def reset(cls) -> None:
        """Forget all times, and the parts that have begun."""
        with cls._lock:
            cls._times.clear()

    @classmethod
    def summary(cls) -> dict[str, dict[str, float]]:
        """By name: `count`, and `mean_ms`, `total_ms`, `min_ms`, `max_ms`, in milliseconds.

        It waits until the GPU has reached the end of all parts. A name without an ended part is
        left out.
        """
        with cls._lock:
            found = {name: times.settled_ms() for name, times in cls._times.items()}
            return {
                name: {
                    "count": len(all_ms),
                    "mean_ms": sum(all_ms) / len(all_ms),
                    "total_ms": sum(all_ms),
                    "min_ms": min(all_ms),
                    "max_ms": max(all_ms),
                }
                for name, all_ms in found.items()
                if all_ms
            }

    @classmethod
    def get_latest_measurement(cls, name: str | None = None) -> float:
        """The time of the part that ended last, in milliseconds; if none has, NaN and a warning."""
        with cls._lock:
            times = cls._times.get(name or DEFAULT)
            all_ms = [] if times is None else times.settled_ms()
            if all_ms:
                return all_ms[-1]
        LOGGER.warning("no part %r has ended in this process, so its time is NaN", name or DEFAULT)
        return math.nan


def _moment(use_cpu: bool) -> Any:
    """Now: a time in seconds, or an event in the current stream of the GPU."""
    if use_cpu or not torch.cuda.is_available():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def execution_timer_start(name: str | None = None, use_cpu: bool = False) -> None:
    """`ExecutionTimer.start`, for `monarch.remote`."""
    ExecutionTimer.start(name, use_cpu)


def execution_timer_stop(name: str | None = None, use_cpu: bool = False) -> None:
    """`ExecutionTimer.stop`, for `monarch.remote`."""
    ExecutionTimer.stop(name, use_cpu)


def get_execution_timer_average_ms(name: str = DEFAULT) -> Any:
    """The mean time of a part in milliseconds, as a tensor of float64.

    Raises:
        KeyError: no part of that name has ended.
    """
    return torch.tensor(ExecutionTimer.summary()[name]["mean_ms"], dtype=torch.float64)


def get_latest_timer_measurement(name: str | None = None) -> Any:
    """The time of the part that ended last in milliseconds, as a tensor of float64; NaN if none."""
    return torch.tensor(ExecutionTimer.get_latest_measurement(name), dtype=torch.float64)


def get_execution_timer_summary() -> dict[str, dict[str, float]]:
    """`ExecutionTimer.summary`, for `monarch.remote`."""
    return ExecutionTimer.summary()


def get_time_perfcounter() -> Any:
    """The clock of the process in seconds, as a tensor of float64; its zero means nothing."""
    return torch.tensor(time.perf_counter(), dtype=torch.float64)
