"""Streams of bytes through a gateway, to hosts that only it can reach (`net.tunnel.state.tunnel`).

They travel over a link of their own, `tunnel-<hex>`, whose other end is the host agent of the
gateway, and are no Relays. A stream is named by a number that who asks for it has never used before
on that link. A gateway holds what passes for as long as it takes to pass it on, and reads none.
"""

from typing import ClassVar

from monarch._src.wire.messages.base import Message


class TunnelOpen(Message, tag=180):
    """Connect to that address, as you see it; answered by TunnelOpened."""

    stream: int
    address: str


class TunnelOpened(Message, tag=181):
    """It is connected, to that address in numbers; or why it is not, and there is no stream."""

    stream: int
    address: str
    why: str = ""


class TunnelBytes(Message, tag=182):
    """The next bytes of a stream. Payload: these, in its body."""

    carries_payload: ClassVar[bool] = True
    stream: int


class TunnelCredit(Message, tag=183):
    """I take so many bytes of that stream from you, of all that you ever sent."""

    stream: int
    limit: int


class TunnelClose(Message, tag=184):
    """That stream has ended on my side; what I have sent before still counts."""

    stream: int
    why: str = ""
