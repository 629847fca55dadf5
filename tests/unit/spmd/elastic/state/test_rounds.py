"""The rounds of a training: each stage, each loss in it, and random schedules of both."""

from __future__ import annotations

import random
from typing import Any

import pytest

from monarch._src.spmd.elastic.state.plan import Member, Plan, Report, Transfer
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
    Stage,
)

A, B = Member(1, 0), Member(1, 1)
AGAIN, FINAL = Loss("it died", final=False), Loss("it died", final=True)
FRESH = Report(0, False)


def rounds(**options: Any) -> Rounds:
    given: dict[str, Any] = {
        "slots": 1,
        "least": 1,
        "most": 3,
        "sharded": False,
        "has_checkpoint": False,
    }
    return Rounds(**{**given, **options})


def running(found: Rounds, step: int = 5) -> Rounds:
    """Units of two ranks are up, and run from that step."""
    assert found.begin()[-1] == Await()
    actions: list[Action] = []
    for slot in found.slots:
        actions = found.on_unit_up(slot, slot + 1, 2)
    (look,) = actions
    assert look == Look(1, found.world)
    (join,) = found.on_looked(dict.fromkeys(found.world, Report(step, True)), {})
    assert join == Join(1, found.world)
    assert found.on_joined({}, complete=True) == [Run(1, found.world)]
    return found


def test_the_first_group_takes_the_state_of_its_first_rank() -> None:
    one = rounds()
    assert one.begin() == [Spawn(0), Await()]
    assert one.on_unit_up(0, 1, 2) == [Look(1, (A, B))]
    assert one.on_looked({A: FRESH, B: FRESH}, {}) == [Restore(Plan(0, (Transfer(A, B),)))]
    assert one.on_restored({}, complete=True) == [Join(1, (A, B))]
    assert one.on_joined({}, complete=True) == [Run(1, (A, B))]
    assert one.on_ran({}, [], None) == [Finish()]
    assert one.begin() == [Run(1, (A, B))]  # the group is sound, and serves the next call


def test_a_rank_that_comes_back_takes_the_state_of_a_peer() -> None:
    one = running(rounds())
    assert one.on_ran({B: AGAIN}, [A], None) == [Look(2, (A, B))]
    transfer = Restore(Plan(8, (Transfer(A, B),)))
    assert one.on_looked({A: Report(8, True), B: FRESH}, {}) == [transfer]


@pytest.mark.parametrize("stage", ["look", "restore", "join", "run"])
@pytest.mark.parametrize("who", [A, B])
def test_a_death_in_any_stage_begins_the_next_generation(stage: str, who: Member) -> None:
    one = running(rounds())
    actions = one.on_ran({B: AGAIN}, [A], None)
    if stage == "look":
        other = B if who == A else A
        actions = one.on_looked({other: Report(8, True)}, {who: AGAIN})
    else:
        one.on_looked({A: Report(8, True), B: FRESH}, {})
        if stage == "restore":
            actions = one.on_restored({who: AGAIN}, complete=False)
        else:
            one.on_restored({}, complete=True)
            lost = {who: AGAIN} if stage == "join" else {}
            actions = one.on_joined(lost, complete=not lost)
            if stage == "run":
                actions = one.on_ran({who: AGAIN}, [A], None)
    assert actions == [Look(3, (A, B))]


def test_the_death_of_the_sender_leaves_the_state_to_another_holder() -> None:
    three = rounds()
    three.begin()
    three.on_unit_up(0, 1, 3)
    a, b, c = three.world
    found = three.on_looked({a: Report(4, True), b: Report(4, True), c: FRESH}, {})
    assert found == [Restore(Plan(4, (Transfer(a, c),)))]
    three.on_restored({a: AGAIN}, complete=False)
    found = three.on_looked({a: FRESH, b: Report(4, True), c: FRESH}, {})
    assert found == [Restore(Plan(4, (Transfer(b, a), Transfer(b, c))))]


def test_a_replica_that_is_lost_is_left_out_and_spawned_anew() -> None:
    two = running(rounds(slots=2))
    c, d = Member(2, 0), Member(2, 1)
    assert two.on_ran({d: FINAL}, [A, B, c], None) == [Spawn(1), Look(2, (A, B, c))]
    reports = {A: Report(6, True), B: Report(6, True), c: Report(6, True)}
    assert two.on_looked(reports, {}) == [Release(2), Join(2, (A, B))]
    assert two.on_joined({}, complete=True) == [Run(2, (A, B))]
    (ended,) = two.on_unit_up(1, 3, 2)
    assert isinstance(ended, EndGroups)
    new = (Member(3, 0), Member(3, 1))
    assert two.on_ran({}, [A, B], None) == [Look(3, (A, B, *new))]


