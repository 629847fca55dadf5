"""Rows that were open when their process ended are lost, and no recording waits for them."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from monarch._src.telemetry.replay.state import layout
from monarch._src.telemetry.sql.engine import load
from monarch._src.telemetry.sql.state.schema import TABLES

HOST = {"session": "s", "host": "h"}
PLACE = {**HOST, "mesh_id": 5, "mesh": "workers", "rank": 1}
ALIVE = {**PLACE, "state": "busy", "restarts": 0}
ACTIVE = {**PLACE, "id": 7, "timestamp_us": 1, "status": "active", "waited_s": 0.0, "ran_s": None}
FAR = 10 * layout.MARGIN_US


class Recorded:
    """A recording in memory."""

    def __init__(self) -> None:
        self._run = duckdb.connect().execute
        self._connection = self._run("SELECT 1")
        for statement in (*layout.creation(), *layout.staging()):
            self._run(statement)

    def sample(self, now_us: int, **tables: list[dict[str, Any]]) -> None:
        """Add a sample with these rows. The host has answered, unless `hosts` says otherwise."""
        for name, rows in {"hosts": [HOST], **tables}.items():
            columns = {key: [row[key] for row in rows] for key in (rows[0] if rows else ())}
            load(self._connection, f"new_{name}", TABLES[name], columns)
            for statement in layout.moves(name, now_us):
                self._run(statement)
        self._run(f"INSERT INTO {layout.SCHEMA}.samples VALUES ({now_us})")
        self._run(layout.losses(now_us))

    def status(self, at_us: int | None = None) -> str:
        """The status of the one message."""
        self._run(f"SET VARIABLE {layout.AT} = {'NULL' if at_us is None else at_us}")
        ((status,),) = self._run("SELECT status FROM messages").fetchall()
        return status

    def watermark(self, name: str) -> int:
        """The time from which rows of a table are needed next."""
        ((since_us,),) = self._run(layout.watermark(name)).fetchall()
        return since_us


@pytest.mark.parametrize(
    "after",
    [
        [{**ALIVE, "state": "failed"}],
        [{**ALIVE, "state": "stopped"}],
        [{**ALIVE, "state": "idle", "restarts": 1}],
        [],
    ],
    ids=["it failed", "it was stopped", "it was restarted", "its mesh has ended"],
)
def test_a_message_is_lost_with_its_process_and_was_active_before(after: list[Any]) -> None:
    recorded = Recorded()
    recorded.sample(100, procs=[ALIVE], messages=[ACTIVE])
    assert recorded.status() == "active"
    recorded.sample(200, procs=after)
    assert recorded.status() == "lost"
    assert (recorded.status(100), recorded.status(200)) == ("active", "lost")


def test_a_queued_message_that_was_lost_was_queued_before() -> None:
    recorded = Recorded()
    queued = {**ACTIVE, "status": "queued", "waited_s": None}
    recorded.sample(100, procs=[ALIVE], messages=[queued])
    recorded.sample(200, procs=[])
    assert (recorded.status(100), recorded.status(200)) == ("queued", "lost")


def test_a_message_is_not_lost_while_its_process_may_live() -> None:
    recorded = Recorded()
    recorded.sample(100, procs=[ALIVE], messages=[ACTIVE])
    recorded.sample(200, procs=[ALIVE])
    assert recorded.status() == "active", "the process has not answered, and lives"
    recorded.sample(300, procs=[], hosts=[])
    assert recorded.status() == "active", "the host has not answered"
    recorded.sample(400, procs=[ALIVE], messages=[{**ACTIVE, "status": "complete", "ran_s": 1e-5}])
    assert recorded.status() == "complete"


def test_a_message_of_the_client_is_not_lost() -> None:
    recorded = Recorded()
    client = {**PLACE, "mesh_id": 0, "mesh": "client", "rank": 0}
    recorded.sample(100, procs=[ALIVE], messages=[{**ACTIVE, **client}])
    recorded.sample(200, procs=[])
    assert recorded.status() == "active"


def test_a_message_that_was_taken_for_lost_may_still_end() -> None:
    recorded = Recorded()
    recorded.sample(100, procs=[ALIVE], messages=[ACTIVE])
    recorded.sample(200, procs=[{**ALIVE, "state": "stopped"}])
    recorded.sample(300, procs=[], messages=[{**ACTIVE, "status": "failed", "ran_s": 1e-5}])
    assert recorded.status() == "failed"


@pytest.mark.parametrize(
    ("table", "opened"),
    [
        ("messages", ACTIVE),
        ("sent_messages", {**PLACE, "id": 7, "timestamp_us": 1, "ended_us": None}),
        ("spans", {**PLACE, "process_id": "p", "id": 7, "timestamp_us": 1, "duration_us": None}),
    ],
)
def test_only_open_rows_of_living_processes_are_waited_for(table: str, opened: Any) -> None:
    recorded = Recorded()
    other = {**opened, "rank": 2, "id": 8, "timestamp_us": FAR}
    living = {**ALIVE, "rank": 2}
    recorded.sample(100, procs=[ALIVE, living], **{table: [opened, other]})
    recorded.sample(200, procs=[ALIVE, living])
    assert recorded.watermark(table) == 1, "it is open, and its process lives"
    recorded.sample(300, procs=[{**ALIVE, "state": "failed"}, living])
    assert recorded.watermark(table) == FAR - layout.MARGIN_US, "the newest one, less the margin"
