"""History of a session: what its tables keep of calls, spans and log records, and drop."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest

from monarch._src.actor.state.history import HISTORY, MOST_ROWS, TEXT_BYTES
from monarch.actor import (
    Actor,
    ActorError,
    ProcMesh,
    SupervisionError,
    attach_to_workers,
    context,
    endpoint,
    span,
)
from monarch.config import clear_runtime_config
from monarch.observe import record
from monarch.rdma import RDMABuffer
from tests.conftest import Faults
from tests.integration.failing_actors import Faulty
from tests.integration.gates import GateKeeper
from tests.integration.sample_actors import Echo
from tests.integration.telemetry.asking import ask
from tests.workers import PATIENCE_S, TRUST_ALL, workers

pytestmark = pytest.mark.slow
Spawn = Callable[..., ProcMesh]
log = logging.getLogger("tests.history")


class Worker(Actor):
    """Has spans, and logs."""

    @endpoint
    def work(self) -> int:
        with span("outer"), span("inner"):
            log.warning("step %d of %s", 3, "many")
        return 1

    @endpoint
    def fail(self) -> None:
        with span("broken"):
            raise ValueError("no")

    @endpoint
    def log_all(self, count: int) -> None:
        logging.getLogger("tests.history.flood").propagate = False  # so that nothing is printed
        for number in range(count):
            logging.getLogger("tests.history.flood").error("line %d %s", number, "x" * 100)

    @endpoint
    def log_badly(self) -> None:
        logging.raiseExceptions = False
        log.error("%d", "no number")

    @endpoint
    def die(self) -> None:
        context().actor_instance.abort("enough")

    @endpoint
    def step(self) -> None:
        pass

    @endpoint
    def fill(self, other: Any, rows: int) -> None:
        """Have each ring but that of actors take that many rows, with texts of the largest size."""
        logger = logging.getLogger("tests.history.flood")
        logger.propagate = False
        logger.addHandler(logging.NullHandler())  # so that nothing is printed
        for number in range(rows):
            other.step.call_one().get()
            with span("train"):
                logger.error("%5d %s", number, "x" * (TEXT_BYTES - 60))

    @endpoint
    def bytes_of_full_rings(self) -> dict[str, float]:
        """By table that has rows: the bytes of a full ring, if its other rows are like these."""
        return {
            name: bytes_of(list(ring.rows)) * (ring.rows.maxlen or 0) / len(ring.rows)
            for name, ring in HISTORY.rings().items()
            if ring.rows
        }

    @endpoint
    def resident_bytes(self) -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bytes_of(value: object, seen: set[int] | None = None) -> int:
    """What an object and the parts of it take, each counted once."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if not isinstance(value, (dict, list, tuple)):
        return sys.getsizeof(value)
    parts = chain.from_iterable(value.items()) if isinstance(value, dict) else value
    return sys.getsizeof(value) + sum(bytes_of(part, seen) for part in parts)


@pytest.fixture(autouse=True)
def no_history_of_earlier_tests() -> None:
    """This process remembers its actors, and what other tests have had it keep."""
    HISTORY.clear()


@pytest.fixture
def mesh(spawn_procs: Spawn) -> Iterator[ProcMesh]:
    procs = spawn_procs({"gpus": 2}, name="workers")
    procs.initialized.get()
    yield procs
    record(0, timeout=PATIENCE_S)
    clear_runtime_config()


OWN = "thread_name != 'garbage collector'"
"""Which spans are those of the program."""


def start(rows: int = MOST_ROWS) -> None:
    """Keep history from here on."""
    assert record(rows=rows, timeout=PATIENCE_S) == ()


def test_nothing_is_kept_until_it_is_switched_on(mesh: ProcMesh) -> None:
    worker = mesh.spawn("worker", Worker)
    worker.work.call().get()
    for table in ("messages", "sent_messages", "spans", "events", "recordings"):
        assert ask(f"FROM {table}").rows == (), table
    start()
    worker.work.call().get()
    assert ask("SELECT count(*) FROM messages").rows == ((2,),)
    record(0, timeout=PATIENCE_S)
    assert ask("SELECT count(*) FROM messages").rows == ((0,),)


