"""The interface between a host agent and the component that ties it to a client.

The agent of a session is tied to the client that started it, or kept (`session.agent_part`). The
agent of a worker host serves clients one after the other (`session.workers.worker_part`). Each of
them watches the process of a client that runs on this host, by a `ClientProcess`.

Runs in: the host agent, on its one thread. A `ClientProcess` owns a pidfd, which reports the end of
the process at once, while links and sockets may break and come back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from monarch._src.host.state import host as core_host
from monarch._src.system.process import pidfd
from monarch._src.wire.messages import Cast, Snapshot, Snapshotted, SpawnProcs


class AgentServices(msgspec.Struct, frozen=True):
    """Operations of the agent that its owner calls."""

    watch: Callable[[int, Callable[[], None]], None]  # call it when that is readable
    watch_quietly: Callable[[int, Callable[[], None]], None]  # the same, but without `wake_parts`
    unwatch: Callable[[int], object]
    do: Callable[[Sequence[core_host.Action]], None]  # carry out decisions of the `Host`
    end: Callable[[str], None]  # stop every mesh, then end; the argument says why
    receivers: Callable[[Cast], list[str]]  # of a cast: see `CastRelay.receivers`
    drop_client: Callable[[str], None]  # drop a client: no more answers, no more output
    site_lost: Callable[[str], None]  # the link to that host is gone
    snapshot: Callable[[Snapshot], Snapshotted]  # answer a request for a snapshot
    wake_parts: Callable[[], None]  # have every part of the agent handle an event


class AgentOwner(Protocol):
    """Decides which client the agent serves, and when the agent ends."""

    handlers: dict[type, Callable[[str, Any, Any], None]]

    @property
    def client(self) -> str:
        """The node of the client that holds this host, or of the last one that did."""
        ...

    @property
    def client_now(self) -> str:
        """The node of the client that holds this host; empty while none does."""
        ...

    @property
    def client_number(self) -> int:
        """How many clients held the session before this one."""
        ...

    @property
    def serves_at(self) -> tuple[str, list[str]]:
        """Where procs listen for bulk data, and the addresses that other hosts dial."""
        ...

    @property
    def is_awaited(self) -> bool:
        """Whether a client waits for the end of the procs of an earlier one."""
        ...

    @property
    def needs_timer(self) -> bool:
        """Whether the agent has to poll soon, since no event will wake it."""
        ...

    @property
    def is_pending(self) -> bool:
        """Whether the agent has to poll at once."""
        ...

    @property
    def needs_polling(self) -> bool:
        """Whether the agent has to check from time to time that the client lives."""
        ...

    def begin(self) -> None:
        """Connect to the client, if there is one."""
        ...

    def poll_client(self) -> None:
        """Check that the client lives."""
        ...

    def after_poll(self) -> None:
        """Every message that had arrived was handled: act on what follows."""
        ...

    def report_ends(self) -> bool:
        """Drop a client that has ended, once its last messages have arrived.

        Returns True if the socket has to be read once more.
        """
        ...

    def next_deadline(self) -> float | None:
        """The time at which `after_poll` has something to do, or None."""
        ...

    def obeys(self, peer: str) -> bool:
        """Whether the agent accepts messages of that node."""
        ...

    def mesh_spawned(self, spec: SpawnProcs) -> None:
        """A client has asked for a mesh."""
        ...

    def proc_starting(self, *nodes: str) -> None:
        """Procs are about to start."""
        ...

    def proc_ended(self, mesh: int, rank: int) -> None:
        """The process of that rank has ended."""
        ...

    def mesh_freed(self, mesh: int) -> None:
        """The mesh has ended and its resources are released."""
        ...

    def told_to_end(self, why: str) -> None:
        """A signal, or the client, has told the agent to end."""
        ...

    def note(self, what: str, peer: str, **facts: str) -> None:
        """Write an operator's action to the audit log."""
        ...

    def close(self) -> None:
        """Release what the owner holds."""
        ...


class ClientProcess:
    """The watch of a client's process.

    It calls `ended` once when the process has ended, and stops watching then.
    """

    def __init__(self, driver: AgentServices, ended: Callable[[], None]) -> None:
        self._driver = driver
        self._on_end = ended
        self._fd: int | None = None

    @property
    def is_watched(self) -> bool:
        """Whether the end of a process will be reported."""
        return self._fd is not None

    def watch(self, pid: int, is_client: Callable[[], bool]) -> None:
        """Watch that process in place of an earlier one, if `is_client` confirms the client."""
        self.unwatch()
        fd = pidfd(pid)
        if fd is not None and not is_client():  # asked now that the pid cannot be reused
            os.close(fd)
        elif fd is not None:
            self._fd = fd
            self._driver.watch(fd, self._ended)

    def unwatch(self) -> None:
        """Stop watching. Idempotent."""
        if self._fd is not None:
            self._driver.unwatch(self._fd)
            os.close(self._fd)
            self._fd = None

    def _ended(self) -> None:
        self.unwatch()
        self._on_end()
