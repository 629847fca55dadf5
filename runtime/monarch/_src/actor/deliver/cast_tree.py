"""Sends casts over a tree of hosts, as the pure `host.state.cast_tree` decides.

Runs in: any process, under the lock of the mesh route that a tree belongs to.
Owns: the set of lost sites, which later casts leave out.
Invariants: this process sends a cast only to the heads of its tree. If a head is lost or cannot
relay, this process sends the cast to its replacement.
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

TELL_EVERY = 32  # so often, in casts, hosts learn which casts are finished


class SentCast(msgspec.Struct, frozen=True):
    """A cast over a tree of hosts. `sites`: of the mesh; `without`: the indices of lost ones."""

    cast: Cast
    payload: Payload
    sites: tuple[str, ...]
    without: tuple[int, ...]


class SendToAgent(Protocol):
    """Sends a message to the agent of a site; returns False if the agent is out of reach."""

    def __call__(self, site: str, message: Message, payload: Payload, /) -> bool: ...


class CastSender:
    """Sends what forests say, and knows which sites they do without."""

    def __init__(self, node: Node, tell_agent_at: SendToAgent) -> None:
        self._node = node
        self._send_to_agent = tell_agent_at
        self.lost: set[str] = set()

    def own(self, ref: ProcsRef) -> int | None:
        """The index of this process's site in the mesh, if the mesh has ranks here."""
        here = self._node.site
        return ref.sites.index(here) if here in ref.sites else None

    def sites_of(self, ref: ProcsRef, where: Where) -> tuple[int, ...]:
        """The indices of the sites with these ranks, without lost sites."""
        return sites_of(where, math.prod(ref.sizes) // len(ref.places), self._left_out(ref))

    def send(self, tree: TreeSender[SentCast], ref: ProcsRef, cast: Cast, payload: Payload) -> bool:
        """Send a cast; False if no site is left for it."""
        sites = self.sites_of(ref, cast.region)
        sent = SentCast(
            msgspec.structs.replace(cast, message=msgspec.structs.replace(cast.message)),
            payload, ref.sites, self._left_out(ref),
        )  # fmt: skip
        # A call stays until its ranks have answered, which may depend on another message.
        size = 0 if cast.call else payload.nbytes
        self._send(tree, tree.cast(cast.number, sites, sent, size, self.own(ref)))
        return bool(sites)

    def on_tree_done(self, tree: TreeSender[SentCast], message: TreeDone) -> None:
        """A range of hosts has finished a cast."""
        self._send(tree, tree.done(message.number, message.place, message.missing))

    def on_tree_stuck(self, tree: TreeSender[SentCast], message: TreeStuck) -> None:
        """A host of the tree cannot relay a cast."""
        self._send(tree, tree.stuck(message.number, message.place, alive=True))

    def on_site_lost(self, tree: TreeSender[SentCast], site: int) -> None:
        """A site is lost: casts that it should have relayed are sent again."""
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
