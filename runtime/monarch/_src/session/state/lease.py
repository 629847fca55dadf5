"""Lease: whether a session outlives its client, and which client holds it. No I/O.

A session begins *tied*: it ends with the client that started it. A client *keeps* it by giving it a
name. When that client detaches or dies, the kept meshes live on until another client attaches. One
client at a time holds a session. Each client is a node of its own, so that messages of earlier
clients can't be mistaken for its own.

    TIED --kept--> ATTACHED --detached / client lost--> DETACHED --attached--> ATTACHED
      |               |  ^ |                               |
      |               |  +-+ taken over                    | its last kept mesh is gone,
      |               |                                    | or it is told to end
      +-- client lost, detached with nothing kept, told to end --> ENDING

Events are methods named in the past tense; each returns the actions that follow, in order. The
driver is `monarch._src.session.agent_part`. `now` is a time of day in seconds, since people read
it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TypeAlias

import msgspec


class LeaseState(enum.Enum):
    """The states of a session."""

    TIED = "tied"
    ATTACHED = "attached"
    DETACHED = "detached"
    ENDING = "ending"


TRANSITIONS: dict[LeaseState, frozenset[LeaseState]] = {
    LeaseState.TIED: frozenset({LeaseState.ATTACHED, LeaseState.ENDING}),
    LeaseState.ATTACHED: frozenset(
        {LeaseState.ATTACHED, LeaseState.DETACHED, LeaseState.ENDING}
    ),
    LeaseState.DETACHED: frozenset({LeaseState.ATTACHED, LeaseState.ENDING}),
    LeaseState.ENDING: frozenset(),
}  # fmt: skip


class Holder(msgspec.Struct, frozen=True):
    """A client: its node, and its process for people. `since`: when it became the holder.

    `began` distinguishes processes with the same pid.
    """

    node: str
    address: str
    pid: int
    began: str
    program: str
    host: str
    since: float

    @property
    def words(self) -> str:
        """`process 123 (python train.py) on host`."""
        return process_words(self.pid, self.program, self.host)


def process_words(pid: int, program: str, host: str) -> str:
    """`process 123 (python train.py) on host`."""
    return f"process {pid} ({program}) on {host}" if program else f"process {pid} on {host}"


class EndSession(msgspec.Struct, frozen=True):
    """Stop everything, then end."""

    why: str


class ReleaseClient(msgspec.Struct, frozen=True):
    """That node is no longer the client, and there is no other: end all that is not kept."""

    node: str
    why: str


class Evict(msgspec.Struct, frozen=True):
    """As `ReleaseClient`, and tell that client, which lives, which client has taken its place."""

    node: str
    why: str


class Grant(msgspec.Struct, frozen=True):
    """That client owns the kept meshes from now on: send them to it, and tell their procs."""

    holder: Holder


class Refuse(msgspec.Struct, frozen=True):
    """Tell a client that it can't have the session."""

    node: str
    why: str


class WriteRecord(msgspec.Struct, frozen=True):
    """The session's record for other processes has changed."""


Action: TypeAlias = EndSession | ReleaseClient | Evict | Grant | Refuse | WriteRecord


