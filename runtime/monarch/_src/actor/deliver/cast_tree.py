"""Casts of this process over a tree of hosts: what the pure tree of a mesh says is sent.

Runs in: any process, under the lock of the lane that a tree belongs to.
Owns: the sites that are lost, which are left out of what grows from here on.
Invariants: a cast goes to the heads of its tree alone; who takes the place of a head that is lost,
or can't pass it on, gets it from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

import msgspec

from monarch._src.actor.refs import ProcsRef, agent_of
from monarch._src.host.state.cast_tree import SendToHead, TreeSender, Where, sites_of
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Cast, CastTree, Message, TreeDone, TreeStuck

TELL_EVERY = 32  # casts over a tree: hosts are told which of them are done


class SentCast(msgspec.Struct, frozen=True):
    """A cast that goes over a tree of hosts. `sites`: of the mesh; `without`: those left out."""

    cast: Cast
    payload: Payload
    sites: tuple[str, ...]
    without: tuple[int, ...]


class SendToAgent(Protocol):
    """Sends to the agent of a site; False if it is out of reach."""

    def __call__(self, site: str, message: Message, payload: Payload, /) -> bool: ...


class CastSender:
    """Sends what forests say, and knows which sites they do without."""

    def __init__(self, node: Node, tell_agent_at: SendToAgent) -> None:
        self._node = node
        self._send_to_agent = tell_agent_at
        self.lost: set[str] = set()

    def own(self, ref: ProcsRef) -> int | None:
        """The number of this process's site in a mesh that has ranks here."""
        here = self._node.site
        return ref.sites.index(here) if here in ref.sites else None

    def sites_of(self, ref: ProcsRef, where: Where) -> tuple[int, ...]:
        """The numbers of the sites with these ranks, but for those that are lost."""
        return sites_of(where, math.prod(ref.sizes) // len(ref.places), self._left_out(ref))

    def send(self, tree: TreeSender[SentCast], ref: ProcsRef, cast: Cast, payload: Payload) -> bool:
        """Send a cast on its way; False if there is no site left for it."""
        sites = self.sites_of(ref, cast.region)
        sent = SentCast(
            msgspec.structs.replace(cast, message=msgspec.structs.replace(cast.message)),
            payload, ref.sites, self._left_out(ref),
        )  # fmt: skip
        # A call stands until its ranks have answered, for which it may take another message.
        size = 0 if cast.call else payload.nbytes
        self._send(tree, tree.cast(cast.number, sites, sent, size, self.own(ref)))
        return bool(sites)

    def on_tree_done(self, tree: TreeSender[SentCast], message: TreeDone) -> None:
        """A stretch of hosts is done with a cast."""
        self._send(tree, tree.done(message.number, message.place, message.missing))

    def on_tree_stuck(self, tree: TreeSender[SentCast], message: TreeStuck) -> None:
        """A host on the way can't pass a cast on."""
        self._send(tree, tree.stuck(message.number, message.place, alive=True))

    def on_site_lost(self, tree: TreeSender[SentCast], site: int) -> None:
        """The site of that number is lost; what was to go by way of it is sent anew."""
        self._send(tree, tree.lost(site))

    def _left_out(self, ref: ProcsRef) -> tuple[int, ...]:
        if not self.lost:
            return ()
        return tuple(at for at, site in enumerate(ref.sites) if self._is_lost(site))

    def _is_lost(self, site: str) -> bool:
        return site in self.lost and not self._node.knows(agent_of(site, self._node.site))

    def _send(self, tree: TreeSender[SentCast], heads: Iterable[SendToHead]) -> None:
        for head in heads:
            sent, stretch = tree.item(head.number), head.stretch
            standing = tree.standing() if head.number % TELL_EVERY == 0 else None
            message = CastTree(
                stretch.first, stretch.count, tree.fanout, sent.without, head.before, standing,
                sent.cast,
            )  # fmt: skip
            if not self._send_to_agent(sent.sites[head.site], message, sent.payload):
                self._send(tree, tree.stuck(head.number, stretch.first, alive=False))
