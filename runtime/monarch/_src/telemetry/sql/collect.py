"""Collects tables from host agents, over the node of this process or as an observer.

Runs in: the process of the query, on the calling thread, which waits. Agents answer at the same
time; one that has not answered in time is named in place of its rows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from monarch._src.actor.runtime import Runtime
from monarch._src.net.local.waitable import Waitable
from monarch._src.net.observer import Answer, ask_agents
from monarch._src.net.session_directory import PREFIX
from monarch._src.telemetry.sql.missing_rows import DroppedRows, MissingRows
from monarch._src.telemetry.sql.state.pushdown import Need
from monarch._src.telemetry.sql.state.rows import meets
from monarch._src.telemetry.sql.state.schema import TABLES, Source
from monarch._src.wire.ids import AGENT, site_of_agent
from monarch._src.wire.messages import ReadTable, Refused, TableRead
from monarch._src.wire.table_codec import Cell, unpacked

STATE_S = 2.0
STACKS_S = 30.0
PATIENCE_S = 30.0
"""How long idle ranks are waited for, unless there is a time-out: they answer when they can."""
SILENCE_S = 10.0
"""After so many seconds without a sign, an agent is not waited for."""
SPARE_S = 2.0
"""Seconds for the answers of agents after the time for ranks; of a time-out, at most a quarter."""


@dataclass
class Collected:
    """The columns of each table, and the rows that are missing or that history has dropped."""

    tables: dict[str, dict[str, list[Cell]]] = field(
        default_factory=dict[str, "dict[str, list[Cell]]"]
    )
    missing: list[MissingRows] = field(default_factory=list[MissingRows])
    dropped: list[DroppedRows] = field(default_factory=list[DroppedRows])
    _keys: dict[str, set[Cell]] = field(default_factory=dict[str, "set[Cell]"])

    def begin(self, table: str, need: Need) -> None:
        """Add an empty table."""
        self.tables[table] = {column: [] for column in need.columns}

    def has_rows(self, table: str) -> bool:
        """Whether there is a row of that table."""
        return any(self.tables.get(table, {}).values())

    def add(self, table: str, need: Need, session: str, host: str, answer: TableRead) -> None:
        """Add the rows of an agent."""
        sent = _sent(table, need)
        if answer.problem:
            self.missing.append(MissingRows(table, host, answer.problem))
            return
        try:
            columns = unpacked(answer.columns, len(sent), answer.count)
        except ValueError as error:
            self.missing.append(MissingRows(table, host, f"its answer is unreadable: {error}"))
            return
        found, count = self.tables[table], answer.count
        if key := TABLES[table].key:
            new = self._new_rows(table, columns[sent.index(key)])
            columns, count = [[cells[at] for at in new] for cells in columns], len(new)
        for column, cells in zip(sent, columns, strict=True):
            if column in found:
                found[column] += cells
        for column, value in (("session", session), ("host", host)):
            if column in found:
                found[column] += [value] * count
        if answer.dropped:
            why = f"{answer.dropped} rows did not fit into its answer; add conditions"
            self.missing.append(MissingRows(table, host, why))
        self.missing += [MissingRows(table, f"{at} on {host}", why) for at, why in answer.missing]
        self.dropped += [
            DroppedRows(table, f"{at} on {host}" if at else host, count, since_us)
            for at, count, since_us in answer.lost
        ]

    def _new_rows(self, table: str, keys: Sequence[Cell]) -> list[int]:
        """The indexes of rows whose keys no other agent has sent."""
        seen = self._keys.setdefault(table, set())
        new = [at for at, key in enumerate(keys) if key not in seen]
        seen.update(keys)
        return new


def _sent(table: str, need: Need) -> list[str]:
    """The columns that an agent is asked for."""
    known = {column.name for column in TABLES[table].sent}
    asked = [column for column in need.columns if column in known]
    key = TABLES[table].key
    return asked if not key or key in asked else [*asked, key]


def _request(table: str, need: Need, timeout_s: float | None) -> ReadTable:
    patience_s = 0.0
    if timeout_s is not None:
        seconds = timeout_s - min(SPARE_S, timeout_s / 4)
    elif Source.STACKS in TABLES[table].source:
        seconds = STACKS_S
    else:
        seconds, patience_s = STATE_S, PATIENCE_S
    known = {column.name for column in TABLES[table].sent}
    conditions = [condition for condition in need.conditions if condition.column in known]
    return ReadTable(0, table, _sent(table, need), conditions, need.limit, seconds, patience_s)


def _may_have_rows(need: Need, **place: str) -> bool:
    """Whether rows of an agent may be needed, by its session and host as far as they are known."""
    return all(
        meets(place[condition.column], condition)
        for condition in need.conditions
        if condition.column in place
    )


def _wait_s(requests: Sequence[ReadTable], timeout_s: float | None) -> float:
    if timeout_s is not None:
        return timeout_s
    times = (max(request.timeout_s, request.patience_s) for request in requests)
    return SPARE_S + max(times, default=0.0)


def _silence_s(requests: Sequence[ReadTable]) -> float:
    return SILENCE_S if all(request.patience_s for request in requests) else inf


def _begun(needs: Mapping[str, Need]) -> tuple[Collected, Mapping[str, Need]]:
    """Empty tables for these needs, and the needs that agents meet."""
    collected = Collected()
    for table, need in needs.items():
        collected.begin(table, need)
    of_agents = Source.AGENT | Source.PROCESSES | Source.STACKS
    return collected, {t: need for t, need in needs.items() if TABLES[t].source & of_agents}


# --- over the node of this process ----------------------------------------------------------------


class Pending(Waitable):
    """The answer of one agent to one request."""

    def __init__(self, agent: str, table: str) -> None:
        super().__init__()
        self.agent = agent
        self.table = table
        self.answer: TableRead | None = None
        self.drop: Callable[[], None] = lambda: None
        self._heard = time.monotonic()

    def on_wait(self) -> None:
        """The agent waits for others."""
        self._heard = time.monotonic()

    def left(self, deadline: float, silence_s: float) -> float:
        """The seconds for which the answer is waited for, unless the agent gives a sign."""
        return min(deadline, self._heard + silence_s) - time.monotonic()

    def settle(self, decode: Callable[[], Any]) -> None:
        """See `agent_client.Settled`."""
        self.answer = decode()
        self.finish()

    def fail(self, _error: BaseException) -> None:
        """See `agent_client.Settled`."""
        self.finish()


def collect_here(
    run: Runtime | None, needs: Mapping[str, Need], timeout_s: float | None
) -> Collected:
    """Collect from the agents of all hosts of this process's session; without one, no rows.

    It takes at most `timeout_s`, or without it the usual time of the tables.
    """
    collected, needs = _begun(needs)
    requests = {table: _request(table, need, timeout_s) for table, need in needs.items()}
    if run is None:
        return collected
    deadline = time.monotonic() + _wait_s(list(requests.values()), timeout_s)
    pending: list[Pending] = []
    session = Path(run.directory).name.removeprefix(PREFIX)
    for agent in run.agent.agents:
        for table, request in requests.items():
            if not _may_have_rows(needs[table], session=session, host=host_of(run, agent)):
                continue
            one = Pending(agent, table)
            one.drop = run.agent.read_table(agent, request, one, one.on_wait)
            pending.append(one)
    for one in pending:
        silence_s = _silence_s([requests[one.table]])
        while not one.done and (left := one.left(deadline, silence_s)) > 0:
            run.node.wait(one, left)
        run.node.wait(one, 0.0)  # this process may have been delayed itself
        one.drop()
        host = host_of(run, one.agent)
        if one.answer is not None:
            collected.add(one.table, needs[one.table], session, host, one.answer)
            continue
        why = "its host agent is gone" if one.done else "its host agent does not answer"
        collected.missing.append(MissingRows(one.table, host, why))
    return collected


def host_of(run: Runtime, agent: str) -> str:
    """The name of an agent's host."""
    if agent == AGENT:
        return run.site or run.host
    return site_of_agent(agent) or run.host


