"""The state from which a group of ranks goes on, and the transfers between ranks. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class Member(msgspec.Struct, frozen=True, order=True):
    """A rank of a unit. A unit is one proc mesh: all ranks, or those of one replica."""

    unit: int
    rank: int


class Report(msgspec.Struct, frozen=True):
    """The state that a rank has: its step, and whether it `holds` more than a constructor made."""

    step: int
    holds: bool


class Transfer(msgspec.Struct, frozen=True, order=True):
    """State that one rank sends to another."""

    source: Member
    target: Member


class Plan(msgspec.Struct, frozen=True):
    """All ranks go on from `step`, after these transfers."""

    step: int
    transfers: tuple[Transfer, ...]


def plan(
    reports: Mapping[Member, Report], world: Sequence[Member], *, sharded: bool
) -> Plan | None:
    """The newest step that all of the state exists of, with the transfers; None: there is none.

    Args:
        reports: of all ranks that can send state, those of the world included.
        world: the ranks that go on, in order.
        sharded: whether rank n of each unit has part n of the state; else every rank has all of it.
    """
    holders = {member: report.step for member, report in reports.items() if report.holds}
    return _newest(holders, world, sharded=sharded)


def plan_of_one_source(
    reports: Mapping[Member, Report], world: Sequence[Member], *, sharded: bool
) -> Plan | None:
    """As `plan`, for ranks that were left in the middle of a step: each part comes from one rank.

    Ranks at the same step may differ then.
    """
    found = plan(reports, world, sharded=sharded)
    if found is None:
        return None
    sources: dict[int, Member] = {}
    for member in sorted(reports):
        if reports[member].holds and reports[member].step == found.step:
            sources.setdefault(_part(member, sharded=sharded), member)
    return _newest(dict.fromkeys(sources.values(), found.step), world, sharded=sharded)


def first_plan(
    reports: Mapping[Member, Report], world: Sequence[Member], *, sharded: bool
) -> Plan | None:
    """As `plan`, for ranks that have the state of their constructors: all take that of the first.

    None if constructors began at different steps and no step has all of the state.
    """
    parts: set[int] = set()
    holders: dict[Member, int] = {}
    for member in world:
        part = _part(member, sharded=sharded)
        if part not in parts:
            parts.add(part)
            holders[member] = reports[member].step
    return _newest(holders, world, sharded=sharded)


def _newest(
    holders: Mapping[Member, int], world: Sequence[Member], *, sharded: bool
) -> Plan | None:
    parts = {_part(member, sharded=sharded) for member in world}
    steps: dict[int, set[int]] = {part: set() for part in parts}
    for member, step in holders.items():
        steps.setdefault(_part(member, sharded=sharded), set()).add(step)
    common = set[int].intersection(*(steps[part] for part in parts)) if parts else set[int]()
    if not common:
        return None
    step = max(common)
    sources: dict[int, list[Member]] = {}
    for member in sorted(holders):
        if holders[member] == step:
            sources.setdefault(_part(member, sharded=sharded), []).append(member)
    transfers: list[Transfer] = []
    sent: dict[Member, int] = {}
    for target in world:
        if holders.get(target) == step:
            continue
        # Those that send least send next, so that no rank sends to all others.
        source = min(sources[_part(target, sharded=sharded)], key=lambda one: sent.get(one, 0))
        sent[source] = sent.get(source, 0) + 1
        transfers.append(Transfer(source, target))
    return Plan(step, tuple(transfers))


def _part(member: Member, *, sharded: bool) -> int:
    return member.rank if sharded else 0
