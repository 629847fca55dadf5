"""The connections of tunnels: carries out the decisions of `net.tunnel.state.tunnel` with sockets.

Runs in: the host agent of a gateway (far end), and the client's process for it (near end); one
thread, the caller's. Names are resolved on other threads, since that may block.
Owns: the sockets of all streams, and a selector for them, whose descriptor the caller watches.
Invariants: a socket is read only while its stream has credit and the link has room, so bytes that
are not taken stay with the writer. Nothing here blocks.
"""

from __future__ import annotations

import errno
import os
import select
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from monarch._src.net.interfaces import resolve
from monarch._src.net.state.addresses import Address, Attempt, Scope, attempts_text
from monarch._src.net.tunnel.state.tunnel import (
    Action,
    Dial,
    Opened,
    Say,
    Shut,
    Tunnel,
    TunnelMessage,
    Write,
)
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.messages import Message, TunnelOpen, TunnelOpened

MOST_TUNNELS = 64
DIAL_S = 10.0  # for all addresses of a name together
SWEEP_S = 5.0
HUNG_UP_S = 20.0
_HANGS_UP = getattr(select, "POLLRDHUP", 0)  # POLLHUP and POLLERR are always reported
_UNDER_WAY = (errno.EINPROGRESS, errno.EWOULDBLOCK)
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

# Called when a stream is connected, with its address and "", or with the error. Returns the local
# connection for it, or None if the stream is no longer wanted.
Done = Callable[[str, str], "socket.socket | None"]


class _Pipe:
    """The connection of one stream. `hosts`: in the far end, the addresses still to be dialled."""

    def __init__(self, link: str, stream: int, done: Done | None = None) -> None:
        self.link = link
        self.stream = stream
        self.done = done
        self.socket: socket.socket | None = None
        self.pending: deque[memoryview] = deque()
        self.events = 0
        self.is_dialling = False
        self.address: Address | None = None
        self.hosts: list[str] = []
        self.attempts: list[Attempt] = []
        self.deadline = 0.0
        self.share_s = 0.0  # for each of the hosts


