"""The client end of a tunnel: the process by which a client behind a gateway reaches other hosts.

Runs in: a process of its own (`programs.tunnel_client`), started by the client
(`net.tunnel.launcher`), on its only thread. It runs no user code, so a client that computes for a
minute does not appear lost: the messages of the client's own links, which ZeroMQ sends on a thread
of its own, still pass.
Owns: the link to the gateway, the door (`net.tunnel.local_socket`), a Unix socket for each host.
Invariants: ends with the client, however the client ends. While there is no link to the gateway,
connections to the sockets are closed, so that a process that dials sees that the host is away.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from monarch._src.net.hosts import keys
from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.link_ends import Notice, PeerNamed, bounds_of
from monarch._src.net.hosts.links import Links
from monarch._src.net.state.access import TRUST_ALL, Role
from monarch._src.net.state.addresses import parse_address
from monarch._src.net.state.link_actions import (
    Bounds,
    LinkDown,
    LinkUp,
    PeerLeft,
    PeerLost,
    PeerRefused,
    Room,
)
from monarch._src.net.tunnel.connections import Tunnels
from monarch._src.net.tunnel.local_socket import (
    DOOR,
    LONGEST_LINE,
    Answer,
    Ask,
    read_ask,
    written,
)
from monarch._src.net.tunnel.state.tunnel import LONGEST_WHY, TUNNELLED
from monarch._src.system.process import pidfd
from monarch._src.wire.frames import Buffer, FrameError, Payload, decode, encode
from monarch._src.wire.ids import TUNNEL
from monarch._src.wire.messages import Message

log = logging.getLogger("monarch.session")
AGAIN_S = 1.0  # pause before a lost gateway is dialled again
MOST_ASKING = 64
_ENDS = (PeerLost, PeerLeft, PeerRefused)
_READ = selectors.EVENT_READ


class TunnelOptions(msgspec.Struct, frozen=True):
    """`ca` and `private_key` are paths; `ca` may be `TRUST_ALL`, `private_key` empty."""

    gateway: str
    ca: str
    private_key: str
    liveness_s: float


class State(msgspec.Struct, frozen=True):
    """The state of the link to the gateway: one line of JSON for each change."""

    up: bool
    why: str = ""


class TunnelClient:
    """The client end of a tunnel. `tell` gets a line for the client, and must not block."""

    def __init__(
        self, directory: Path, options: TunnelOptions, tell: Callable[[bytes], object]
    ) -> None:
        """Raises the errors of `keys.load`, and OSError if the door cannot be opened."""
        self._directory = directory
        self._gateway = parse_address(options.gateway)
        self._tell = tell
        own = None
        if options.ca != TRUST_ALL:
            own = keys.load(options.ca, options.private_key or None, Role.OWNER)
        self._mark = os.urandom(4).hex()
        bounds = bounds_of(options.liveness_s, prompt=True)
        self._bounds = Bounds(bounds.patience_s, bounds.ping_s, bounds.silence_s, refuses=False)
        self._incoming: deque[tuple[str, Sequence[Buffer] | Notice, int]] = deque()
        self._links = Links(
            f"{TUNNEL}{os.urandom(6).hex()}", own, Audit(None), self._bounds,
            options.liveness_s / 6,
            lambda peer, frames, size: self._incoming.append((peer, frames, size)),
            lambda peer, notice: self._incoming.append((peer, notice, -1)),
        )  # fmt: skip
        self._tunnels = Tunnels(self._say, self._links.has_room, near=True)
        self._selector = selectors.DefaultSelector()
        self._link = ""  # the name of the link, once the gateway has sent its own name
        self._dialled = ""  # its name before that
        self._is_up = False
        self._dialled_at = 0.0
        self._again_at: float | None = 0.0  # when to dial the gateway; None: it was dialled
        self._waiting: list[tuple[Ask, socket.socket]] = []  # requests while there is no link
        self._lines: dict[socket.socket, bytearray] = {}
        self._paths: dict[str, str] = {}  # by address, the socket that leads to it
        self._ended = False
        self._door = self._listening(directory / DOOR, self._on_connection)
        self._register(self._links.fileno(), self._links.work)
        self._register(self._tunnels.fileno(), self._tunnels.work)

    def run(self, lifeline: int) -> None:
        """Serve until that descriptor or the parent of this process ends."""
        self._register(lifeline, partial(self._client_ended, lifeline))
        parent = pidfd(os.getppid())  # a fork of the parent may keep the lifeline open
        if parent is not None:
            self._register(parent, self._parent_ended)
        while not self._ended:
            now = time.monotonic()
            if self._again_at is not None and self._again_at <= now:
                self._dial()
            if self._links.missed or now >= self._links.next_deadline():
                self._links.work()
            deadline = self._tunnels.next_deadline()
            if deadline is not None and deadline <= now:
                self._tunnels.work()
            self._drain()
            for key, _ in self._selector.select(self._patience()):
                key.data()

    def _patience(self) -> float:
        if self._links.missed or self._incoming:
            return 0.0
        times = [self._links.next_deadline(), self._tunnels.next_deadline(), self._again_at]
        return max(0.0, min(at for at in times if at is not None) - time.monotonic())

    def close(self) -> None:
        """Close all connections, and remove the sockets."""
        for path in self._paths.values():
            Path(path).unlink(missing_ok=True)
        self._tunnels.close()
        self._links.close("its client has ended")
        self._selector.close()

    def _client_ended(self, lifeline: int) -> None:
        if not os.read(lifeline, 4096):
            self._ended = True

    def _parent_ended(self) -> None:
        self._ended = True

    # --- the link to the gateway ------------------------------------------------------------------

    def _dial(self) -> None:
        self._again_at = None
        self._dialled = "?"
        self._dialled_at = time.monotonic()
        self._links.dial(self._dialled, self._gateway, bounds=self._bounds, anybody=True)

    def _try_again(self) -> None:
        """Dial the gateway soon, unless that is under way."""
        if not self._dialled and self._again_at is None:
            self._again_at = self._dialled_at + AGAIN_S

    def _say(self, link: str, message: Message, payload: Payload) -> None:
        try:
            self._links.send(link, encode(message, payload))
        except ConnectionError as error:  # the link has just ended; its notice follows
            log.debug("the tunnel has ended: %s", error)

    def _drain(self) -> None:
        while self._incoming:
            peer, what, size = self._incoming.popleft()
            if size < 0:
                self._on_notice(peer, what)  # pyright: ignore[reportArgumentType]
                continue
            try:
                self._on_frames(peer, what)  # pyright: ignore[reportArgumentType]
            finally:
                self._links.handled(peer, size)

    def _on_frames(self, peer: str, frames: Sequence[Buffer]) -> None:
        try:
            message, payload = decode(frames)
        except FrameError as error:
            log.warning("dropped a message of the gateway: %s", error)
            return
        if peer == self._link and isinstance(message, TUNNELLED):
            self._tunnels.on_message(peer, message, payload)

    def _on_notice(self, peer: str, notice: Notice) -> None:
        if isinstance(notice, PeerNamed) and notice.dialled_as == self._dialled:
            self._link = peer
        elif peer not in (self._link, self._dialled):
            return
        elif isinstance(notice, LinkUp):
            self._link = peer
            self._set_state(State(True))
            waiting, self._waiting = self._waiting, []
            for ask, connection in waiting:
                self._open(ask, connection)
        elif isinstance(notice, LinkDown):
            self._set_state(State(False, "the connection to it has broken"))
        elif isinstance(notice, Room):
            self._tunnels.on_room(peer)
        elif isinstance(notice, _ENDS):
            self._on_gateway_gone(notice.why, refused=isinstance(notice, PeerRefused))

    def _on_gateway_gone(self, why: str, *, refused: bool) -> None:
        self._set_state(State(False, why[:LONGEST_WHY]))  # a pipe takes such a line atomically
        link, self._link, self._dialled = self._link, "", ""
        if link:
            self._tunnels.cut(link, f"the tunnel through the gateway {self._gateway} has ended")
        waiting, self._waiting = self._waiting, []
        for _, connection in waiting:
            self._answer(connection, Answer(why=f"the gateway {self._gateway}: {why}"))
        # If it refused the key or the version, it will hardly accept them later, but it may be
        # another gateway by then. The next request makes an attempt, and gets the error again.
        self._again_at = None if refused else time.monotonic() + AGAIN_S

    def _set_state(self, state: State) -> None:
        self._is_up = state.up
        self._tell(msgspec.json.encode(state) + b"\n")

    # --- the door ---------------------------------------------------------------------------------

    def _listening(self, path: Path, ready: Callable[[socket.socket], None]) -> socket.socket:
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        listener.bind(str(path))
        listener.listen(64)
        self._register(listener.fileno(), partial(self._accept, listener, ready))
        return listener

    def _register(self, fd: int, ready: Callable[[], None]) -> None:
        self._selector.register(fd, _READ, ready)

    def _accept(self, listener: socket.socket, ready: Callable[[socket.socket], None]) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:  # the peer has left, or the descriptors are used up
            log.debug("a connection was not accepted: %s", error)
            return
        connection.setblocking(False)
        ready(connection)

    def _on_connection(self, connection: socket.socket) -> None:
        if len(self._lines) + len(self._waiting) >= MOST_ASKING:
            connection.close()
            return
        self._lines[connection] = bytearray()
        self._register(connection.fileno(), partial(self._read_request, connection))

    def _read_request(self, connection: socket.socket) -> None:
        line = self._lines[connection]
        try:
            said = connection.recv(LONGEST_LINE)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        line += said
        if said and b"\n" not in line and len(line) < LONGEST_LINE:
            return
        del self._lines[connection]
        self._selector.unregister(connection)
        try:
            ask = read_ask(bytes(line))
        except ValueError as error:
            self._answer(connection, Answer(why=str(error)))
            return
        if self._is_up:
            self._open(ask, connection)
            return
        self._waiting.append((ask, connection))
        self._try_again()

    def _answer(self, connection: socket.socket, answer: Answer, *, stays: bool = False) -> None:
        with suppress(OSError):  # the requester may have left
            connection.send(written(answer))
        if not stays:
            connection.close()

    def _open(self, ask: Ask, connection: socket.socket) -> None:
        if not ask.address:
            self._answer(connection, Answer())
            return

        def done(address: str, why: str) -> socket.socket | None:
            if why:
                self._answer(connection, Answer(why=why))
                return None
            path = "" if ask.join else self._path_to(address)
            self._answer(connection, Answer(address, path), stays=ask.join)
            return connection if ask.join else None

        self._tunnels.open(self._link, ask.address, done)

    def _path_to(self, address: str) -> str:
        """The socket on this host that leads to that address."""
        path = self._paths.get(address)
        if path is None:
            path = str(self._directory / f"via-{self._mark}-{len(self._paths)}")
            self._paths[address] = path
            self._listening(Path(path), partial(self._connect_stream, address))
        return path

    def _connect_stream(self, address: str, connection: socket.socket) -> None:
        if not self._is_up:
            connection.close()
            self._try_again()
            return

        def done(_address: str, why: str) -> socket.socket | None:
            if why:
                log.debug("no connection to %s: %s", address, why)
                connection.close()
                return None
            return connection

        self._tunnels.open(self._link, address, done)
