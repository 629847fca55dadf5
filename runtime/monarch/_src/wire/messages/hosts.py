"""Messages between hosts: relayed messages, and the holding of worker hosts.

A *site* is one host of a job, named by its host agent; the client's site has an empty name. Nodes
of one site talk to each other directly. A message to another site passes a *gateway* on each side:
the host agent of a worker, or the client on its own site.

A gateway also carries streams of bytes to hosts that only it can reach (`net.tunnel.state.tunnel`).
They use a link of their own, `tunnel-<hex>`, whose other end is the host agent of the gateway, and
are not Relays. The side that opens a stream chooses a number that is new on that link. A gateway
buffers bytes only until it has passed them on, and does not interpret them.
"""

from typing import ClassVar

from monarch._src.wire.messages.base import Message


class Relay(Message, tag=100):
    """A message for a node of another site. Payload: the frames of that message.

    The first gateway fills in `sender` and `origin`, the sending node and its site.
    """

    carries_payload: ClassVar[bool] = True
    to: str
    site: str
    sender: str = ""
    origin: str = ""


class HoldSite(Message, tag=101):
    """Become the client of a worker host. Answered by SiteIs.

    `liveness_s`: the seconds of silence after which each side counts the other as lost. `number`:
    how many clients held the session before; a client with a larger number evicts one with a
    smaller. `token`: of a kept session with a part on that host; then SiteTaken follows SiteIs.
    """

    request: int
    pid: int
    program: str
    host: str
    liveness_s: float
    number: int = 0
    token: str = ""


class SiteIs(Message, tag=102):
    """The answer to HoldSite: the host, or the reason of the refusal.

    `addresses`: at which other hosts may dial it.
    """

    request: int
    site: str
    host: str
    directory: str
    addresses: list[str]
    refusal: str = ""


class SitesAre(Message, tag=103):
    """To an agent: the other hosts of its client, and their addresses.

    Answered by SitesKnown; until then the agent refuses messages from these hosts.
    """

    sites: list[tuple[str, list[str]]]
    request: int = 0


class SitesKnown(Message, tag=111):
    """The answer to SitesAre."""

    request: int


class LetSiteGo(Message, tag=104):
    """The client releases the host. Answered by SiteFree when all its processes have ended."""

    request: int


class SiteFree(Message, tag=105):
    """The answer to LetSiteGo."""

    request: int


class SiteRoom(Message, tag=110):
    """From a gateway: the total of bytes that the receiver may ever send it for that site."""

    site: str
    limit: int


class SiteLost(Message, tag=106):
    """That site is lost: a client to its hosts, an agent to its procs."""

    site: str
    why: str


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
