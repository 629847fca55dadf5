"""SQL over a session that runs: what its tables have, and what is told of those who are silent."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from monarch._src.actor.runtime import runtime
from monarch._src.telemetry.sql import collect
from monarch._src.telemetry.sql.collect import Pending
from monarch.actor import (
    Actor,
    BootstrapCommand,
    ProcMesh,
    attach_to_workers,
    context,
    default_bootstrap_cmd,
    endpoint,
    get_meter,
    get_or_spawn_controller,
    shutdown_context,
    span,
)
from monarch.job import JobState
from monarch.observe import QueryError, query, snapshot
from tests.conftest import Faults
from tests.integration.callers import Ring
from tests.integration.commands import monarch
from tests.integration.failing_actors import Faulty
from tests.integration.gates import Gate, GateKeeper
from tests.integration.sample_actors import Echo, Printer
from tests.integration.telemetry.asking import ask
from tests.integration.worker_actors import WorkerActor
from tests.workers import PATIENCE_S, TRUST_ALL, worker, workers

Spawn = Callable[..., ProcMesh]


class Asker(Actor):
    """Asks about its own session."""

    @endpoint
    def procs(self) -> list[int]:
        return [rank for (rank,) in query("SELECT rank FROM procs ORDER BY rank", PATIENCE_S)]


@pytest.fixture
def mesh(spawn_procs: Spawn) -> ProcMesh:
    procs = spawn_procs({"gpus": 4}, name="workers")
    procs.initialized.get()
    return procs


def until(sql: str, rows: list[tuple[object, ...]]) -> None:
    """Ask until it has come about."""
    found: tuple[tuple[object, ...], ...] = ()
    for _ in range(500):
        found = ask(sql).rows
        if list(found) == rows:
            return
    pytest.fail(f"never so; last: {found}")


# --- the tables -----------------------------------------------------------------------------------


def test_ranks_are_told_with_what_they_do(mesh: ProcMesh, gate: GateKeeper) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    answer = faulty.hold_on.call([2], gate.gate)
    gate.wait_entered()
    until(
        "SELECT rank, actor, endpoint, point_json FROM procs WHERE state = 'busy'",
        [(2, "Faulty", "hold_on", '{"gpus":2}')],
    )
    found = ask("SELECT mesh, mesh_id, count(*), min(rss_bytes) > 0 FROM procs GROUP BY ALL")
    assert found.rows == (("workers", int(mesh.uid, 16), 4, True),)
    gate.open()
    answer.get()


def test_a_host_is_told_with_its_agent_and_the_lines_that_it_keeps(mesh: ProcMesh) -> None:
    assert mesh.spawn("echo", Echo).same.call(1).get().values() == [1] * 4
    found = ask("SELECT host, meshes, procs, log_lines_dropped, session FROM hosts").dicts()
    name = Path(runtime().directory).name.partition("-")[2]
    assert found == [
        {
            "host": os.uname().nodename, "meshes": 1, "procs": 4, "log_lines_dropped": 0,
            "session": name,
        }
    ]  # fmt: skip


def test_proc_meshes_and_actor_meshes_are_told_once_each(mesh: ProcMesh) -> None:
    mesh.spawn("echo", Echo).initialized.get()
    mesh.slice(gpus=slice(1, 3)).spawn("some", Echo).initialized.get()
    found = ask(
        "SELECT given_name, class, parent_mesh_id, shape_json FROM meshes WHERE class != 'Host' "
        "ORDER BY id"
    )
    uid = int(mesh.uid, 16)
    ((host,),) = ask("SELECT id FROM meshes WHERE class = 'Host'").rows
    assert found.rows == (
        ("workers", "Proc", host, '{"inner":{"labels":["gpus"],"sizes":[4]}}'),
        ("echo", "Python<Echo>", uid, '{"inner":{"labels":["gpus"],"sizes":[4]}}'),
        ("some", "Python<Echo>", uid, '{"inner":{"labels":["gpus"],"sizes":[2]}}'),
    )


@pytest.fixture
def own_session() -> Iterator[None]:
    """The controllers of a test end with it."""
    yield
    shutdown_context(reason="the test has ended")


@pytest.mark.usefixtures("own_session")
def test_actors_are_told_of_ranks_and_of_the_client(mesh: ProcMesh) -> None:
    mesh.slice(gpus=slice(1, 3)).spawn("some", Echo).initialized.get()
    get_or_spawn_controller("keeper", Echo).get().same.call_one(1).get()
    found = ask(
        "SELECT a.proc_mesh, a.proc_rank, a.rank, a.name, m.given_name, a.status, a.queued "
        "FROM actors a JOIN meshes m ON a.mesh_id = m.id ORDER BY ALL"
    )
    assert found.rows == (
        ("client", 0, 0, "keeper", "keeper", "idle", 0),
        ("workers", 1, 0, "some", "some", "idle", 0),
        ("workers", 2, 1, "some", "some", "idle", 0),
    )


class Learner(Actor):
    """Has values to read."""

    def __init__(self) -> None:
        self.loss = 0.5 + context().actor_instance.rank.rank
        self.batch = np.zeros((4, 8))

    @endpoint
    def hold(self, gate: Gate) -> None:
        gate.pass_through()


def test_attributes_of_actors_are_told_also_while_they_compute(
    mesh: ProcMesh, gate: GateKeeper
) -> None:
    learner = mesh.spawn("learner", Learner)
    learner.initialized.get()
    held = learner.slice(gpus=1).hold.call_one(gate.gate)
    gate.wait_entered()
    sql = "SELECT rank, class, name, text FROM attributes WHERE actor = 'learner' ORDER BY ALL"
    rows = ask(sql).rows
    gate.open()
    held.get()
    kind = f"{__name__}.Learner"
    assert rows == tuple(
        (rank, kind, *one)
        for rank in range(4)
        for one in (("batch", "ndarray float64 (4, 8)"), ("loss", f"{0.5 + rank}"))
    )
    mine = ask("SELECT text FROM attributes WHERE actor = 'learner' AND name = 'loss' AND rank = 1")
    assert mine.rows == (("1.5",),)


def test_calls_and_the_messages_that_they_wait_for_join(mesh: ProcMesh, gate: GateKeeper) -> None:
    ring, faulty = mesh.spawn("ring", Ring), mesh.spawn("faulty", Faulty)
    answer = ring.slice(gpus=0).hold_by.call_one(faulty.slice(gpus=1), gate.gate)
    gate.wait_entered()
    second = faulty.slice(gpus=1).hold_on.call_one([], gate.gate)
    until(
        "SELECT c.caller_mesh, c.caller_rank, c.mesh, c.rank, c.actor, c.endpoint, m.status, "
        "m.waited_s IS NULL, m.timestamp_us IS NULL, c.timestamp_us IS NULL "
        "FROM calls c JOIN messages m ON m.sender = c.caller AND m.call = c.call "
        "AND m.rank = c.rank ORDER BY ALL",
        [
            ("client", 0, "workers", 0, "ring", "hold_by", "active", False, False, False),
            ("client", 0, "workers", 1, "faulty", "hold_on", "queued", True, False, False),
            ("workers", 0, "workers", 1, "faulty", "hold", "active", False, False, False),
        ],
    )
    gate.open()
    answer.get()
    second.get()
    assert ask("SELECT * FROM calls").rows == ask("SELECT * FROM messages").rows == ()


def test_endpoints_are_counted_by_callers_and_callees(mesh: ProcMesh) -> None:
    echo = mesh.spawn("counted", Echo)
    for _ in range(3):
        echo.same.call(1).get()
    found = ask(
        "SELECT mesh, side, adverb, sum(calls)::BIGINT, sum(errors)::BIGINT FROM endpoints "
        "WHERE actor = 'counted' GROUP BY ALL ORDER BY ALL"
    )
    assert found.rows == (("client", "caller", "call", 3, 0), ("workers", "callee", None, 12, 0))


class Measured(Actor):
    """Has spans and instruments."""

    @endpoint
    def work(self, rank: int) -> None:
        with span("load"):
            get_meter().create_counter("tokens", "1").add(5, {"phase": "train"})
            get_meter().create_up_down_counter("queue").add(-2)
            loss = get_meter().create_histogram("loss", "nats")
            loss.record(0.5)
            loss.record(4.0)


def test_spans_and_instruments_of_programs_are_told(mesh: ProcMesh) -> None:
    mesh.spawn("measured", Measured).slice(gpus=slice(1, 3)).work.call(1).get()
    found = ask(
        "SELECT rank, actor, endpoint, name, parent, count, running FROM span_counts "
        "WHERE mesh = 'workers'"
    )
    assert found.rows == (
        (1, "measured", "work", "load", "work", 1, 0),
        (2, "measured", "work", "load", "work", 1, 0),
    )
    sums = ask(
        "SELECT name, unit, is_monotonic, attributes_json->>'phase', sum(sum_f64), "
        "resource_attributes_json->>'mesh', temporality FROM metric_sums WHERE mesh = 'workers' "
        "AND scope_name = 'monarch' GROUP BY ALL ORDER BY ALL"
    )
    assert sums.rows == (
        ("queue", "", False, None, -4.0, "workers", "cumulative"),
        ("tokens", "1", True, "train", 10.0, "workers", "cumulative"),
    )
    found = ask(
        "SELECT count, sum_f64, min_f64, max_f64, bucket_counts_json, "
        "(bounds_json->>0)::DOUBLE > 0.5, (bounds_json->>1)::DOUBLE > 4 "
        "FROM metric_histograms WHERE mesh = 'workers' AND rank = 1 "
        "AND scope_name = 'monarch'"
    )
    assert found.rows == ((2, 4.5, 0.5, 4.0, "[1, 1]", True, True),)


def test_the_lines_that_ranks_have_written_are_kept(mesh: ProcMesh) -> None:
    mesh.spawn("printer", Printer).out.call("one", "two").get()
    found = ask(
        "SELECT rank, stream, text FROM log_lines WHERE mesh = 'workers' AND rank IN (1, 3) "
        "AND text IN ('one', 'two') ORDER BY rank, number"
    )
    assert found.rows == tuple((rank, "stdout", text) for rank in (1, 3) for text in ("one", "two"))


def test_stacks_are_taken_when_they_are_asked_for(mesh: ProcMesh, gate: GateKeeper) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    answer = faulty.hold_on.call([1, 2], gate.gate)
    gate.wait_entered(2)
    until(
        "SELECT list(rank ORDER BY rank) FROM frames WHERE function LIKE '%pass_through'",
        [([1, 2],)],
    )
    found = ask(
        "SELECT depth, thread, file LIKE '%.py', line > 0 FROM frames WHERE rank = 1 ORDER BY depth"
    )
    assert found.rows[0] == (0, "MainThread", True, True)
    assert ask("SELECT activity, function FROM frames WHERE rank = 0").rows == (("idle", None),)
    gate.open(2)
    answer.get()


def test_a_rank_may_ask_too(mesh: ProcMesh) -> None:
    found = mesh.spawn("asker", Asker).procs.call().get()
    assert found.values() == [[0, 1, 2, 3]] * 4


def test_the_client_of_a_jobs_state_answers_in_the_form_of_monarch(mesh: ProcMesh) -> None:
    client = JobState({}).query_engine_client
    assert client.query("SELECT rank FROM procs WHERE rank < 2 ORDER BY rank", PATIENCE_S) == {
        "rows": [{"rank": 0}, {"rank": 1}]
    }
    pid = client.query("SELECT pid FROM procs WHERE rank = 1")["rows"][0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError, match=r"actors: workers\[gpus=1\] on .*: no answer"):
            client.query("FROM actors")
    finally:
        os.kill(pid, signal.SIGCONT)


def test_without_a_session_tables_are_empty(run_python: Callable[..., str]) -> None:
    code = (
        "from monarch.observe import query\n"
        "print(query('SELECT count(*) FROM procs').rows, query('SELECT 1 + 1').rows)\n"
    )
    assert run_python(code) == "((0,),) ((2,),)\n"


def test_a_wrong_query_is_refused_before_any_host_is_asked(mesh: ProcMesh) -> None:
    with pytest.raises(QueryError, match='Referenced column "nope" not found'):
        query("SELECT nope FROM frames")


# --- partial answers ------------------------------------------------------------------------------


def test_a_rank_that_is_silent_is_named_and_the_rest_is_told(mesh: ProcMesh) -> None:
    mesh.spawn("echo", Echo).initialized.get()
    pid = ask("SELECT pid FROM procs WHERE rank = 2").rows[0][0]
    os.kill(pid, signal.SIGSTOP)
    try:
        found = query("SELECT proc_rank FROM actors WHERE proc_rank > 0 ORDER BY 1")
        assert found.rows == ((1,), (3,))
        (missing,) = found.missing
        host = os.uname().nodename
        assert (missing.table, missing.where) == ("actors", f"workers[gpus=2] on {host}")
        assert missing.reason == "no answer within 2 s; its process is suspended"
        told = ask("SELECT state, list(rank ORDER BY rank) FROM procs GROUP BY 1 ORDER BY 1").rows
        assert told == (("idle", [0, 1, 3]), ("suspended", [2])), "its host answers for it"
        assert query("SELECT count(*) FROM actors WHERE proc_rank = 1").missing == ()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert ask("SELECT count(*) FROM actors").rows == ((4,),)
    until("SELECT count(*) FROM procs WHERE state = 'idle'", [(4,)])


def test_a_suspended_rank_is_told_with_the_endpoint_that_it_is_in(
    mesh: ProcMesh, own_base_directory: Path, gate: GateKeeper
) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    pid = faulty.pid.call().get().item(gpus=1)
    answer = faulty.hold_on.call([1], gate.gate)
    gate.wait_entered()
    until("SELECT rank FROM procs WHERE state = 'busy'", [(1,)])
    os.kill(pid, signal.SIGSTOP)
    try:
        until(
            "SELECT rank, actor, endpoint FROM procs WHERE state = 'suspended'",
            [(1, "Faulty", "hold_on")],
        )
        (seen,) = snapshot()
        assert [row.state for row in seen.rows] == ["idle", "suspended", "idle", "idle"]
        status, out, _ = monarch("ps", "--in", str(own_base_directory))
        assert (status, out.count("suspended")) == (0, 1)
    finally:
        os.kill(pid, signal.SIGCONT)
    until("SELECT rank FROM procs WHERE state = 'busy'", [(1,)])
    gate.open()
    answer.get()


class Slow(Actor):
    """Answers requests for rows late, as on a host that is busy."""

    @endpoint
    def delay(self, gate: Gate) -> None:
        module: Any = import_module("monarch._src.telemetry.sql.process_rows")
        read_table = module.read_table

        def late(run: object, request: object) -> object:
            gate.pass_through()
            return read_table(run, request)

        module.read_table = late


def test_idle_ranks_that_are_slow_are_waited_for(
    mesh: ProcMesh, gate: GateKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = mesh.spawn("slow", Slow)
    slow.initialized.get()
    slow.slice(gpus=slice(1, 3)).delay.call(gate.gate).get()
    until("SELECT count(*) FROM procs WHERE state = 'idle'", [(4,)])
    notes: list[str] = []

    def on_wait(pending: Pending) -> None:
        notes.append(pending.agent)
        if len(notes) == 1:  # after the time that others would get
            gate.open(2)
        before(pending)

    before = Pending.on_wait
    monkeypatch.setattr(Pending, "on_wait", on_wait)
    monkeypatch.setattr(collect, "STATE_S", 0.1)
    found = query("SELECT proc_rank FROM actors ORDER BY 1")
    assert (found.rows, found.missing) == (((0,), (1,), (2,), (3,)), ())
    assert notes


def test_ranks_that_have_not_started_are_named(spawn_procs: Spawn, gate: GateKeeper) -> None:
    own = default_bootstrap_cmd()
    held = (
        f'printf . > {gate.gate.entered}; head -c 1 {gate.gate.leave} > /dev/null; exec "$0" "$@"'
    )
    command = BootstrapCommand("/bin/sh", None, ["-c", held, own.program, *own.args])
    late = spawn_procs({"gpus": 2}, name="late", bootstrap_command=command)
    gate.wait_entered(2)
    found = query("SELECT proc_rank FROM actors WHERE proc_mesh = 'late'")
    assert found.rows == ()
    assert {one.reason for one in found.missing} == {"its process has not started yet"}
    (line,) = found.missing_lines
    assert line.startswith("missing rows of actors: late[gpus=0..1] on ")
    gate.open(2)
    late.initialized.get()
    assert query("SELECT proc_rank FROM actors WHERE proc_mesh = 'late'").missing == ()


def test_a_query_ends_when_a_rank_that_it_waits_for_dies(mesh: ProcMesh, faults: Faults) -> None:
    mesh.spawn("echo", Echo).initialized.get()
    pid = ask("SELECT pid FROM procs WHERE rank = 2").rows[0][0]
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(query, "SELECT proc_rank FROM actors ORDER BY 1", PATIENCE_S)
        os.kill(pid, signal.SIGKILL)
        found = asked.result(PATIENCE_S)
    assert found.rows == ((0,), (1,), (3,))
    # The agent may have heard of the death before the query.
    expected = [(f"workers[gpus=2] on {os.uname().nodename}", "its process has ended")]
    assert [(one.where, one.reason) for one in found.missing] in (expected, [])
    faults.take()


def test_several_hosts_answer_and_one_that_is_gone_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with workers(2) as (first, second):
        hosts = attach_to_workers(ca=TRUST_ALL, workers=[first.address, second.address])
        mesh = hosts.spawn_procs({"gpus": 2}, name="far")
        worker_actor = mesh.spawn("worker_actor", WorkerActor)
        worker_actor.add.call(1).get(timeout=PATIENCE_S)
        found = ask("SELECT host, list(rank ORDER BY rank) FROM procs GROUP BY host ORDER BY 2")
        assert [row[1] for row in found] == [[0, 1], [2, 3]]
        assert len({row[0] for row in found}) == 2
        assert ask("SELECT count(*), count(DISTINCT host) FROM hosts").rows == ((3, 3),)
        assert ask("SELECT given_name FROM meshes WHERE class != 'Host' ORDER BY id").rows == (
            ("far",),
            ("worker_actor",),
        )
        assert ask("SELECT proc_rank FROM actors ORDER BY 1").rows == ((0,), (1,), (2,), (3,))
        silent = found.rows[1][0]
        second.process.send_signal(signal.SIGSTOP)
        try:
            whole = query(f"SELECT rank FROM procs WHERE host <> '{silent}' ORDER BY rank")
            monkeypatch.setattr(collect, "SILENCE_S", 4.0)
            partial = query("SELECT rank FROM procs ORDER BY rank")
        finally:
            second.process.send_signal(signal.SIGCONT)
        assert partial.rows == whole.rows == ((0,), (1,))
        assert whole.missing == (), "the silent host was not asked"
        (missing,) = partial.missing
        assert (missing.where, missing.reason) == (silent, "its host agent does not answer")
        mesh.stop().get(timeout=PATIENCE_S)


def test_a_query_ends_when_a_host_that_it_waits_for_dies(
    monkeypatch: pytest.MonkeyPatch, faults: Faults
) -> None:
    monkeypatch.setattr(collect, "SILENCE_S", 10 * PATIENCE_S)  # the death alone ends the wait
    with ExitStack() as stack:
        # The directory of the one that is killed stays, so it has a place of its own. In /tmp,
        # since the names of sockets have to be short.
        folder = stack.enter_context(TemporaryDirectory(prefix="mt-", dir="/tmp"))
        (first,) = stack.enter_context(workers(1))
        second = stack.enter_context(
            worker(
                "--address", "tcp://127.0.0.1:0", "--keys", TRUST_ALL,
                env={"XDG_RUNTIME_DIR": folder},
            )
        )  # fmt: skip
        hosts = attach_to_workers(ca=TRUST_ALL, workers=[first.address, second.address])
        mesh = hosts.spawn_procs({"gpus": 1}, name="far")
        mesh.initialized.get(timeout=PATIENCE_S)
        dies, lives = (ask(f"SELECT host FROM procs WHERE rank = {at}").rows[0][0] for at in (1, 0))
        second.process.send_signal(signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(query, "SELECT host, rank FROM procs ORDER BY rank")
            with pytest.raises(futures.TimeoutError):  # before 3.11 not the built-in one
                asked.result(0.5)
            second.process.send_signal(signal.SIGKILL)
            found = asked.result(PATIENCE_S)
        assert found.rows == ((lives, 0),)
        assert {one.where for one in found.missing} <= {dies}
        left = query("SELECT rank FROM procs WHERE state <> 'failed'", PATIENCE_S)
        assert left.rows == ((0,),)
        faults.take()
        mesh.stop().get(timeout=PATIENCE_S)


# --- monarch query --------------------------------------------------------------------------------


def run(base: Path, *arguments: str) -> tuple[int, str, str]:
    return monarch("query", "--in", str(base), "--timeout", str(PATIENCE_S), *arguments)


def test_another_process_may_ask_about_a_session(
    mesh: ProcMesh, own_base_directory: Path, gate: GateKeeper
) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    answer = faulty.hold_on.call([1], gate.gate)
    gate.wait_entered()
    until("SELECT count(*) FROM calls", [(1,)])
    sql = "SELECT rank, endpoint FROM procs WHERE state = 'busy'"
    status, out, err = run(own_base_directory, sql)
    assert (status, err) == (0, "")
    assert out.splitlines() == ["rank  endpoint", "   1  hold_on", "(1 row)"]
    status, out, err = run(own_base_directory, "--csv", f"{sql} UNION ALL SELECT 9, NULL")
    assert (status, out, err) == (0, "rank,endpoint\n1,hold_on\n9,\n", "")
    status, out, err = run(own_base_directory, "--csv", "--json", sql)
    assert (status, out) == (2, "")
    assert "not allowed with" in err
    status, out, err = run(
        own_base_directory, "--json", "SELECT c.caller_mesh, m.rank FROM calls c JOIN messages m "
        "ON m.sender = c.caller AND m.call = c.call",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert json.loads(out) == {
        "rows": [{"caller_mesh": "client", "rank": 1}],
        "missing": [],
        "dropped": [],
        "not_kept": [],
    }
    gate.open()
    answer.get()


def test_an_error_of_a_query_is_that_of_duckdb_on_the_command_line(
    own_base_directory: Path,
) -> None:
    status, out, err = run(own_base_directory, "SELECT nope FROM procs")
    assert (status, out) == (1, "")
    assert err.startswith('monarch query: Binder Error: Referenced column "nope" not found')
    assert "LINE 1: SELECT nope FROM procs\n               ^" in err
    status, out, err = run(own_base_directory, "COPY procs TO '/tmp/x'")
    assert (status, out) == (1, "")
    assert (
        err == "monarch query: only SELECT, SHOW, DESCRIBE and SUMMARIZE are run here, not COPY\n"
    )


def test_missing_rows_are_named_on_stderr_with_a_status(
    mesh: ProcMesh, own_base_directory: Path
) -> None:
    mesh.spawn("echo", Echo).initialized.get()
    pid = ask("SELECT pid FROM procs WHERE rank = 2").rows[0][0]
    os.kill(pid, signal.SIGSTOP)
    try:
        sql = "SELECT proc_rank FROM actors WHERE proc_mesh = 'workers' ORDER BY 1"
        status, out, err = monarch("query", "--in", str(own_base_directory), sql)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (status, out.splitlines()[1:4]) == (1, ["        0", "        1", "        3"])
    where = f"workers[gpus=2] on {os.uname().nodename}"
    why = "no answer within 2 s; its process is suspended"
    assert err == f"monarch query: missing rows of actors: {where}: {why}\n"


def test_an_unknown_session_is_refused(own_base_directory: Path) -> None:
    status, out, err = run(own_base_directory, "--session", "nope", "FROM procs")
    assert (status, out) == (1, "")
    assert err.startswith("monarch query: there is no session 'nope'; running sessions: ")
