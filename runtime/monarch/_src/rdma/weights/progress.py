"""How far a pull of weight sync is, for those who want to know.

Runs in: the process that pulls; what counts, on the threads that move bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

PROGRESS_S = 0.05  # between two that are told


class PullProgress(msgspec.Struct, frozen=True):
    """How far a pull is. It pickles, so it may be sent through a Port.

    bytes_done: of `size`, of the version that is copied now. seconds: since the pull began.
    torn: how many times a version was replaced while it was copied, so that the pull began anew.
    """

    version: int
    bytes_done: int
    size: int
    seconds: float
    torn: int = 0

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        return self.bytes_done / self.size if self.size else 1.0

    def __str__(self) -> str:
        mib = 1 << 20
        again = f", attempt {self.torn + 1}" if self.torn else ""
        return (
            f"version {self.version}: {self.fraction:4.0%} of {self.size / mib:,.1f} MiB in "
            f"{self.seconds:.2f} s{again}"
        )


class Told:
    """Tells who wants to know how far it is, not too often; called by several threads."""

    def __init__(self, tell: Callable[[PullProgress], object] | None, began: float) -> None:
        self._tell = tell
        self._began = began
        self._lock = threading.Lock()
        self._next = 0.0
        self._error: Exception | None = None
        self._version = self._size = self._done = self._torn = 0

    def begin(self, version: int, size: int, torn: int) -> None:
        """A version is copied from here on."""
        self._version, self._size, self._torn, self._done = version, size, torn, 0

    def moved(self, size: int) -> None:
        """So many more bytes are there."""
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
            except Exception as error:  # the user's; told when no thread moves bytes any more
                self._error = error

    def now(self) -> PullProgress:
        """How far it is."""
        seconds = time.monotonic() - self._began
        return PullProgress(self._version, self._done, self._size, seconds, self._torn)

    def check(self) -> None:
        """Raise what telling has raised."""
        if self._error is not None:
            raise self._error
