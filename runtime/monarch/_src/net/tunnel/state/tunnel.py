"""One end of a tunnel: streams of bytes over one link, each with its own credit. No I/O.

The *near* end belongs to a client that can reach only one host, the *far* end to the agent of that
host, the gateway, which connects to other hosts. A stream stands for one connection on each side:

    near    --asked--> OPENING --the far end has connected--> OPEN --the other side ends--> ENDING
    far     --TunnelOpen came--> OPENING --dialled--> OPEN

- *Credit*: each end accepts a limited number of bytes of a stream, and more only when some have
  left into its own connection. So one end holds at most `WINDOW` for a stream, `MOST_STREAMS` times
  that in all. A connection that takes nothing stops the writer at the other end, by TCP, and no
  other stream.
- ENDING: the other side has ended the stream, and bytes that it sent before still have to be
  written. Nothing more is read. If this side ends, the stream ends at once: there is no reader.
- Messages of a stream that has ended were under way at that time, and are dropped. A message that
  violates the protocol ends its stream, and no other.
- The end of the link ends all streams: the connections on both sides are closed, and their users
  make new ones, as after any broken connection (`net.state.link` resends).

Prior art: credit as in HTTP/2 and SSH channels. Half-closed streams are omitted, since ZeroMQ does
not use them. Events are methods named in the past tense; they return actions, in order. Not
thread-safe.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from monarch._src.net.state.addresses import Address, Scope, parse_address
from monarch._src.wire.frames import Buffer
from monarch._src.wire.messages import (
    TunnelBytes,
    TunnelClose,
    TunnelCredit,
    TunnelOpen,
    TunnelOpened,
)

WINDOW = 1 << 20
PIECE = 1 << 16  # bytes in one message
MOST_STREAMS = 1024  # of one tunnel
LONGEST_WHY = 1000

TunnelMessage: TypeAlias = "TunnelOpen | TunnelOpened | TunnelBytes | TunnelCredit | TunnelClose"
TUNNELLED = (TunnelOpen, TunnelOpened, TunnelBytes, TunnelCredit, TunnelClose)


class StreamState(enum.Enum):
    """The state of a stream at one end."""

    OPENING = "opening"
    OPEN = "open"
    ENDING = "ending"


# --- actions --------------------------------------------------------------------------------------


class Say(msgspec.Struct, frozen=True):
    """Send a message to the other end; `body` goes with TunnelBytes."""

    message: TunnelMessage
    body: Buffer = b""


class Dial(msgspec.Struct, frozen=True):
    """Far: connect to that address for a stream. Report `dialled` or `not_dialled`."""

    stream: int
    address: Address


class Opened(msgspec.Struct, frozen=True):
    """Near: that stream is connected to that address."""

    stream: int
    address: str


class Write(msgspec.Struct, frozen=True):
    """Write these bytes into the connection of a stream. Report `wrote` as they leave."""

    stream: int
    data: Buffer


class Shut(msgspec.Struct, frozen=True):
    """A stream has ended: close its connection, or stop to dial. `why`: the error, if it failed.

    All received bytes have been written.
    """

    stream: int
    why: str = ""


Action: TypeAlias = "Say | Dial | Opened | Write | Shut"


class _Stream:
    """Counts of bytes since the stream began.

    sent <= may_send; received - written <= WINDOW; received <= told, which is the limit that was
    last sent to the other end.
    """

    def __init__(self, state: StreamState) -> None:
        self.state = state
        self.sent = 0
        self.may_send = WINDOW
        self.received = 0
        self.written = 0
        self.told = WINDOW


class Tunnel:
    """One end of a tunnel. `beyond`: whether it may dial other hosts; otherwise only loopback."""

    def __init__(self, *, near: bool, beyond: bool = True) -> None:
        self._near = near
        self._beyond = beyond
        self._streams: dict[int, _Stream] = {}
        self._last = 0  # the largest number of a stream so far

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def held(self) -> int:
        """Bytes that this end has received and not written."""
        return sum(stream.received - stream.written for stream in self._streams.values())

    def may_read(self, stream: int) -> int:
        """How many bytes may be read from the connection of that stream now."""
        found = self._streams.get(stream)
        if found is None or found.state is not StreamState.OPEN:
            return 0
        return min(PIECE, found.may_send - found.sent)

    def ends(self, stream: int) -> bool:
        """Whether the other side has ended it, and received bytes still have to be written."""
        found = self._streams.get(stream)
        return found is not None and found.state is StreamState.ENDING

    # --- events of this side --------------------------------------------------------------------

    def asked(self, address: str) -> tuple[int, list[Action]]:
        """Near: a stream to that address is wanted; returns its number.

        Raises:
            OSError: there are too many.
        """
        assert self._near
        if len(self._streams) >= MOST_STREAMS:
            raise OSError(f"{MOST_STREAMS} connections through this gateway are the most")
        self._last += 1
        self._streams[self._last] = _Stream(StreamState.OPENING)
        return self._last, [Say(TunnelOpen(self._last, address))]

    def dialled(self, stream: int, address: str) -> list[Action]:
        """Far: the stream is connected."""
        found = self._streams.get(stream)
        if found is None:
            return [Shut(stream)]
        found.state = StreamState.OPEN
        return [Say(TunnelOpened(stream, address))]

    def not_dialled(self, stream: int, why: str) -> list[Action]:
        """Far: the connection failed."""
        if self._streams.pop(stream, None) is None:
            return []
        return [Say(TunnelOpened(stream, "", why[:LONGEST_WHY] or "no answer"))]

    def read(self, stream: int, data: Buffer) -> list[Action]:
        """Bytes were read from its connection, at most as many as `may_read`."""
        assert 0 < len(data) <= self.may_read(stream)
        self._streams[stream].sent += len(data)
        return [Say(TunnelBytes(stream), data)]

    def wrote(self, stream: int, size: int) -> list[Action]:
        """Bytes were written to its connection."""
        found = self._streams.get(stream)
        if found is None:
            return []
        found.written += size
        assert found.written <= found.received
        if found.state is StreamState.ENDING:
            return self._end(stream) if found.written == found.received else []
        limit = found.written + WINDOW
        if 2 * (limit - found.told) < WINDOW:
            return []
        found.told = limit
        return [Say(TunnelCredit(stream, limit))]

    def ended(self, stream: int, why: str = "") -> list[Action]:
        """Its connection has ended, or is no longer wanted."""
        found = self._streams.pop(stream, None)
        if found is None or found.state is StreamState.ENDING:
            return []
        return [Say(TunnelClose(stream, why[:LONGEST_WHY]))]

    def cut(self, why: str) -> list[Action]:
        """The link has ended, and all streams with it. Another one begins anew."""
        streams, self._streams = self._streams, {}
        self._last = 0
        return [Shut(stream, why) for stream in streams]

    def _end(self, stream: int, why: str = "") -> list[Action]:
        del self._streams[stream]
        return [Shut(stream, why)]

    # --- messages of the other end ----------------------------------------------------------------

    def received(self, message: TunnelMessage, body: Buffer = b"") -> list[Action]:
        """A message of the other end came."""
        match message:
            case TunnelOpen():
                return self._open(message)
            case TunnelOpened():
                return self._opened(message)
            case TunnelBytes():
                return self._bytes(message.stream, body)
            case TunnelCredit():
                return self._credit(message)
            case TunnelClose():
                return self._close(message)

    def _open(self, message: TunnelOpen) -> list[Action]:
        stream = message.stream
        if self._near or stream <= self._last:
            return []
        self._last = stream
        try:
            address = self._checked(message.address)
        except ValueError as error:
            return [Say(TunnelOpened(stream, "", str(error)[:LONGEST_WHY]))]
        if len(self._streams) >= MOST_STREAMS:
            return [Say(TunnelOpened(stream, "", f"{MOST_STREAMS} connections are the most"))]
        self._streams[stream] = _Stream(StreamState.OPENING)
        return [Dial(stream, address)]

    def _checked(self, text: str) -> Address:
        address = parse_address(text)
        if address.transport != "tcp" or not address.port:
            raise ValueError(f"a gateway dials tcp://HOST:PORT, and not {text!r}")
        if address.scope is Scope.EVERY_INTERFACE:
            raise ValueError(f"{text} cannot be dialled: it stands for every interface")
        if not self._beyond and address.scope is not Scope.LOOPBACK:
            raise ValueError(f"a gateway without keys dials its own loopback, and not {text}")
        return address

    def _opened(self, message: TunnelOpened) -> list[Action]:
        found = self._streams.get(message.stream)
        if not self._near or found is None or found.state is not StreamState.OPENING:
            return []
        if message.why:
            return self._end(message.stream, message.why)
        found.state = StreamState.OPEN
        return [Opened(message.stream, message.address)]

    def _bytes(self, stream: int, body: Buffer) -> list[Action]:
        found = self._streams.get(stream)
        if found is None or not body:
            return []
        if found.state is not StreamState.OPEN or found.received + len(body) > found.told:
            why = "the other end has violated the protocol"
            return [Say(TunnelClose(stream, why)), *self._end(stream, why)]
        found.received += len(body)
        return [Write(stream, body)]

    def _credit(self, message: TunnelCredit) -> list[Action]:
        found = self._streams.get(message.stream)
        if found is not None:
            # The other end holds at most its window, whatever the message contains.
            limit = min(message.limit, found.sent + WINDOW)
            found.may_send = max(found.may_send, limit)
        return []

    def _close(self, message: TunnelClose) -> list[Action]:
        found = self._streams.get(message.stream)
        if found is None:
            return []
        if found.state is StreamState.OPEN and found.written < found.received:
            found.state = StreamState.ENDING
            return []
        if found.state is StreamState.ENDING:
            return []
        return self._end(message.stream, message.why)

    # --- for tests --------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise AssertionError if an invariant does not hold."""
        assert len(self._streams) <= MOST_STREAMS
        for stream in self._streams.values():
            assert 0 <= stream.sent <= stream.may_send
            assert 0 <= stream.written <= stream.received <= stream.told
            assert stream.received - stream.written <= WINDOW
            assert stream.told <= stream.written + WINDOW
            if stream.state is StreamState.OPENING:
                assert not stream.sent
                assert not stream.received
            if stream.state is StreamState.ENDING:
                assert stream.written < stream.received
