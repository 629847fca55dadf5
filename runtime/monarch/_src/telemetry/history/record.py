"""`record`: switch the history of a session on and off.

Runs in: a client or a rank, on the calling thread, which waits for host agents and processes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf
from numbers import Real
from pathlib import Path

from monarch._src.actor.runtime import Runtime, runtime_or_none
from monarch._src.actor.state.history import MOST_ROWS
from monarch._src.config import configure
from monarch._src.net.observer import ask_agents
from monarch._src.telemetry.history.switch import keep
from monarch._src.telemetry.sql.collect import (
    STATE_S,
    Collected,
    MissingRows,
    Pending,
    collect_from,
    collect_here,
    host_of,
    no_answer,
)
from monarch._src.telemetry.sql.state.pushdown import Need
from monarch._src.wire.messages import SetHistory, TableRead

RETENTION_S = 3600.0
TABLE = "recordings"
_NEED = {TABLE: Need(("rank",), limit=0)}
MOST_SETTABLE_ROWS = 1_000_000


def record(
    retention_secs: float = RETENTION_S, rows: int = MOST_ROWS, timeout: float | None = None
) -> tuple[MissingRows, ...]:
    """Keep history of this session from now on: calls, messages, spans, log records.

    Queries read it in `messages`, `message_status_events`, `sent_messages`, `spans`, `span_events`
    and `events`. It applies to the processes that exist and to those that are spawned later, and
    costs 1 to 3 % of a call, on a busy machine about 4 %. When this returns, all processes keep
    history but those that are returned.

    Args:
        retention_secs: how long rows are kept; 0: switch it off, and forget all rows.
        rows: the maximal number of rows of each kind in a process, about 250 bytes each. Then the
            oldest are dropped; the table `recordings` has their number.
        timeout: seconds to wait for processes; None: 2.

    Returns:
        The processes that have not confirmed in time. They carry out the order later.

    Raises:
        ValueError: a negative, infinite or NaN time, or not 1 to 1,000,000 rows.
        TypeError: an argument is no number.
    """
    order = checked_order(retention_secs, rows)
    if timeout is not None and not 0 <= timeout < inf:
        raise ValueError(f"timeout={timeout}: give seconds, at least 0 and finite, or None")
    configure(telemetry_retention=float(retention_secs), telemetry_rows=rows)
    keep(order.retention_s, order.rows)
    run = runtime_or_none()
    return () if run is None else tuple(order_here(run, order, timeout))


def checked_order(retention_secs: float, rows: int, for_s: float = 0.0) -> SetHistory:
    """The order to keep that.

    Raises:
        ValueError, TypeError: as `record`.
    """
    for name, number in (("retention_secs", retention_secs), ("rows", rows)):
        if not isinstance(number, Real):
            raise TypeError(f"{name}={number!r}: give a number")
    if not 0 <= retention_secs < 1e9:  # NaN is neither
        raise ValueError(f"retention_secs={retention_secs}: give seconds, at least 0, below 1e9")
    if not 1 <= rows <= MOST_SETTABLE_ROWS:
        raise ValueError(f"rows={rows}: give 1 to {MOST_SETTABLE_ROWS:,}")
    return SetHistory(0, float(retention_secs), rows, for_s)


def order_here(run: Runtime, order: SetHistory, timeout_s: float | None) -> list[MissingRows]:
    """Give an order to all hosts of this session; returns the processes that did not confirm it."""
    deadline = time.monotonic() + (STATE_S if timeout_s is None else timeout_s)
    pending: list[Pending] = []
    for agent in run.agent.agents:
        one = Pending(agent, TABLE)
        one.drop = run.agent.read_table(agent, order, one)
        pending.append(one)
    missing: list[MissingRows] = []
    for one in pending:
        run.node.wait(one, max(0.0, deadline - time.monotonic()))
        one.drop()
        if one.answer is None:
            missing.append(MissingRows(TABLE, host_of(run, one.agent), no_answer(None)))
    # Answers to requests for rows come after the order: both travel on the same links.
    confirmed = collect_here(run, _NEED, timeout_s)
    return [*missing, *confirmed.missing]


def order_from(
    sessions: Sequence[tuple[str, Path]], order: SetHistory, timeout_s: float | None
) -> Collected:
    """Give an order to these sessions of this machine, as an observer."""
    seconds = STATE_S if timeout_s is None else timeout_s
    answers = ask_agents([path for _, path in sessions], seconds, [order] * len(sessions))
    reached = [
        session
        for session, answer in zip(sessions, answers, strict=True)
        if isinstance(answer, TableRead)
    ]
    confirmed = collect_from(reached, _NEED, timeout_s)
    confirmed.missing += [
        MissingRows(TABLE, f"session {name}", no_answer(answer))
        for (name, _), answer in zip(sessions, answers, strict=True)
        if not isinstance(answer, TableRead)
    ]
    return confirmed