# --- as an observer -------------------------------------------------------------------------------


def collect_from(
    sessions: Sequence[tuple[str, Path]], needs: Mapping[str, Need], timeout_s: float | None
) -> Collected:
    """Collect from the agents of these sessions of this machine: their names and directories.

    It takes at most `timeout_s`, or without it the usual time of the tables.
    """
    collected, needs = _begun(needs)
    asked = [
        (session, table)
        for table, need in needs.items()
        for session in sessions
        if _may_have_rows(need, session=session[0])
    ]
    requests = [_request(table, needs[table], timeout_s) for _, table in asked]
    directories = [directory for (_, directory), _ in asked]
    answers = ask_agents(directories, _wait_s(requests, timeout_s), requests, _silence_s(requests))
    here = os.uname().nodename
    for ((session, _), table), answer in zip(asked, answers, strict=True):
        if isinstance(answer, TableRead):
            collected.add(table, needs[table], session, answer.site or here, answer)
        else:
            where = f"session {session}"
            collected.missing.append(MissingRows(table, where, no_answer(answer)))
    return collected


def no_answer(answer: Answer) -> str:
    """Why an agent has not answered."""
    if isinstance(answer, Refused):
        return "it runs another version of monarch; use the `monarch` command of its environment"
    return "its host agent does not answer"