def test_calls_are_told_at_both_ends_with_their_times(mesh: ProcMesh) -> None:
    echo = mesh.spawn("echo", Echo)
    echo.same.call(1).get()
    start()
    echo.same.call(1).get()
    echo.slice(gpus=1).same.broadcast(2)
    echo.slice(gpus=1).same.call_one(3).get()
    found = ask(
        "SELECT rank, endpoint, status, call IS NULL, waited_s >= 0, ran_s >= 0 FROM messages "
        "WHERE actor = 'echo' ORDER BY timestamp_us, rank"
    )
    assert sorted(found.rows) == [
        (0, "same", "complete", False, True, True),
        (1, "same", "complete", False, True, True),
        (1, "same", "complete", False, True, True),
        (1, "same", "complete", True, True, True),
    ]
    found = ask(
        "SELECT endpoint, ranks, failed, call IS NULL, ended_us >= timestamp_us, mesh, "
        "view_json->'slice'->>'offset' FROM sent_messages ORDER BY timestamp_us"
    )
    assert found.rows == (
        ("same", 2, False, False, True, "client", "0"),
        ("same", 1, False, True, True, "client", "1"),
        ("same", 1, False, False, True, "client", "1"),
    )
    found = ask(
        "SELECT count(*) FROM messages m JOIN sent_messages s "
        "ON m.call = s.call AND m.from_actor_id = s.sender_actor_id"
    )
    assert found.rows == ((3,),)


def test_each_state_of_a_message_is_an_event(mesh: ProcMesh, gate: GateKeeper) -> None:
    faulty = mesh.slice(gpus=0).spawn("faulty", Faulty)
    start()
    held = faulty.hold_on.call([0], gate.gate)
    gate.wait_entered()
    waiting = faulty.hold_on.call([], gate.gate)
    events = (
        "SELECT m.status, list(e.status ORDER BY e.timestamp_us) FROM messages m "
        "JOIN message_status_events e ON e.message_id = m.id GROUP BY m.id, m.status ORDER BY 1"
    )
    expected = (("active", ["queued", "active"]), ("queued", ["queued"]))
    for _ in range(500):
        if (found := ask(events).rows) == expected:
            break
    assert found == expected
    gate.open()
    held.get()
    waiting.get()
    assert ask(events).rows == (("complete", ["queued", "active", "complete"]),) * 2


def test_a_failed_call_is_told_as_failed_at_both_ends(mesh: ProcMesh) -> None:
    worker = mesh.slice(gpus=1).spawn("worker", Worker)
    start()
    with pytest.raises(ActorError):
        worker.fail.call().get()
    assert ask("SELECT DISTINCT endpoint, status FROM messages").rows == (("fail", "failed"),)
    assert ask("SELECT endpoint, failed FROM sent_messages").rows == (("fail", True),)
    assert ask(f"SELECT name, failed FROM spans WHERE {OWN}").rows == (("broken", True),)


def test_spans_and_log_records_are_told_with_what_encloses_them(mesh: ProcMesh) -> None:
    worker = mesh.spawn("worker", Worker)
    start()
    worker.work.call().get()
    found = ask(
        "SELECT s.name, p.name, s.actor, s.endpoint, s.duration_us >= 0, s.failed FROM spans s "
        f"LEFT JOIN spans p ON p.id = s.parent_id WHERE s.rank = 1 AND s.{OWN} ORDER BY 1"
    )
    assert found.rows == (
        ("inner", "outer", "worker", "work", True, False),
        ("outer", None, "worker", "work", True, False),
    )
    found = ask(
        "SELECT e.text, e.level, e.target, e.actor, e.module_path, s.name FROM events e "
        "JOIN spans s ON s.id = e.parent_span WHERE e.rank = 0"
    )
    assert found.rows == (
        ("step 3 of many", "WARN", "tests.history", "worker", "test_history", "inner"),
    )
    found = ask(
        "SELECT event_type, count(*) FROM span_events WHERE rank = 0 AND id IN "
        f"(SELECT id FROM spans WHERE {OWN}) GROUP BY 1 ORDER BY 1"
    )
    assert found.rows == (("close", 2), ("enter", 2), ("exit", 2))


class Hoarder(Actor):
    """Has the garbage collector at work, and memory that others read."""

    @endpoint
    def collect(self) -> int:
        kept = [[number] for number in range(200_000)]
        gc.collect()
        return len(kept)

    @endpoint
    def share(self) -> RDMABuffer:
        self.memory = bytearray(4 << 20)
        return RDMABuffer(memoryview(self.memory))

    @endpoint
    def read(self, buffer: RDMABuffer) -> None:
        buffer.read_into(memoryview(bytearray(4 << 20))).get()


