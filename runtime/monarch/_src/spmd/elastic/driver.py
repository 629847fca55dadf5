"""The driver of a training: carries out the actions of its rounds.

Runs in: the thread that calls `run`; in `torchrun`, a thread of its own. Answers and deaths come in
on the receiving thread, and units on threads of their own; all of them enter one inbox.
Owns: the units that were spawned, until `stop`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from monarch._src.actor.background import returns_future
from monarch._src.actor.call.send import as_endpoint
from monarch._src.actor.future import Future
from monarch._src.actor.runtime import runtime
from monarch._src.errors import ActorError, RecoveryError
from monarch._src.events import RankFailed, RankRestarting, bus
from monarch._src.mesh.meshes import ProcMesh
from monarch._src.spmd.elastic.actor import World
from monarch._src.spmd.elastic.inbox import (
    Answers,
    Asked,
    Ended,
    Inbox,
    Lost,
    News,
    Outcome,
    Raised,
    RankEnded,
    UnitDone,
    Value,
)
from monarch._src.spmd.elastic.state.plan import Member, Plan
from monarch._src.spmd.elastic.state.rounds import (
    Action,
    Await,
    EndGroups,
    Fail,
    Finish,
    Join,
    LoadCheckpoint,
    Look,
    Loss,
    RaiseError,
    Release,
    Restore,
    Rounds,
    Run,
    Spawn,
)
from monarch._src.spmd.elastic.step_reader import Hang, StepReader
from monarch._src.spmd.elastic.unit import GivenUnit, Unit, UnitSpawner
from monarch._src.spmd.group_plan import CPU, GPU, JoinPlan, RankLook, backend_names, own_devices
from monarch._src.spmd.process_group import check_looks, first_of, hosts_of, watched_members
from monarch._src.spmd.rendezvous import FilePlace, TcpPlace

log = logging.getLogger("monarch.spmd")
LOOK_AGAIN_S = 0.02
SPAWN_ATTEMPTS = 3
LEFT_S = 5.0  # for ranks to report their steps, when training has failed
MOST_PLACES = 4


@returns_future
async def group_plans_async(
    meshes: Sequence[ProcMesh], generation: int, backend: str | None, timeout_s: float
) -> list[tuple[Any, JoinPlan]]:
    """For each mesh, its group members and how they join; ranks are numbered mesh by mesh.

    Raises:
        ModuleNotFoundError: a rank has no torch.
        ValueError: a rank does not have that backend.
        RuntimeError: a rank has a process group that its own code has made.
        SupervisionError: a rank has died.
    """
    wanted = () if backend is None else backend_names(backend)
    members: list[Any] = [await watched_members(procs) for procs in meshes]
    asked = [each.look.call(wanted) for each in members]
    looks: list[RankLook] = []
    hosts: list[str] = []
    firsts: list[int] = []
    for procs, answer in zip(meshes, asked, strict=True):
        found: list[RankLook] = [look for _, look in await answer]
        check_looks(procs, found, backend)
        firsts.append(len(looks))
        looks += found
        hosts += hosts_of(procs)
    devices = own_devices([look.gpus for look in looks], hosts)
    place: FilePlace | TcpPlace
    if len(set(hosts)) == 1:
        place = FilePlace(f"{meshes[0].uid}-elastic-{generation}.group")
    else:
        place = await first_of(members[0]).offer.call_one()
    used = devices if backend is None or "nccl" in wanted else ()
    kind = backend or (GPU if devices else CPU)
    plans = [JoinPlan(kind, len(looks), place, timeout_s, used, first) for first in firsts]
    return list(zip(members, plans, strict=True))


class Recovery(msgspec.Struct, frozen=True):
    """A group that was formed: the first one, or one after a loss.

    why: the rank that was lost, or the replica that has come; empty for the first group. seconds:
    from that event to the call of all ranks. step: the step at which the ranks go on. ranks: their
    number. from_peers: the number of ranks that took the state from a peer. from_checkpoint:
    whether the ranks have loaded the checkpoint.
    """

    generation: int
    why: str
    seconds: float
    step: int
    ranks: int
    from_peers: int
    from_checkpoint: bool

    def __str__(self) -> str:
        """`the training goes on with 3 ranks from step 5, 0.61 s after this: ...`."""
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        source = f"{'the checkpoint of ' if self.from_checkpoint else ''}step {self.step}"
        if not self.why:
            return f"the training begins with {ranks} at {source}"
        return (
            f"the training goes on with {ranks} from {source}, "
            f"{self.seconds:.2f} s after this: {self.why}"
        )


class Groups(msgspec.Struct, frozen=True):
    """How groups are made: see `ElasticMesh`."""

    backend: str | None
    timeout_s: float
    rejoin_s: float


class ElasticDriver:
    """One for each `ElasticMesh`, or run of `torchrun` whose script trains."""

    def __init__(
        self,
        rounds: Rounds,
        spawner: UnitSpawner | GivenUnit,
        groups: Groups,
        step_within_s: float | None,
        on_formed: Callable[[Recovery], None] | None = None,
    ) -> None:
        """Make the driver of a training.

        `on_formed` is called with each group that was formed, on the thread of `run`; without it,
        a recovery is a warning in the log.
        """
        self.rounds = rounds
        self.recoveries: list[Recovery] = []
        self._spawner = spawner
        self._on_formed = on_formed
        self._groups = groups
        self._inbox = Inbox()
        self._steps = None if step_within_s is None else StepReader(step_within_s, self._end_groups)
        self._units: dict[int, Unit] = {}
        self._unit_count = 0
        self._call: tuple[str, tuple[Any, ...], dict[str, Any]] = ("", (), {})
        self._results: list[Any] = []
        self._raised: dict[Member, Raised] = {}
        self._spawn_error: BaseException | None = None
        self._released: list[Future[None]] = []
        self._unsubscribe = [
            bus.subscribe(RankFailed, self._on_rank_ended),
            bus.subscribe(RankRestarting, self._on_rank_ended),
        ]
        # Of the group that is being formed, over all attempts.
        self._deadline: float | None = None  # for ranks to come back
        self._news_at: float | None = None
        self._from_peers: set[Member] = set()
        self._from_checkpoint = False

    @property
    def hangs(self) -> list[Hang]:
        """The ranks that were killed because they made no step."""
        return [] if self._steps is None else list(self._steps.hangs)

    @property
    def actors(self) -> list[Any]:
        """The actor meshes of the present units."""
        units = dict.fromkeys(member.unit for member in self.rounds.world)
        return [self._units[unit].actors for unit in units]

    def run(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """See `ElasticMesh.run`."""
        self._call = name, args, kwargs
        try:
            for news in self._inbox.take_news():
                self._on_news(news)
            actions = self.rounds.begin()
            while True:
                for action in actions[:-1]:
                    self._do(action)
                if isinstance(actions[-1], Finish):
                    return self._results
                actions = self._carry_out(actions[-1])
        except BaseException:
            self.rounds.on_interrupted()
            raise
        finally:
            self._deadline = self._news_at = None

    def stop(self) -> None:
        """Stop all units, those that are being spawned included."""
        self.detach()
        self._spawner.close()
        for news in self._inbox.take_news():
            if isinstance(news, UnitDone) and isinstance(news.found, Unit):
                self._units[news.found.number] = news.found
        self._released += [unit.release() for unit in self._units.values()]
        self._units.clear()
        for each in self._released:
            each.get()
        self._released = []

    def detach(self) -> None:
        """Watch the units no more; they go on. Idempotent."""
        for each in self._unsubscribe:
            each()
        self._unsubscribe = []

    # --- actions ----------------------------------------------------------------------------------

    def _do(self, action: Action) -> None:
        """Carry out an action that begins no stage."""
        match action:
            case Spawn(slot):
                self._unit_count += 1
                attempts = SPAWN_ATTEMPTS if self.recoveries else 1
                self._spawner.begin(slot, self._unit_count, attempts, self._on_unit_done)
            case Release(number):
                self._released.append(self._units.pop(number).release())
            case EndGroups(why):
                self._end_groups(why)
            case _:
                raise AssertionError(action)

    def _end_groups(self, why: str) -> None:
        for number in {member.unit for member in self.rounds.world}:
            self._units[number].end_groups(why)

    def _carry_out(self, stage: Action) -> list[Action]:
        """Carry out a stage; returns the actions that follow."""
        match stage:
            case Await():
                return self._await_units()
            case Look(generation, members):
                return self._look(generation, members)
            case Restore(found):
                return self._restore(found)
            case LoadCheckpoint(members):
                answers = self._ask(members, "elastic_load_checkpoint")
                self._from_checkpoint = True
                return self.rounds.on_loaded(answers.values, answers.losses)
            case Join(generation, members):
                return self._join(generation, members)
            case Run(generation, members):
                return self._run(generation, members)
            case RaiseError(member):
                raise self._raised[member].error
            case Fail(why):
                if self._spawn_error is not None and not self.recoveries:
                    raise self._spawn_error
                raise RecoveryError(f"{why}. {self._left()}") from self._spawn_error
            case _:
                raise AssertionError(stage)

    def _await_units(self) -> list[Action]:
        while True:
            actions = self._actions_of(self._inbox.wait_for_news())
            if actions:
                self._deadline = None
                return actions

    def _look(self, generation: int, members: Sequence[Member]) -> list[Action]:
        if self._news_at is None:
            self._news_at = time.monotonic()
        if self._deadline is None:
            self._deadline = time.monotonic() + self._groups.rejoin_s
        answers = self._ask(members, "elastic_look", generation, deadline=self._deadline)
        losses = dict(answers.losses)
        is_late = time.monotonic() >= self._deadline
        for member in members:
            if member not in answers.values and (is_late or member not in losses):
                limit = f"did not come back within {self._groups.rejoin_s:g} s"
                losses[member] = Loss(f"{self._where(member)} {limit}", True)
        if not losses or any(loss.final for loss in losses.values()):
            # All have reported, or others come in the place of that one: the next look has time of
            # its own. A stage in between may take longer than the limit.
            self._deadline = None
        else:
            time.sleep(LOOK_AGAIN_S)  # calls do not wait for the rank if its policy says so
        return self.rounds.on_looked(answers.values, losses)

    def _restore(self, found: Plan) -> list[Action]:
        generation = self.rounds.generation
        sources = dict.fromkeys(transfer.source for transfer in found.transfers)
        limit_s = self._groups.rejoin_s
        try:
            # A rank that does not answer in time, such as one that is suspended, is given up by the
            # next round, when it does not report either.
            deadline = time.monotonic() + limit_s
            offers = self._ask(list(sources), "elastic_offer", generation, deadline=deadline)
            if len(offers.values) < len(sources):
                return self.rounds.on_restored(offers.losses, complete=False)
            taking = [
                self._asked(t.target, "elastic_take", offers.values[t.source], limit_s)
                for t in found.transfers
            ]
            # The copy has a limit of its own, whose error comes first.
            deadline = time.monotonic() + 2 * limit_s
            answers = self._collect(taking, deadline=deadline)
        except ActorError as error:  # of state_dict() or load_state_dict()
            if not self.recoveries:
                raise
            what = f"the state of step {found.step} did not reach all ranks: {error}"
            raise RecoveryError(f"{what}. {self._left()}") from error
        self._from_peers.update(answers.values)
        complete = len(answers.values) == len(taking)
        return self.rounds.on_restored(answers.losses, complete=complete)

    def _join(self, generation: int, members: Sequence[Member]) -> list[Action]:
        units = self._units_of(members)
        groups = self._groups
        planned = group_plans_async(
            [unit.procs for unit in units], generation, groups.backend, groups.timeout_s
        )
        try:
            plans = planned.get(groups.rejoin_s)
        except (RuntimeError, TimeoutError) as error:  # a death, or a rank that is not ready
            log.info("generation %d was not formed: %s", generation, error)
            return self.rounds.on_joined({}, complete=False)
        joining: list[Asked] = []
        for unit, (group_members, plan) in zip(units, plans, strict=True):
            unit.watch(group_members)
            for rank in range(unit.size):
                future = unit.one(group_members, rank).join.call_one(plan)
                joining.append((unit.number, Member(unit.number, rank), future))
        # Torch's own time-out ends the call of a rank whose peer does not come.
        deadline = time.monotonic() + groups.timeout_s + groups.rejoin_s
        answers = self._collect(joining, joins=True, deadline=deadline)
        complete = len(answers.values) == len(joining)
        return self.rounds.on_joined(answers.losses, complete=complete)

    def _run(self, generation: int, members: Sequence[Member]) -> list[Action]:
        units = self._units_of(members)
        calls: list[Asked] = []
        first = 0
        for at, unit in enumerate(units):
            world = World(generation, first, len(members), at, len(units))
            first += unit.size
            run = as_endpoint(unit.actors.elastic_run)
            calls += [(unit.number, None, each) for each in run.stream(world, *self._call)]
        self._note_formed(generation, members)
        try:
            answers = self._collect_run(calls, units, members)
        except BaseException:
            for _, _, future in calls:
                if not future.done and future.pending is not None:
                    runtime().cancel(future.pending)
            raise
        self._raised = answers.raised
        if not answers.is_complete and self._news_at is None:
            self._news_at = time.monotonic()
        self._results = [answers.values.get(member) for member in members]
        raised = next(iter(answers.raised), None)
        return self.rounds.on_ran(answers.losses, tuple(answers.ended), raised)

    def _collect_run(
        self, calls: Sequence[Asked], units: Sequence[Unit], members: Sequence[Member]
    ) -> Answers:
        """Wait until the endpoint has ended on all ranks; kill those that make no step."""
        steps = self._steps
        if steps is None:
            return self._collect(calls, code=True)
        steps.begin(units, members)
        whys: dict[Member, str] = {}

        def look(answers: Answers) -> None:
            steps.look([member for member in members if answers.lacks(member)])

        try:
            answers = self._collect(calls, code=True, on_tick=look)
        finally:
            whys = steps.end()
        for member, why in whys.items():
            loss = answers.losses.get(member)
            if loss is not None:
                answers.losses[member] = Loss(why, loss.final)
        return answers

    def _note_formed(self, generation: int, members: Sequence[Member]) -> None:
        if self.recoveries and self.recoveries[-1].generation == generation:
            return
        took = 0.0 if self._news_at is None else time.monotonic() - self._news_at
        why = self.rounds.why if self.recoveries else ""
        formed = Recovery(
            generation, why, took, self.rounds.step, len(members),
            len(self._from_peers.intersection(members)), self._from_checkpoint,
        )  # fmt: skip
        self.recoveries.append(formed)
        self._deadline = self._news_at = None
        self._from_peers, self._from_checkpoint = set(), False
        log.info("generation %d was formed in %.3f s", generation, took)
        if self._on_formed is not None:
            self._on_formed(formed)
        elif why:
            log.warning("%s", formed)

    # --- calls ------------------------------------------------------------------------------------

    def _ask(
        self, members: Sequence[Member], name: str, *args: Any, deadline: float | None = None
    ) -> Answers:
        return self._collect([self._asked(m, name, *args) for m in members], deadline=deadline)

    def _asked(self, member: Member, name: str, *args: Any) -> Asked:
        unit = self._units[member.unit]
        method = getattr(unit.one(unit.actors, member.rank), name)
        return member.unit, member, as_endpoint(method).call_one(*args)

    def _collect(
        self,
        asked: Sequence[Asked],
        *,
        deadline: float | None = None,
        joins: bool = False,
        code: bool = False,
        on_tick: Callable[[Answers], None] | None = None,
    ) -> Answers:
        """Wait for these calls. `code`: they run the endpoint, whose error the rounds handle."""
        answers = self._inbox.collect(
            asked, self._on_outcome, self._on_news, deadline=deadline, joins=joins,
            on_tick=on_tick,
        )  # fmt: skip
        if answers.raised and not code and not answers.losses:
            raise next(iter(answers.raised.values())).error
        return answers

    def _left(self) -> str:
        """The state that ranks still have, in words."""
        left = [*self.rounds.world, *self.rounds.left]
        asked = [self._asked(member, "elastic_report") for member in left]
        deadline = time.monotonic() + LEFT_S
        answers = self._inbox.collect(
            asked, lambda _outcome: None, self._on_news, deadline=deadline
        )
        holders: dict[int, list[str]] = {}
        for member, report in sorted(answers.values.items()):
            if report.holds:
                holders.setdefault(report.step, []).append(self._where(member))
        if not holders:
            return "No rank has state any more"
        texts = [
            f"that of step {step} on {ranks_text(places)}"
            for step, places in sorted(holders.items(), reverse=True)
        ]
        return f"State that is left: {', '.join(texts)}; another run() tries to go on from it"

    def _units_of(self, members: Sequence[Member]) -> list[Unit]:
        return [self._units[number] for number in dict.fromkeys(m.unit for m in members)]

    def _where(self, member: Member) -> str:
        return self._units[member.unit].where(member.rank)

    # --- news -------------------------------------------------------------------------------------

    def _on_outcome(self, outcome: Outcome) -> None:
        if isinstance(outcome, Value):
            return
        if self._news_at is None:
            self._news_at = time.monotonic()
        match outcome:
            case Raised(why=why):
                self._do_all(self.rounds.on_raised(why))
            case Ended(why=why) | Lost(loss=Loss(why=why)):
                self._do_all(self.rounds.on_ended_early(why))

    def _on_news(self, news: News) -> None:
        self._do_all(self._actions_of(news))

    def _do_all(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._do(action)

    def _actions_of(self, news: News) -> list[Action]:
        if isinstance(news, RankEnded):
            if self._news_at is None:
                self._news_at = time.monotonic()
            number = next((n for n, unit in self._units.items() if unit.uid == news.uid), 0)
            return self.rounds.on_rank_ended(number, news.why)
        if isinstance(news.found, Unit):
            unit = self._units[news.found.number] = news.found
            return self.rounds.on_unit_up(news.slot, unit.number, unit.size)
        self._spawn_error = news.found
        return self.rounds.on_spawn_failed(news.slot, str(news.found))

    def _on_unit_done(self, slot: int, found: Unit | BaseException) -> None:
        """Enter a spawned unit. Runs on the thread of the spawn."""
        self._inbox.put(UnitDone(slot, found))

    def _on_rank_ended(self, event: RankFailed | RankRestarting) -> None:
        """Enter the death of a rank. Runs on the receiving thread."""
        if event.mesh and any(unit.uid == event.mesh for unit in list(self._units.values())):
            self._inbox.put(RankEnded(event.mesh, event.failure.what))


def ranks_text(places: Sequence[str]) -> str:
    """`a[gpus=0], a[gpus=1]`; many of them are cut."""
    more = len(places) - MOST_PLACES
    return ", ".join(places[:MOST_PLACES]) + (f" and {more} more ranks" if more > 0 else "")
