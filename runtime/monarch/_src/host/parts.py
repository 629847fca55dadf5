"""Parts of the host agent that belong to features of higher packages: stacks, breakpoints.

Runs in: the host agent, on its one thread.
Owns: each part, from the first message for it on.
Invariants: this package imports no such part. The main program gives the agent a table from the
class of a message to the dotted name of the part that handles it, and the part is imported with
its first message: an agent that gets no request for stacks does not load the code that reads them.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias, cast

from monarch._src.host.owner import AgentOwner
from monarch._src.host.state.host import Host
from monarch._src.host.status_board import Board
from monarch._src.logs.state.line_ring import LineRing
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import MeshState, Snapshot, Snapshotted

Handlers: TypeAlias = "dict[type, Callable[[str, Any, Payload], None]]"
PartTable: TypeAlias = "Mapping[type, str]"
"""From the class of a message to `module:attribute`, which is called with an `AgentView`."""


@dataclass(frozen=True)
class AgentView:
    """Objects of the agent that its parts share. `boards` is live: it gains and loses meshes.

    `snapshot` answers a request for a snapshot; `lines` are the last lines of all ranks.
    """

    node: Node
    host: Host
    owner: AgentOwner
    boards: Mapping[int, Board]
    selector: selectors.BaseSelector
    snapshot: Callable[[Snapshot], Snapshotted]
    lines: LineRing


class Part:
    """A part: its handlers, and events of the agent, which do nothing unless it overrides them."""

    handlers: Handlers

    def on_proc_connected(self, proc: str) -> None:
        """The proc of that node has connected."""

    def on_proc_ended(self, proc: str) -> None:
        """The process of that node has ended."""

    def on_client_gone(self, client: str) -> None:
        """That client has ended, or let go of the host."""

    def after_poll(self) -> None:
        """The agent has handled every message that it could read."""

    def next_deadline(self) -> float | None:
        """When `after_poll` has something to do without a message, or None."""
        return None

    def amend_snapshot(self, states: Sequence[MeshState]) -> None:
        """Enter into a snapshot, before it is sent, the state that only this part knows."""


class Parts:
    """The parts of one agent; passes each event on to those that are loaded."""

    def __init__(self, table: PartTable, view: AgentView) -> None:
        self._table = table
        self._view = view
        self._loaded: dict[str, Part] = {}  # by dotted name
        self.handlers: Handlers = dict.fromkeys(table, self._on_message)

    def _on_message(self, peer: str, message: Any, payload: Payload) -> None:
        name = self._table[type(message)]
        part = self._loaded.get(name)
        if part is None:
            module, _, attribute = name.partition(":")
            make = cast("Callable[[AgentView], Part]", getattr(import_module(module), attribute))
            part = self._loaded[name] = make(self._view)
        part.handlers[type(message)](peer, message, payload)

    def on_proc_connected(self, proc: str) -> None:
        """See `Part`."""
        for part in self._loaded.values():
            part.on_proc_connected(proc)

    def on_proc_ended(self, proc: str) -> None:
        """See `Part`."""
        for part in self._loaded.values():
            part.on_proc_ended(proc)

    def on_client_gone(self, client: str) -> None:
        """See `Part`."""
        for part in self._loaded.values():
            part.on_client_gone(client)

    def after_poll(self) -> None:
        """See `Part`."""
        for part in self._loaded.values():
            part.after_poll()

    def next_deadline(self) -> float | None:
        """See `Part`."""
        known = (part.next_deadline() for part in self._loaded.values())
        return min((found for found in known if found is not None), default=None)

    def amend_snapshot(self, states: Sequence[MeshState]) -> None:
        """See `Part`."""
        for part in self._loaded.values():
            part.amend_snapshot(states)