def test_pauses_of_the_garbage_collector_and_transfers_are_spans(mesh: ProcMesh) -> None:
    hoarder = mesh.spawn("hoarder", Hoarder)
    start()
    hoarder.collect.call().get()
    found = ask(
        "SELECT DISTINCT rank, actor, endpoint, name FROM spans WHERE thread_name = "
        "'garbage collector' AND endpoint = 'collect' AND name LIKE '%2' ORDER BY rank"
    )
    name = "gc of generation 2"
    assert found.rows == tuple((rank, "hoarder", "collect", name) for rank in range(2))
    buffer = hoarder.slice(gpus=0).share.call_one().get()
    hoarder.slice(gpus=1).read.call_one(buffer).get()
    found = ask(
        "SELECT rank, actor, endpoint, name LIKE 'rdma read over %: 4.0 MiB', failed FROM spans "
        "WHERE thread_name = 'transfers'"
    )
    assert found.rows == ((1, "hoarder", "read", True, False),)
    mesh.push(data=[1, 2])
    with pytest.raises(NameError):
        mesh.pull("nothing")
    found = ask("SELECT name, failed FROM spans WHERE rank = 0 AND thread_name = 'transfers'")
    assert found.rows == (("push data to workers", False), ("pull nothing from workers", True))
    record(0, timeout=PATIENCE_S)
    hoarder.collect.call().get()
    start()
    assert ask("SELECT count(*) FROM spans WHERE endpoint = 'collect'").rows == ((0,),)


def test_a_record_that_cannot_be_formatted_disturbs_nothing(mesh: ProcMesh) -> None:
    worker = mesh.spawn("worker", Worker)
    start()
    worker.log_badly.call().get()
    found = ask("SELECT text FROM events WHERE rank = 0 AND target = 'tests.history'")
    assert found.rows == (("(TypeError while formatting '%d')",),)


def test_the_lives_of_actors_are_always_kept(mesh: ProcMesh, faults: Faults) -> None:
    echo = mesh.spawn("echo", Echo)
    echo.initialized.get()
    echo.stop().get()
    found = ask(
        "SELECT new_status, reason IS NULL FROM actor_status_events WHERE actor = 'echo' "
        "AND rank = 0 ORDER BY timestamp_us"
    )
    assert found.rows == (
        ("Created", True), ("Initializing", True), ("Idle", True), ("Stopped", False),
    )  # fmt: skip
    worker = mesh.slice(gpus=1).spawn("worker", Worker)
    with pytest.raises(SupervisionError):
        worker.die.call().get()
    ((error, node),) = ask("SELECT failure_error_message, node_id FROM actor_failures").rows
    assert error == "enough"
    assert re.search(r"/workers-1@[^/]+/worker-0@[^/]+$", node)
    faults.take()


def test_actors_that_have_ended_are_told_with_why(mesh: ProcMesh, faults: Faults) -> None:
    """Monarch's own query for failures."""
    echo = mesh.slice(gpus=1).spawn("echo", Echo)
    echo.initialized.get()
    echo.stop().get()
    worker = mesh.slice(gpus=1).spawn("worker", Worker)
    with pytest.raises(SupervisionError):
        worker.die.call().get()
    found = ask(
        "SELECT a.display_name, m.given_name, a.rank, a.proc_rank, a.status, s.reason "
        "FROM actor_status_events s JOIN actors a ON s.actor_id = a.id "
        "JOIN meshes m ON a.mesh_id = m.id "
        "WHERE s.new_status IN ('Stopped', 'Failed') ORDER BY s.timestamp_us"
    )
    assert found.rows == (
        ("workers[gpus=1].echo", "echo", 0, 1, "stopped", "stopped by client"),
        ("workers[gpus=1].worker", "worker", 0, 1, "failed", "enough"),
    )
    assert ask("SELECT count(*) FROM actors WHERE ended_us IS NULL").rows == ((0,),)
    found = ask("SELECT num_actors, failed_actor_count FROM proc_nodes ORDER BY proc_name")
    assert found.rows == ((0, 0), (0, 1))
    faults.take()


def test_full_rings_of_a_rank_take_less_than_two_mib(mesh: ProcMesh) -> None:
    worker, other = mesh.spawn("worker", Worker), mesh.spawn("other", Worker)
    start()
    first = worker.slice(gpus=0)
    first.fill.call_one(other.slice(gpus=1), MOST_ROWS + 10).get()
    for _ in range(MOST_ROWS):
        first.step.call_one().get()
    found = first.bytes_of_full_rings.call_one().get()
    assert set(found) == {"messages", "sent_messages", "spans", "events", "actor_status_events"}
    assert sum(found.values()) < 2 << 20, found
    kept = "SELECT name, kept FROM recordings WHERE mesh = 'workers' AND rank = 0 ORDER BY name"
    assert dict(ask(kept).rows) == {
        **dict.fromkeys(("messages", "sent_messages", "spans", "events"), MOST_ROWS),
        "torch_events": 0,
    }


