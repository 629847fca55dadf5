"""Whether a rank has written output since it last answered a process. Any thread.

An answer says so (`WROTE`), and its receiver has the output shown before it gives the answer out.
Output that came by way of Python's streams is counted here. What C code, a subprocess or `os.write`
put into the pipes is found by their contents: what they hold now, and what the host agent has read,
which it counts in the rank's slot of the status board. To ask the kernel for the former takes as
long as a tenth of a call. So it is not done for an endpoint that ran for less time than a write to
a pipe whose reader sleeps; if that reader is awake, its count shows it.
"""

from __future__ import annotations

import fcntl
import struct
import termios
from collections.abc import Callable, Sequence
from mmap import mmap
from typing import Protocol

from monarch._src.wire.messages import HEARD, WROTE

LONG_NS = 4_000  # an endpoint that runs for so long may have written by way of the kernel
_COUNT = struct.Struct("i")
_READS = struct.Struct("Q")
_LOOKS = 4


class File(Protocol):
    """A stream of this process; see `logs.line_origin`."""

    nbytes: int

    def cut(self, *, blindly: bool) -> None:
        """End a line that was begun."""
        ...


class Written:
    """What this process has written, and to which others it has said so."""

    def __init__(self) -> None:
        self.held = False  # text or bytes may wait in a stream
        self.files: Sequence[File] = ()
        self._flush: Callable[[], None] | None = None  # None: this process has no pipes
        self._fds: Sequence[int] = (1, 2)
        # Where the agent counts what it reads: see `host.status_board`. The first byte is quickest
        # to look at, and another one after each read; as it was at the last look.
        self.board: mmap | bytearray = bytearray(8)
        self.at = 0
        self.seen = 0
        self._by_python = 0
        self._by_others: int | None = 0
        # Changes so far, the last one that others have told of, and by process which it was told.
        self._changes = 0
        self._heard = 0
        self._told: dict[str, int] = {}
        # Those that were told of all of them: to look there is quickest, and most answers do.
        self.knowing: set[str] = set()

    def begin(
        self,
        flush: Callable[[], None],
        reads: tuple[mmap | bytearray, int] | None,
        fds: Sequence[int] = (1, 2),
    ) -> None:
        """This process is a rank with pipes `fds`; `reads`: where its agent counts, if it does."""
        self._flush, self._fds = flush, fds
        if reads is not None:
            self.board, self.at = reads

    def heard(self) -> None:
        """An answer has come that output goes before: an answer of this process does so too."""
        self._change()
        self._heard = self._changes

    def _change(self) -> None:
        self._changes += 1
        self.knowing.clear()

    def since(self, to: str, ran_ns: int) -> int:
        """Before an answer to that process, of what ran so long: what its status gets added.

        `Routes.reply`, which every answer goes through, makes the same comparison itself.
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
        """As `since`, of what ran for long."""
        if self._flush is None:
            return self._tell(to)
        self.held = False
        self._flush()
        self.seen = self.board[self.at]
        by_python = sum([file.nbytes for file in self.files])
        total = self._total()
        by_others = None if total is None else total - by_python
        if by_python != self._by_python or by_others != self._by_others or total is None:
            self._change()
            blindly = by_others != self._by_others
            for file in self.files:
                file.cut(blindly=blindly)
            self._by_python = sum([file.nbytes for file in self.files])
            self._by_others = by_others
        return self._tell(to)

    def _tell(self, to: str) -> int:
        before, now = self._told.get(to, 0), self._changes
        self._told[to] = now
        self.knowing.add(to)
        if now != self._changes:  # by another thread
            self.knowing.discard(to)
        if before == now:
            return 0
        return WROTE | HEARD if self._heard > before else WROTE

    def _total(self) -> int | None:
        """All bytes that were ever put into the pipes; None if the agent reads on and on."""
        for _ in range(_LOOKS):
            before = self._read()
            held = sum([_held(fd) for fd in self._fds])
            if self._read() == before and not before & 1:
                return (before >> 8) + held
        return None

    def _read(self) -> int:
        (count,) = _READS.unpack_from(self.board, self.at)
        return count


def _held(fd: int) -> int:
    """How many bytes a pipe holds; none where the program has something else in its place."""
    try:
        return _COUNT.unpack(fcntl.ioctl(fd, termios.FIONREAD, _ZERO))[0]
    except OSError:
        return 0


_ZERO = bytes(_COUNT.size)
WRITTEN = Written()
