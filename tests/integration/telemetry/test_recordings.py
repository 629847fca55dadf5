"""Recordings: the same SQL opens afterwards what a session was doing."""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from monarch.actor import Actor, ProcMesh, endpoint, span
from monarch.observe import QueryError, query, query_file, query_tables, record_to
from tests.integration.commands import monarch
from tests.integration.failing_actors import Faulty
from tests.integration.gates import GateKeeper
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
