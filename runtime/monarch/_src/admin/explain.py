"""`explain`: the case file of a fault or hang, of this session or of sessions of this machine.

Runs in: a client, the command line or the admin server; the calling thread, which waits for agents.
A report needs no rank to be responsive: agents and receiving threads answer, and py-spy reads
stacks from outside.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import inf

from monarch._src.actor.runtime import runtime_or_none
from monarch._src.admin.cluster_reader import missing_of, rows_of, whole
from monarch._src.admin.state.case_file import STACKS_TABLE, TABLES, CaseFile, case_of
from monarch._src.telemetry.sql.collect import collect_here
from monarch._src.telemetry.sql.query import Collect

STACKS_S = 30.0


def explain(timeout: float | None = None, *, stacks: bool = True) -> CaseFile:
    """Explain why this session does not go on: a case file, which prints as text.

    It has the first failure, open calls, waits between procs and their cycles, the stacks of
    ranks with those that differ from the others, the last lines, and queries that show more.
    Without a session it is empty.

    Args:
        timeout: seconds to wait for ranks; None: 2, and 30 for stacks. Rows of hosts and ranks that
            have not answered are `missing`.
        stacks: read stacks, which needs py-spy. If that is not possible, `missing` says why.

    Raises:
        ValueError: a negative, infinite or NaN time-out.
    """
    run = runtime_or_none()
    return case_from(lambda needs, seconds: collect_here(run, needs, seconds), timeout, stacks)


def case_from(
    collect: Collect, timeout: float | None, stacks: bool, now_us: int | None = None
) -> CaseFile:
    """The case file of the rows that `collect` returns; see `explain`.

    `now_us`: when the rows were seen, in microseconds since 1970; None: now.
    """
    if timeout is not None and not 0 <= timeout < inf:  # NaN is neither
        raise ValueError(f"timeout={timeout}: give seconds, at least 0 and finite, or None")
    wanted = (*TABLES, STACKS_TABLE) if stacks else TABLES
    collected = collect(whole(wanted), timeout)
    seen_us = time.time_ns() // 1000 if now_us is None else now_us
    tables: Mapping[str, list[dict[str, object]]] = {
        name: rows_of(collected, name) for name in wanted
    }
    return case_of(seen_us, tables, missing_of(collected))
