"""The connections of tunnels: what `net.tunnel.state.tunnel` decides, done with sockets.

Runs in: the host agent of a gateway (far), and the process that a client behind one has for it
(near); one thread, the caller's. Names are resolved on threads of their own, since that may block.
Owns: the sockets of all streams, and a selector of them whose descriptor the caller watches.
Invariants: a socket is read only while its stream has credit and the link has room, so what nobody
takes stays with who has written it. Nothing here blocks.
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
_HANGS_UP = getattr(select, "POLLRDHUP", 0)  # others, as errors are, are always told
_UNDER_WAY = (errno.EINPROGRESS, errno.EWOULDBLOCK)
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

# What becomes of a stream that was asked for: the address that it has, and "", or why there is
# none. Gives its connection of this side, or None if the stream is not wanted any more.
Done = Callable[[str, str], "socket.socket | None"]


class _Pipe:
    """The connection of one stream. `hosts`: of a far one, what is still to be dialled."""

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
    """See the module's text."""

    def __init__(
        self,
        say: Callable[[str, Message, Payload], object],
        has_room: Callable[[str], bool],
        *,
        near: bool,
        beyond: bool = True,
    ) -> None:
        """Args:
        say: tells the other end of that link something. has_room: whether less waits to be sent
            there than may; if not, `more_room` is to be called later.
        beyond: whether other hosts may be dialled.
        """
        self._say = say
        self._has_room = has_room
        self._near = near
        self._beyond = beyond
        self._tunnels: dict[str, Tunnel] = {}
        self._pipes: dict[tuple[str, int], _Pipe] = {}
        self._dialling: set[_Pipe] = set()  # all and only those that have a deadline
        # All and only those of which no event is waited for, and since when.
        self._held_up: dict[_Pipe, float] = {}
        self._sweep_at = 0.0
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()  # of what threads that resolve names touch
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
        """Bytes that came by links and have not been written."""
        return sum(tunnel.held for tunnel in self._tunnels.values())

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to work at."""
        return self._selector.fileno()  # pyright: ignore[reportAttributeAccessIssue]

    def next_deadline(self) -> float | None:
        """When `work` is to be called though nothing comes; seconds of `time.monotonic`."""
        deadline = min((pipe.deadline for pipe in self._dialling), default=None)
        if not self._held_up:
            return deadline
        return self._sweep_at if deadline is None else min(deadline, self._sweep_at)

    # --- what the caller tells --------------------------------------------------------------------

    def open(self, link: str, address: str, done: Done) -> None:
        """Near: have a stream to that address; `done` is called when it is there, or is not."""
        tunnel = self._tunnels.setdefault(link, Tunnel(near=True))
        try:
            stream, actions = tunnel.asked(address)
        except OSError as error:
            done("", str(error))
            return
        self._pipes[link, stream] = _Pipe(link, stream, done)
        self._do(link, actions)

    def heard(self, link: str, message: TunnelMessage, payload: Payload) -> None:
        """The other end of that link has said that."""
        tunnel = self._tunnels.get(link)
        if tunnel is None:
            if self._near or not isinstance(message, TunnelOpen):
                return
            if len(self._tunnels) >= MOST_TUNNELS:
                why = f"{MOST_TUNNELS} clients go through this gateway, and that is the most"
                self._say(link, TunnelOpened(message.stream, "", why), NO_PAYLOAD)
                return
            tunnel = self._tunnels[link] = Tunnel(near=False, beyond=self._beyond)
        self._do(link, tunnel.received(message, payload.body))
        pipe = self._pipes.get((link, message.stream))
        if pipe is not None:
            self._look_for(pipe)  # there may be credit again

    def more_room(self, link: str) -> None:
        """The link takes more again."""
        for pipe in list(self._pipes.values()):
            if pipe.link == link:
                self._look_for(pipe)

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
        """Handle what sockets have brought, once each, and the time."""
        for key, events in self._selector.select(0):
            if key.data is None:
                self._take_resolved()
                continue
            pipe: _Pipe = key.data
            if pipe.socket is None:
                continue  # what came before has ended it
            if pipe.is_dialling:
                self._connected(pipe)
                continue
            if events & _WRITE:
                self._flush(pipe)
            if events & _READ:
                self._read(pipe)
            self._look_for(pipe)
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
                    self._look_for(pipe)
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
        self._look_for(pipe)

    def _shut(self, pipe: _Pipe, why: str = "") -> None:
        """It is none any more."""
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
        """Its connection of this side has ended."""
        self._shut(pipe, why)
        self._tell(pipe, lambda tunnel: tunnel.ended(pipe.stream, why))

    def _look_for(self, pipe: _Pipe) -> None:
        """Have the selector tell of what there is to do for it, and of nothing else."""
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
        """End those that are held up for long, and whose user has hung up: nothing tells of that.

        What is still to be read of them would be dropped by a side that takes nothing, too.
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
                continue  # nobody wants it any more, or it took too long
            if isinstance(found, OSError):
                said = f"the name is not known there ({found.strerror})"
                pipe.attempts.append(Attempt(str(pipe.address), 0, said))
                found = []
            self._try_all(pipe, found)

    def _try_all(self, pipe: _Pipe, hosts: list[str]) -> None:
        if not self._beyond:  # whatever the name stands for
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
                    self._look_for(pipe)
                    return
                dialled.close()
            self._note(pipe, code)
        self._dialling.discard(pipe)
        who = f"{pipe.address}, as the gateway sees it,"
        why = attempts_text(who, pipe.attempts)
        self._pipes.pop((pipe.link, pipe.stream), None)
        self._tell(pipe, lambda tunnel: tunnel.not_dialled(pipe.stream, why))

    def _note(self, pipe: _Pipe, code: int) -> None:
        """The first of its hosts was tried in vain."""
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
            pipe.attempts.append(Attempt(str(pipe.address), 0, "the name was not found in time"))
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
        self._look_for(pipe)
