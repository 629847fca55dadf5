"""The case file of a fault or hang: the first failure, waits between procs, odd stacks. No I/O.

It is made from rows of tables of one moment. Waits are known between processes, not between the
actors in them. A wait counts if its message is queued or being handled at the called rank. A cycle
of such waits is mostly a deadlock, but another task of an actor on it may still answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from monarch._src.admin.state.cycles import cycles_of
from monarch._src.admin.state.nodes import Missing, printable
from monarch._src.failures.endpoint_text import endpoint_text, is_label
from monarch._src.failures.report import at_text
from monarch._src.shape.coordinates import name_procs

Row: TypeAlias = "Mapping[str, Any]"
Place: TypeAlias = "tuple[int, int]"  # the uid of a proc mesh, and a rank

TABLES = ("procs", "actors", "calls", "messages", "endpoints", "log_lines")
STACKS_TABLE = "frames"
CONSTRUCTOR = "__init__"
QUIET = "nothing has failed, and no call is awaited"
MOST = 20
LAST_LINES = 5
ODD_PART = 3
"""A group of stacks is odd if the largest group has at least this many times its ranks."""


class Failure(msgspec.Struct):
    """A failed proc or actor. `ago_s`: seconds since it failed, if that is known."""

    where: str
    what: str
    ago_s: float | None = None


class EndpointErrors(msgspec.Struct):
    """An endpoint that has raised exceptions in a proc, and how often."""

    where: str
    endpoint: str
    errors: int
    calls: int


class Wait(msgspec.Struct):
    """A call that some ranks have not answered. `for_s`: seconds since it was made, if known.

    `at_callee`: `active` if a called rank handles it, `queued` if it waits behind other messages
    there, `unknown` if the message is at none of them.
    """

    caller: str
    actor: str
    endpoint: str
    owing: list[str]
    ranks: int
    awaited: bool
    at_callee: str
    for_s: float | None = None


class Blocker(msgspec.Struct):
    """A proc that others wait for, directly or not, and that waits for no other proc."""

    where: str
    waiting: int
    state: str
    doing: str | None = None
    for_s: float | None = None


class Cycle(msgspec.Struct):
    """Procs of which each waits for the next, and the last for the first."""

    procs: list[str]


class StackGroup(msgspec.Struct):
    """Procs of one mesh with equal stacks. `odd`: few procs, beside a much larger group."""

    mesh: str
    activity: str
    procs: list[str]
    odd: bool
    frames: list[str]


class LastLines(msgspec.Struct):
    """The last lines that a proc has written."""

    where: str
    lines: list[str]


class Evidence(msgspec.Struct):
    """A query that shows a part of the case."""

    shows: str
    sql: str


class CaseFile(msgspec.Struct):
    """A structured text about a fault or hang. `as_of`: microseconds since the epoch."""

    as_of: int
    verdict: str
    failures: list[Failure]
    errors: list[EndpointErrors]
    waits: list[Wait]
    blockers: list[Blocker]
    cycles: list[Cycle]
    stacks: list[StackGroup]
    last_lines: list[LastLines]
    queries: list[Evidence]
    missing: list[Missing]

    def __str__(self) -> str:
        return case_text(self)


@dataclass
class _Case:
    """The rows of a case, with the names of places."""

    as_of: int
    tables: Mapping[str, Sequence[Row]]
    names: dict[Place, str] = field(default_factory=dict[Place, str])
    procs: dict[Place, Row] = field(default_factory=dict[Place, Row])

    def __post_init__(self) -> None:
        for row in self.rows("procs"):
            place = (int(row["mesh_id"]), int(row["rank"]))
            point: dict[str, int] = json.loads(row["point_json"] or "{}")
            self.procs[place] = row
            self.names[place] = f"{row['mesh']}{at_text(point)}"

    def rows(self, table: str) -> Sequence[Row]:
        return self.tables.get(table, ())

    def name(self, place: Place, mesh: object) -> str:
        """The name of a proc; the client's for a mesh that no agent has."""
        known = self.names.get(place)
        return known or (str(mesh) if mesh == "client" else f"{mesh} rank {place[1]}")


