"""Types that the consoles of this proc (`debug.rank.pauses`) and debugpy share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FrameType
from typing import Protocol, TypeAlias

from monarch._src.actor.run.async_loop import ENTRY as ASYNC_ENTRY
from monarch._src.actor.run.cell import ActorCell
from monarch._src.actor.run.sync_loop import ENTRIES

ENTRY_CODES = frozenset((*ENTRIES, ASYNC_ENTRY))
"""The code objects that run endpoints."""
Ending: TypeAlias = "Callable[[], BaseException]"
"""Makes the exception that a paused thread raises when its pause is ended for it."""


class Stop:
    """One thread that stands in debugpy; takes the place of a `PausedThread` there."""

    def __init__(
        self,
        resume: Callable[[threading.Thread], None],
        worker: ActorCell | None,
        call: object | None,
    ) -> None:
        self.worker = worker
        self.call = call
        self.ending: Ending | None = None
        self._resume = resume
        self._thread = threading.current_thread()

    def end(self, ending: Ending) -> bool:
        """Have it go on, and raise that then. Any thread."""
        self.ending = ending
        self._resume(self._thread)
        return True


class Bridge(Protocol):
    """A debugger of this proc that one console drives; see `debug.rank.debugpy.RankBridge`."""

    number: int

    @property
    def is_open(self) -> bool: ...
    @property
    def is_ready(self) -> bool: ...
    def take_over(
        self, at: tuple[FrameType, int], error: BaseException | None, worker: ActorCell | None,
        call: object | None, on_waiting: Callable[[], None],
    ) -> bool: ...  # fmt: skip
    def stop_at(self, frame: FrameType) -> None: ...
    def trace_again(self) -> None: ...
    def on_bytes(self, data: bytes) -> None: ...
    def close(self) -> None: ...
