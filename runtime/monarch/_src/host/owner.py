"""What a host agent asks of who keeps the tie between it and its client.

The agent that a client has started is tied to that one, or kept (`session.agent_part`); that of a
worker host takes clients as they come (`session.worker_part`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from monarch._src.host.state import host as core_host
from monarch._src.wire.messages import Cast, Snapshot, Snapshotted, SpawnProcs


class AgentServices(msgspec.Struct, frozen=True):
    """What the agent does for this."""

    watch: Callable[[int, Callable[[], None]], None]  # call that when the descriptor is readable
    watch_quietly: Callable[[int, Callable[[], None]], None]  # and what comes may not `stir`
    unwatch: Callable[[int], object]
    do: Callable[[Sequence[core_host.Action]], None]  # carry out what the host has decided
    end: Callable[[str], None]  # stop everything, then end
    receivers: Callable[[Cast], list[str]]  # of a cast: see Casting.receivers
    part: Callable[[str], None]  # that client is owed nothing any more: no answers, no output
    site_lost: Callable[[str], None]  # nothing goes to that other host any more
    seen: Callable[[Snapshot], Snapshotted]  # what the ranks of this host do
    stir: Callable[[], None]  # something has happened here that others may have to look at


class AgentOwner(Protocol):
    """See the module's text."""

    handlers: dict[type, Callable[[str, Any, Any], None]]

    @property
    def client(self) -> str:
        """The node that has the host, or the last that had: who owns what clients make."""
        ...

    @property
    def client_now(self) -> str:
        """The same; empty while nobody has it."""
        ...

    @property
    def client_number(self) -> int:
        """How many clients had what this one has before it."""
        ...

    @property
    def serves_at(self) -> tuple[str, list[str]]:
        """Where procs listen for bulk data of other hosts, and what those are told to dial."""
        ...

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for the end of what a client had."""
        ...

    @property
    def is_restless(self) -> bool:
        """Whether the agent has to look again soon: nothing will tell it."""
        ...

    @property
    def is_pending(self) -> bool:
        """Whether the agent has to look again at once."""
        ...

    @property
    def looks(self) -> bool:
        """Whether somebody has to look now and then if the client lives: no descriptor tells."""
        ...

    def begin(self) -> None:
        """Have a connection to the client, if there is one."""
        ...

    def look(self) -> None:
        """Look whether the client lives."""
        ...

    def looked(self) -> None:
        """Everything that has come was handled: do what follows of it."""
        ...

    def tell_of_ends(self) -> bool:
        """Let go of a client that has ended and said all; True to look at the socket once more."""
        ...

    def next_deadline(self) -> float | None:
        """When `looked` has something to do, or None."""
        ...

    def obeys(self, peer: str) -> bool:
        """Whether messages of that node count."""
        ...

    def spawned(self, spec: SpawnProcs) -> None:
        """A mesh was asked for."""
        ...

    def proc_comes(self, *nodes: str) -> None:
        """Procs begin."""
        ...

    def proc_ended(self, mesh: int, rank: int) -> None:
        """A proc is gone."""
        ...

    def mesh_freed(self, mesh: int) -> None:
        """Nothing is left of that mesh."""
        ...

    def told_to_end(self, why: str) -> None:
        """By a signal, or by the client."""
        ...

    def note(self, what: str, peer: str, **facts: str) -> None:
        """An operator has done something; for the audit."""
        ...

    def close(self) -> None:
        """Give back what this holds."""
        ...