def test_a_replica_that_comes_while_a_group_is_formed_waits_for_the_next_one() -> None:
    two = running(rounds(slots=2))
    two.on_ran({Member(2, 0): FINAL}, [], None)
    assert two.on_unit_up(1, 3, 2) == []
    assert two.world == (A, B)
    two.on_looked({m: Report(6, True) for m in (A, B)}, {})
    assert two.on_joined({}, complete=True) == [Look(3, (A, B, Member(3, 0), Member(3, 1)))]


def test_ranks_that_are_left_of_the_only_unit_send_state_to_the_next_one() -> None:
    one = running(rounds())
    assert one.on_ran({B: FINAL}, [A], None) == [Spawn(0), Await()]
    new = (Member(2, 0), Member(2, 1))
    assert one.on_unit_up(0, 2, 2) == [Look(2, (*new, A))]
    (restore,) = one.on_looked({A: Report(9, True), new[0]: FRESH, new[1]: FRESH}, {})
    assert restore == Restore(Plan(9, (Transfer(A, new[0]), Transfer(A, new[1]))))
    assert one.on_restored({}, complete=True) == [Release(1), Join(2, new)]


def test_a_checkpoint_is_loaded_only_if_no_rank_has_the_state() -> None:
    one = running(rounds(has_checkpoint=True))
    one.on_ran({A: AGAIN, B: AGAIN}, [], None)
    assert one.on_looked({A: FRESH, B: FRESH}, {}) == [LoadCheckpoint((A, B))]
    assert one.on_loaded({A: Report(3, True), B: Report(3, True)}, {}) == [Join(2, (A, B))]
    assert one.step == 3


def test_a_checkpoint_that_not_all_ranks_have_goes_to_the_others() -> None:
    one = running(rounds(has_checkpoint=True))
    one.on_ran({A: AGAIN, B: AGAIN}, [], None)
    one.on_looked({A: FRESH, B: FRESH}, {})
    found = one.on_loaded({A: FRESH, B: Report(3, True)}, {})
    assert found == [Restore(Plan(3, (Transfer(B, A),)))]


def test_training_does_not_begin_anew_when_all_state_is_lost() -> None:
    one = running(rounds())
    one.on_ran({A: AGAIN, B: AGAIN}, [], None)
    (fail,) = one.on_looked({A: FRESH, B: FRESH}, {})
    assert isinstance(fail, Fail)
    assert fail.why.endswith(
        "at step 5 or later, and there is no load_checkpoint(); the last loss: it died"
    )


def test_a_rank_that_is_lost_for_good_ends_a_training_whose_units_are_not_spawned_again() -> None:
    one = running(rounds(spawns_again=False))
    assert one.on_ran({B: FINAL}, [A], None) == [Fail("a rank is lost for good: it died")]
    assert one.left == (A,)  # which may be asked for its state


def test_recoveries_that_bring_no_step_forward_end() -> None:
    one = running(rounds(most=2))
    for _ in range(2):
        one.on_ran({B: AGAIN}, [A], None)
        one.on_looked({A: Report(5, True), B: FRESH}, {})
        one.on_restored({}, complete=True)
        one.on_joined({}, complete=True)
    one.on_ran({B: AGAIN}, [A], None)
    (fail,) = one.on_looked({A: Report(5, True), B: FRESH}, {})
    assert isinstance(fail, Fail)
    assert "2 recoveries in a row have not brought training beyond step 5" in fail.why


def test_an_error_of_the_users_code_is_raised_unless_a_rank_has_died() -> None:
    one = running(rounds())
    assert one.on_ran({}, [B], A) == [RaiseError(A)]
    assert one.begin() == [Look(2, (A, B))]  # the group was ended by the error
    transfer = Restore(Plan(6, (Transfer(A, B),)))  # they may differ, in the middle of a step
    assert one.on_looked({A: Report(6, True), B: Report(6, True)}, {}) == [transfer]
    other = running(rounds())
    assert other.on_ran({B: AGAIN}, [], A) == [Look(2, (A, B))]


def test_an_error_ends_the_collectives_of_other_replicas() -> None:
    assert running(rounds()).on_raised("ValueError") == []
    assert running(rounds(slots=2)).on_raised("ValueError") == [EndGroups("ValueError")]


def test_a_call_that_ends_early_ends_those_that_may_wait_for_it_once() -> None:
    one = running(rounds())
    assert one.on_ended_early("it died") == [EndGroups("it died")]
    assert one.on_ended_early("it died") == []
    assert one.on_ran({}, [A, B], None) == [Look(2, (A, B))]
    assert one.on_ended_early("it died") == []  # no call runs
    one.on_looked({A: Report(5, True), B: Report(5, True)}, {})
    assert one.on_joined({}, complete=True) == [Run(2, (A, B))]
    assert one.on_ended_early("another died") == [EndGroups("another died")]


