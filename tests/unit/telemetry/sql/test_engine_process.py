"""The engine's process ends a query that takes too much, and the next query gets a new one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import psutil
import pytest

from monarch._src.errors import QueryError, QueryTimeoutError
from monarch._src.telemetry.replay.file import query_file
from monarch._src.telemetry.sql import engine_process
from monarch._src.telemetry.sql.collect import Collected
from monarch._src.telemetry.sql.engine import ResultRows, run_on
from monarch._src.telemetry.sql.engine_process import call_engine, end_idle_engines
from monarch._src.telemetry.sql.missing_rows import MissingRows
from monarch._src.telemetry.sql.query import query, run_query
from monarch._src.telemetry.sql.state.pushdown import Need

SMALL_MB = 64
ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range = -1"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries may use little memory."""
    monkeypatch.setattr(engine_process, "MEMORY_MB", SMALL_MB)


LARGE = [
    "SELECT repeat('x', 200000000)",
    "SELECT list(i) FROM range(2000000) t(i)",
    "SELECT string_agg(repeat('x', 1000000)) FROM range(200)",
    "SELECT {'a': list(i), 'b': list(i::VARCHAR)} FROM range(1000000) t(i)",
    "FROM range(3000000)",
]


@pytest.mark.usefixtures("small")
def test_a_query_that_needs_more_memory_than_allowed_fails_and_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = psutil.Process().memory_info().rss
    for sql in LARGE:
        with pytest.raises(QueryError, match=f"Out of Memory.*more than {SMALL_MB} MB"):
            query(sql)
    assert query("SELECT length(repeat('x', 1000000))").rows == ((1_000_000,),)
    assert psutil.Process().memory_info().rss - before < 2 * SMALL_MB * 1_000_000
    assert list(tmp_path.iterdir()) == []


def test_rows_have_the_types_that_duckdb_gives_them() -> None:
    sql = (
        "SELECT 1.10::DECIMAL(4, 2), '5b1d2c4e-0000-0000-0000-000000000000'::UUID, "
        "DATE '2026-01-02', {'a': [1, NULL]}, '\\xff'::BLOB, NULL, "
        "170141183460469231731687303715884105727"
    )
    (row,) = query(sql).rows
    assert row == (
        Decimal("1.10"), UUID("5b1d2c4e-0000-0000-0000-000000000000"),
        date(2026, 1, 2), {"a": [1, None]}, b"\xff", None, 2**127 - 1,
    )  # fmt: skip
    assert len(query("FROM range(100000)")) == 100_000


def test_a_time_out_bounds_the_engine_and_the_next_query_runs(tmp_path: Path) -> None:
    for seconds in (0.0, 0.5):
        with pytest.raises(QueryTimeoutError, match=f"did not end within {seconds:g} s"):
            query(ENDLESS, seconds)
    with pytest.raises(TimeoutError):
        call_engine(run_on, ENDLESS, {}, None, deadline=0.0)
    with pytest.raises(ValueError, match="at least 0 and finite"):
        query_file(tmp_path / "none", "SELECT 1", timeout=-1)
    assert query("SELECT 1").rows == ((1,),)


def test_hosts_get_the_part_of_a_time_out_that_the_engine_leaves() -> None:
    given: list[float | None] = []

    def collect(_needs: object, seconds: float | None) -> Collected:
        given.append(seconds)
        return Collected({"procs": {"rank": [1]}})

    assert run_query("SELECT rank FROM procs", 1000.0, collect).rows == ((1,),)
    assert run_query("SELECT rank FROM procs", None, collect).rows == ((1,),)
    assert given[0] is not None
    assert 500 < given[0] <= 998
    assert given[1] is None


@pytest.mark.parametrize(
    ("spans", "recordings", "missing", "not_kept"),
    [
        ([], [], [], ("spans",)),
        ([], ["spans"], [], ()),
        ([1], [], [], ()),
        ([], [], [MissingRows("recordings", "a host", "it is late")], ()),
    ],
)
def test_a_table_that_is_empty_because_no_history_is_kept_is_named(
    spans: list[int], recordings: list[str], missing: list[MissingRows], not_kept: tuple[str, ...]
) -> None:
    asked: list[list[str]] = []

    def collect(needs: Mapping[str, Need], _seconds: float | None) -> Collected:
        asked.append(sorted(needs))
        if "recordings" in needs:
            return Collected({"recordings": {"name": [*recordings]}}, missing)
        return Collected({"spans": {"id": [*spans]}, "procs": {"rank": [1]}})

    found = run_query("SELECT count(spans.id) FROM spans, procs", 60.0, collect)
    assert (found.rows, found.not_kept) == (((len(spans),),), not_kept)
    assert asked == [["procs", "spans"], *([] if spans else [["recordings"]])]
    assert ("observe.record()" in str(found)) is bool(not_kept)
    run_query("SELECT rank FROM procs", 60.0, collect)
    assert asked[-1] == ["procs"]


def at_the_fifth_wait(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act while a query computes."""
    waits = 0
    wait = engine_process.wait_for

    def counted(fd: int, event: int, deadline: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 5:
            act()
        wait(fd, event, deadline)

    monkeypatch.setattr(engine_process, "wait_for", counted)


def test_an_interrupt_is_a_keyboard_interrupt_and_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end_idle_engines()
    assert query("SELECT 1").rows == ((1,),)
    (kept,) = psutil.Process().children()
    at_the_fifth_wait(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        query(ENDLESS)
    assert not kept.is_running()
    assert query("SELECT 1").rows == ((1,),)


def test_a_process_that_dies_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert query("SELECT 1").rows == ((1,),)
    (kept,) = psutil.Process().children()
    kept.kill()
    psutil.wait_procs([kept])
    assert query("SELECT 1").rows == ((1,),)
    (kept,) = psutil.Process().children()
    at_the_fifth_wait(monkeypatch, kept.kill)
    with pytest.raises(QueryError, match=r"the query engine has died \(SIGKILL\), most likely of"):
        query(ENDLESS)
    assert query("SELECT 1").rows == ((1,),)


def test_one_process_is_kept_and_a_fork_has_none() -> None:
    answer = call_engine(run_on, "SELECT 1", {}, None)
    assert answer == ResultRows(("1",), ("INTEGER",), ((1,),))
    assert len(psutil.Process().children()) == 1
    assert query("SELECT 2").rows == ((2,),)
    assert len(psutil.Process().children()) == 1
    end_idle_engines()
    assert psutil.Process().children() == []
    assert query("SELECT 3").rows == ((3,),)


PROGRAM = f"""
import os, sys
from monarch.observe import query
assert query("SELECT 1").rows == ((1,),)
forked = os.fork()
if not forked:
    assert query("SELECT 2").rows == ((2,),)  # of its own process
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
assert query("SELECT 3").rows == ((3,),)
print("begun", flush=True)
query({ENDLESS!r})
"""


def test_an_engine_ends_with_a_client_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        engines = psutil.Process(program.pid).children()
        assert len(engines) == 1
        program.kill()
    gone, _ = psutil.wait_procs(engines, timeout=60)
    assert gone == engines