def case_of(
    as_of: int, tables: Mapping[str, Sequence[Row]], missing: Iterable[Missing] = ()
) -> CaseFile:
    """The case file of these rows of the tables in `TABLES`, and perhaps of `frames`."""
    case = _Case(as_of, tables)
    failures, errors = _failures(case), _errors(case)
    waits, edges = _waits(case)
    blockers, cycles = _blockers(case, edges), _cycles(case, edges)
    stacks = _stacks(case)
    lacking = list(missing)
    verdict = _verdict(failures, cycles, blockers, waits, stacks, errors, lacking)
    if verdict == QUIET:
        texts = [f"{case.name(place, '')} runs {at}" for place, at in _constructors(case).items()]
        verdict = "; ".join([verdict, *texts[:1]])
    concerned = [one.where for one in failures] + [one.where for one in blockers]
    concerned += [name for group in stacks if group.odd for name in group.procs]
    return CaseFile(
        as_of, verdict, failures[:MOST], errors[:MOST], waits[:MOST], blockers[:MOST],
        cycles[:MOST], stacks[:MOST], _last_lines(case, concerned), _queries(case, bool(stacks)),
        lacking,
    )  # fmt: skip


# --- failures -------------------------------------------------------------------------------------


def _failures(case: _Case) -> list[Failure]:
    """Failed procs, the first first, then failed actors on procs that live."""
    procs = [
        (float(row["since_s"] or 0.0), Failure(name, str(row["failure"] or "failed"), None))
        for place, name in case.names.items()
        if (row := case.procs[place])["state"] == "failed"
    ]
    procs.sort(key=lambda pair: -pair[0])
    found: list[Failure] = []
    for since_s, one in procs:
        one.ago_s = round(since_s, 3)
        found.append(one)
    gone = {one.where for one in found}
    for row in case.rows("actors"):
        if row["status"] == "failed":
            place = (int(row["proc_mesh_id"]), int(row["proc_rank"]))
            where = case.name(place, row["proc_mesh"])
            if where not in gone:
                found.append(Failure(f"{where}.{row['name']}", f"actor {row['class']} has failed"))
    return found


def _called(row: Row) -> str:
    """The name of an actor; of one of the runtime, its label."""
    label = str(row["class"])
    return label if is_label(label) else str(row["actor"])


def _errors(case: _Case) -> list[EndpointErrors]:
    found = [
        EndpointErrors(
            case.name((int(row["mesh_id"]), int(row["rank"])), row["mesh"]),
            endpoint_text(_called(row), row["endpoint"]), int(row["errors"]), int(row["calls"]),
        )
        for row in case.rows("endpoints")
        if row["side"] == "callee" and row["errors"]
    ]  # fmt: skip
    return sorted(found, key=lambda one: (-one.errors, one.where))


# --- waits ----------------------------------------------------------------------------------------


@dataclass
class _Call:
    row: Row
    caller: Place
    owing: list[Place] = field(default_factory=list[Place])
    statuses: set[str] = field(default_factory=set[str])


def _waits(case: _Case) -> tuple[list[Wait], dict[Place, set[Place]]]:
    """The open calls, the oldest first, and the waits between procs."""
    messages: dict[tuple[object, ...], str] = {
        (row["sender"], row["call"], row["mesh_id"], row["rank"]): str(row["status"])
        for row in case.rows("messages")
        if row["status"] in ("active", "queued")
    }
    calls: dict[tuple[object, object], _Call] = {}
    edges: dict[Place, set[Place]] = {}
    for row in case.rows("calls"):
        caller = (int(row["caller_mesh_id"]), int(row["caller_rank"]))
        callee = (int(row["mesh_id"]), int(row["rank"]))
        call = calls.setdefault((row["caller"], row["call"]), _Call(row, caller))
        call.owing.append(callee)
        status = messages.get((row["caller"], row["call"], row["mesh_id"], row["rank"]))
        if status is not None:
            call.statuses.add(status)
        if row["awaited"] and status is not None:
            edges.setdefault(caller, set()).add(callee)
    found = [_wait(case, call) for call in calls.values()]
    found.sort(key=lambda one: (not one.awaited, -(one.for_s or 0.0), one.caller))
    return found, edges


