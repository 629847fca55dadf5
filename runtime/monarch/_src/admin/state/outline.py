"""The rows of the terminal view: which nodes are shown, in which order. No I/O.

Among siblings those that have failed, or have failures below them, come first. A search shows the
nodes whose text contains it and the nodes above them, expanded or not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from monarch._src.admin.state.nodes import Cluster, NodePayload, label, printable

SYSTEM = "monarch._src."


class OutlineRow(NamedTuple):
    """One line. `marker`: whether the node can be expanded, or collapsed."""

    identity: str
    depth: int
    marker: str
    text: str
    state: str
    is_failed: bool


@dataclass
class Outline:
    """The choices of the user: expanded nodes, kinds of actors, the searched text."""

    expanded: set[str] = field(default_factory=lambda: {"root"})
    known_hosts: set[str] = field(default_factory=set[str])
    shows_system: bool = False
    shows_stopped: bool = False
    search: str = ""

    def toggle(self, identity: str) -> None:
        """Expand the node, or collapse it."""
        self.expanded ^= {identity}

    def collapse_all(self) -> None:
        """Show hosts only."""
        self.expanded = {"root"}

    def rows(self, cluster: Cluster) -> list[OutlineRow]:
        """The rows of a snapshot. A host is expanded when it is seen for the first time."""
        for identity in cluster.nodes["root"].children:
            if identity not in self.known_hosts:
                self.known_hosts.add(identity)
                self.expanded.add(identity)
        found = self._found(cluster) if self.search else None
        rows: list[OutlineRow] = []
        self._add(cluster, "root", 0, rows, found)
        return rows

    def _add(
        self,
        cluster: Cluster,
        identity: str,
        depth: int,
        rows: list[OutlineRow],
        found: Collection[str] | None,
    ) -> None:
        node = cluster.nodes[identity]
        children = [child for child in node.children if self._shows(cluster.nodes[child], found)]
        is_open = found is not None or identity in self.expanded
        marker = " " if not children else "▾" if is_open else "▸"
        rows.append(
            OutlineRow(
                identity, depth, marker, printable(label(node)), state_of(node),
                node.failure is not None,
            )
        )  # fmt: skip
        if is_open:
            children.sort(key=lambda child: cluster.nodes[child].failure is None)  # keeps the order
            for child in children:
                self._add(cluster, child, depth + 1, rows, found)

    def _shows(self, node: NodePayload, found: Collection[str] | None) -> bool:
        if found is not None and node.identity not in found:
            return False
        actor = node.properties.Actor
        if actor is None:
            return True
        if not self.shows_system and actor.actor_type.startswith(SYSTEM):
            return False
        return self.shows_stopped or actor.actor_status != "stopped"

    def _found(self, cluster: Cluster) -> set[str]:
        """The nodes that the search finds, and the nodes above them."""
        wanted = self.search.casefold()
        found: set[str] = set()
        for identity, node in cluster.nodes.items():
            if wanted in label(node).casefold():
                at: str | None = identity
                while at is not None and at not in found:
                    found.add(at)
                    at = cluster.nodes[at].parent
        return found


def state_of(node: NodePayload) -> str:
    """The state of a node in one word."""
    found = node.properties
    if found.Proc is not None:
        return found.Proc.status
    if found.Actor is not None:
        return found.Actor.actor_status
    if found.Error is not None:
        return "no answer"
    return "failed" if node.failure else "ok"
