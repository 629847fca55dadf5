"""One ROUTER socket, safe to use from many threads.

A ZeroMQ socket is not thread-safe, and asking it for its events counts as use: every call on it is
made under `_lock`. Waiting happens outside the lock, on its file descriptor. That descriptor is
edge-triggered: any use of the socket may swallow the edge, so whoever has sent looks at the events
again and, if something can be read while another thread waits, wakes that thread (`wake`).

Routing ids: a peer that connected to us is known by the name it gave itself; a peer that we
connected to by `>` and its name. So two nodes that connect to each other at the same moment get two
pipes instead of one dropped message.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Iterable, Sequence
from typing import Any, cast

import zmq

from monarch._src.net.interrupt import InterruptGuard, uninterrupted
from monarch._src.wire.frames import Buffer

_EVENTS = int(zmq.EVENTS)
_RCVMORE = int(zmq.RCVMORE)
_POLLIN = int(zmq.POLLIN)
_NOBLOCK = int(zmq.NOBLOCK)
_SNDMORE_NOBLOCK = int(zmq.SNDMORE) | _NOBLOCK
_UNREACHABLE = {zmq.EHOSTUNREACH, zmq.EAGAIN}
ZERO_COPY = 1 << 16


class Router:
    """The socket of one node."""

    def __init__(self, name: bytes, address: str, backlog: int = 4096) -> None:
        self._lock = threading.Lock()
        self._context: zmq.Context[Any] = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        try:
            self._socket.setsockopt(zmq.ROUTING_ID, name)
            self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self._socket.setsockopt(zmq.SNDHWM, 0)
            self._socket.setsockopt(zmq.RCVHWM, 0)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.BACKLOG, backlog)
            self._socket.setsockopt(zmq.RECONNECT_IVL, 5)
            self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
            self._socket.bind(address)
        except BaseException:
            self._socket.close(0)
            self._context.term()
            raise
        self.fd = cast(int, self._socket.getsockopt(zmq.FD))
        self._get = self._socket.get
        self._recv = self._socket.recv
        self._send = self._socket.send
        self._wake_r, self._wake_w = _wake_pipe()
        self._waiting = 0
        self._empty = False  # nothing can be received, and the socket was not used since it said so
        self.closed = False

    def connect(self, routing_id: bytes, address: str) -> None:
        """Open a pipe to a peer, known from now on by that routing id; messages queue at once."""
        with self._lock:
            self._empty = False
            self._socket.setsockopt(zmq.CONNECT_ROUTING_ID, routing_id)
            self._socket.connect(address)

    def disconnect(self, address: str) -> None:
        """Close a pipe that `connect` opened, and drop what it still holds."""
        with self._lock:
            if not self.closed:
                self._empty = False
                try:
                    self._socket.disconnect(address)
                except zmq.ZMQError as error:
                    if error.errno != errno.ENOENT:
                        raise

    def send(self, routing_id: bytes, frames: Sequence[Buffer]) -> bool:
        """Queue a message; False if the peer is unknown or its pipe is gone. Never blocks."""
        with uninterrupted(), self._lock:
            if self.closed:
                return False
            self._empty = False
            try:
                self._send(routing_id, _SNDMORE_NOBLOCK)
            except zmq.ZMQError as error:
                if error.errno in _UNREACHABLE:
                    return False
                raise
            last = len(frames) - 1
            for i, frame in enumerate(frames):
                flags = _NOBLOCK if i == last else _SNDMORE_NOBLOCK
                if len(frame) < ZERO_COPY:
                    self._send(frame, flags)
                else:
                    self._send(frame, flags, copy=False)
            missed = self._waiting and self._get(_EVENTS) & _POLLIN
        if missed:
            self.wake()
        return True

    def send_all(self, routing_ids: Iterable[bytes], frames: Sequence[Buffer]) -> None:
        """Queue the same message for many peers; one that is gone is no error. Never blocks."""
        for routing_id in routing_ids:
            self.send(routing_id, frames)

    def readable(self) -> bool:
        """Whether a message can be received now; for who waits on `fd` without `wait`."""
        with self._lock:
            if self.closed:
                return False
            found = bool(self._get(_EVENTS) & _POLLIN)
            self._empty = not found
            return found

    def reachable(self, routing_id: bytes) -> bool:
        """Whether the pipe of a peer that connected to us is still open. Only for a dead peer.

        The socket learns of a pipe's end behind the last message that came through it: once this
        is False, whatever the peer ever sent can be received.
        """
        with uninterrupted(), self._lock:
            if self.closed:
                return False
            self._empty = False
            try:
                self._send(routing_id, _SNDMORE_NOBLOCK)
            except zmq.ZMQError as error:
                if error.errno in _UNREACHABLE:
                    return False
                raise
            self._send(b"", _NOBLOCK)
            return True

    def receive(self) -> list[Any] | None:
        """The next message as [routing id, frame, ...], or None when there is none now."""
        with self._lock:
            if self.closed:
                return None
            if not self._get(_EVENTS) & _POLLIN:
                self._empty = True
                return None
            self._empty = False
            recv, get = self._recv, self._get
            # A routing id is never the last frame; what follows the first frame is bulk, not
            # copied.
            parts: list[Any] = [recv(_NOBLOCK), recv(_NOBLOCK)]
            while get(_RCVMORE):
                parts.append(recv(_NOBLOCK, copy=False).buffer)
            return parts

    def wait(
        self, poller: select.poll, timeout_s: float | None, guard: InterruptGuard | None = None
    ) -> list[tuple[int, int]]:
        """Block until something may be readable; returns what `poller` found besides ourselves.

        `poller` comes from `poller()`. Spurious returns are normal: call `receive` until None. A
        guarded wait can be interrupted by SIGINT while it blocks, and only then.
        """
        with self._lock:
            if self.closed or not (self._empty or not self._get(_EVENTS) & _POLLIN):
                return []
            self._waiting += 1
        timeout_ms = None if timeout_s is None else max(0.0, timeout_s) * 1e3
        try:
            if guard is None:
                found = poller.poll(timeout_ms)
            else:
                guard.let_through()
                found = poller.poll(timeout_ms)
                guard.open = False
        finally:
            if guard is not None:
                guard.open = False
            with self._lock:
                self._waiting -= 1
        others: list[tuple[int, int]] = []
        for fd, event in found:
            if fd == self._wake_r:
                _drain(fd)
            elif fd != self.fd:
                others.append((fd, event))
        return others

    def poller(self) -> select.poll:
        """A poll object over the socket and the wake pipe; the caller may add descriptors."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        poller.register(self._wake_r, select.POLLIN)
        return poller

    def wake(self) -> None:
        """Make the thread that waits return from `wait`."""
        try:
            os.write(self._wake_w, b"\1\0\0\0\0\0\0\0")
        except (BlockingIOError, OSError):
            pass  # a wake-up is pending already, or we are closing

    def close(self, linger_s: float = 0.0) -> None:
        """Close the socket and give everything back; queued messages get `linger_s` to leave."""
        self.wake()
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._socket.close(int(1000 * linger_s))
            os.close(self._wake_w)
            if self._wake_r != self._wake_w:
                os.close(self._wake_r)
        self._context.term()


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
