"""The pipes of one process to others of this host, as one socket: safe to use from many threads.

Each process listens at one address and connects to others; a pipe is a stream of messages
(`wire.stream`) over a Unix socket. Any thread sends, and writes to the pipe itself. One thread at a
time, the holder of the baton, waits, receives, accepts, connects again, and writes what found no
room when it was sent.

Names: who connects says its name first, and is known by it; a peer that we connected to is known by
`>` and its name. So two nodes that connect to each other at the same moment have two pipes, and
lose nothing.

Who may connect: who can enter the directory (mode 0700), and where the system tells whose process
is at the other end, of this user or of root only. A fork of this process has none of its pipes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from monarch._src.net.local.interrupt import NO_GUARD, Guard, uninterrupted
from monarch._src.net.local.pipe import Pipe, new_socket, room_to_read, user_of
from monarch._src.net.local.poll import READ, WRITE, Poll, new_poll
from monarch._src.net.local.spin import Spin
from monarch._src.rate_limited_log import EACH, Tally
from monarch._src.wire.frames import Buffer
from monarch._src.wire.stream import StreamError, pack

log = logging.getLogger("monarch.net")
SCHEME = "ipc://"
AGAIN_S, AGAIN_LIMIT_S = 0.005, 0.2
LONGEST_NAME = 255
LAST_WORDS = 64  # how often a pipe is read to see whether it has ended


class Router:
    """See the module's text."""

    def __init__(self, name: bytes = b"", address: str = "") -> None:
        """Without an address it has no descriptor yet, and `open` is to follow."""
        self._lock = threading.Lock()  # over the tables; taken before that of a pipe
        self._pipes: dict[bytes, Pipe] = {}  # by what the peer is called here
        self._by_fd: dict[int, Pipe] = {}
        self._dialing: list[Pipe] = []
        self._again_at: float | None = None  # when to connect, or to accept, again
        self._again_s = AGAIN_S
        self._ready: deque[list[Any]] = deque()  # what was received and not taken yet
        self._looked = False  # no need to look: a wait has just ended
        self._woken = False  # somebody has woken us, and nobody has looked what for
        # Called with the route on which there came what is no message.
        self.on_broken: Callable[[bytes, StreamError], None] | None = None
        # Called where something has to wait for room: somebody should wait with it.
        self.on_full: Callable[[], None] = _nothing
        self._deaf = False  # accepts nobody now, for want of descriptors
        self._complaints: Tally[str] = Tally()
        self.closed = not address
        if address:
            self.open(name, address)

    def open(self, name: bytes, address: str, backlog: int = 4096) -> None:
        """Listen there, and connect to others by that name. Once, before anybody waits."""
        self._name = pack([name])
        self._room = room_to_read()
        self._path = _path(address)
        self._listener = new_socket()
        try:
            try:
                self._listener.bind(self._path)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                os.unlink(self._path)  # of one before us, which was killed
                self._listener.bind(self._path)
            self._listener.listen(backlog)
        except BaseException:
            self._listener.close()
            raise
        self._accepts = self._listener.fileno()
        self._wake_r, self._wake_w = _wake_pipe()
        self._poll = new_poll()
        self._poll.register(self._accepts, READ)
        self._poll.register(self._wake_r, READ)
        self.fd = self._poll.fileno()
        self.closed = False

    # --- any thread -------------------------------------------------------------------------------

    def connect(
        self, routing_id: bytes, address: str, first: Iterable[Sequence[Buffer]] = ()
    ) -> None:
        """Open a pipe to a peer, known from now on by that routing id; messages queue at once.

        `first`: messages that leave with our name, in one write.

        Raises:
            OSError: nobody can ever listen there, or there is no descriptor left.
        """
        with self._lock:
            pipe = self._pipe(new_socket())
            pipe.known_as(routing_id)
            pipe.address = _path(address)
            try:
                there = pipe.dial([*self._name, *chain.from_iterable(map(pack, first))])
            except BaseException:
                self._by_fd.pop(pipe.fd)
                pipe.close()
                raise
            self._pipes[routing_id] = pipe
            if not there:
                self._dialing.append(pipe)
                self._again_s = AGAIN_S
                self._look_again()
        if not there:
            self.wake()

    def disconnect(self, address: str) -> None:
        """Close a pipe that `connect` opened, and drop what it still holds."""
        path = _path(address)
        with uninterrupted(), self._lock:
            for pipe in list(self._by_fd.values()):
                if pipe.address == path:
                    self._forget(pipe)
                    pipe.drop()
                    if pipe.dialing:
                        self._dialing.remove(pipe)
                        self._by_fd.pop(pipe.fd, None)
                        pipe.close()

    def send(self, routing_id: bytes, frames: Sequence[Buffer]) -> bool:
        """Queue a message; False if the peer is unknown or its pipe is gone. Never blocks."""
        pipe = self._pipes.get(routing_id)
        if pipe is None:
            return False
        packed = pack(frames)
        guard = uninterrupted()
        if guard is NO_GUARD:
            return pipe.send(packed)
        with guard:
            return pipe.send(packed)

    def send_in_row(self, routing_id: bytes, messages: Sequence[Sequence[Buffer]]) -> bool:
        """Queue messages that wait for the same peer already: they leave in one write."""
        pipe = self._pipes.get(routing_id)
        with uninterrupted():
            return pipe is not None and pipe.send(list(chain.from_iterable(map(pack, messages))))

    def send_all(self, routing_ids: Iterable[bytes], frames: Sequence[Buffer]) -> Sequence[bytes]:
        """Queue the same message for many peers; those that `send` would be False for."""
        missed: list[bytes] = []
        pipes, packed = self._pipes, pack(frames)
        with uninterrupted():
            for routing_id in routing_ids:
                pipe = pipes.get(routing_id)
                if pipe is None or not pipe.send(packed):
                    missed.append(routing_id)
        return missed

    def reachable(self, routing_id: bytes) -> bool:
        """Whether more may come from that peer than can be received now.

        False once the end of its pipe was read: that comes behind all that it ever sent.
        """
        pipe = self._pipes.get(routing_id)
        return pipe is not None and not pipe.dialing

    def is_behind(self, routing_id: bytes) -> bool:
        """Whether that peer has yet to read what was sent before, as much as the system holds."""
        pipe = self._pipes.get(routing_id)
        return pipe is not None and pipe.waits()

    def wake(self) -> None:
        """Make the thread that waits return from `wait`, and all others until they are taken."""
        try:
            os.write(self._wake_w, b"\1\0\0\0\0\0\0\0")
        except (BlockingIOError, OSError):
            pass  # a wake-up is pending already, or we are closing

    @property
    def is_pending(self) -> bool:
        """Whether something was received that no descriptor tells of any more."""
        return bool(self._ready)

    def watch(self, fd: int) -> None:
        """Have `wait` return when that descriptor can be read, too."""
        self._poll.register(fd, READ)

    def unwatch(self, fd: int) -> None:
        """No more. The descriptor, or this router, may have been closed already."""
        with contextlib.suppress(OSError, ValueError):  # the second of an epoll that is closed
            self._poll.unregister(fd)

    # --- the holder of the baton ------------------------------------------------------------------

    def readable(self) -> bool:
        """Whether a message can be received now."""
        if not self._ready and not self.closed:
            self._serve(self._poll.poll(0))
        return bool(self._ready)

    def receive(self) -> list[Any] | None:
        """The next message as [routing id, frame, ...], or None when there is none now.

        The first None after a wait costs no look: what came meanwhile ends the next wait.
        """
        ready = self._ready
        if not ready:
            if self._looked or self.closed:
                self._looked = False
                return None
            self._serve(self._poll.poll(0))
            if not ready:
                return None
        return ready.popleft()

    def wait(
        self, timeout_s: float | None, guard: Guard | None = None, spin: Spin | None = None
    ) -> list[tuple[int, int]]:
        """Block until something may be received; returns what was found of what is watched.

        Spurious returns are normal: call `receive` until None. A guarded wait can be interrupted by
        SIGINT while it blocks, and only then. `spin`: how to look again before sleeping.
        """
        if self.closed or self._ready:
            return []
        if self._again_at is not None:
            due = max(0.0, self._again_at - time.monotonic())
            timeout_s = due if timeout_s is None else min(due, timeout_s)
        poll = self._poll
        try:
            if guard is not None:
                guard.let_through()
            found = poll.poll(timeout_s) if spin is None else spin.wait(poll, timeout_s)
        finally:
            if guard is not None:
                guard.open = False
        self._looked = True
        return self._serve(found)

    def look(self) -> None:
        """Something can be read at `fd`. What follows until the next look costs no other one."""
        if not self.closed:
            self._looked = True
            self._serve(self._poll.poll(0))

    def nothing_came(self) -> None:
        """Nothing could be read at `fd` just now: `receive` need not look."""
        self._looked = True

    def take_wake_ups(self) -> None:
        """Wait no less long for what has woken us by now; it is looked at after this.

        A wait leaves them, for its thread may be gone before it has looked.
        """
        if self._woken and not self.closed:
            self._woken = False
            _drain(self._wake_r)

    def due_in(self) -> float | None:
        """In how many seconds to call `receive` or `wait` though nothing has come; None: never."""
        again_at = self._again_at
        return None if again_at is None else max(0.0, again_at - time.monotonic())

    def close(self, linger_s: float = 0.0) -> None:
        """Close the socket and give everything back; queued messages get `linger_s` to leave."""
        self.wake()
        with self._lock:
            if self.closed:
                return
            self.closed = True
            pipes = list(self._by_fd.values())
            if linger_s:
                let_leave(pipes, time.monotonic() + linger_s)
            for pipe in pipes:
                pipe.close()
            self._pipes.clear()
            self._by_fd.clear()
            self._dialing.clear()
            self._ready.clear()
            self._poll.close()
            self._listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            os.close(self._wake_w)
            if self._wake_r != self._wake_w:
                os.close(self._wake_r)

    def forked(self) -> None:
        """This is a fork, in which nobody waits and no lock is to be relied on: have no pipes.

        What the fork would write to them would be in the midst of what its parent says; and pipes
        that it held open would not end with its parent.
        """
        if self.closed:
            return
        self.closed = True
        for pipe in self._by_fd.values():
            pipe.forked()
        self._pipes, self._by_fd = {}, {}
        self._dialing.clear()
        self._ready.clear()
        self._poll.close()
        self._listener.close()
        for fd in {self._wake_r, self._wake_w}:
            os.close(fd)

    def _serve(self, found: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Do what can be done; returns what concerns others."""
        others: list[tuple[int, int]] = []
        for fd, events in found:
            pipe = self._by_fd.get(fd)
            if pipe is not None:
                if events & WRITE:
                    pipe.flush()
                if events & ~WRITE:
                    self._read(pipe)
            elif fd == self._accepts:
                self._accept()
            elif fd == self._wake_r:
                self._woken = True
            else:
                others.append((fd, events))
        if self._again_at is not None and time.monotonic() >= self._again_at:
            self._try_again()
        return others

    def _read(self, pipe: Pipe) -> bool:
        """Receive from a pipe, and close it if it has ended; whether anything came."""
        try:
            found = pipe.receive(self._room)
        except StreamError as error:
            if pipe.route and self.on_broken is not None:
                self.on_broken(pipe.route, error)
            self._complain("closed the pipe from %r: %s", pipe.route, error)
            found = None
        if found is None:
            with self._lock:
                self._forget(pipe)
                self._by_fd.pop(pipe.fd, None)
            pipe.close()
            return False
        if pipe.dropped:
            return True
        if found and not pipe.route:
            found = self._introduced(pipe, found)
        self._ready.extend(found)
        return True

    def _introduced(self, pipe: Pipe, found: list[list[Any]]) -> list[list[Any]]:
        """The first message of one that has connected is its name; what came behind it."""
        name = bytes(found[0][1])
        known = self._pipes.get(name)
        for _ in range(LAST_WORDS):  # one that has ended may not have been read to its end
            if known is None or not self._read(known):
                break
            known = self._pipes.get(name)
        why = ""
        if not 0 < len(name) <= LONGEST_NAME or name.startswith(b">") or len(found[0]) != 2:
            why = "that is no name"
        elif name in self._pipes:
            why = "there is one of that name"
        if why:
            self._complain("refused a pipe from %r: %s", name[:LONGEST_NAME], why)
            pipe.drop()
            return []
        pipe.known_as(name)
        with self._lock:
            self._pipes[name] = pipe
        return [[name, *frames[1:]] for frames in found[1:]]

    def _accept(self) -> None:
        while True:
            try:
                made, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.ECONNABORTED, errno.EINTR):
                    continue
                # No descriptors: who wants to connect waits until there are some again.
                self._complain("cannot accept a connection now: %s", error.strerror)
                self._poll.unregister(self._accepts)
                self._deaf = True
                with self._lock:
                    self._look_again()
                return
            user = user_of(made)
            if user is not None and user not in (os.geteuid(), 0):
                self._complain("refused a pipe from a process of user %d", user)
                made.close()
                continue
            made.setblocking(False)
            pipe = self._pipe(made)
            pipe.accepted()
            self._read(pipe)  # who connects says something at once

    def _try_again(self) -> None:
        """Connect to those who did not listen the last time, and accept again."""
        with self._lock:
            self._again_at = None
            if self._deaf:
                self._poll.register(self._accepts, READ)
                self._deaf = False
            for pipe in list(self._dialing):
                try:
                    there = pipe.dial()
                except OSError as error:
                    log.warning("cannot connect to %s: %s", pipe.address, error.strerror)
                    there = True
                if there:
                    self._dialing.remove(pipe)
            if self._dialing:
                self._again_s = min(2 * self._again_s, AGAIN_LIMIT_S)
                self._look_again()

    def _complain(self, what: str, *facts: object) -> None:
        """Log it, unless there was much like it."""
        if number := self._complaints.note(what):
            log.warning("%s%s", what % facts, f" ({number} like it)" if number > EACH else "")

    # --- under the lock ---------------------------------------------------------------------------

    def _pipe(self, made: Any) -> Pipe:
        pipe = Pipe(made, self._poll, self._has_to_wait)
        self._by_fd[pipe.fd] = pipe
        return pipe

    def _has_to_wait(self) -> None:
        self.on_full()

    def _look_again(self) -> None:
        self._again_at = time.monotonic() + self._again_s

    def _forget(self, pipe: Pipe) -> None:
        """Nothing is sent to it any more."""
        if self._pipes.get(pipe.route) is pipe:
            del self._pipes[pipe.route]


def dialed(address: str, name: bytes, poll: Poll) -> Pipe | None:
    """A pipe to whoever listens there, for one who listens nowhere; None if nobody does."""
    pipe = Pipe(new_socket(), poll, _nothing)
    pipe.address = _path(address)
    try:
        if pipe.dial(pack([name])):
            return pipe
    except OSError as error:
        log.warning("cannot connect to %s: %s", pipe.address, error.strerror)
    pipe.close()
    return None


def let_leave(pipes: Iterable[Pipe], deadline: float) -> None:
    """Write what waits, until that is all or the time is up."""
    poll = new_poll()
    waiting = {pipe.fd: pipe for pipe in pipes if pipe.waits()}
    for fd in waiting:
        poll.register(fd, WRITE)
    try:
        while waiting and (left := deadline - time.monotonic()) > 0:
            for fd, _ in poll.poll(left):
                waiting[fd].flush()
                if not waiting[fd].waits():
                    poll.unregister(fd)
                    del waiting[fd]
    finally:
        poll.close()


def _path(address: str) -> str:
    if not address.startswith(SCHEME):
        raise ValueError(f"{address!r} is no address of this host; it begins with {SCHEME}")
    return address[len(SCHEME) :]


def _nothing() -> None:
    pass


def _wake_pipe() -> tuple[int, int]:
    if hasattr(os, "eventfd"):
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return fd, fd
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


def _drain(fd: int) -> None:
    try:
        while len(os.read(fd, 4096)) == 4096:
            pass
    except BlockingIOError:
        pass
