"""The output pipes of all procs of a host, read by the host agent's loop.

Runs in: the host agent. Owns: the reading ends of two pipes for each proc, until they end or the
proc is dropped.
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
"""Seconds between two looks at an unfinished line."""
_COUNT = struct.Struct("i")


class OutputPipes:
    """The pipes of each node. `on_lines(node, lines)` is called with the lines that were read."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        on_lines: Callable[[str, Lines], None],
        read_counter: Callable[[str], Tally | None] = lambda _: None,
    ) -> None:
        """`read_counter` returns the counter of bytes read from a node, if it has one."""
        self._selector = selector
        self._on_lines = on_lines
        self._read_counter = read_counter
        self._captures: dict[str, Capture] = {}
        self._by_fd: dict[int, Callable[[int], None]] = {}
        # Unfinished lines that have changed since they were reported, and when to report them.
        # `_last_text` has the text at the last look of those that are not overwritten.
        self._changed: dict[tuple[str, int], Stream] = {}
        self._last_text: dict[tuple[str, int], str] = {}
        self.deadline: float | None = None

    def time_passed(self, now: float) -> None:
        """Report unfinished lines, if their time has come."""
        if self.deadline is not None and now >= self.deadline:
            self._report_unfinished(now)

    def _report_unfinished(self, now: float | None = None) -> None:
        """Report unfinished lines; without `now` only those that are being overwritten.

        A line that still grows waits until the next look, since most such lines are about to end.
        """
        changed, self._changed = self._changed, {}
        if now is not None:
            self.deadline = None
        for key, stream in changed.items():
            line = stream.unfinished
            if line is None:
                self._last_text.pop(key, None)
            elif stream.is_written_over or (now and self._last_text.get(key) == stream.rest):
                self._last_text.pop(key, None)
                self._on_lines(key[0], [line])
            else:
                self._changed[key] = stream
                if now is not None:
                    self._last_text[key] = stream.rest
                    self.deadline = now + UNFINISHED_S

    def nodes(self) -> Iterator[str]:
        """The nodes whose output is read."""
        return iter(self._captures)

    def open(self, node: str) -> tuple[int, int]:
        """Make the pipes of a proc; returns the writing ends, which the caller closes.

        Raises:
            OSError: no descriptors are left; then nothing is open.
        """
        out_r, out_w, err_r, err_w = _two_pipes()
        os.set_blocking(out_r, False)
        os.set_blocking(err_r, False)
        capture = self._captures[node] = Capture(out_r, err_r, self._read_counter(node))
        for stream, fd in zip(capture.streams, (out_r, err_r), strict=True):
            self._watch(node, capture, stream, fd)
        return out_w, err_w

    def read_all(self, node: str) -> tuple[str, ...]:
        """Read the rest of an ended proc's output; returns the last lines of its stderr."""
        capture = self._captures.get(node)
        if capture is None:
            return ()
        self._on_lines(node, capture.read_all())
        for stream in capture.streams:
            line = stream.unfinished
            if line is not None:
                self._on_lines(node, [line])
        return tuple(capture.tail)

    def read_held(self) -> None:
        """Read what all pipes hold now, and no more of a proc that goes on writing."""
        for key, _ in self._selector.select(0):
            read = self._by_fd.get(key.fd)
            if read is not None:
                read(_available(key.fd))
        self._report_unfinished()

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
            self._last_text.pop((node, stream.number), None)

    def _watch(self, node: str, capture: Capture, stream: Stream, fd: int) -> None:
        def readable(most: int = MOST) -> None:
            if stream.fd is None:  # dropped since the selector found it readable
                return
            lines, ended = capture.read(stream, most)
            self._on_lines(node, lines)
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


def _available(fd: int) -> int:
    """How many bytes a pipe holds; 1 at its end, so that the end is read."""
    return max(1, _COUNT.unpack(fcntl.ioctl(fd, termios.FIONREAD, bytes(_COUNT.size)))[0])


def _two_pipes() -> tuple[int, int, int, int]:
    """Two pipes, or none if either fails: (read, write, read, write)."""
    first = os.pipe()
    try:
        return (*first, *os.pipe())
    except OSError:
        for fd in first:
            os.close(fd)
        raise