def test_a_flood_leaves_memory_flat_and_is_told(mesh: ProcMesh) -> None:
    worker = mesh.spawn("worker", Worker)
    start(rows=500)
    first = worker.slice(gpus=0)
    first.log_all.call_one(1000).get()
    for _ in range(1000):
        first.step.broadcast()
    before = first.resident_bytes.call_one().get()
    first.log_all.call_one(50_000).get()
    for _ in range(10_000):
        first.step.broadcast()
    grown = first.resident_bytes.call_one().get() - before
    assert grown < 8 << 20, "60,000 rows would take 20 MiB"
    found = ask("SELECT name, kept, dropped, added FROM recordings WHERE rank = 0 ORDER BY name")
    kept = {row[0]: row[1:] for row in found if row[3]}
    events, messages = kept["events"], kept["messages"]
    assert events[0] == messages[0] == 500
    assert events[1] == events[2] - 500 >= 50_500
    assert messages[1] == messages[2] - 500 >= 10_500


def test_procs_that_are_spawned_later_keep_history_from_their_first_message(
    mesh: ProcMesh, spawn_procs: Spawn
) -> None:
    start()
    worker = spawn_procs({"gpus": 2}, name="later").spawn("worker", Worker)
    worker.work.call().get()
    found = ask("SELECT rank FROM messages WHERE mesh = 'later' AND endpoint = 'work' ORDER BY 1")
    assert found.rows == ((0,), (1,))


def test_ranks_of_other_hosts_keep_history_too_and_a_silent_host_is_named() -> None:
    with workers(2) as (first, second):
        hosts = attach_to_workers(ca=TRUST_ALL, workers=[first.address, second.address])
        mesh = hosts.spawn_procs({"gpus": 1}, name="far")
        worker = mesh.spawn("worker", Worker)
        worker.step.call().get(timeout=PATIENCE_S)
        start()
        worker.step.call().get(timeout=PATIENCE_S)
        found = ask("SELECT rank, count(*), count(DISTINCT host) FROM messages GROUP BY rank")
        assert sorted(found.rows) == [(0, 1, 1), (1, 1, 1)]
        second.process.send_signal(signal.SIGSTOP)
        try:
            missing = record(rows=100, timeout=0.5)
        finally:
            second.process.send_signal(signal.SIGCONT)
        silent = ask("SELECT host FROM procs WHERE rank = 1").rows[0][0]
        assert {one.where for one in missing} == {silent}
        record(0, timeout=PATIENCE_S)
        clear_runtime_config()
        mesh.stop().get(timeout=PATIENCE_S)


def test_a_rank_that_has_not_confirmed_is_named(mesh: ProcMesh) -> None:
    worker = mesh.spawn("worker", Worker)
    worker.initialized.get()
    pid = ask("SELECT pid FROM procs WHERE rank = 1").rows[0][0]
    os.kill(pid, signal.SIGSTOP)
    try:
        (missing,) = record(timeout=0.5)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert missing.where == f"workers[gpus=1] on {os.uname().nodename}"
    worker.work.call().get()
    assert ask("SELECT count(*) FROM messages WHERE endpoint = 'work'").rows == ((2,),)


def test_times_and_limits_are_passed_on_to_ranks(mesh: ProcMesh) -> None:
    worker = mesh.spawn("worker", Worker)
    start()
    worker.step.call().get()
    (between,) = ask("SELECT max(timestamp_us) FROM messages").rows[0]
    worker.work.call().get()
    found = ask(f"SELECT endpoint FROM messages WHERE timestamp_us > {between} AND rank = 1")
    assert found.rows == (("work",),)
    assert len(ask("SELECT id FROM messages LIMIT 1")) == 1


@pytest.mark.parametrize(
    ("retention", "rows"), [(-1.0, 10), (float("nan"), 10), (1e9, 10), (60.0, 0), (60.0, 10**7)]
)
def test_orders_that_make_no_sense_are_refused(retention: float, rows: int) -> None:
    with pytest.raises(ValueError, match=r"(retention_secs|rows)="):
        record(retention, rows)
