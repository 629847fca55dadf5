"""Recordings: the same SQL opens afterwards what a session was doing."""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pytest

from monarch.actor import Actor, ProcMesh, SupervisionError, endpoint, span
from monarch.observe import QueryError, query, query_file, query_tables, record_to
from tests.conftest import Faults
from tests.integration.commands import monarch
from tests.integration.failing_actors import Faulty
from tests.integration.gates import GateKeeper
from tests.integration.programs import running, watched
from tests.workers import PATIENCE_S

pytestmark = pytest.mark.slow
Spawn = Callable[..., ProcMesh]


class Worker(Actor):
    """Has a span."""

    @endpoint
    def work(self, what: str) -> None:
        with span("load"):
            print(what)


def test_a_recording_answers_the_queries_of_the_session(mesh: ProcMesh, tmp_path: Path) -> None:
    worker = mesh.spawn("worker", Worker)
    worker.initialized.get()
    path = tmp_path / "run.duckdb"
    with record_to(path, 0.05) as recording:
        assert recording.wait_for(1, PATIENCE_S)
        worker.work.call("hello").get()
        assert recording.wait_for(recording.samples + 2, PATIENCE_S)
    assert recording.samples >= 3
    assert not [one for one in threading.enumerate() if one.name == "monarch-recording"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ranks = query_file(path, "SELECT rank, endpoint, status FROM messages ORDER BY rank")
    assert ranks.rows == ((0, "work", "complete"), (1, "work", "complete"))
    assert ranks.missing == ()
    assert query_file(path, "SELECT count(*) FROM procs").rows == ((2,),)
    assert query_file(path, "SELECT name FROM spans WHERE name = 'load'").rows == (
        ("load",),
        ("load",),
    )
    lines = "SELECT text, count(*) FROM log_lines WHERE text = 'hello' GROUP BY 1"
    assert query_file(path, lines).rows == (("hello", 2),)
    samples = query_file(path, "SELECT count(DISTINCT recorded_us) FROM history.procs")
    assert samples.rows == ((recording.samples,),)
    for table in query_tables():
        query_file(path, f"FROM {table}")
    kinds = query_file(path, "SELECT DISTINCT node_kind FROM nodes ORDER BY 1")
    assert kinds.rows == (("actor",), ("host",), ("proc",), ("root",))
    assert query("SELECT count(*) FROM recordings", PATIENCE_S).rows == ((0,),)


def test_a_message_is_kept_once_in_its_last_form(
    mesh: ProcMesh, tmp_path: Path, gate: GateKeeper
) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    path = tmp_path / "run.duckdb"
    with record_to(path, 0.05) as recording:
        assert recording.wait_for(1, PATIENCE_S)
        held = faulty.hold_on.call([1], gate.gate)
        gate.wait_entered()
        assert recording.wait_for(recording.samples + 2, PATIENCE_S)
        gate.open()
        held.get()
    found = query_file(path, "SELECT rank, status FROM messages ORDER BY rank")
    assert found.rows == ((0, "complete"), (1, "complete"))
    busy = "SELECT count(*) > 0 FROM history.procs WHERE rank = 1 AND state = 'busy'"
    assert query_file(path, busy).rows == ((True,),)
    assert query_file(path, "SELECT count(*) FROM calls").rows == ((0,),)
    assert query_file(path, "SELECT count(*) FROM messages", at=0.0).rows == ((0,),)


def test_the_call_of_a_rank_that_has_died_is_lost_and_was_active_before(
    mesh: ProcMesh, tmp_path: Path, gate: GateKeeper, faults: Faults
) -> None:
    faulty = mesh.spawn("faulty", Faulty)
    pids = faulty.pid.call().get()
    path = tmp_path / "run.duckdb"
    open_rows = "SELECT rank, status FROM messages WHERE endpoint = 'hold_on' ORDER BY rank"
    with record_to(path, 0.05) as recording:
        assert recording.wait_for(1, PATIENCE_S)
        held = faulty.hold_on.call([0, 1], gate.gate)
        gate.wait_entered(2)
        assert recording.wait_for(recording.samples + 2, PATIENCE_S)
        now_us = time.time_ns() // 1000
        os.kill(pids.item(gpus=1), signal.SIGKILL)
        with pytest.raises(SupervisionError):
            held.get()
        faults.take()
        assert recording.wait_for(recording.samples + 2, PATIENCE_S)
        gate.open()
        faulty.slice(gpus=0).pid.call_one().get()  # after the call that was held
    assert query_file(path, open_rows).rows == ((0, "complete"), (1, "lost"))
    first = query_file(path, "SELECT min(recorded_us) FROM history.samples").rows[0][0]
    before = query_file(path, open_rows, at=(now_us - first) / 1e6)
    assert before.rows == ((0, "active"), (1, "active"))


def test_another_process_may_record_a_session(
    mesh: ProcMesh, own_base_directory: Path, tmp_path: Path
) -> None:
    mesh.spawn("worker", Worker).initialized.get()
    path = tmp_path / "run.duckdb"
    status, out, err = monarch(
        "query", "--in", str(own_base_directory), "--timeout", str(PATIENCE_S), "--record",
        str(path), "--time", "0.1s", "--interval", "0.05s",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert out.endswith(f"samples to {path}\n")
    status, out, err = monarch("query", "--from", str(path), "SELECT name FROM actors LIMIT 1")
    assert (status, err, out.splitlines()) == (0, "", ["name", "worker", "(1 row)"])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "give a query, or --record FILE"),
        (("--record", "x", "SELECT 1"), "--record takes no query"),
        (("--at", "3", "SELECT 1"), "give --from FILE too"),
        (("--from", "/no/such", "SELECT 1"), "there is no recording /no/such"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: tuple[str, ...], error: str, tmp_path: Path
) -> None:
    status, out, err = monarch("query", "--in", str(tmp_path), *arguments)
    assert (status, out) == (1, "")
    assert error in err


def test_a_reader_reaches_nothing_but_the_recording(mesh: ProcMesh, tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    with record_to(path, 0.05) as recording:
        assert recording.wait_for(1, PATIENCE_S)
    for sql in (
        "DELETE FROM history.procs",
        f"COPY procs TO '{tmp_path / 'x'}'",
        f"ATTACH '{tmp_path / 'y'}'",
        "SELECT 1; SELECT 2",
    ):
        with pytest.raises(QueryError, match=r"only SELECT|give one query"):
            query_file(path, sql)
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    with pytest.raises(QueryError, match="disabled"):
        query_file(path, f"FROM read_csv('{tmp_path / 'secret.csv'}')")


def test_files_that_are_no_recordings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no recording"):
        query_file(tmp_path / "none", "SELECT 1")
    text = tmp_path / "text"
    text.write_text("not a database")
    with pytest.raises(QueryError, match="cannot be read"):
        query_file(text, "SELECT 1")
    with pytest.raises(FileExistsError, match="exists already; record to another file"):
        record_to(text)
    other = tmp_path / "other.duckdb"
    duckdb.connect(str(other)).close()
    with pytest.raises(QueryError, match="is no recording"):
        query_file(other, "SELECT 1")
    with pytest.raises(ValueError, match="interval=0"):
        record_to(tmp_path / "new", 0)
    assert not (tmp_path / "new").exists()


def test_old_rows_leave_the_file(tmp_path: Path) -> None:
    from monarch._src.telemetry.replay.file import TIDY_EVERY, RecordingFile
    from monarch._src.telemetry.sql.collect import Collected

    file = RecordingFile(tmp_path / "run.duckdb", retention_us=10_000, most_rows=5)
    for at in range(TIDY_EVERY):
        columns = {"number": [at], "timestamp_us": [at], "text": [f"line {at}"]}
        file.add(Collected({"log_lines": columns, "procs": {"rank": [at]}}), 1000 * at)
    file.close()
    found = query_file(tmp_path / "run.duckdb", "SELECT number FROM log_lines ORDER BY number")
    assert [row[0] for row in found] == [25, 26, 27, 28, 29]
    samples = query_file(tmp_path / "run.duckdb", "SELECT count(*) FROM history.samples")
    assert samples.rows == ((5,),)


KILLED = """
import os
import sys
import time

from monarch.actor import Actor, endpoint, this_host
from monarch.observe import query, record_to


class Trainer(Actor):
    @endpoint
    def step(self, number: int) -> int:
        print(f"step {number}")
        return os.getpid()

    @endpoint
    def hang(self) -> None:
        time.sleep(3600)


if __name__ == "__main__":
    sys.stdout, out = sys.stderr, sys.stdout
    trainers = this_host().spawn_procs({"gpus": 2}, name="trainers").spawn("trainers", Trainer)
    trainers.initialized.get()
    recording = record_to(sys.argv[1], 0.05)
    assert recording.wait_for(1, 60)  # history is switched on
    for number in range(5):
        pids = trainers.step.call(number).get().values()
    hangs = trainers.slice(gpus=1).hang.call_one()
    while query("SELECT count(*) FROM procs WHERE endpoint = 'hang'").rows == ((0,),):
        pass
    now_us = time.time_ns() // 1000
    assert recording.wait_for(recording.samples + 2, 60)
    ((agent,),) = query("SELECT agent_pid FROM hosts").rows
    print(now_us, agent, *pids, file=out, flush=True)
    hangs.get()
"""


def test_a_recording_whose_processes_were_all_killed_is_true_up_to_its_last_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.duckdb"
    # What the killed leave goes with this folder. In /tmp: the names of sockets have to be short.
    with TemporaryDirectory(prefix="mt-", dir="/tmp") as folder, monkeypatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        with running(tmp_path, KILLED, str(path)) as program:
            now_us, agent, *ranks = map(int, program.line().split())
            with watched([agent, *ranks]) as others:
                for pid in (program.pid, agent, *ranks):
                    os.kill(pid, signal.SIGKILL)
                others.wait_all_ended()
            program.process.wait(PATIENCE_S)
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.glob("run.*")}
    assert set(modes.values()) == {0o600}, modes

    samples = query_file(path, "SELECT max(recorded_us) FROM history.procs")
    assert samples.rows[0][0] >= now_us
    found = query_file(
        path, "SELECT rank, count(*), bool_and(status = 'complete') FROM messages "
        "WHERE endpoint = 'step' GROUP BY rank ORDER BY rank",
    )  # fmt: skip
    assert found.rows == ((0, 5, True), (1, 5, True))
    assert query_file(path, "SELECT max(text) FROM log_lines").rows == (("step 4",),)
    last = query_file(path, "SELECT rank, state, endpoint FROM procs WHERE mesh = 'trainers'")
    assert sorted(last.rows) == [(0, "idle", None), (1, "busy", "hang")]