def test_a_death_between_two_calls_forms_a_group_before_the_next() -> None:
    one = running(rounds())
    one.on_ran({}, [], None)
    assert one.on_rank_ended(1, "it died") == []
    assert one.begin() == [Look(2, (A, B))]


def test_too_few_replicas_end_training() -> None:
    two = running(rounds(slots=2, least=2))
    assert two.on_ran({B: FINAL}, [], None)[-1] == Await()
    (fail,) = two.on_spawn_failed(0, "no host")
    assert fail == Fail(
        "1 of 2 replicas are up, and 2 are needed; the last could not be spawned: no host"
    )


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("seed", range(300))
def test_random_deaths_never_mix_states(seed: int, sharded: bool) -> None:
    Schedule(random.Random(seed), sharded=sharded).run_to_end()


class Schedule:
    """A training of ranks that exist on paper: each has a step and the part of the state for it."""

    def __init__(self, chance: random.Random, *, sharded: bool) -> None:
        self.chance = chance
        self.rounds = rounds(slots=2, most=50, sharded=sharded, has_checkpoint=True)
        self.ranks: dict[Member, Report] = {}
        self.looked: dict[Member, int] = {}
        self.pending: list[int] = []
        self.units = 0
        self.generations: list[int] = []
        self.saved = -1  # the step of the checkpoint

    def run_to_end(self) -> None:
        actions = self.rounds.begin()
        for _ in range(2000):
            for action in actions[:-1]:
                self.do(action)
            if isinstance(actions[-1], (Finish, Fail)):
                assert not isinstance(actions[-1], Fail), actions[-1].why
                return
            self.news()
            actions = self.carry_out(actions[-1])
        raise AssertionError("it does not end")

    def do(self, action: Action) -> None:
        if isinstance(action, Spawn):
            self.pending.append(action.slot)
        elif isinstance(action, Release):
            for member in [m for m in self.ranks if m.unit == action.unit]:
                del self.ranks[member]

    def news(self) -> None:
        if self.pending and self.rounds.stage is not Stage.WAITING and self.chance.random() < 0.3:
            for action in self.unit_up():
                self.do(action)

    def unit_up(self) -> list[Action]:
        self.units += 1
        slot = self.pending.pop(0)
        self.ranks.update({Member(self.units, rank): FRESH for rank in (0, 1)})
        return self.rounds.on_unit_up(slot, self.units, 2)

    def deaths(self, members: Any) -> dict[Member, Loss]:
        """Some of these die; those that come back have no state."""
        dead: dict[Member, Loss] = {}
        for member in members:
            if member not in self.ranks:
                dead[member] = FINAL
            elif self.chance.random() < 0.06:
                dead[member] = FINAL if self.chance.random() < 0.3 else AGAIN
                self.ranks[member] = FRESH
                self.looked.pop(member, None)
                if dead[member].final:
                    del self.ranks[member]
        return dead

    def carry_out(self, stage: Action) -> list[Action]:
        match stage:
            case Await():
                return self.unit_up()
            case Look(generation, members):
                self.generations.append(generation)
                lost = self.deaths(members)
                there = [m for m in members if m not in lost]
                self.looked.update(dict.fromkeys(there, generation))
                return self.rounds.on_looked({m: self.ranks[m] for m in there}, lost)
            case Restore(plan):
                lost = self.deaths({m for t in plan.transfers for m in (t.source, t.target)})
                for transfer in plan.transfers:
                    if transfer.source not in lost and transfer.target not in lost:
                        assert self.ranks[transfer.source].step == plan.step
                        self.ranks[transfer.target] = Report(plan.step, True)
                return self.rounds.on_restored(lost, complete=not lost)
            case LoadCheckpoint(members):
                lost = self.deaths(members)
                there = [m for m in members if m not in lost]
                found = Report(max(self.saved, 0), self.saved >= 0)
                self.ranks.update(dict.fromkeys(there, found))
                return self.rounds.on_loaded(dict.fromkeys(there, found), lost)
            case Join(_, members):
                lost = self.deaths(members)
                return self.rounds.on_joined(lost, complete=not lost)
            case Run(generation, members):
                return self.train(generation, members)
            case _:
                raise AssertionError(stage)

    def train(self, generation: int, members: tuple[Member, ...]) -> list[Action]:
        ready = [m for m in members if self.looked.get(m) == generation and m in self.ranks]
        if len(ready) == len(members):
            assert {self.ranks[m].step for m in members} == {self.rounds.step}
        self.saved = self.rounds.step
        step = self.rounds.step + self.chance.randrange(4)
        for member in ready:  # the last step may have ended on some ranks only
            self.ranks[member] = Report(step + self.chance.randrange(2), True)
        lost = self.deaths(members)
        if not lost and len(ready) == len(members):
            return self.rounds.on_ran({}, [], None)
        ended = [m for m in members if m not in lost]
        assert len(self.generations) == len(set(self.generations))
        return self.rounds.on_ran(lost, ended, None)