def _wait(case: _Case, call: _Call) -> Wait:
    row, made = call.row, call.row["timestamp_us"]
    at = next((one for one in ("active", "queued") if one in call.statuses), "unknown")
    for_s = None if made is None else max(0.0, round((case.as_of - int(made)) / 1e6, 3))
    owing = [case.name(place, row["mesh"]) for place in sorted(call.owing)]
    return Wait(
        case.name(call.caller, row["caller_mesh"]), _called(row), str(row["endpoint"]),
        owing, int(row["ranks"]), bool(row["awaited"]), at, for_s,
    )  # fmt: skip


def _blockers(case: _Case, edges: Mapping[Place, set[Place]]) -> list[Blocker]:
    """The ends of chains of waits, those that most procs wait for first."""
    behind: dict[Place, set[Place]] = {}
    for start in edges:
        seen, pending = {start}, [start]
        while pending:
            for place in edges.get(pending.pop(), ()):
                if place not in seen:
                    seen.add(place)
                    pending.append(place)
        for end in seen:
            if end not in edges:
                behind.setdefault(end, set()).add(start)
    found: list[Blocker] = []
    constructors = _constructors(case)
    for place, waiting in behind.items():
        row = case.procs.get(place)
        if row is None:
            continue
        doing = endpoint_text(row["actor"] or "", row["endpoint"])
        since = None if row["since_s"] is None else round(float(row["since_s"]), 3)
        if not doing and place in constructors:
            doing, since = constructors[place], None  # the proc may have been idle before
        found.append(
            Blocker(case.names[place], len(waiting), str(row["state"]), doing or None, since)
        )
    return sorted(found, key=lambda one: (-one.waiting, -(one.for_s or 0.0), one.where))


def _constructors(case: _Case) -> dict[Place, str]:
    """The procs in which the constructor of an actor runs, with its name. They count as idle."""
    return {
        (int(row["proc_mesh_id"]), int(row["proc_rank"])): (
            endpoint_text(str(row["class"]).rpartition(".")[2], CONSTRUCTOR)
        )
        for row in case.rows("actors")
        if row["running"] == CONSTRUCTOR
    }


def _cycles(case: _Case, edges: Mapping[Place, set[Place]]) -> list[Cycle]:
    meshes: dict[Place, object] = {}
    for row in case.rows("calls"):
        meshes[int(row["caller_mesh_id"]), int(row["caller_rank"])] = row["caller_mesh"]
        meshes[int(row["mesh_id"]), int(row["rank"])] = row["mesh"]
    return [
        Cycle([case.name(place, meshes.get(place, "")) for place in cycle])
        for cycle in cycles_of(edges)
    ]


# --- stacks and lines -----------------------------------------------------------------------------


