"""Queries as dashboards for Monarch write them: counts, failures, latencies, the tree of meshes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch._src.actor.state.history import HISTORY, MOST_ROWS
from monarch.actor import (
    Actor,
    ActorError,
    ProcMesh,
    SupervisionError,
    attach_to_workers,
    context,
    endpoint,
    get_or_spawn_controller,
    shutdown_context,
    this_host,
)
from monarch.config import clear_runtime_config
from monarch.observe import (
    QueryEngineClient,
    admin,
    query_tables,
    record,
)
from tests.conftest import Faults
from tests.integration.admin_server import unix_post
from tests.integration.commands import monarch
from tests.integration.gates import Gate, GateKeeper
from tests.integration.telemetry.asking import ask
from tests.workers import PATIENCE_S, TRUST_ALL, workers

pytestmark = pytest.mark.slow
Spawn = Callable[..., ProcMesh]


class Worker(Actor):
    """Steps, fails, dies, and starts processes."""

    @endpoint
    def step(self) -> int:
        return 1

    @endpoint
    def fail(self) -> None:
        raise ValueError("no")

    @endpoint
    def die(self) -> None:
        context().actor_instance.abort("enough")

    @endpoint
    def write(self, lines: int) -> None:
        print("\n".join(map(str, range(lines))))

    @endpoint
    def hold(self, gate: Gate) -> None:
        gate.pass_through()

    @endpoint
    def spawn(self) -> None:
        self.procs = this_host().spawn_procs({"inner": 1}, name="nested")
        self.procs.spawn("leaf", Worker).step.call().get()


@pytest.fixture(autouse=True)
def history_of_this_test() -> Iterator[None]:
    """Nothing of earlier tests; and none is kept in later ones."""
    HISTORY.clear()
    yield
    record(0, timeout=PATIENCE_S)
    clear_runtime_config()


@pytest.fixture
def mesh(spawn_procs: Spawn) -> ProcMesh:
    procs = spawn_procs({"gpus": 3}, name="workers")
    procs.initialized.get()
    return procs


def start(rows: int = MOST_ROWS) -> None:
    """Keep history from here on."""
    assert record(rows=rows, timeout=PATIENCE_S) == ()


LAST_STATUS = (
    "(SELECT e.message_id, e.status FROM message_status_events e JOIN (SELECT message_id, "
    "MAX(timestamp_us) AS last_us FROM message_status_events GROUP BY message_id) AS last "
    "ON e.message_id = last.message_id AND e.timestamp_us = last.last_us)"
)


def test_messages_are_counted_by_status_and_endpoint(mesh: ProcMesh) -> None:
    worker = mesh.spawn("worker", Worker)
    worker.initialized.get()
    start()
    for _ in range(3):
        worker.step.call().get()
    with pytest.raises(ActorError):
        worker.slice(gpus=2).fail.call_one().get()
    found = ask(
        f"SELECT LOWER(s.status) AS last, COUNT(*) AS n FROM messages m JOIN {LAST_STATUS} AS s "
        "ON m.id = s.message_id GROUP BY last ORDER BY last"
    )
    assert found.rows == (("complete", 9), ("failed", 1))
    found = ask("SELECT endpoint, COUNT(*) AS n FROM messages GROUP BY endpoint ORDER BY endpoint")
    assert found.rows == (("fail", 1), ("step", 9))
    found = ask(
        "SELECT s.id IS NOT NULL, COUNT(*) FROM sent_messages s JOIN meshes m "
        "ON s.actor_mesh_id = m.id AND m.given_name = 'worker' GROUP BY 1"
    )
    assert found.rows == ((True, 4),), "a call of all ranks is one"
    found = ask(
        "SELECT rank, COUNT(*) FILTER (WHERE status = 'failed') FROM messages m JOIN "
        "(SELECT id AS to_actor_id, display_name FROM actors) AS a USING (to_actor_id) "
        "WHERE display_name LIKE '%.worker' GROUP BY rank ORDER BY rank"
    )
    assert found.rows == ((0, 0), (1, 0), (2, 1))


def test_the_latency_of_messages_is_the_time_between_their_states(mesh: ProcMesh) -> None:
    worker = mesh.spawn("worker", Worker)
    worker.initialized.get()
    start()
    for _ in range(5):
        worker.step.call().get()
    times = (
        "SELECT message_id, MIN(timestamp_us) FILTER (WHERE status = 'queued') AS queued_us, "
        "MIN(timestamp_us) FILTER (WHERE status = 'active') AS active_us, "
        "MIN(timestamp_us) FILTER (WHERE status = 'complete') AS complete_us "
        "FROM message_status_events GROUP BY message_id"
    )
    found = ask(
        f"SELECT COUNT(*), MIN(active_us - queued_us) >= 0, MIN(complete_us - active_us) >= 0, "
        "MAX(ABS(complete_us - active_us - ran_s * 1e6)) < 2, "
        "MAX(ABS(active_us - queued_us - waited_s * 1e6)) < 2 "
        f"FROM ({times}) AS t JOIN messages m ON m.id = t.message_id WHERE m.endpoint = 'step'"
    )
    assert found.rows == ((15, True, True, True, True),)


def test_failed_actors_are_found_with_their_meshes_and_nodes(
    mesh: ProcMesh, faults: Faults
) -> None:
    """On a slice, where the rank of an actor is not that of its process; and with a namesake."""
    part = mesh.slice(gpus=slice(1, 3))
    part.spawn("worker", Worker).stop().get()
    worker = part.spawn("worker", Worker)
    with pytest.raises(SupervisionError):
        worker.slice(gpus=1).die.call_one().get()
    found = ask(
        "SELECT m.given_name, p.given_name, h.class, a.rank, a.proc_rank, s.reason "
        "FROM actor_status_events s JOIN actors a ON a.id = s.actor_id "
        "JOIN meshes m ON m.id = a.mesh_id JOIN meshes p ON p.id = m.parent_mesh_id "
        "JOIN meshes h ON h.id = p.parent_mesh_id WHERE LOWER(s.new_status) = 'failed'"
    )
    assert found.rows == (("worker", "workers", "Host", 1, 2, "enough"),)
    found = ask(
        "SELECT f.failure_error_message, n.node_kind, c.is_stopped, p.proc_name "
        "FROM actor_failures f JOIN nodes n ON n.node_id = f.node_id "
        "JOIN children c ON c.child_id = f.node_id JOIN proc_nodes p ON p.node_id = c.parent_id"
    )
    assert found.rows == (("enough", "actor", True, "workers[2]"),)
    assert ask("SELECT COUNT(*), COUNT(DISTINCT node_id) FROM nodes").rows == ((9, 9),)
    faults.take()


def test_running_endpoints_join_with_the_nodes_of_their_actors(
    mesh: ProcMesh, gate: GateKeeper
) -> None:
    worker = mesh.slice(gpus=slice(1, 3)).spawn("worker", Worker)
    worker.initialized.get()
    held = worker.slice(gpus=1).hold.call_one(gate.gate)
    gate.wait_entered()
    running = (
        "SELECT h.name, h.active_count, a.last_message_handler, e.active_count FROM "
        "active_handlers h JOIN actor_nodes a USING (node_id) JOIN actor_executions e "
        "USING (node_id)"
    )
    for _ in range(500):  # the entry is written before the board of the rank says so
        if (rows := ask(running).rows) == (("hold", 1, "hold", 1),):
            break
    assert rows == (("hold", 1, "hold", 1),)
    idle = ask("SELECT SUM(active_count), BOOL_AND(complete), COUNT(*) FROM actor_executions")
    assert idle.rows == ((1, True, 2),)
    gate.open()
    held.get()


CHAIN = (
    "FROM actors a JOIN meshes m ON m.id = a.mesh_id JOIN meshes p ON p.id = m.parent_mesh_id "
    "JOIN meshes h ON h.id = p.parent_mesh_id"
)


@pytest.fixture
def own_session() -> Iterator[None]:
    """The controllers of a test end with it."""
    yield
    shutdown_context(reason="the test has ended")


@pytest.mark.usefixtures("own_session")
def test_actors_join_with_their_proc_meshes_and_host_meshes(mesh: ProcMesh) -> None:
    mesh.spawn("worker", Worker).slice(gpus=0).spawn.call_one().get()
    get_or_spawn_controller("keeper", Worker).get().step.call_one().get()
    found = ask(f"SELECT h.class, h.given_name, p.class, p.given_name, m.class, m.given_name, "
                f"COUNT(*) {CHAIN} GROUP BY ALL ORDER BY p.given_name")  # fmt: skip
    host = ("Host", "local", "Proc")
    assert found.rows == (
        (*host, "client", "Python<Worker>", "keeper", 1),
        (*host, "nested", "Python<Worker>", "leaf", 1),
        (*host, "workers", "Python<Worker>", "worker", 3),
    )
    assert ask("SELECT COUNT(*) FROM meshes WHERE class = 'Host'").rows == ((1,),)
    assert ask("SELECT parent_mesh_id FROM meshes WHERE class = 'Host'").rows == ((None,),)


def test_a_host_mesh_of_several_workers_is_one_row_with_all_its_proc_meshes() -> None:
    with workers(2) as (first, second):
        addresses = [first.address, second.address]
        hosts = attach_to_workers(ca=TRUST_ALL, workers=addresses, name="trainers")
        whole = hosts.spawn_procs({"gpus": 2}, name="whole")
        part = hosts.slice(hosts=1).spawn_procs({"gpus": 1}, name="part")
        whole.spawn("worker", Worker).slice(hosts=1, gpus=0).spawn.call_one().get(PATIENCE_S)
        part.initialized.get(timeout=PATIENCE_S)
        found = ask("SELECT given_name, shape_json FROM meshes WHERE class = 'Host' ORDER BY 1")
        assert [(name, json.loads(shape)["inner"]) for name, shape in found.rows] == [
            ("local", {"labels": [], "sizes": []}),
            ("trainers", {"labels": ["hosts"], "sizes": [2]}),
        ]
        found = ask(
            "SELECT p.given_name, h.given_name, p.parent_view_json->'slice'->>'offset', "
            "p.parent_view_json->>'labels' FROM meshes p JOIN meshes h ON h.id = p.parent_mesh_id "
            "WHERE p.class = 'Proc' ORDER BY 1"
        )
        assert found.rows == (
            ("nested", "trainers", None, None),
            ("part", "trainers", "1", "[]"),
            ("whole", "trainers", "0", '["hosts"]'),
        )
        assert ask("SELECT class, COUNT(*) FROM meshes WHERE class = 'Host' GROUP BY 1").rows == (
            ("Host", 2),
        ), "also where the query does not name the id"
        part.stop().get(timeout=PATIENCE_S)
        whole.stop().get(timeout=PATIENCE_S)


HISTORY_TABLES = (
    "messages", "message_status_events", "sent_messages", "actor_status_events", "events",
)  # fmt: skip


def test_queries_leave_no_rows(mesh: ProcMesh, own_base_directory: Path) -> None:
    worker = mesh.spawn("worker", Worker)
    worker.initialized.get()
    start()
    worker.step.call().get()
    before = {table: ask(f"FROM {table} ORDER BY ALL").rows for table in HISTORY_TABLES}
    assert (len(before["messages"]), len(before["sent_messages"])) == (3, 1)
    for table in query_tables():
        ask(f"FROM {table}")
    client = QueryEngineClient()
    client.query("SELECT COUNT(*) FROM messages", PATIENCE_S)
    with admin() as server:
        body = {"sql": "FROM messages"}
        answer = unix_post(server.url, "/v1/query", body, server.observer_token)
        assert len(answer.json["rows"]) == 3
    base = str(own_base_directory)
    assert monarch("query", "--in", base, "FROM messages")[0] == 0
    after = {table: ask(f"FROM {table} ORDER BY ALL").rows for table in HISTORY_TABLES}
    assert after == before
    own = "thread_name != 'garbage collector'"
    assert ask(f"SELECT COUNT(*) FROM spans WHERE {own}").rows == ((0,),)


def test_tables_for_which_nothing_has_rows_are_there_and_empty(mesh: ProcMesh) -> None:
    mesh.spawn("worker", Worker).step.call().get()
    for table in (
        "actor_inbound_orderings", "ordering_sessions", "pyspy_local_variables",
        "resolution_errors",
    ):  # fmt: skip
        assert ask(f"FROM {table}").rows == (), table
        assert ask(f"DESCRIBE {table}").rows


def test_an_answer_says_what_history_has_dropped(mesh: ProcMesh, own_base_directory: Path) -> None:
    worker = mesh.slice(gpus=slice(0, 2)).spawn("worker", Worker)
    worker.initialized.get()
    start(rows=5)
    for _ in range(20):
        worker.step.call().get()
    found = ask("SELECT COUNT(*) FROM messages")
    assert found.rows == ((10,),)
    host = os.uname().nodename
    oldest = dict(ask("SELECT rank, MIN(timestamp_us) FROM messages GROUP BY rank").rows)
    dropped = sorted(found.dropped, key=lambda one: one.where)
    for rank, one in enumerate(dropped):
        assert (one.table, one.count) == ("messages", 15)
        assert one.where == f"workers[gpus={rank}] on {host}"
        assert one.complete_since_us >= oldest[rank], "a row is added when it has ended"
    assert len(dropped) == 2
    (line,) = found.dropped_lines
    note = f"dropped rows of messages: workers[gpus=0..1] on {host}: 30 made room for newer ones"
    assert line.startswith(f"{note}; complete since ")
    assert str(found).splitlines()[-1] == line
    assert found.df().attrs["dropped"] == found.dropped

    # The history of which the query asks is complete, or it is another table or process.
    since = max(one.complete_since_us for one in dropped)
    assert ask(f"SELECT id FROM messages WHERE timestamp_us >= {since}").dropped == ()
    assert ask("SELECT id FROM messages WHERE rank = 2").dropped == ()
    assert ask("SELECT COUNT(*) FROM events").dropped == ()
    events = ask("SELECT COUNT(*) FROM message_status_events").dropped
    assert {(one.table, one.where, one.count) for one in events} == {
        ("message_status_events", one.where, 15) for one in dropped
    }
    (sent,) = ask("SELECT COUNT(*) FROM sent_messages").dropped
    assert (sent.where, sent.count) == (f"client on {host}", 15)

    # In the forms of Monarch, beside the rows.
    sql = "SELECT COUNT(*) AS n FROM messages"
    answer = QueryEngineClient().query(sql, PATIENCE_S)
    assert answer["rows"] == [{"n": 10}]
    assert [one["count"] for one in answer["dropped"]] == [15, 15]
    assert list(QueryEngineClient().query("SELECT COUNT(*) FROM events", PATIENCE_S)) == ["rows"]
    with admin() as server:
        got = unix_post(server.url, "/v1/query", {"sql": sql}, server.observer_token).json
    assert got["rows"] == [{"n": 10}]
    assert {one["where"]: one["count"] for one in got["dropped"]} == {
        f"workers[gpus={rank}] on {host}": 15 for rank in range(2)
    }
    status, out, err = monarch("query", "--in", str(own_base_directory), sql)
    assert (status, out.splitlines()[1].strip()) == (0, "10")
    assert err.startswith(f"monarch query: {note}")


def test_lines_that_a_host_has_dropped_are_told(mesh: ProcMesh) -> None:
    worker = mesh.spawn("worker", Worker)
    worker.slice(gpus=0).write.call_one(25_000).get()
    seen = "SELECT log_lines + log_lines_dropped, log_lines_dropped FROM hosts"
    for _ in range(500):  # the agent reads them beside
        ((count, dropped),) = ask(seen).rows
        if count >= 25_000:
            break
    found = ask("SELECT count(*) FROM log_lines WHERE rank = 0")
    (one,) = found.dropped
    assert (one.table, one.where, one.count) == ("log_lines", os.uname().nodename, dropped)
    assert dropped >= 5_000
    later = f"SELECT count(*) FROM log_lines WHERE timestamp_us >= {one.complete_since_us}"
    assert ask(later).dropped == ()