class Lease:
    """The lease of one session."""

    def __init__(self, holder: Holder) -> None:
        self.state = LeaseState.TIED
        self.name = ""  # under which it is kept; empty exactly while it never was
        # The client that holds it, or was the last to: the owner of all meshes made by clients.
        self.holder = holder
        self.number = 0  # how many clients held it before this one
        self.kept_since = 0.0
        self.left = ""  # why no client holds it
        # All and only the meshes that a client has made and that outlive it.
        self.meshes: set[int] = set()
        self.story: list[tuple[float, LeaseState]] = [(holder.since, self.state)]

    # --- events -------------------------------------------------------------------------------

    def keep_asked(self, node: str, name: str, meshes: Iterable[int], now: float) -> list[Action]:
        """The holder asks to keep these meshes, in a session of that name."""
        if node != self.holder.node or self.state not in (LeaseState.TIED, LeaseState.ATTACHED):
            return [Refuse(node, f"it is held by {self.holder.words}")]
        if self.name and name != self.name:
            return [Refuse(node, f"it is kept as {self.name!r} already; use that name")]
        if self.state is LeaseState.TIED:
            self.name, self.kept_since = name, now
            self._move(LeaseState.ATTACHED, now)
        self.meshes.update(meshes)
        return [WriteRecord()]

    def mesh_gone(self, mesh: int, now: float) -> list[Action]:
        """Every proc of that mesh has ended, or it is being stopped."""
        if mesh not in self.meshes:
            return []
        self.meshes.discard(mesh)
        if self.state is LeaseState.DETACHED and not self.meshes:
            return self._end("all of its kept meshes have ended", now)
        return [WriteRecord()]

    def client_lost(self, now: float) -> list[Action]:
        """The process of the holder has ended."""
        if self.state in (LeaseState.ENDING, LeaseState.DETACHED):
            return []
        return self._left(f"{self.holder.words} has ended", now)

    def detached(self, node: str, now: float) -> list[Action]:
        """The holder detaches."""
        if node != self.holder.node or self.state in (LeaseState.ENDING, LeaseState.DETACHED):
            return []
        return self._left(f"{self.holder.words} has detached from it", now)

    def attach_asked(
        self, client: Holder, now: float, *, take: bool, holder_lives: bool
    ) -> list[Action]:
        """A client asks to hold it. `take`: also if another client, which lives, does."""
        match self.state:
            case LeaseState.ENDING:
                return [Refuse(client.node, "it is ending")]
            case LeaseState.TIED:
                return [
                    Refuse(
                        client.node,
                        f"it is not kept: it belongs to {self.holder.words} and ends with it",
                    )
                ]
            case LeaseState.DETACHED:
                leave: list[Action] = []
            case LeaseState.ATTACHED:
                if not holder_lives:
                    leave = self.client_lost(now)
                    if self.ending:
                        return [*leave, Refuse(client.node, "it is ending")]
                elif not take:
                    return [
                        Refuse(
                            client.node,
                            f"{self.holder.words} holds it; take=True (--take) takes it over",
                        )
                    ]
                elif not self.meshes:  # as when the holder detaches: there is nothing to give
                    return [Refuse(client.node, "all of its kept meshes have ended")]
                else:
                    leave = [Evict(self.holder.node, f"{client.words} has taken it over")]
        self.holder = client
        self.number += 1
        self.left = ""
        self._move(LeaseState.ATTACHED, now)
        # The record comes first, so that it is there when the client gets its answer.
        return [*leave, WriteRecord(), Grant(client)]

    def told_to_end(self, why: str, now: float) -> list[Action]:
        """The client, or a signal, ends the session."""
        return [] if self.ending else self._end(why, now)

    # --- questions ----------------------------------------------------------------------------

    @property
    def ending(self) -> bool:
        """Whether the session is ending."""
        return self.state is LeaseState.ENDING

    @property
    def client(self) -> str:
        """The node that holds it; empty if none does."""
        held = self.state in (LeaseState.TIED, LeaseState.ATTACHED)
        return self.holder.node if held else ""

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        assert (self.state is LeaseState.TIED) <= (not self.name), "a session with a name is kept"
        assert not self.meshes or self.name
        assert self.state is not LeaseState.DETACHED or (self.meshes and self.left)
        assert self.state is not LeaseState.ATTACHED or not self.left
        assert self.story[-1][1] is self.state
        for (_, before), (_, after) in zip(self.story, self.story[1:], strict=False):
            assert after in TRANSITIONS[before], f"{before} -> {after}"

    # --- inside -------------------------------------------------------------------------------

    def _left(self, why: str, now: float) -> list[Action]:
        if not self.meshes:
            return self._end(why, now)
        self.left = why
        self._move(LeaseState.DETACHED, now)
        return [ReleaseClient(self.holder.node, why), WriteRecord()]

    def _end(self, why: str, now: float) -> list[Action]:
        self._move(LeaseState.ENDING, now)
        return [EndSession(why)]

    def _move(self, state: LeaseState, now: float) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state
        self.story.append((now, state))
