"""Streams of bytes through a gateway, to hosts that only it can reach (`net.tunnel.state.tunnel`).

They use a link of their own, `tunnel-<hex>`, whose other end is the host agent of the gateway, and
are not Relays. The side that opens a stream chooses a number that is new on that link. A gateway
buffers bytes only until it has passed them on, and does not interpret them.
"""

from typing import ClassVar

from monarch._src.wire.messages.base import Message


class TunnelOpen(Message, tag=180):
    """Connect to that address, resolved by the receiver; answered by TunnelOpened."""

    stream: int
    address: str


class TunnelOpened(Message, tag=181):
    """The stream is connected, to that numeric address; or `why` it is not."""

    stream: int
    address: str
    why: str = ""


class TunnelBytes(Message, tag=182):
    """The next bytes of a stream. Payload: the bytes, as its body."""

    carries_payload: ClassVar[bool] = True
    stream: int


class TunnelCredit(Message, tag=183):
    """The sender accepts bytes of that stream up to `limit`, counted from its beginning."""

    stream: int
    limit: int


class TunnelClose(Message, tag=184):
    """The stream has ended on the sender's side; bytes sent before are still valid."""

    stream: int
    why: str = ""
