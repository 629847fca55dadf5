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
from typing import Protocol

from monarch._src.wire.messages import HEARD, WROTE

LONG_NS = 4_000  # an endpoint that runs for so long may have written by way of the kernel
_COUNT = struct.Struct("i")
_LOOKS = 4


class File(Protocol):
    """A stream of this process; see `logs.origin`."""

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
        self._reads: memoryview = memoryview(bytes(8)).cast("Q")
        self._seen = 0  # in `_reads`, at the last look
        self._by_python = 0
        self._by_others: int | None = 0
        # Changes so far, the last one that others have told of, and by process which it was told.
        self._changes = 0
        self._heard = 0
        self._told: dict[str, int] = {}

    def begin(
        self, flush: Callable[[], None], reads: memoryview | None, fds: Sequence[int] = (1, 2)
    ) -> None:
        """This process is a rank whose pipes are `fds`.

        `reads`: twice the bytes that were read of them, and 1 more while its agent reads.
        """
        self._flush, self._fds = flush, fds
        if reads is not None:
            self._reads = reads

    def heard(self) -> None:
        """An answer has come that output goes before: an answer of this process does so too."""
        self._changes += 1
        self._heard = self._changes

    def since(self, to: str, ran_ns: int) -> int:
        """Before an answer to that process, of what ran so long: what its status gets added."""
        if (
            self.held
            or ran_ns >= LONG_NS
            or self._reads[0] != self._seen
            or self._told.get(to, 0) != self._changes
        ):
            return self._look(to)
        return 0

    def _look(self, to: str) -> int:
        if self._flush is None:
            return self._tell(to)
        self.held = False
        self._flush()
        self._seen = self._reads[0]
        by_python = sum([file.nbytes for file in self.files])
        total = self._total()
        by_others = None if total is None else total - by_python
        if by_python != self._by_python or by_others != self._by_others or total is None:
            self._changes += 1
            blindly = by_others != self._by_others
            for file in self.files:
                file.cut(blindly=blindly)
            self._by_python = sum([file.nbytes for file in self.files])
            self._by_others = by_others
        return self._tell(to)

    def _tell(self, to: str) -> int:
        before = self._told.get(to, 0)
        if before == self._changes:
            return 0
        self._told[to] = self._changes
        return WROTE | HEARD if self._heard > before else WROTE

    def _total(self) -> int | None:
        """All bytes that were ever put into the pipes; None if that can't be told just now."""
        for _ in range(_LOOKS):
            before = self._reads[0]
            try:
                held = sum([_held(fd) for fd in self._fds])
            except OSError:
                return None  # the program has closed one, or has a file in its place
            if self._reads[0] == before and not before & 1:
                return before // 2 + held
        return None

    def forget(self, node: str) -> None:
        """That process is gone."""
        self._told.pop(node, None)


def _held(fd: int) -> int:
    return _COUNT.unpack(fcntl.ioctl(fd, termios.FIONREAD, _ZERO))[0]


_ZERO = bytes(_COUNT.size)
WRITTEN = Written()
