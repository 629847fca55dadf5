"""The progress of a pull of weight sync.

Runs in: the process that pulls; `moved` on the threads that move bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

PROGRESS_S = 0.05  # between two reports


class PullProgress(msgspec.Struct, frozen=True):
    """The progress of a pull. It pickles, so it may be sent through a Port.

    bytes_done: of `size`, for the version that is being copied. seconds: since the pull began.
    torn: how many times a version was replaced during the copy, so that the pull began anew.
    """

    version: int
    bytes_done: int
    size: int
    seconds: float
    torn: int = 0

    @property
    def fraction(self) -> float:
        """The fraction of the bytes, from 0 to 1."""
        return self.bytes_done / self.size if self.size else 1.0

    def __str__(self) -> str:
        mib = 1 << 20
        again = f", attempt {self.torn + 1}" if self.torn else ""
        return (
            f"version {self.version}: {self.fraction:4.0%} of {self.size / mib:,.1f} MiB in "
            f"{self.seconds:.2f} s{again}"
        )


# The pulls of this process, by number: each function returns the publishers' names, and the
# progress.
UNDER_WAY: dict[int, Callable[[], tuple[str, PullProgress]]] = {}


def pulls_under_way() -> list[tuple[int, str, PullProgress]]:
    """The pulls of this process: number, publishers, progress. Any thread."""
    return [(number, *progress()) for number, progress in list(UNDER_WAY.items())]


class ProgressReporter:
    """Counts the bytes of a pull, and reports to a callback at intervals. Thread-safe."""

    def __init__(self, tell: Callable[[PullProgress], object] | None, began: float) -> None:
        self._tell = tell
        self._began = began
        self._lock = threading.Lock()
        self._next = 0.0
        self._error: Exception | None = None
        self._version = self._size = self._done = self._torn = 0

    def begin(self, version: int, size: int, torn: int) -> None:
        """A new copy of a version begins."""
        self._version, self._size, self._torn, self._done = version, size, torn, 0

    def moved(self, size: int) -> None:
        """`size` more bytes have arrived."""
        with self._lock:
            self._done += size
            if self._tell is None or self._error is not None:
                return
            now = time.monotonic()
            if now < self._next and self._done < self._size:
                return
            self._next = now + PROGRESS_S
            try:
                self._tell(self.now())
            except Exception as error:  # of the callback; raised once no thread moves bytes
                self._error = error

    def now(self) -> PullProgress:
        """The present progress."""
        seconds = time.monotonic() - self._began
        return PullProgress(self._version, self._done, self._size, seconds, self._torn)

    def check(self) -> None:
        """Raise the exception of the callback, if there was one."""
        if self._error is not None:
            raise self._error
