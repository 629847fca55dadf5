"""The output pipes of all procs of a host, read by the host agent's loop.

Runs in: the host agent. Owns: the reading ends of two pipes for each proc, until they end or the
proc is dropped.
Invariants: while the receivers of a proc's lines are behind, its pipes are not read, so that lines
wait in the proc and not in the agent; what an answer or an end waits for is read all the same.
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
PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.1
"""Seconds until a pipe whose receivers are behind is looked at again; it doubles."""
_COUNT = struct.Struct("i")


class OutputPipes:
    """The pipes of each node. `on_lines(node, lines)` is called with the lines that were read."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        on_lines: Callable[[str, Lines], None],
        read_counter: Callable[[str], Tally | None] = lambda _: None,
        is_behind: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`read_counter` returns the counter of bytes read from a node, if it has one.

        `is_behind` returns whether earlier lines of a node still wait to be received.
        """
        self._selector = selector
        self._on_lines = on_lines
        self._read_counter = read_counter
        self._is_behind = is_behind
        self._captures: dict[str, Capture] = {}
        self._by_fd: dict[int, Callable[[int], None]] = {}
        # Unfinished lines that have changed since they were reported, and when to report them.
        # `_last_text` has the text at the last look of those that are not overwritten.
        self._changed: dict[tuple[str, int], Stream] = {}
        self._last_text: dict[tuple[str, int], str] = {}
        self._report_at: float | None = None
        # Pipes that are not read, by descriptor; when to look at them again, and the time between.
        self._paused: dict[int, Callable[[], None]] = {}
        self._resume_at: float | None = None
        self._pause_s = PAUSE_S

    @property
    def deadline(self) -> float | None:
        """When to call `time_passed`; None: not before a pipe is readable."""
        due = [at for at in (self._report_at, self._resume_at) if at is not None]
        return min(due, default=None)

    def time_passed(self, now: float) -> None:
        """Report unfinished lines and look at paused pipes, if their time has come."""
        if self._report_at is not None and now >= self._report_at:
            self._report_unfinished(now)
        if self._resume_at is not None and now >= self._resume_at:
            self._resume_at = None
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            paused, self._paused = self._paused, {}
            for fd, readable in paused.items():
                self._selector.register(fd, selectors.EVENT_READ, readable)

    def _report_unfinished(self, now: float | None = None) -> None:
        """Report unfinished lines; without `now` only those that are being overwritten.

        A line that still grows waits until the next look, since most such lines are about to end;
        so does one whose rest may be in a pipe that is paused.
        """
        changed, self._changed = self._changed, {}
        if now is not None:
            self._report_at = None
        for key, stream in changed.items():
            line = stream.unfinished
            if line is None:
                self._last_text.pop(key, None)
            elif now is not None and stream.fd in self._paused:
                self._changed[key] = stream
                self._report_at = now + UNFINISHED_S
            elif stream.is_written_over or (now and self._last_text.get(key) == stream.rest):
                self._last_text.pop(key, None)
                self._on_lines(key[0], [line])
            else:
                self._changed[key] = stream
                if now is not None:
                    self._last_text[key] = stream.rest
                    self._report_at = now + UNFINISHED_S

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
        ready = [key.fd for key, _ in self._selector.select(0)]
        for fd in (*ready, *self._paused):
            read = self._by_fd.get(fd)
            if read is not None:
                read(_available(fd))
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
        def read(most: int = MOST) -> None:
            if stream.fd is None:  # dropped since the selector found it readable
                return
            lines, ended = capture.read(stream, most)
            self._on_lines(node, lines)
            if stream.rest:
                self._changed[node, stream.number] = stream
                if self._report_at is None:
                    self._report_at = time.monotonic() + UNFINISHED_S
            if ended:
                self._unwatch(fd)
                stream.close()

        def readable() -> None:
            if stream.fd is None:  # dropped since the selector found it readable
                return
            if self._is_behind(node):
                self._pause(fd, readable)
            else:
                self._pause_s = PAUSE_S
                read()

        self._by_fd[fd] = read
        self._selector.register(fd, selectors.EVENT_READ, readable)

    def _pause(self, fd: int, readable: Callable[[], None]) -> None:
        self._selector.unregister(fd)
        self._paused[fd] = readable
        if self._resume_at is None:
            self._resume_at = time.monotonic() + self._pause_s

    def _unwatch(self, fd: int) -> None:
        del self._by_fd[fd]
        if self._paused.pop(fd, None) is None:
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
