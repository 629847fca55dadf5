"""One proc of a host and its mesh: the states they go through. No I/O.

    STARTING --hello--> READY --stop--> STOPPING --ended--> ENDED
        |                 |                                   ^
        +----- ended / start failed --------------------------+

With a RestartRule, a proc that was ready and ended unexpectedly is started again, as the next
incarnation of its rank. The new incarnation has a node name of its own, so messages to the old one
cannot reach it. `host.state.restarts` says when it starts, and when the limit is reached.

    STARTING, READY --ended--> RESTARTING --time passed--> STARTING
                                   |
                                   +--stop--> ENDED

`Host.restart_requested` restarts a proc by request, whatever its rule: one that has ended at once,
and a living one (`asked_again`) when it has ended.

    ENDED --requested--> RESTARTING --> STARTING

`host.state.host` makes the transitions; `now` is seconds on any clock that never goes back.
"""

from __future__ import annotations

import enum

import msgspec

from monarch._src.failures.report import Death, FailureKind, RankFailure
from monarch._src.host.state.restarts import Restarts
from monarch._src.wire.ids import life_of
from monarch._src.wire.messages import RestartRule, SpawnProcs, StopProc


class ProcState(enum.Enum):
    """The state of a proc."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    ENDED = "ended"
    RESTARTING = "restarting"  # its process has ended; the next starts at the deadline


TRANSITIONS: dict[ProcState, frozenset[ProcState]] = {
    ProcState.STARTING: frozenset(
        {ProcState.READY, ProcState.STOPPING, ProcState.ENDED, ProcState.RESTARTING}
    ),
    ProcState.READY: frozenset({ProcState.STOPPING, ProcState.ENDED, ProcState.RESTARTING}),
    ProcState.STOPPING: frozenset({ProcState.ENDED}),
    ProcState.ENDED: frozenset({ProcState.RESTARTING}),
    ProcState.RESTARTING: frozenset({ProcState.STARTING, ProcState.ENDED}),
}


class Proc(msgspec.Struct, eq=False):
    """One process of a mesh. `pid` is None until it exists; it is killed at `deadline`.

    For a rank that is being restarted, `node` and `life` name the next incarnation, and `death` is
    the end of the last one.
    """

    node: str
    mesh: int
    rank: int
    asked_at: float
    deadline: float | None
    state: ProcState = ProcState.STARTING
    pid: int | None = None
    said_hello: bool = False
    pending_stop: StopProc | None = None  # sent once it says hello
    expected: bool = False  # its end was asked for
    drained: str | None = None  # why the host ends it in order; None: it does not
    killed_for: str | None = None  # why the agent killed it; None if it did not
    death: Death | None = None
    kind: FailureKind = "proc died"
    life: int = 0
    restarts: Restarts | None = None  # None: it is not restarted
    gave_up: RankFailure | None = None  # the failure of an actor that ends it
    asked_again: bool = False  # it was told to end, and its rank is restarted then
    told: set[str] = msgspec.field(default_factory=set[str])  # the nodes that know of its last end
    story: list[tuple[float, ProcState]] = msgspec.field(
        default_factory=list[tuple[float, ProcState]]
    )

    def move(self, state: ProcState, now: float) -> None:
        """Enter that state."""
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
        assert not self.told or self.state is ProcState.ENDED
        assert not self.asked_again or self.state in (ProcState.READY, ProcState.STARTING)
        if self.restarts is not None:
            self.restarts.validate()
            assert self.restarts.count == self.life
        if self.state is ProcState.RESTARTING:
            assert self.deadline is not None
            assert self.pid is None
            assert not self.expected
            assert self.pending_stop is None
        assert self.state is not ProcState.READY or self.said_hello
        assert self.state is not ProcState.ENDED or self.deadline is None
        assert self.deadline is None or self.pid is None or self.killed_for is None
        for (_, before), (_, after) in zip(self.story, self.story[1:], strict=False):
            assert after in TRANSITIONS[before], f"{before} -> {after}"


class Mesh(msgspec.Struct, eq=False):
    """The procs of one `spawn_procs` on this host, by rank."""

    uid: int
    spec: SpawnProcs
    asked_at: float
    procs: list[Proc]
    stop_askers: list[str] = []
    stopping: bool = False

    def at(self, rank: int) -> Proc | None:
        """The proc of that rank, if the rank is on this host."""
        index = rank - self.spec.first
        return self.procs[index] if 0 <= index < len(self.procs) else None

    def set_restart_rule(self, rule: RestartRule) -> bool:
        """Restart procs by this rule from now on; False if the mesh was spawned without one.

        Earlier deaths do not count towards its limit.
        """
        if self.spec.restart is None:
            return False
        for proc in self.procs:
            if proc.restarts is not None:
                proc.restarts.rule = rule
                proc.restarts.recent.clear()
        return True

    @property
    def ranks(self) -> range:
        """The ranks on this host."""
        return range(self.spec.first, self.spec.first + len(self.procs))

    @property
    def ended(self) -> bool:
        return all(p.state is ProcState.ENDED for p in self.procs)

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        for rank, proc in zip(self.ranks, self.procs, strict=True):
            assert (proc.mesh, proc.rank) == (self.uid, rank)
            assert self.at(rank) is proc
            assert not (self.stopping and proc.state is ProcState.RESTARTING)
            proc.validate()