class Tunnels:
    """The connections of all tunnels of one end."""

    def __init__(
        self,
        say: Callable[[str, Message, Payload], object],
        has_room: Callable[[str], bool],
        *,
        near: bool,
        beyond: bool = True,
    ) -> None:
        """Args:
        say: sends a message over a link. has_room: whether the link takes more; if not, the caller
            has to call `on_room` later.
        beyond: whether other hosts may be dialled.
        """
        self._say = say
        self._has_room = has_room
        self._near = near
        self._beyond = beyond
        self._tunnels: dict[str, Tunnel] = {}
        self._pipes: dict[tuple[str, int], _Pipe] = {}
        self._dialling: set[_Pipe] = set()  # all and only those with a deadline
        # All and only those without an event to wait for, and since when.
        self._held_up: dict[_Pipe, float] = {}
        self._sweep_at = 0.0
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()  # for data of threads that resolve names
        self._resolved: deque[tuple[_Pipe, list[str] | OSError]] = deque()
        self._wake_r, self._wake_w = os.pipe()
        for fd in (self._wake_r, self._wake_w):
            os.set_blocking(fd, False)
        self._selector.register(self._wake_r, _READ)
        self._closed = False

    def __len__(self) -> int:
        return len(self._pipes)

    @property
    def held(self) -> int:
        """Bytes that came over links and have not been written."""
        return sum(tunnel.held for tunnel in self._tunnels.values())

    def fileno(self) -> int:
        """A descriptor that is readable when `work` has to be called."""
        return self._selector.fileno()  # pyright: ignore[reportAttributeAccessIssue]

    def next_deadline(self) -> float | None:
        """When `work` has to be called even without events; seconds of `time.monotonic`."""
        deadline = min((pipe.deadline for pipe in self._dialling), default=None)
        if not self._held_up:
            return deadline
        return self._sweep_at if deadline is None else min(deadline, self._sweep_at)

    # --- calls of the owner -----------------------------------------------------------------------

    def open(self, link: str, address: str, done: Done) -> None:
        """Near: open a stream to that address; `done` is called with the result."""
        tunnel = self._tunnels.setdefault(link, Tunnel(near=True))
        try:
            stream, actions = tunnel.asked(address)
        except OSError as error:
            done("", str(error))
            return
        self._pipes[link, stream] = _Pipe(link, stream, done)
        self._do(link, actions)

    def on_message(self, link: str, message: TunnelMessage, payload: Payload) -> None:
        """A message of the other end of a link came."""
        tunnel = self._tunnels.get(link)
        if tunnel is None:
            if self._near or not isinstance(message, TunnelOpen):
                return
            if len(self._tunnels) >= MOST_TUNNELS:
                why = f"{MOST_TUNNELS} clients use this gateway, which is its limit"
                self._say(link, TunnelOpened(message.stream, "", why), NO_PAYLOAD)
                return
            tunnel = self._tunnels[link] = Tunnel(near=False, beyond=self._beyond)
        self._do(link, tunnel.received(message, payload.body))
        pipe = self._pipes.get((link, message.stream))
        if pipe is not None:
            self._update_events(pipe)  # there may be credit again

    def on_room(self, link: str) -> None:
        """The link has room again."""
        for pipe in list(self._pipes.values()):
            if pipe.link == link:
                self._update_events(pipe)

    def cut(self, link: str, why: str) -> None:
        """The link has ended. Idempotent."""
        tunnel = self._tunnels.pop(link, None)
        if tunnel is not None:
            self._do(link, tunnel.cut(why))

    def close(self) -> None:
        """Close all connections. Idempotent."""
        if self._closed:
            return
        for link in list(self._tunnels):
            self.cut(link, "it was closed")
        with self._lock:
            self._closed = True
            for fd in (self._wake_r, self._wake_w):
                os.close(fd)
        self._selector.close()

    # --- work -------------------------------------------------------------------------------------

    def work(self) -> None:
        """Handle the events of all sockets once, and deadlines."""
        for key, events in self._selector.select(0):
            if key.data is None:
                self._take_resolved()
                continue
            pipe: _Pipe = key.data
            if pipe.socket is None:
                continue  # an earlier event has ended it
            if pipe.is_dialling:
                self._connected(pipe)
                continue
            if events & _WRITE:
                self._flush(pipe)
            if events & _READ:
                self._read(pipe)
            self._update_events(pipe)
        now = time.monotonic()
        for pipe in [pipe for pipe in self._dialling if pipe.deadline <= now]:
            self._failed(pipe, errno.ETIMEDOUT)
        if self._held_up and now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            self._sweep(now)

    def _do(self, link: str, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Say):
                self._say(link, action.message, Payload(bytes(action.body)))
                continue
            if isinstance(action, Dial):
                pipe = self._pipes[link, action.stream] = _Pipe(link, action.stream)
                self._dial(pipe, action.address)
                continue
            pipe = self._pipes.get((link, action.stream))
            if pipe is None:
                continue
            match action:
                case Opened(_, address):
                    self._opened(pipe, address)
                case Write(_, data):
                    pipe.pending.append(memoryview(data))
                    self._flush(pipe)
                    self._update_events(pipe)
                case Shut(_, why):
                    self._shut(pipe, why)

    def _tell(self, pipe: _Pipe, event: Callable[[Tunnel], list[Action]]) -> None:
        tunnel = self._tunnels.get(pipe.link)
        if tunnel is not None:
            self._do(pipe.link, event(tunnel))

    def _opened(self, pipe: _Pipe, address: str) -> None:
        assert pipe.done is not None
        done, pipe.done = pipe.done, None
        connection = done(address, "")
        if connection is None:
            self._ended(pipe)
            return
        connection.setblocking(False)
        pipe.socket = connection
        self._update_events(pipe)

    def _shut(self, pipe: _Pipe, why: str = "") -> None:
        """Close the connection of a stream that has ended."""
        self._pipes.pop((pipe.link, pipe.stream), None)
        self._dialling.discard(pipe)
        self._let_go(pipe)
        if pipe.done is not None:
            done, pipe.done = pipe.done, None
            done("", why or "it was closed")

    def _let_go(self, pipe: _Pipe) -> None:
        self._held_up.pop(pipe, None)
        if pipe.socket is not None:
            if pipe.events:
                self._selector.unregister(pipe.socket)
                pipe.events = 0
            pipe.socket.close()
            pipe.socket = None

    def _ended(self, pipe: _Pipe, why: str = "") -> None:
        """The local connection has ended."""
        self._shut(pipe, why)
        self._tell(pipe, lambda tunnel: tunnel.ended(pipe.stream, why))

    def _update_events(self, pipe: _Pipe) -> None:
        """Register exactly those events for which there is work."""
        if pipe.socket is None:
            return
        tunnel = self._tunnels.get(pipe.link)
        events = 0
        if pipe.is_dialling or pipe.pending:
            events |= _WRITE
        if not pipe.is_dialling and tunnel is not None and tunnel.may_read(pipe.stream):
            events |= _READ if self._has_room(pipe.link) else 0
        if events:
            self._held_up.pop(pipe, None)
        else:
            self._held_up.setdefault(pipe, time.monotonic())
        if events == pipe.events:
            return
        if not pipe.events:
            self._selector.register(pipe.socket, events, pipe)
        elif events:
            self._selector.modify(pipe.socket, events, pipe)
        else:
            self._selector.unregister(pipe.socket)
        pipe.events = events

    def _sweep(self, now: float) -> None:
        """End streams that have waited for long and whose user has hung up, which no event reports.

        Bytes that could still be read from them would be lost anyway, as the peer takes none.
        """
        poll = select.poll()
        found = {pipe.socket.fileno(): pipe for pipe, since in self._held_up.items()
                 if pipe.socket is not None and now - since >= HUNG_UP_S}  # fmt: skip
        for fd in found:
            poll.register(fd, _HANGS_UP)
        for fd, _ in poll.poll(0):
            self._ended(found[fd], "it was hung up on")

    # --- bytes ------------------------------------------------------------------------------------

    def _flush(self, pipe: _Pipe) -> None:
        written = 0
        while pipe.pending and pipe.socket is not None:
            first = pipe.pending[0]
            try:
                size = pipe.socket.send(first)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._ended(pipe, str(error))
                return
            written += size
            if size < len(first):
                pipe.pending[0] = first[size:]
            else:
                pipe.pending.popleft()
        if written:
            self._tell(pipe, lambda tunnel: tunnel.wrote(pipe.stream, written))

    def _read(self, pipe: _Pipe) -> None:
        tunnel = self._tunnels.get(pipe.link)
        most = 0 if tunnel is None else tunnel.may_read(pipe.stream)
        if not most or pipe.socket is None or not self._has_room(pipe.link):
            return
        try:
            data = pipe.socket.recv(most)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._ended(pipe, str(error))
            return
        if data:
            self._tell(pipe, lambda tunnel: tunnel.read(pipe.stream, data))
        else:
            self._ended(pipe)

    # --- dialling ---------------------------------------------------------------------------------

    def _dial(self, pipe: _Pipe, address: Address) -> None:
        pipe.address = address
        pipe.deadline = time.monotonic() + DIAL_S
        self._dialling.add(pipe)
        if address.scope in (Scope.ROUTED, Scope.LINK_LOCAL):
            self._try_all(pipe, [address.host])
            return

        def look_up() -> None:
            try:
                found: list[str] | OSError = resolve(address)
            except OSError as error:
                found = error
            with self._lock:
                if not self._closed:
                    self._resolved.append((pipe, found))
                    os.write(self._wake_w, b".")

        threading.Thread(target=look_up, name="monarch-resolve", daemon=True).start()

    def _take_resolved(self) -> None:
        with self._lock:
            os.read(self._wake_r, 4096)
            resolved = list(self._resolved)
            self._resolved.clear()
        for pipe, found in resolved:
            if pipe not in self._dialling:
                continue  # it is no longer wanted, or took too long
            if isinstance(found, OSError):
                said = f"the gateway cannot resolve the name ({found.strerror})"
                pipe.attempts.append(Attempt(str(pipe.address), 0, said))
                found = []
            self._try_all(pipe, found)

    def _try_all(self, pipe: _Pipe, hosts: list[str]) -> None:
        if not self._beyond:  # the name may resolve to anything
            hosts = [host for host in hosts if Address("tcp", host).scope is Scope.LOOPBACK]
        pipe.hosts = hosts
        pipe.share_s = DIAL_S / max(1, len(hosts))
        self._try_next(pipe)

    def _try_next(self, pipe: _Pipe) -> None:
        assert pipe.address is not None
        while pipe.hosts:
            host = pipe.hosts[0]
            pipe.deadline = time.monotonic() + pipe.share_s
            try:
                dialled = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            except OSError as error:
                code = error.errno or errno.EAFNOSUPPORT
            else:
                dialled.setblocking(False)
                dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                code = dialled.connect_ex((host, pipe.address.port))
                if not code or code in _UNDER_WAY:
                    pipe.socket, pipe.is_dialling = dialled, True
                    self._update_events(pipe)
                    return
                dialled.close()
            self._note(pipe, code)
        self._dialling.discard(pipe)
        who = f"{pipe.address}, as resolved by the gateway,"
        why = attempts_text(who, pipe.attempts)
        self._pipes.pop((pipe.link, pipe.stream), None)
        self._tell(pipe, lambda tunnel: tunnel.not_dialled(pipe.stream, why))

    def _note(self, pipe: _Pipe, code: int) -> None:
        """Record that the attempt at the first host has failed."""
        assert pipe.address is not None
        host = pipe.hosts.pop(0)
        numeric = str(Address("tcp", host, pipe.address.port))
        named = "" if host == pipe.address.host else f"{pipe.address} = "
        pipe.attempts.append(Attempt(f"{named}{numeric}", code))

    def _failed(self, pipe: _Pipe, code: int) -> None:
        self._let_go(pipe)
        pipe.is_dialling = False
        if pipe.hosts:
            self._note(pipe, code)
        else:
            pipe.attempts.append(Attempt(str(pipe.address), 0, "the name was not resolved in time"))
        self._try_next(pipe)

    def _connected(self, pipe: _Pipe) -> None:
        assert pipe.socket is not None
        assert pipe.address is not None
        code = pipe.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._failed(pipe, code)
            return
        pipe.is_dialling = False
        self._dialling.discard(pipe)
        numeric = str(Address("tcp", pipe.hosts[0], pipe.address.port))
        self._tell(pipe, lambda tunnel: tunnel.dialled(pipe.stream, numeric))
        self._update_events(pipe)
