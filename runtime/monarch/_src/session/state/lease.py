"""Whether a session outlives its client, and who holds it. No I/O.

A session begins *tied*: it ends with the client that started it. A client that gives it a name
*keeps* it: meshes that are kept live on when that client lets go or dies, until another one
attaches. One client at a time holds a session; each that comes is a node of its own, so that what
earlier ones had sent or were owed can't be mistaken for theirs.

    TIED --kept--> ATTACHED --let go / client lost--> DETACHED --attached--> ATTACHED
      |               |  ^ |                             |
      |               |  +-+ taken over                  | its last kept mesh is gone,
      |               |                                  | or it is told to end
      +-- client lost, let go of nothing kept, told to end --> ENDING

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
    """Whose a session is."""

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
    """A client: its node, and what people know it by. `since`: when it became the holder.

    `began` tells two lives of one pid apart.
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


class End(msgspec.Struct, frozen=True):
    """Stop everything, then end."""

    why: str


class ReleaseClient(msgspec.Struct, frozen=True):
    """That node is the client no more, and nobody is yet: stop what is tied to it, forget it."""

    node: str
    why: str


class Evict(msgspec.Struct, frozen=True):
    """As Leave, and tell that client, which lives, who has taken its place."""

    node: str
    why: str


class Grant(msgspec.Struct, frozen=True):
    """That client owns the kept meshes from now on: give them to it, and tell their procs."""

    holder: Holder


class Refuse(msgspec.Struct, frozen=True):
    """Tell a client that it can't have the session."""

    node: str
    why: str


class WriteRecord(msgspec.Struct, frozen=True):
    """What others can read of the session has changed."""


Action: TypeAlias = End | ReleaseClient | Evict | Grant | Refuse | WriteRecord


class Lease:
    """The lease of one session."""

    def __init__(self, holder: Holder) -> None:
        self.state = LeaseState.TIED
        self.name = ""  # under which it is kept; empty exactly while it never was
        # Who holds it, or was the last to: the owner of all meshes that clients have made.
        self.holder = holder
        self.number = 0  # how many clients held it before this one
        self.kept_since = 0.0
        self.left = ""  # why nobody holds it
        # All and only the meshes that a client has made and that outlive it.
        self.meshes: set[int] = set()
        self.story: list[tuple[float, LeaseState]] = [(holder.since, self.state)]

    # --- events -------------------------------------------------------------------------------

    def keep_asked(self, node: str, name: str, meshes: Iterable[int], now: float) -> list[Action]:
        """The holder wants these meshes to outlive it, in a session of that name."""
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
        """Nothing is left of that mesh, or it is stopped and will be gone."""
        if mesh not in self.meshes:
            return []
        self.meshes.discard(mesh)
        if self.state is LeaseState.DETACHED and not self.meshes:
            return self._end("nothing is left of what it kept", now)
        return [WriteRecord()]

    def client_lost(self, now: float) -> list[Action]:
        """The process of the holder has ended."""
        if self.state in (LeaseState.ENDING, LeaseState.DETACHED):
            return []
        return self._left(f"{self.holder.words} has ended", now)

    def let_go(self, node: str, now: float) -> list[Action]:
        """The holder wants no more of it."""
        if node != self.holder.node or self.state in (LeaseState.ENDING, LeaseState.DETACHED):
            return []
        return self._left(f"{self.holder.words} has let go of it", now)

    def attach_asked(
        self, client: Holder, now: float, *, take: bool, holder_lives: bool
    ) -> list[Action]:
        """A client wants to hold it. `take`: also if another one does, which lives."""
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
                elif not self.meshes:  # as when the holder lets go: there is nothing to give
                    return [Refuse(client.node, "nothing is left of what it kept")]
                else:
                    leave = [Evict(self.holder.node, f"{client.words} has taken it over")]
        self.holder = client
        self.number += 1
        self.left = ""
        self._move(LeaseState.ATTACHED, now)
        # Who looks as soon as the client has its answer finds the record of it.
        return [*leave, WriteRecord(), Grant(client)]

    def told_to_end(self, why: str, now: float) -> list[Action]:
        """By its client, or by a signal."""
        return [] if self.ending else self._end(why, now)

    # --- questions ----------------------------------------------------------------------------

    @property
    def ending(self) -> bool:
        """Whether everything ends."""
        return self.state is LeaseState.ENDING

    @property
    def client(self) -> str:
        """The node that holds it; empty if none does."""
        held = self.state in (LeaseState.TIED, LeaseState.ATTACHED)
        return self.holder.node if held else ""

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        assert (self.state is LeaseState.TIED) <= (not self.name), "what has a name is kept"
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
        return [End(why)]

    def _move(self, state: LeaseState, now: float) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state
        self.story.append((now, state))
