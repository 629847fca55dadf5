"""The output pipes of all procs of a host, watched by the agent's loop.

Runs in: the agent. Owns: the reading ends of two pipes a proc, until they end or it is dropped.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Iterator

from monarch._src.logs.capture import UNFINISHED, Capture, Stream

Lines = list[tuple[int, str]]
UNFINISHED_S = 0.1
"""Seconds between two looks at a line that is written over again and again."""


class Outputs:
    """Captures by node. `said(node, lines)` is called with what is read."""

    def __init__(
        self, selector: selectors.BaseSelector, said: Callable[[str, Lines], None]
    ) -> None:
        self._selector = selector
        self._said = said
        self._captures: dict[str, Capture] = {}
        # Lines that are being written over, and have changed since they were told; when to tell.
        self._changed: dict[tuple[str, int], Stream] = {}
        self.deadline: float | None = None

    def time_passed(self, now: float) -> None:
        """Tell what lines show that are being written over, if it is time to."""
        if self.deadline is not None and now >= self.deadline:
            self._tell_unfinished()

    def _tell_unfinished(self) -> None:
        changed, self._changed = self._changed, {}
        self.deadline = None
        for (node, number), stream in changed.items():
            text = stream.unfinished
            if text is not None:
                self._said(node, [(number + UNFINISHED, text)])

    def nodes(self) -> Iterator[str]:
        """Those whose output is read."""
        return iter(self._captures)

    def open(self, node: str) -> tuple[int, int]:
        """Make the pipes of a proc; the ends to write to, which the caller closes.

        Raises:
            OSError: out of descriptors; then nothing is open.
        """
        out_r, out_w, err_r, err_w = _two_pipes()
        os.set_blocking(out_r, False)
        os.set_blocking(err_r, False)
        capture = self._captures[node] = Capture(out_r, err_r)
        for stream, fd in zip(capture.streams, (out_r, err_r), strict=True):
            self._watch(node, capture, stream, fd)
        return out_w, err_w

    def read_all(self, node: str) -> tuple[str, ...]:
        """Read what a proc's pipes hold now; the last lines of its stderr."""
        capture = self._captures.get(node)
        if capture is None:
            return ()
        self._said(node, capture.read_all())
        for stream in capture.streams:
            if stream.unfinished is not None:
                self._changed[node, stream.number] = stream
        self._tell_unfinished()
        return tuple(capture.tail)

    def drop(self, node: str) -> None:
        """Close a proc's pipes. Idempotent."""
        capture = self._captures.pop(node, None)
        if capture is None:
            return
        for stream in capture.streams:
            if stream.fd is not None:
                self._selector.unregister(stream.fd)
                stream.close()

    def _watch(self, node: str, capture: Capture, stream: Stream, fd: int) -> None:
        def readable() -> None:
            if stream.fd is None:  # dropped since the selector found it readable
                return
            lines, ended = capture.read(stream)
            self._said(node, lines)
            if "\r" in stream.rest:
                self._changed[node, stream.number] = stream
                if self.deadline is None:
                    self.deadline = time.monotonic() + UNFINISHED_S
            if ended:
                self._selector.unregister(fd)
                stream.close()

        self._selector.register(fd, selectors.EVENT_READ, readable)


def _two_pipes() -> tuple[int, int, int, int]:
    """Both or none: (read, write, read, write)."""
    first = os.pipe()
    try:
        return (*first, *os.pipe())
    except OSError:
        for fd in first:
            os.close(fd)
        raise
