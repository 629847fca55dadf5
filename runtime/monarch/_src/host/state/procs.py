"""One proc of a host, and the mesh that it belongs to: the states they go through. No I/O.

    STARTING --hello--> READY --stop--> STOPPING --ended--> ENDED
        |                 |                                   ^
        +----- ended / start failed --------------------------+

With a RestartRule, a proc that has been up and whose end nobody asked for is made again: as the
next *life* of its rank, under a node name of its own, so that nothing that was sent to the one
before can reach it. `host.state.restarts` says when, and when no more.

    STARTING, READY --ended--> RESTARTING --time passed--> STARTING
                                   |
                                   +--stop--> ENDED

`host.state.host` decides when; `now` is seconds on any clock that never goes back.
"""

from __future__ import annotations

import enum

import msgspec

from monarch._src.failures.report import Death, FailureKind, RankFailure
from monarch._src.host.state.restarts import Restarts
from monarch._src.wire.ids import life_of
from monarch._src.wire.messages import SpawnProcs, StopProc


class ProcState(enum.Enum):
    """Where a proc is in its life."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    ENDED = "ended"
    RESTARTING = "restarting"  # its process has ended, and the next is made at the deadline


TRANSITIONS: dict[ProcState, frozenset[ProcState]] = {
    ProcState.STARTING: frozenset(
        {ProcState.READY, ProcState.STOPPING, ProcState.ENDED, ProcState.RESTARTING}
    ),
    ProcState.READY: frozenset({ProcState.STOPPING, ProcState.ENDED, ProcState.RESTARTING}),
    ProcState.STOPPING: frozenset({ProcState.ENDED}),
    ProcState.ENDED: frozenset(),
    ProcState.RESTARTING: frozenset({ProcState.STARTING, ProcState.ENDED}),
}


class Proc(msgspec.Struct, eq=False):
    """One process of a mesh. `pid` is None until it exists; `deadline`: when it is killed.

    Of a rank that is restarted, this is the life that comes: `node` names that one, and `death` is
    the end of the one before.
    """

    node: str
    mesh: int
    rank: int
    asked_at: float
    deadline: float | None
    state: ProcState = ProcState.STARTING
    pid: int | None = None
    said_hello: bool = False
    untold: StopProc | None = None  # it is to be told that once it says hello
    expected: bool = False  # somebody asked for its end
    killed_for: str | None = None  # why the agent itself killed it, None if it did not
    death: Death | None = None
    kind: FailureKind = "proc died"
    life: int = 0
    restarts: Restarts | None = None  # None: it is not restarted
    gave_up: RankFailure | None = None  # the failure of its actor with which it ends
    story: list[tuple[float, ProcState]] = msgspec.field(
        default_factory=list[tuple[float, ProcState]]
    )

    def move(self, state: ProcState, now: float) -> None:
        """It goes into that state."""
        assert state in TRANSITIONS[self.state], f"{self.node}: {self.state} -> {state}"
        self.state = state
        self.story.append((now, state))

    def validate(self) -> None:
        """Assert what always holds of one process."""
        over = (ProcState.ENDED, ProcState.RESTARTING)
        assert self.state not in over or self.death is not None
        assert self.life or self.state in over or self.death is None
        assert self.life == life_of(self.node)
        assert (self.story[0][1] is ProcState.RESTARTING) == (self.life > 0)
        assert self.restarts is not None or not self.life
        if self.restarts is not None:
            self.restarts.validate()
            assert self.restarts.count == self.life
        if self.state is ProcState.RESTARTING:
            assert self.deadline is not None
            assert self.pid is None
            assert not self.expected
        assert self.state is not ProcState.READY or self.said_hello
        assert self.state is not ProcState.ENDED or self.deadline is None
        assert self.deadline is None or self.pid is None or self.killed_for is None
        for (_, before), (_, after) in zip(self.story, self.story[1:], strict=False):
            assert after in TRANSITIONS[before], f"{before} -> {after}"


class Mesh(msgspec.Struct, eq=False):
    """The procs of one `spawn_procs` that are on this host, by rank."""

    uid: int
    spec: SpawnProcs
    asked_at: float
    procs: list[Proc]
    stop_askers: list[str] = []
    stopping: bool = False

    def at(self, rank: int) -> Proc | None:
        """The proc of that rank, if it is one of this host."""
        index = rank - self.spec.first
        return self.procs[index] if 0 <= index < len(self.procs) else None

    @property
    def ranks(self) -> range:
        """Those of this host."""
        return range(self.spec.first, self.spec.first + len(self.procs))

    @property
    def ended(self) -> bool:
        return all(p.state is ProcState.ENDED for p in self.procs)

    def validate(self) -> None:
        """Assert what always holds of its procs."""
        for rank, proc in zip(self.ranks, self.procs, strict=True):
            assert (proc.mesh, proc.rank) == (self.uid, rank)
            assert self.at(rank) is proc
            assert not (self.stopping and proc.state is ProcState.RESTARTING)
            proc.validate()
