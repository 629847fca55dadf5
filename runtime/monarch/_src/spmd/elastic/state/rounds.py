"""The rounds by which ranks form a group again after deaths. No I/O, no clock.

A *unit* is one proc mesh that was spawned for a *slot*: slot n is replica n, and there is one slot
where there are no replicas. Each event returns the actions to take; the last one begins a stage,
and its end is the next event.

    state    IDLE -> WAITING -> LOOKING -> RESTORING -> JOINING -> RUNNING -> IDLE
                                   LOOKING -> LOADING -> JOINING
    any stage that loses a rank -> WAITING or LOOKING, with the next generation

- A rank that is lost, but comes back, is looked at again in its unit: its state is gone.
- A rank that is lost for good takes its unit with it. The slot gets another unit; the ranks that
  are left of the old unit still send state, until the next one has it, and are then released.
- The group goes on with fewer units, down to `least`. A new unit is taken in between two steps: the
  collectives of the running group are ended for that, so that step is repeated.
- Where units are not spawned again (`spawns_again`), a rank that is lost for good ends training.
- If `most` rounds in a row bring no step forward, training has failed.

Invariant: a generation number is used once, and every member of a group has the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TypeAlias

import msgspec

from monarch._src.spmd.elastic.state.plan import (
    Member,
    Plan,
    Report,
    first_plan,
    plan,
    plan_of_one_source,
)


class Loss(msgspec.Struct, frozen=True):
    """A member is gone; if not `final`, another process takes its place."""

    why: str
    final: bool


class Spawn(msgspec.Struct, frozen=True):
    """Spawn a unit for that slot."""

    slot: int


class Release(msgspec.Struct, frozen=True):
    """Stop that unit: nothing needs it any more."""

    unit: int


class EndGroups(msgspec.Struct, frozen=True):
    """End the collectives of all members, so that their calls end."""

    why: str


class Await(msgspec.Struct, frozen=True):
    """Wait for units that are being spawned."""


class Look(msgspec.Struct, frozen=True):
    """Ask these members for their reports."""

    generation: int
    members: tuple[Member, ...]


class Restore(msgspec.Struct, frozen=True):
    """Carry out the transfers."""

    plan: Plan


class LoadCheckpoint(msgspec.Struct, frozen=True):
    """Have each member load its checkpoint."""

    members: tuple[Member, ...]


class Join(msgspec.Struct, frozen=True):
    """Have these members form a group, in this order."""

    generation: int
    members: tuple[Member, ...]


class Run(msgspec.Struct, frozen=True):
    """Run the call on these members."""

    generation: int
    members: tuple[Member, ...]


class Finish(msgspec.Struct, frozen=True):
    """The call has returned on all members."""


class RaiseError(msgspec.Struct, frozen=True):
    """Raise the error that the code of this member has raised."""

    member: Member


class Fail(msgspec.Struct, frozen=True):
    """Training cannot go on."""

    why: str


Action: TypeAlias = (
    Spawn | Release | EndGroups | Await | Look | Restore | LoadCheckpoint | Join | Run | Finish
    | RaiseError | Fail
)  # fmt: skip


class Stage(Enum):
    """See the module."""

    IDLE = "idle"
    WAITING = "waiting"
    LOOKING = "looking"
    RESTORING = "restoring"
    LOADING = "loading"
    JOINING = "joining"
    RUNNING = "running"


class Rounds:
    """The rounds of one training."""

    def __init__(
        self, *, slots: int, least: int, most: int, sharded: bool, has_checkpoint: bool,
        spawns_again: bool = True,
    ) -> None:  # fmt: skip
        self.least = least
        self.most = most
        self.sharded = sharded
        self.has_checkpoint = has_checkpoint
        self.spawns_again = spawns_again
        self.stage = Stage.IDLE
        self.generation = 0
        self.step = 0  # that the present group began at
        self.newest: int | None = None  # the newest step of a rank that had the state
        self.has_run = False  # whether a call was begun
        self.was_left = False  # whether ranks may be in the middle of a step
        self.slots: dict[int, int | None] = dict.fromkeys(range(slots))
        self.spawning: set[int] = set()
        self.sizes: dict[int, int] = {}  # of all units that are up
        self.retiring: dict[int, set[int]] = {}  # the ranks that are left of units without a slot
        self.is_sound = False  # whether the group of this generation is as it was formed
        self.is_ending = False  # whether all members were told of a call that has ended early
        self.fruitless = 0
        self.why = ""  # the last loss, in words
        self._arrived: dict[int, tuple[int, int]] = {}  # unit and size by slot, for the next round

    @property
    def world(self) -> tuple[Member, ...]:
        """The members of the present units, in the order of their slots."""
        units = [unit for unit in self.slots.values() if unit is not None]
        return tuple(Member(unit, rank) for unit in units for rank in range(self.sizes[unit]))

    @property
    def left(self) -> tuple[Member, ...]:
        """The members that are left of units that have lost a rank for good."""
        retiring = self.retiring.items()
        return tuple(Member(unit, rank) for unit, ranks in retiring for rank in sorted(ranks))

    # --- events -----------------------------------------------------------------------------------

    def begin(self) -> list[Action]:
        """A call is to be run on all members."""
        self.fruitless = 0
        return self._run_or_round()

    def on_unit_up(self, slot: int, unit: int, size: int) -> list[Action]:
        """A unit was spawned, and its constructors have returned."""
        self.spawning.discard(slot)
        self._arrived[slot] = (unit, size)
        self.is_sound = False
        if self.stage is Stage.WAITING:
            return self._round()
        self.why = f"replica {slot} has come, and joins the group"
        return [EndGroups(self.why)] if self.stage is Stage.RUNNING else []

    def on_spawn_failed(self, slot: int, why: str) -> list[Action]:
        """A unit could not be spawned."""
        self.spawning.discard(slot)
        if self.stage is not Stage.WAITING:
            return []  # it is tried again in the next round
        return self._round(spawn=False, why=why)

    def on_rank_ended(self, unit: int, why: str) -> list[Action]:
        """A rank of that unit has died. Stages learn it by their calls too."""
        if unit not in self.slots.values():
            return []
        if self.stage not in (Stage.IDLE, Stage.JOINING, Stage.RUNNING):
            return []
        self.is_sound = False
        self.why = why
        return [] if self.stage is Stage.IDLE else [EndGroups(why)]

    def on_raised(self, why: str) -> list[Action]:
        """The code of a member has raised; members of other units may wait for it."""
        alone = sum(unit is not None for unit in self.slots.values()) < 2
        return [] if alone or self.stage is not Stage.RUNNING else [EndGroups(why)]

    def on_ended_early(self, why: str) -> list[Action]:
        """The call of a member has ended as it has lost a peer, or with its process.

        The others may wait for it, if the news that ended it has not reached them.
        """
        if self.stage is not Stage.RUNNING or self.is_ending:
            return []
        self.is_ending = True
        return [EndGroups(why)]

    def on_looked(
        self, reports: Mapping[Member, Report], losses: Mapping[Member, Loss]
    ) -> list[Action]:
        """All members of `Look` have reported, or are lost."""
        if self._lose(losses):
            return self._round()
        newest = max((r.step for r in reports.values() if r.holds), default=None)
        if newest is not None and (self.newest is None or newest > self.newest):
            self.newest, self.fruitless = newest, 0
        else:
            self.fruitless += 1
        if self.fruitless > self.most:
            return self._fail(
                f"{self.most} recoveries in a row have not brought training beyond step "
                f"{self.newest or 0}; the last was for this: {self.why}"
            )
        choose = plan_of_one_source if self.was_left else plan
        found = choose(reports, self.world, sharded=self.sharded)
        if found is None and self.has_checkpoint:
            self.stage = Stage.LOADING
            return [LoadCheckpoint(self.world)]
        return self._restore(found or self._first_plan(reports))

    def on_restored(self, losses: Mapping[Member, Loss], *, complete: bool) -> list[Action]:
        """The transfers have ended; `complete`: all of them with success."""
        if self._lose(losses) or not complete:
            return self._round()
        return self._join()

    def on_loaded(
        self, reports: Mapping[Member, Report], losses: Mapping[Member, Loss]
    ) -> list[Action]:
        """All members have loaded their checkpoints, if there are any, or are lost."""
        if self._lose(losses) or len(reports) < len(self.world):
            return self._round()
        found = plan(reports, self.world, sharded=self.sharded)
        if found is not None:
            self.newest = found.step  # the ranks repeat the steps after it
        return self._restore(found or self._first_plan(reports))

    def on_joined(self, losses: Mapping[Member, Loss], *, complete: bool) -> list[Action]:
        """The members have joined; `complete`: all of them."""
        if self._lose(losses) or not complete:
            return self._round()
        if not self.is_sound:  # a rank has died, or a unit has come, meanwhile
            return self._round()
        return self._run()

    def on_ran(
        self, losses: Mapping[Member, Loss], ended: Sequence[Member], raised: Member | None
    ) -> list[Action]:
        """The call has ended on all members.

        Args:
            ended: members whose collectives were ended, or that were not ready for this call.
            raised: the first member whose code has raised.
        """
        lost = self._lose(losses)
        if not lost and raised is not None and self.is_sound:
            self.on_interrupted()
            return [RaiseError(raised)]
        if lost or ended or raised is not None:
            self.was_left = raised is not None
            return self._round()
        self.stage = Stage.IDLE
        return [Finish()]

    def on_interrupted(self) -> None:
        """The call was left at any point: by an error, or as its caller no longer waits for it."""
        self.is_sound = False
        self.was_left = True
        self.stage = Stage.IDLE

    # --- stages -----------------------------------------------------------------------------------

    def _run_or_round(self) -> list[Action]:
        return self._run() if self.is_sound and self.world else self._round()

    def _round(self, *, spawn: bool = True, why: str = "") -> list[Action]:
        actions: list[Action] = []
        for slot, (unit, size) in self._arrived.items():
            self.slots[slot], self.sizes[unit] = unit, size
        self._arrived.clear()
        missing = [slot for slot, unit in self.slots.items() if unit is None]
        if missing and self.generation and not self.spawns_again:
            return self._fail(f"a rank is lost for good: {self.why}")
        if spawn:
            for slot in missing:
                if slot not in self.spawning:
                    self.spawning.add(slot)
                    actions.append(Spawn(slot))
        up = len(self.slots) - len(missing)
        # The first group has all units; later ones go on with those that there are.
        needed = self.least if self.has_run else len(self.slots)
        if up >= needed:
            return [*actions, *self._look()]
        if up + len(self.spawning) < needed:
            text = f"{up} of {len(self.slots)} replicas are up, and {needed} are needed"
            return [*actions, *self._fail(f"{text}; the last could not be spawned: {why}")]
        self.stage = Stage.WAITING
        return [*actions, Await()]

    def _look(self) -> list[Action]:
        self.generation += 1
        self.is_sound = True  # until an event says otherwise
        self.stage = Stage.LOOKING
        return [Look(self.generation, (*self.world, *self.left))]

    def _first_plan(self, reports: Mapping[Member, Report]) -> Plan | None:
        """A plan that begins with the constructors' state, as long as no call has been run.

        After a call, the step that the lost ranks had reached is unknown.
        """
        if self.has_run:
            return None
        return first_plan(reports, self.world, sharded=self.sharded)

    def _restore(self, found: Plan | None) -> list[Action]:
        if found is None:
            remedy = (
                "load_checkpoint() has found none" if self.has_checkpoint
                else "there is no load_checkpoint()"
            )  # fmt: skip
            return self._fail(
                "no rank is left that has all of the state, which was at step "
                f"{self.newest or 0} or later, and {remedy}; the last loss: {self.why}"
            )
        self.step = found.step
        if not found.transfers:
            return self._join()
        self.stage = Stage.RESTORING
        return [Restore(found)]

    def _join(self) -> list[Action]:
        released: list[Action] = [Release(unit) for unit in self.retiring]
        self.retiring.clear()
        self.stage = Stage.JOINING
        return [*released, Join(self.generation, self.world)]

    def _run(self) -> list[Action]:
        self.stage = Stage.RUNNING
        self.is_ending = False
        self.has_run = True
        self.was_left = False
        return [Run(self.generation, self.world)]

    def _fail(self, why: str) -> list[Action]:
        self.is_sound = False
        self.stage = Stage.IDLE
        return [Fail(why)]

    def _lose(self, losses: Mapping[Member, Loss]) -> bool:
        """Enter these losses; whether the world has lost a member."""
        world = set(self.world)
        for member in sorted(losses):
            loss = losses[member]
            if member not in world:
                self.retiring.get(member.unit, set()).discard(member.rank)
                continue
            self.is_sound = False
            self.why = loss.why
            if loss.final:
                self._retire(member)
        return any(member in world for member in losses)

    def _retire(self, member: Member) -> None:
        for slot, unit in self.slots.items():
            if unit is not None and unit == member.unit:
                self.slots[slot] = None
                self.retiring[unit] = set(range(self.sizes.pop(unit)))
        self.retiring[member.unit].discard(member.rank)
