"""The pipes of one process to others of this host, used as one thread-safe socket.

Each process listens at one address and connects to others; a pipe is a stream of messages
(`wire.stream`) over a Unix socket. Any thread sends, and writes to the pipe itself. The receiving
thread waits, receives, accepts, retries connections, and flushes outboxes.

Names: the process that connects sends its name first, which becomes the routing id of the pipe. A
peer that this process has connected to has the routing id `>` and its name. So two nodes that
connect to each other at the same moment have two pipes, and lose no message.

Access: processes that can enter the directory (mode 0700); where the system provides the user id
of the peer, only this user's and root's. A fork of this process has no pipes.
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
RETRY_S, RETRY_LIMIT_S = 0.005, 0.2
LONGEST_NAME = 255
LAST_READS = 64  # of an old pipe, to find its end


class Router:
    """The listener and the pipes of one process."""

    def __init__(self, name: bytes = b"", address: str = "") -> None:
        """A router; without an address it has no descriptor yet, and `open` must follow."""
        self._lock = threading.Lock()  # over the tables; taken before the lock of a pipe
        self._pipes: dict[bytes, Pipe] = {}  # by routing id
        self._by_fd: dict[int, Pipe] = {}
        self._dialing: list[Pipe] = []
        self._retry_at: float | None = None  # when to connect, or to accept, again
        self._retry_s = RETRY_S
        self._ready: deque[list[Any]] = deque()  # received messages that are not handled yet
        self._poll_is_current = False  # a wait has just ended: no need to poll
        self._woken = False  # `wake` was called, and its wake-up not cleared yet
        # Called with the routing id of a pipe whose peer breaks the protocol.
        self.on_broken: Callable[[bytes, StreamError], None] | None = None
        # Called when an outbox waits for room, so that a thread receives and flushes.
        self.on_full: Callable[[], None] = _nothing
        self._accept_is_paused = False  # while the process has no descriptors left
        self._log_tally: Tally[str] = Tally()
        self.closed = not address
        if address:
            self.open(name, address)

    def open(self, name: bytes, address: str, backlog: int = 4096) -> None:
        """Listen there, and connect to others by that name. Once, before the first wait."""
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
                os.unlink(self._path)  # left by a process that was killed
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
        """Open a pipe to a peer and give it that routing id; messages queue until it listens.

        `first`: messages that leave together with this process's name, in one write.

        Raises:
            OSError: the address can never be reached, or there is no descriptor left.
        """
        with self._lock:
            pipe = self._pipe(new_socket())
            pipe.set_route(routing_id)
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
                self._retry_s = RETRY_S
                self._schedule_retry()
        if not there:
            self.wake()

    def disconnect(self, address: str) -> None:
        """Close a pipe that `connect` opened, and drop its outbox."""
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
        """Queue several messages for one peer; they leave in one write."""
        pipe = self._pipes.get(routing_id)
        with uninterrupted():
            return pipe is not None and pipe.send(list(chain.from_iterable(map(pack, messages))))

    def send_all(self, routing_ids: Iterable[bytes], frames: Sequence[Buffer]) -> Sequence[bytes]:
        """Queue one message for many peers; returns those for which `send` would be False."""
        missed: list[bytes] = []
        pipes, packed = self._pipes, pack(frames)
        with uninterrupted():
            for routing_id in routing_ids:
                pipe = pipes.get(routing_id)
                if pipe is None or not pipe.send(packed):
                    missed.append(routing_id)
        return missed

    def reachable(self, routing_id: bytes) -> bool:
        """Whether that peer may send more; False once the end of its pipe was read."""
        pipe = self._pipes.get(routing_id)
        return pipe is not None and not pipe.dialing

    def is_behind(self, routing_id: bytes) -> bool:
        """Whether messages wait because the peer does not read and the system's buffer is full."""
        pipe = self._pipes.get(routing_id)
        return pipe is not None and pipe.waits()

    def wake(self) -> None:
        """Have `wait` return, in all threads, until `clear_wake_ups` is called."""
        try:
            os.write(self._wake_w, b"\1\0\0\0\0\0\0\0")
        except (BlockingIOError, OSError):
            pass  # a wake-up is pending already, or the router is closing

    @property
    def is_pending(self) -> bool:
        """Whether messages are ready that were read from their descriptors already."""
        return bool(self._ready)

    def watch(self, fd: int) -> None:
        """Have `wait` return when that descriptor is readable, too."""
        self._poll.register(fd, READ)

    def unwatch(self, fd: int) -> None:
        """Undo `watch`. The descriptor, or this router, may be closed already."""
        with contextlib.suppress(OSError, ValueError):  # a closed epoll raises a ValueError
            self._poll.unregister(fd)

    # --- the receiving thread ---------------------------------------------------------------------

    def readable(self) -> bool:
        """Whether a message can be received now."""
        if not self._ready and not self.closed:
            self._serve(self._poll.poll(0))
        return bool(self._ready)

    def receive(self) -> list[Any] | None:
        """The next message as [routing id, frame, ...], or None if there is none now.

        The first None after a wait costs no poll: a message that arrives then ends the next wait.
        """
        ready = self._ready
        if not ready:
            if self._poll_is_current or self.closed:
                self._poll_is_current = False
                return None
            self._serve(self._poll.poll(0))
            if not ready:
                return None
        return ready.popleft()

    def wait(
        self, timeout_s: float | None, guard: Guard | None = None, spin: Spin | None = None
    ) -> list[tuple[int, int]]:
        """Block until a message may be ready; returns the watched descriptors that are readable.

        Spurious returns are normal: call `receive` until None. SIGINT interrupts a guarded wait
        while it blocks, and only then. `spin`: the policy for polling before sleeping.
        """
        if self.closed or self._ready:
            return []
        if self._retry_at is not None:
            due = max(0.0, self._retry_at - time.monotonic())
            timeout_s = due if timeout_s is None else min(due, timeout_s)
        poll = self._poll
        try:
            if guard is not None:
                guard.let_through()
                timeout_s = guard.block_s(timeout_s)
            found = poll.poll(timeout_s) if spin is None else spin.wait(poll, timeout_s)
        finally:
            if guard is not None:
                guard.open = False
        self._poll_is_current = True
        return self._serve(found)

    def poll_now(self) -> None:
        """Poll, because `fd` is readable. The next `receive` then needs no poll of its own."""
        if not self.closed:
            self._poll_is_current = True
            self._serve(self._poll.poll(0))

    def skip_next_poll(self) -> None:
        """`fd` was not readable just now: `receive` need not poll, unless a retry is due."""
        self._poll_is_current = self.due_in() != 0.0

    def clear_wake_ups(self) -> None:
        """Clear the wake-ups so far, before handling their causes.

        `wait` leaves them pending, because its thread may end before it handles the cause.
        """
        if self._woken and not self.closed:
            self._woken = False
            _drain(self._wake_r)

    def due_in(self) -> float | None:
        """Seconds until `receive` or `wait` must be called to retry a connection; None: never."""
        again_at = self._retry_at
        return None if again_at is None else max(0.0, again_at - time.monotonic())

    def close(self, linger_s: float = 0.0) -> None:
        """Close all descriptors; queued messages get `linger_s` seconds to leave."""
        self.wake()
        with self._lock:
            if self.closed:
                return
            self.closed = True
            pipes = list(self._by_fd.values())
            if linger_s:
                flush_until(pipes, time.monotonic() + linger_s)
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
        """In a fork: close its copies of the descriptors, without locks.

        A fork must not write into the streams of its parent, and pipes that it held open would not
        end with the parent.
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
        """Handle the events of pipes and the listener; returns those of watched descriptors."""
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
        if self._retry_at is not None and time.monotonic() >= self._retry_at:
            self._retry()
        return others

    def _read(self, pipe: Pipe) -> bool:
        """Receive from a pipe, and close it at its end; returns whether it is still open."""
        try:
            found = pipe.receive(self._room)
        except StreamError as error:
            if pipe.route and self.on_broken is not None:
                self.on_broken(pipe.route, error)
            self._log_limited("closed the pipe from %r: %s", pipe.route, error)
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
            found = self._on_name(pipe, found)
        self._ready.extend(found)
        return True

    def _on_name(self, pipe: Pipe, found: list[list[Any]]) -> list[list[Any]]:
        """Take the name from the first message of a new pipe; returns the messages after it."""
        name = bytes(found[0][1])
        known = self._pipes.get(name)
        for _ in range(LAST_READS):  # the old pipe of an ended process may not be fully read
            if known is None or not self._read(known):
                break
            known = self._pipes.get(name)
        why = ""
        if not 0 < len(name) <= LONGEST_NAME or name.startswith(b">") or len(found[0]) != 2:
            why = "that is no name"
        elif name in self._pipes:
            why = "there is one of that name"
        if why:
            self._log_limited("refused a pipe from %r: %s", name[:LONGEST_NAME], why)
            pipe.drop()
            return []
        pipe.set_route(name)
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
                # No descriptors left: connecting processes wait until there are some.
                self._log_limited("cannot accept a connection now: %s", error.strerror)
                self._poll.unregister(self._accepts)
                self._accept_is_paused = True
                with self._lock:
                    self._schedule_retry()
                return
            user = user_of(made)
            if user is not None and user not in (os.geteuid(), 0):
                self._log_limited("refused a pipe from a process of user %d", user)
                made.close()
                continue
            made.setblocking(False)
            pipe = self._pipe(made)
            pipe.accepted()
            self._read(pipe)  # a peer sends its name as it connects

    def _retry(self) -> None:
        """Retry the connections to peers that did not listen, and accept again."""
        with self._lock:
            self._retry_at = None
            if self._accept_is_paused:
                self._poll.register(self._accepts, READ)
                self._accept_is_paused = False
            for pipe in list(self._dialing):
                try:
                    there = pipe.dial()
                except OSError as error:
                    log.warning("cannot connect to %s: %s", pipe.address, error.strerror)
                    there = True
                if there:
                    self._dialing.remove(pipe)
            if self._dialing:
                self._retry_s = min(2 * self._retry_s, RETRY_LIMIT_S)
                self._schedule_retry()

    def _log_limited(self, text: str, *facts: object) -> None:
        """Log a warning at a limited rate for each text."""
        if number := self._log_tally.note(text):
            log.warning("%s%s", text % facts, f" ({number} like it)" if number > EACH else "")

    # --- under the lock ---------------------------------------------------------------------------

    def _pipe(self, made: Any) -> Pipe:
        pipe = Pipe(made, self._poll, self._on_full_outbox)
        self._by_fd[pipe.fd] = pipe
        return pipe

    def _on_full_outbox(self) -> None:
        self.on_full()

    def _schedule_retry(self) -> None:
        self._retry_at = time.monotonic() + self._retry_s

    def _forget(self, pipe: Pipe) -> None:
        """Remove a pipe from the routing table."""
        if self._pipes.get(pipe.route) is pipe:
            del self._pipes[pipe.route]


def dial(address: str, name: bytes, poll: Poll) -> Pipe | None:
    """A pipe to the process that listens there, for callers without a router; else None."""
    pipe = Pipe(new_socket(), poll, _nothing)
    pipe.address = _path(address)
    try:
        if pipe.dial(pack([name])):
            return pipe
    except OSError as error:
        log.warning("cannot connect to %s: %s", pipe.address, error.strerror)
    pipe.close()
    return None


def flush_until(pipes: Iterable[Pipe], deadline: float) -> None:
    """Write the outboxes until they are empty or the time is up."""
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
