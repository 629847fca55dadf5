"""Detect whether a rank has written output since it last answered a process. Any thread.

The answer then carries the flag `WROTE`, and its receiver shows the output before it delivers the
answer. Output through Python's streams is counted here. Output of C code, subprocesses and
`os.write` is found by adding the bytes in the pipes to the bytes that the host agent has read,
which the agent counts in the rank's slot of the status board. Asking the kernel for the former
takes a tenth of the time of a call. It is skipped for an endpoint that ran for less time than it
takes to write to a pipe whose reader sleeps. If the reader is awake, its count shows the write.
"""

from __future__ import annotations

import fcntl
import struct
import termios
from collections.abc import Callable, Sequence
from mmap import mmap
from typing import Protocol

from monarch._src.wire.messages import HEARD, WROTE

LONG_NS = 4_000  # an endpoint that runs longer may have written to a pipe
_COUNT = struct.Struct("i")
_READS = struct.Struct("Q")
_ATTEMPTS = 4


class File(Protocol):
    """A stream of this process; see `logs.line_origin`."""

    nbytes: int

    def cut(self, *, blindly: bool) -> None:
        """End an unfinished line."""
        ...


class Written:
    """Tracks output of this process, and which processes have been told about it."""

    def __init__(self) -> None:
        self.held = False  # text or bytes may wait in a stream
        self.files: Sequence[File] = ()
        self._flush: Callable[[], None] | None = None  # None: this process has no pipes
        self._fds: Sequence[int] = (1, 2)
        # The agent counts the bytes it reads here; see `host.status_board`. `seen` is the lowest
        # byte at the last check: it changes with each read, and is the fastest to compare.
        self.board: mmap | bytearray = bytearray(8)
        self.at = 0
        self.seen = 0
        self._by_python = 0
        self._by_others: int | None = 0
        # Changes so far, the last one reported by another process, and the last told to each.
        self._changes = 0
        self._heard = 0
        self._told: dict[str, int] = {}
        # Processes told of all changes: the fast path of most answers.
        self.knowing: set[str] = set()

    def begin(
        self,
        flush: Callable[[], None],
        reads: tuple[mmap | bytearray, int] | None,
        fds: Sequence[int] = (1, 2),
    ) -> None:
        """Start tracking pipes `fds` of a rank; `reads`: where the agent counts its reads."""
        self._flush, self._fds = flush, fds
        if reads is not None:
            self.board, self.at = reads

    def heard(self) -> None:
        """An answer has arrived with `WROTE`, so answers of this process carry it too."""
        self._change()
        self._heard = self._changes

    def _change(self) -> None:
        self._changes += 1
        self.knowing.clear()

    def since(self, to: str, ran_ns: int) -> int:
        """The flags to add to an answer to process `to`, by an endpoint that ran `ran_ns`.

        `Routes.reply`, which sends every answer, repeats this comparison inline for speed.
        """
        if (
            ran_ns < LONG_NS
            and to in self.knowing
            and not self.held
            and self.board[self.at] == self.seen
        ):
            return 0
        return self.look(to)

    def look(self, to: str) -> int:
        """As `since`, for an endpoint that ran for long."""
        if self._flush is None:
            return self._tell(to)
        self.held = False
        self._flush()
        self.seen = self.board[self.at]
        by_python = sum([file.nbytes for file in self.files])
        total = self._total()
        by_others = None if total is None else total - by_python
        by_others_too = by_others is None or by_others != self._by_others
        if by_python != self._by_python or by_others_too:
            self._change()
            for file in self.files:
                file.cut(blindly=by_others_too)
            self._by_python = sum([file.nbytes for file in self.files])
            self._by_others = by_others
        return self._tell(to)

    def _tell(self, to: str) -> int:
        before, now = self._told.get(to, 0), self._changes
        self._told[to] = now
        self.knowing.add(to)
        if now != self._changes:  # changed by another thread
            self.knowing.discard(to)
        if before == now:
            return 0
        return WROTE | HEARD if self._heard > before else WROTE

    def _total(self) -> int | None:
        """All bytes ever written to the pipes; None if the agent keeps reading meanwhile."""
        for _ in range(_ATTEMPTS):
            before = self._read()
            held = sum([_held(fd) for fd in self._fds])
            if self._read() == before and not before & 1:
                return (before >> 8) + held
        return None

    def _read(self) -> int:
        (count,) = _READS.unpack_from(self.board, self.at)
        return count


def _held(fd: int) -> int:
    """The number of bytes in a pipe; 0 if the program has replaced the descriptor."""
    try:
        return _COUNT.unpack(fcntl.ioctl(fd, termios.FIONREAD, _ZERO))[0]
    except OSError:
        return 0


_ZERO = bytes(_COUNT.size)
WRITTEN = Written()
