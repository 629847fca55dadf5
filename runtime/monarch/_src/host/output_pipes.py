"""The output pipes of all procs of a host, watched by the agent's loop.

Runs in: the agent. Owns: the reading ends of two pipes a proc, until they end or it is dropped.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import struct
import termios
import time
from collections.abc import Callable, Iterator

from monarch._src.logs.pipe_reader import MOST, Capture, Stream, Tally

Lines = list[tuple[int, str]]
UNFINISHED_S = 0.1
"""Seconds between two looks at a line that is not ended."""
_COUNT = struct.Struct("i")


class OutputPipes:
    """Captures by node. `said(node, lines)` is called with what is read."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        said: Callable[[str, Lines], None],
        tally: Callable[[str], Tally | None] = lambda _: None,
    ) -> None:
        """`tally`: where to count what is read of a node."""
        self._selector = selector
        self._said = said
        self._tally = tally
        self._captures: dict[str, Capture] = {}
        self._by_fd: dict[int, Callable[[int], None]] = {}
        # Lines that are not ended, and have changed since they were told; when to tell. Of those
        # that are not written over: what they were at the last look.
        self._changed: dict[tuple[str, int], Stream] = {}
        self._looked_at: dict[tuple[str, int], str] = {}
        self.deadline: float | None = None

    def time_passed(self, now: float) -> None:
        """Tell what lines show that are not ended, if it is time to."""
        if self.deadline is not None and now >= self.deadline:
            self._tell_unfinished(now)

    def _tell_unfinished(self, now: float | None = None) -> None:
        """`now`: when it is time to; else only what is written over is told.

        Another line that still grows is left until the next look: most are about to end.
        """
        changed, self._changed = self._changed, {}
        if now is not None:
            self.deadline = None
        for key, stream in changed.items():
            line = stream.unfinished
            if line is None:
                self._looked_at.pop(key, None)
            elif stream.is_written_over or (now and self._looked_at.get(key) == stream.rest):
                self._looked_at.pop(key, None)
                self._said(key[0], [line])
            else:
                self._changed[key] = stream
                if now is not None:
                    self._looked_at[key] = stream.rest
                    self.deadline = now + UNFINISHED_S

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
        capture = self._captures[node] = Capture(out_r, err_r, self._tally(node))
        for stream, fd in zip(capture.streams, (out_r, err_r), strict=True):
            self._watch(node, capture, stream, fd)
        return out_w, err_w

    def read_all(self, node: str) -> tuple[str, ...]:
        """Read what a proc that has ended has left in its pipes; the last lines of its stderr."""
        capture = self._captures.get(node)
        if capture is None:
            return ()
        self._said(node, capture.read_all())
        for stream in capture.streams:
            line = stream.unfinished
            if line is not None:
                self._said(node, [line])
        return tuple(capture.tail)

    def read_held(self) -> None:
        """Read what the pipes of all procs hold now, and no more of one that writes on."""
        for key, _ in self._selector.select(0):
            read = self._by_fd.get(key.fd)
            if read is not None:
                read(_held(key.fd))
        self._tell_unfinished()

    def drop(self, node: str) -> None:
        """Close a proc's pipes. Idempotent."""
        capture = self._captures.pop(node, None)
        if capture is None:
            return
        for stream in capture.streams:
            if stream.fd is not None:
                self._unwatch(stream.fd)
                stream.close()
            self._changed.pop((node, stream.number), None)
            self._looked_at.pop((node, stream.number), None)

    def _watch(self, node: str, capture: Capture, stream: Stream, fd: int) -> None:
        def readable(most: int = MOST) -> None:
            if stream.fd is None:  # dropped since the selector found it readable
                return
            lines, ended = capture.read(stream, most)
            self._said(node, lines)
            if stream.rest:
                self._changed[node, stream.number] = stream
                if self.deadline is None:
                    self.deadline = time.monotonic() + UNFINISHED_S
            if ended:
                self._unwatch(fd)
                stream.close()

        self._by_fd[fd] = readable
        self._selector.register(fd, selectors.EVENT_READ, readable)

    def _unwatch(self, fd: int) -> None:
        del self._by_fd[fd]
        self._selector.unregister(fd)


def _held(fd: int) -> int:
    """How many bytes a pipe holds; 1 if it has ended, so that this is read."""
    return max(1, _COUNT.unpack(fcntl.ioctl(fd, termios.FIONREAD, bytes(_COUNT.size)))[0])


def _two_pipes() -> tuple[int, int, int, int]:
    """Both or none: (read, write, read, write)."""
    first = os.pipe()
    try:
        return (*first, *os.pipe())
    except OSError:
        for fd in first:
            os.close(fd)
        raise
