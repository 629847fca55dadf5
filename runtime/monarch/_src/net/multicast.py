"""The same message to several peers by one write, through memory that all of them see.

To write to each of n pipes takes n system calls, each of which wakes somebody, who may take the
processor from us before the next. Here a message is put into a ring (`wire.ring`), and one write
wakes all: by an eventfd, which each has its epoll look at, edge-triggered, and which nobody reads
(docs/performance.md).

It is a second way to a peer beside its pipe, and keeps one order with it: a message in the ring
says, for each reader, how many messages were sent on its pipe before. Who receives holds it back
until so many have come, and looks at the ring before it takes what came on the pipe, for what was
in the ring before that was sent can be seen by then. So each message may go either way, and goes by
the pipes where the ring has no room for it.

How it comes about, by words on the pipes (`wire.stream`), each to or from one peer:

    us                                                      the peer
    OFFER, once the same peers are sent to together often
                                                            WANT: expects descriptors from now on
    HERE, with those of the memory and the eventfd
                                                            TAKEN, or REFUSE instead of either
    OVER, once one of the peers is gone

The ring is used from the moment that all have taken it. A pipe belongs to one at a time, each way,
which gives way to one of more peers: to that of a mesh, where its slices were called first.

Runs in: every process. Any thread sends; only the holder of the baton hears.
Only with Linux's epoll, and on x86, where writes are seen in the order in which they were made.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import select
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from monarch._src.net.pipe import MOST_FDS, Pipe
from monarch._src.net.polling import ONCE, READ, Poll
from monarch._src.wire.frames import Buffer
from monarch._src.wire.ring import RingReader, RingWriter, size_for

log = logging.getLogger("monarch.net")
OFFER, WANT, HERE, TAKEN, REFUSE, OVER = range(1, 7)
_KIND_BITS = 4
_READER_BITS = 8  # which of the readers somebody is; how many there are stands before that
_ONE = (1).to_bytes(8, "little")


def can_hear(poll: Poll) -> bool:
    """Whether this process can be reached so, and reach others."""
    return (
        ONCE != 0
        and isinstance(poll, select.epoll)
        and hasattr(os, "eventfd")
        and hasattr(os, "memfd_create")
        and os.uname().machine == "x86_64"
    )


class Multicast:
    """Sends to these peers by one write, once all of them have taken what that needs."""

    def __init__(self, pipes: Sequence[Pipe]) -> None:
        """Make the memory, and offer it to all.

        Raises:
            OSError: no descriptor or memory is left.
        """
        self._pipes = pipes
        self._lock = threading.Lock()  # taken before that of a pipe
        self._missing = set(pipes)  # those who have not taken it
        self._not_asked = set(pipes)  # of these, those who have not said that they want it
        self._to_hand_over: list[Pipe] = []  # who want it, and had no room for it in their pipe
        self._over = False
        size = size_for(len(pipes))
        with contextlib.ExitStack() as undo:
            memory = os.memfd_create("monarch-multicast", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            undo.callback(os.close, memory)
            os.ftruncate(memory, size)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            wakes = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, wakes)
            self._map = mmap.mmap(memory, size)
            undo.pop_all()
        self._fds, self._wakes = [memory, wakes], wakes
        self._ring = RingWriter(self._map, len(pipes))
        for pipe in pipes:
            pipe.multicast = self
            pipe.say(OFFER)

    def send(self, message: Buffer) -> bool:
        """Send to all of them; False if it has to go by their pipes. Any thread."""
        with self._lock:
            if self._missing or self._over:
                if self._to_hand_over:
                    self._hand_over()
                return False
            follows: list[int] = []
            for pipe in self._pipes:
                if pipe.gone:
                    return False
                # Counted before it is written: what this thread has sent, or knows of, is in it.
                follows.append(pipe.sent)
            if not self._ring.write(follows, message):
                return False
            os.write(self._wakes, _ONE)  # there is room for 2**64 of them
            return True

    def told(self, pipe: Pipe, kind: int) -> None:
        """One of the peers has answered."""
        with self._lock:
            if self._over:
                return
            if kind == WANT:
                if pipe in self._not_asked:
                    self._not_asked.remove(pipe)
                    self._to_hand_over.append(pipe)
                    self._hand_over()
                return
            if kind == TAKEN:
                self._missing.discard(pipe)
                return
        self.end(refused_by=pipe)

    def gives_way_to(self, count: int) -> bool:
        """Whether it may end for so many peers: they are more, and no answer is on its way here."""
        with self._lock:
            return not self._over and not self._missing and len(self._pipes) < count

    def end(self, refused_by: Pipe | None = None) -> None:
        """Send no more this way; what was sent reaches the peers. Idempotent.

        Who has refused it is offered none again.
        """
        if not self.close():
            return
        for pipe in self._pipes:
            pipe.say(OVER)
            if pipe is not refused_by:
                pipe.multicast = None

    def close(self) -> bool:
        """Give the memory and the descriptors back; False if that was done. Any thread."""
        with self._lock:
            if self._over:
                return False
            self.forked()
            return True

    def forked(self) -> None:
        """Give back what a fork has of them. No lock: another thread may have had it."""
        self._over = True
        for fd in self._fds:
            os.close(fd)
        self._ring.release()
        self._map.close()

    def _hand_over(self) -> None:
        waiting, self._to_hand_over = self._to_hand_over, []
        for pipe in waiting:
            place = self._pipes.index(pipe) | len(self._pipes) << _READER_BITS
            if not pipe.hand_over(HERE | place << _KIND_BITS, self._fds):
                self._to_hand_over.append(pipe)


class Heard:
    """What a peer sends us in a ring, in one order with what it sends on its pipe.

    For the holder of the baton.
    """

    def __init__(self, pipe: Pipe, said: int, fds: list[int], poll: Poll) -> None:
        """`fds`: of the memory and the eventfd, which came with that word. They are ours now.

        Raises:
            OSError, ValueError: that is no memory for a ring, or there is no room for it here.
        """
        place = said >> _KIND_BITS
        reader, readers = place & ((1 << _READER_BITS) - 1), place >> _READER_BITS
        memory, self.fd = fds
        self.pipe, self._poll = pipe, poll
        self._held: deque[tuple[int, bytes]] = deque()
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, self.fd)
            try:
                if not fcntl.fcntl(memory, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                    raise ValueError("its memory may be taken away")  # which would kill who looks
                self._map = mmap.mmap(memory, size_for(readers))
            finally:
                os.close(memory)
            undo.callback(self._map.close)
            poll.register(self.fd, READ | ONCE)
            undo.pop_all()
        self._ring = RingReader(self._map, readers, reader)

    def merged(self, came: list[list[Any]]) -> list[list[Any]]:
        """What came on the pipe, and what may be taken of the ring, in the order it was sent.

        What has to wait for messages of the pipe is held here, and the ring not read meanwhile.

        Raises:
            StreamError: that is no ring.
        """
        pipe, held = self.pipe, self._held
        route, count, again = pipe.route, pipe.came, bool(held)
        if not again:
            new = self._ring.read()
            if not new:
                pipe.came = count + len(came)
                return came
            if not came and new[-1][0] <= count:
                return [[route, message] for _, message in new]
            held += new
        found: list[list[Any]] = []
        messages = iter(came)
        while True:
            while held and held[0][0] <= count:
                found.append([route, held.popleft()[1]])
            if again and not held:  # we were told of what has come since, and did not look
                again = False
                held += self._ring.read()
                continue
            message = next(messages, None)
            if message is None:
                break
            found.append(message)
            count += 1
        pipe.came = count
        return found

    def end(self, all_heard: dict[int, Heard]) -> None:
        """Nothing comes that way any more."""
        self.pipe.heard = None
        del all_heard[self.fd]
        self.close()

    def close(self) -> None:
        """Give the memory and the descriptor back."""
        self._poll.unregister(self.fd)  # a fork of ours may keep it open
        self.forked()

    def forked(self) -> None:
        """Give back what a fork has of them; the poll is its parent's."""
        os.close(self.fd)
        self._ring.release()
        self._map.close()


