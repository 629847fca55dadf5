"""Which state ranks go on from, and which rank sends it."""

from __future__ import annotations

import itertools

from monarch._src.spmd.elastic.state.plan import Member, Plan, Report, Transfer, first_plan, plan


def members(*ranks: int, unit: int = 1) -> list[Member]:
    return [Member(unit, rank) for rank in ranks]


def test_ranks_that_have_the_newest_step_send_it_to_the_others() -> None:
    a, b, c = members(0, 1, 2)
    reports = {a: Report(7, True), b: Report(8, True), c: Report(0, False)}
    found = plan(reports, [a, b, c], sharded=False)
    assert found == Plan(8, (Transfer(b, a), Transfer(b, c)))


def test_ranks_that_are_all_at_the_same_step_send_nothing() -> None:
    world = members(0, 1)
    assert plan(dict.fromkeys(world, Report(3, True)), world, sharded=False) == Plan(3, ())


def test_senders_share_the_work() -> None:
    world = members(*range(6))
    reports = {m: Report(5, m.rank < 2) for m in world}
    found = plan(reports, world, sharded=False)
    assert found is not None
    assert [t.source.rank for t in found.transfers] == [0, 1, 0, 1]


def test_a_rank_that_no_longer_takes_part_sends_too() -> None:
    left, new = Member(1, 0), Member(2, 0)
    reports = {left: Report(9, True), new: Report(0, False)}
    assert plan(reports, [new], sharded=False) == Plan(9, (Transfer(left, new),))


def test_there_is_no_plan_if_nobody_has_state() -> None:
    world = members(0, 1)
    assert plan(dict.fromkeys(world, Report(0, False)), world, sharded=False) is None


def test_parts_come_from_the_same_rank_of_another_replica() -> None:
    world = [*members(0, 1, unit=1), *members(0, 1, unit=2)]
    reports = {m: Report(4, m.unit == 1) for m in world}
    found = plan(reports, world, sharded=True)
    assert found == Plan(
        4, (Transfer(Member(1, 0), Member(2, 0)), Transfer(Member(1, 1), Member(2, 1)))
    )


def test_parts_of_different_steps_are_never_mixed() -> None:
    """Part 0 exists of steps 5 and 6, part 1 of step 5 only: step 5 is the newest whole one."""
    world = [*members(0, 1, unit=1), *members(0, 1, unit=2)]
    steps = {Member(1, 0): 6, Member(1, 1): 5, Member(2, 0): 5, Member(2, 1): 5}
    found = plan({m: Report(s, True) for m, s in steps.items()}, world, sharded=True)
    assert found == Plan(5, (Transfer(Member(2, 0), Member(1, 0)),))


def test_there_is_no_plan_if_a_part_is_gone() -> None:
    world = members(0, 1)
    reports = {world[0]: Report(3, True), world[1]: Report(0, False)}
    assert plan(reports, world, sharded=True) is None


def test_the_first_state_is_that_of_the_first_rank() -> None:
    world = members(0, 1, 2)
    found = first_plan(dict.fromkeys(world, Report(0, False)), world, sharded=False)
    assert found == Plan(0, (Transfer(world[0], world[1]), Transfer(world[0], world[2])))


def test_a_plan_gives_every_rank_its_part_of_one_step_in_all_cases() -> None:
    world = [Member(unit, rank) for unit in (1, 2) for rank in (0, 1)]
    for steps in itertools.product((None, 1, 2), repeat=4):
        reports = {m: Report(s or 0, s is not None) for m, s in zip(world, steps, strict=True)}
        for sharded in (False, True):
            found = plan(reports, world, sharded=sharded)
            after = {m: r.step for m, r in reports.items() if r.holds}
            if found is None:
                continue
            for transfer in found.transfers:
                assert after[transfer.source] == found.step
                assert not sharded or transfer.source.rank == transfer.target.rank
            after.update((t.target, found.step) for t in found.transfers)
            assert {after.get(m) for m in world} == {found.step}
