"""Between hosts: messages on their way from one to another, and who holds a worker host.

A *site* is one host of a job, named by the agent that serves it; the empty one is that of the
client. Nodes of one site talk to each other directly; what goes to another one passes a *gateway*
on each side: the host agent of a worker, the client itself at its own.
"""

from typing import ClassVar

from monarch._src.wire.messages.base import Message


class Relay(Message, tag=100):
    """A message for a node of another site. Payload: its frames, as they would come directly.

    `sender` and `origin`, a node and its site, are filled in by the first gateway.
    """

    carries_payload: ClassVar[bool] = True
    to: str
    site: str
    sender: str = ""
    origin: str = ""


class HoldSite(Message, tag=101):
    """Let me have that host: I am its client from now on. Answered by SiteIs.

    `liveness_s`: after how long of silence the two count each other as lost. `number`: how many
    clients held the session before. `token`: of a kept session, of which that host has something;
    SiteTaken comes behind SiteIs then. Who has a larger number takes it from who has a smaller one.
    """

    request: int
    pid: int
    program: str
    host: str
    liveness_s: float
    number: int = 0
    token: str = ""


class SiteIs(Message, tag=102):
    """The answer to HoldSite: that host, or why it cannot be had.

    `addresses`: where other hosts may dial it.
    """

    request: int
    site: str
    host: str
    directory: str
    addresses: list[str]
    refusal: str = ""


class SitesAre(Message, tag=103):
    """To an agent: the other hosts that its client has, and where to dial them.

    Answered by SitesKnown: until then what comes from these is refused.
    """

    sites: list[tuple[str, list[str]]]
    request: int = 0


class SitesKnown(Message, tag=111):
    """The answer to SitesAre."""

    request: int


class LetSiteGo(Message, tag=104):
    """I want that host no more. Answered by SiteFree when nothing of mine is left there."""

    request: int


class SiteFree(Message, tag=105):
    """The answer to LetSiteGo."""

    request: int


class SiteRoom(Message, tag=110):
    """From a gateway: I take so many bytes for that site from you, of all that you ever gave me."""

    site: str
    limit: int


class SiteLost(Message, tag=106):
    """Nothing comes from that site any more: a client to its hosts, an agent to its procs."""

    site: str
    why: str