def heed(pipe: Pipe, poll: Poll, all_heard: dict[int, Heard]) -> None:
    """Do what the words ask for that have come on a pipe. What came before them has been taken.

    `all_heard`: what of this process is heard, by descriptor; it is kept up to date.
    """
    said = list(pipe.words)
    pipe.words.clear()
    for one in said:
        kind = one & ((1 << _KIND_BITS) - 1)
        if kind == OFFER:
            if pipe.waits():  # who offers on and on and does not read would cost memory
                continue
            if pipe.heard is None and can_hear(poll):
                pipe.fds = []
                pipe.say(WANT)
            else:
                pipe.say(REFUSE)
        elif kind == HERE and pipe.fds is not None:
            fds, pipe.fds = pipe.fds, None
            try:
                heard = _heard(pipe, one, fds, poll)
            except (OSError, ValueError) as error:  # no memory, or that is none for a ring
                log.info("messages of %r come by its pipe only: %s", pipe.route, error)
                pipe.say(REFUSE)
            else:
                pipe.heard = all_heard[heard.fd] = heard
                pipe.say(TAKEN)
        elif kind == OVER:
            if pipe.heard is not None:
                pipe.heard.end(all_heard)
        elif pipe.multicast is not None:
            pipe.multicast.told(pipe, kind)


def _heard(pipe: Pipe, said: int, fds: list[int], poll: Poll) -> Heard:
    if len(fds) == MOST_FDS:
        return Heard(pipe, said, fds, poll)
    for fd in fds:
        os.close(fd)
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # the system has left one out