def _stacks(case: _Case) -> list[StackGroup]:
    """The ranks of each mesh by equal stacks: odd groups first, then the largest."""
    looks: dict[Place, tuple[str, str, list[str]]] = {}
    for row in case.rows(STACKS_TABLE):
        place = (int(row["mesh_id"]), int(row["rank"]))
        look = looks.setdefault(place, (str(row["mesh"]), str(row["activity"]), []))
        if row["function"] is not None:
            thread = "" if row["thread"] == "MainThread" else f"[{row['thread']}] "
            look[2].append(f"{thread}{row['function']} ({row['file']}:{row['line']})")
    groups: dict[tuple[int, str, str, tuple[str, ...]], list[Place]] = {}
    for place, (mesh, activity, frames) in looks.items():
        groups.setdefault((place[0], mesh, activity, tuple(frames)), []).append(place)
    largest: dict[int, int] = {}
    for key, places in groups.items():
        largest[key[0]] = max(largest.get(key[0], 0), len(places))
    found = [
        StackGroup(
            mesh, activity, [case.name(place, mesh) for place in sorted(places)],
            len(places) * ODD_PART <= largest[uid], list(frames),
        )
        for (uid, mesh, activity, frames), places in groups.items()
    ]  # fmt: skip
    return sorted(found, key=lambda one: (not one.odd, -len(one.procs), one.mesh))


def _last_lines(case: _Case, concerned: Sequence[str]) -> list[LastLines]:
    """The last lines of the procs that the case is about; of all procs if it is about none."""
    wanted = {name.partition(".")[0] for name in concerned}
    lines: dict[str, list[tuple[int, int, str]]] = {}
    for row in case.rows("log_lines"):
        name = case.name((int(row["mesh_id"]), int(row["rank"])), row["mesh"])
        if not wanted or name in wanted:
            entry = (int(row["timestamp_us"] or 0), int(row["number"]), str(row["text"]))
            lines.setdefault(name, []).append(entry)
    latest = sorted(lines.items(), key=lambda item: -max(item[1])[0])
    return [
        LastLines(name, [text for _, _, text in sorted(found)[-LAST_LINES:]])
        for name, found in latest[:MOST]
    ]


# --- in words -------------------------------------------------------------------------------------


def _verdict(
    failures: Sequence[Failure],
    cycles: Sequence[Cycle],
    blockers: Sequence[Blocker],
    waits: Sequence[Wait],
    stacks: Sequence[StackGroup],
    errors: Sequence[EndpointErrors],
    missing: Sequence[Missing],
) -> str:
    """The most likely cause in one sentence."""
    if failures:
        first = failures[0]
        others = len(failures) - 1
        more = f"; {others} more failure{'s' * (others != 1)} followed" if others else ""
        return f"{first.where} failed first: {_first_line(first.what)}{more}"
    if cycles:
        names = cycles[0].procs
        return f"{', '.join(names)} and {names[0]} wait for each other, in this order"
    if blockers:
        one = blockers[0]
        doing = f" runs {one.doing}" if one.doing else f" is {one.state}"
        since = "" if one.for_s is None else f" for {one.for_s:.1f} s"
        return f"{_waiting_text(one)} for {one.where}, which{doing}{since}{_odd_text(stacks)}"
    if missing and any(one.table == "procs" for one in missing):
        return f"a host does not answer: {missing[0].where}: {missing[0].reason}"
    if any(wait.awaited for wait in waits):
        one = next(wait for wait in waits if wait.awaited)
        called = endpoint_text(one.actor, one.endpoint)
        return f"{one.caller} waits for {one.owing[0]} to answer {called}"
    if any(group.odd for group in stacks):
        return f"nothing has failed{_odd_text(stacks)}"
    if errors:
        one = errors[0]
        errors_text = f"{one.errors} error{'s' * (one.errors != 1)}"
        return f"no process has failed; {one.where} raised {errors_text} in {one.endpoint}"
    return QUIET


def _odd_text(stacks: Sequence[StackGroup]) -> str:
    odd = [group for group in stacks if group.odd]
    if not odd:
        return ""
    return f"; the stack of {name_procs(odd[0].procs)} differs from the others': {odd[0].activity}"


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")


def _queries(case: _Case, has_stacks: bool) -> list[Evidence]:
    found = [
        Evidence(
            "failed procs, the first first",
            "SELECT mesh, rank, since_s, failure FROM procs WHERE state = 'failed' "
            "ORDER BY since_s DESC",
        ),
        Evidence(
            "which proc waits for which",
            "SELECT c.caller_mesh, c.caller_rank, c.mesh, c.rank, c.actor, c.endpoint, m.status "
            "FROM calls c LEFT JOIN messages m ON m.sender = c.caller AND m.call = c.call "
            "AND m.mesh_id = c.mesh_id AND m.rank = c.rank WHERE c.awaited",
        ),
        Evidence(
            "endpoints that raise",
            "SELECT mesh, rank, actor, endpoint, errors, calls FROM endpoints "
            "WHERE side = 'callee' AND errors > 0 ORDER BY errors DESC",
        ),
        Evidence(
            "the last lines of each proc",
            "SELECT mesh, rank, stream, text FROM log_lines QUALIFY row_number() OVER "
            "(PARTITION BY mesh_id, rank ORDER BY timestamp_us DESC, number DESC) <= 5",
        ),
    ]
    if has_stacks or case.rows(STACKS_TABLE):
        found.append(
            Evidence(
                "which procs are where",
                "SELECT mesh, activity, list(DISTINCT rank) AS ranks FROM frames GROUP BY ALL "
                "ORDER BY len(ranks)",
            )
        )
    return found


def case_text(case: CaseFile) -> str:
    """The case file for people. Signs that a terminal would obey are shown as escapes."""
    lines = [f"VERDICT  {case.verdict}"]
    lines += _section("FAILURES, the first first", [_failure_text(one) for one in case.failures])
    lines += _section(
        "ERRORS OF ENDPOINTS",
        [f"{e.where} {e.endpoint}: {e.errors} of {e.calls} calls" for e in case.errors],
    )
    lines += _section("WAITS", [_wait_text(one) for one in case.waits])
    lines += _section("CYCLES OF WAITS", [" -> ".join([*c.procs, c.procs[0]]) for c in case.cycles])
    lines += _section("BLOCKERS", [_blocker_text(one) for one in case.blockers])
    stacks: list[str] = []
    for group in case.stacks:
        odd = "odd: " if group.odd else ""
        stacks.append(f"{odd}{name_procs(group.procs)}: {group.activity}")
        stacks += [f"    {frame}" for frame in group.frames]
    lines += _section("STACKS", stacks)
    last = [f"{one.where}: {text}" for one in case.last_lines for text in one.lines]
    lines += _section("LAST LINES", last)
    lines += _section("MISSING", [f"{m.table}: {m.where}: {m.reason}" for m in case.missing])
    asked = [text for one in case.queries for text in (f"-- {one.shows}", f"{one.sql};")]
    lines += _section("QUERIES", asked)
    return "\n".join(printable(line) for line in lines)


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in lines)] if lines else []


def _failure_text(one: Failure) -> str:
    ago = "" if one.ago_s is None else f", {one.ago_s:.1f} s ago"
    return f"{one.where}{ago}: {_first_line(one.what)}"


def _wait_text(one: Wait) -> str:
    owing = name_procs(one.owing)
    since = "" if one.for_s is None else f"{one.for_s:.1f} s"
    if one.awaited:
        how = f"waits for {since}" if since else "waits"
    else:
        how = f"called {since} ago and does not wait" if since else "has called and does not wait"
    at = "" if one.at_callee == "unknown" else f", {one.at_callee} there"
    return (
        f"{one.caller} {how}: {endpoint_text(one.actor, one.endpoint)} on {owing} "
        f"({len(one.owing)} of {one.ranks} ranks owe an answer{at})"
    )


def _waiting_text(one: Blocker) -> str:
    return "1 proc waits" if one.waiting == 1 else f"{one.waiting} procs wait"


def _blocker_text(one: Blocker) -> str:
    since = "" if one.for_s is None else f" for {one.for_s:.1f} s"
    doing = f", runs {one.doing}" if one.doing else ""
    return f"{one.where} is {one.state}{since}{doing}; {_waiting_text(one)} for it"
