"""What browsers are told: all of it once, then only what changed."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from monarch.observe import MeshSnapshot
from monarch_jupyter.page.publisher import INTERVAL, SLOWEST, Pace, Publisher
from monarch_jupyter.protocol.messages import LastSeen, MeshTable, StreamMessage, parse_page_message
from tests.notebook.samples import mesh, row


class Page:
    """The reader of one stream, as explorer and panel implement it."""

    def __init__(self) -> None:
        self.seq: int | None = None
        self.meshes: dict[str, dict[str, Any]] = {}
        self.received: list[StreamMessage] = []

    def take(self, message: StreamMessage) -> None:
        self.received.append(json.loads(json.dumps(message)))
        message = self.received[-1]
        if message["type"] == "snapshot":
            self.meshes = {m["uid"]: self._whole(m, {}) for m in message["meshes"]}
        else:
            assert message["type"] == "delta"
            assert self.seq is not None
            assert message["seq"] == self.seq + 1
            for uid in message["gone"]:
                del self.meshes[uid]
            for m in message["meshes"]:
                old = self.meshes.get(m["uid"], {"rows": {}})
                self.meshes[m["uid"]] = self._whole(m, old["rows"])
        self.seq = message["seq"]

    def _whole(self, message: Any, rows: dict[int, Any]) -> dict[str, Any]:
        return {**message, "rows": {**rows, **{r["rank"]: r for r in message["rows"]}}}


def test_a_snapshot_has_every_field_of_every_rank() -> None:
    table = MeshTable()
    table.update([mesh([row(0, state="busy", actor="Trainer", endpoint="step", messages=3)])])
    snapshot = table.snapshot()
    assert snapshot["type"] == "snapshot"
    (told,) = snapshot["meshes"]
    assert told["sizes"] == {"gpus": 8}
    assert told["rows"] == [
        {
            "rank": 0,
            "point": {"gpus": 0},
            "pid": 1000,
            "state": "busy",
            "actor": "Trainer",
            "endpoint": "step",
            "since_s": 1.0,
            "messages": 3,
            "rss_mib": 30.0,
            "failure": None,
            "errors": 0,
            "restarts": 0,
            "where": None,
        }
    ]


def test_a_delta_has_only_the_rows_that_changed() -> None:
    table = MeshTable()
    table.update([mesh()])
    rows = [row(rank) for rank in range(8)]
    rows[3] = row(3, state="busy", endpoint="step")
    delta = table.update([mesh(rows)])
    assert delta is not None
    assert [r["rank"] for r in delta["meshes"][0]["rows"]] == [3]


@pytest.mark.parametrize(
    "changes", [{"since_s": 99.0}, {"rss_mib": 30.9}, {"rss_mib": 30.0, "since_s": 0.0}]
)
def test_the_clock_and_a_little_memory_are_no_change(changes: dict[str, Any]) -> None:
    table = MeshTable()
    table.update([mesh([row(0)])])
    assert table.update([mesh([row(0, **changes)], age_s=99.0)]) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "busy"},
        {"endpoint": "step"},
        {"actor": "Trainer"},
        {"messages": 1},
        {"pid": 7},
        {"failure": "killed"},
        {"errors": 1},
        {"rss_mib": 40.0},
        {"rss_mib": None},
    ],
)
def test_everything_else_about_a_rank_is_a_change(changes: dict[str, Any]) -> None:
    table = MeshTable()
    table.update([mesh([row(0)])])
    assert table.update([mesh([row(0, **changes)])]) is not None


def test_where_jupyterlabs_debugger_is_is_a_change_and_stands_in_what_a_late_reader_gets() -> None:
    table = MeshTable()
    table.update([mesh()])
    delta = table.update([mesh()], {"u1": (3,)})
    assert delta is not None
    (told,) = delta["meshes"]
    assert (told["debugged"], told["rows"]) == ([3], [])
    assert table.update([mesh()], {"u1": (3,)}) is None
    assert table.snapshot()["meshes"][0]["debugged"] == [3]
    delta = table.update([mesh()])
    assert delta is not None
    assert delta["meshes"][0]["debugged"] == []


def test_memory_that_creeps_is_told_in_the_end() -> None:
    table = MeshTable()
    table.update([mesh([row(0, rss_mib=30.0)])])
    creeping = [table.update([mesh([row(0, rss_mib=30.0 + mib / 2)])]) for mib in range(1, 5)]
    assert any(delta is not None for delta in creeping)


def test_a_reader_of_all_messages_knows_what_the_kernel_knows() -> None:
    table, page = MeshTable(), Page()
    page.take(table.snapshot())
    history = [
        [mesh([row(0), row(1)])],
        [mesh([row(0, state="busy"), row(1)]), mesh([row(0)], uid="u2", name="others")],
        [mesh([row(0), row(1, state="failed", failure="killed")], state="failed")],
        [],
    ]
    for meshes in history:
        delta = table.update(meshes)
        assert delta is not None
        page.take(delta)
        fresh = Page()
        fresh.take(table.snapshot())
        assert page.meshes == fresh.meshes
        assert page.seq == fresh.seq


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"type": "sync"}, {"type": "sync", "view": ""}),
        ({"type": "sync", "view": "a", "more": 1}, {"type": "sync", "view": "a"}),
        ({"type": "leave", "view": "a"}, {"type": "leave", "view": "a"}),
        ({"type": "sync", "view": 3}, None),
        ({"type": "dance"}, None),
        ([], None),
        (None, None),
    ],
)
def test_a_message_of_a_page_is_understood_or_ignored(content: object, message: object) -> None:
    assert parse_page_message(content) == message


def unthreaded(
    look: Callable[[], list[MeshSnapshot]], clock: Callable[[], float] = time.monotonic
) -> Publisher:
    """A publisher that looks when the test says so."""
    publisher = Publisher(look, clock)
    publisher._thread = threading.current_thread()
    return publisher


class TestPublisher:
    def test_a_sink_gets_a_snapshot_first_and_then_what_changes(self) -> None:
        meshes = [mesh([row(0)])]
        publisher, page = unthreaded(lambda: meshes), Page()
        publisher.connect(page.take)
        publisher.publish()
        meshes[0] = mesh([row(0, state="busy")])
        publisher.publish()
        assert [message["type"] for message in page.received] == ["snapshot", "delta"]
        assert page.meshes["u1"]["rows"][0]["state"] == "busy"

    def test_nothing_is_sent_when_nothing_changed(self) -> None:
        publisher, page = unthreaded(lambda: [mesh([row(0)])]), Page()
        publisher.connect(page.take)
        assert publisher.publish()
        assert not publisher.publish()
        assert len(page.received) == 1

    def test_a_late_sink_gets_a_snapshot_that_fits_the_deltas_after_it(self) -> None:
        meshes = [mesh([row(0)])]
        publisher, early, late = unthreaded(lambda: meshes), Page(), Page()
        publisher.connect(early.take)
        publisher.publish()
        meshes[0] = mesh([row(0, messages=1)])
        publisher.connect(late.take)
        publisher.publish()
        meshes[0] = mesh([row(0, messages=2)])
        publisher.publish()
        assert early.meshes == late.meshes
        assert [message["type"] for message in late.received] == ["snapshot", "delta"]

    def test_a_sink_that_fails_is_left_out_and_the_others_go_on(self) -> None:
        meshes = [mesh([row(0)])]

        def broken(message: StreamMessage) -> None:
            raise ConnectionError("the page is gone")

        publisher, page = unthreaded(lambda: meshes), Page()
        publisher.connect(broken)
        publisher.connect(page.take)
        publisher.publish()
        assert list(publisher._sinks) == [page.take]
        assert len(page.received) == 1

    def test_a_look_that_fails_is_no_change_and_the_next_one_counts(self) -> None:
        answers: list[Exception | list[MeshSnapshot]] = [TimeoutError("slow"), [mesh([row(0)])]]

        def look() -> list[MeshSnapshot]:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        publisher, page = unthreaded(look), Page()
        publisher.connect(page.take)
        assert not publisher.publish()
        assert publisher.publish()
        assert [message["type"] for message in page.received] == ["snapshot"]

    def test_a_page_that_was_not_heard_gets_its_snapshot_again_a_few_times(self) -> None:
        now = [0.0]
        publisher, page = unthreaded(lambda: [mesh([row(0)])], lambda: now[0]), Page()
        publisher.connect(page.take, repeat=True)
        for _ in range(1000):
            publisher.publish()
            now[0] += INTERVAL
        assert [message["type"] for message in page.received] == ["snapshot"] * 7

    def test_a_page_that_was_heard_is_left_in_peace(self) -> None:
        publisher, page = unthreaded(lambda: [mesh([row(0)])]), Page()
        publisher.connect(page.take, repeat=True)
        publisher.sync(page.take)
        assert publisher._unconfirmed == {}

    def test_its_thread_serves_a_sink_until_it_is_closed(self) -> None:
        received: queue.SimpleQueue[StreamMessage] = queue.SimpleQueue()
        meshes = [mesh([row(0)])]
        publisher = Publisher(lambda: list(meshes))
        publisher.connect(received.put)
        assert received.get(timeout=10)["type"] == "snapshot"
        meshes[0] = mesh([row(0, state="busy")])
        publisher.wake()
        assert received.get(timeout=10)["type"] == "delta"
        publisher.sync(received.put)
        publisher.close()
        publisher.close()
        assert publisher._thread is not None
        assert not publisher._thread.is_alive()

    def test_it_looks_ten_times_a_second_at_most_and_slows_down_while_nothing_happens(self) -> None:
        pace = Pace()
        assert pace.next_delay(changed=True) == INTERVAL == 0.1
        waits = [pace.next_delay(changed=False) for _ in range(20)]
        assert waits == sorted(waits)
        assert waits[0] > INTERVAL
        assert waits[-1] == SLOWEST
        pace.reset()
        assert pace.next_delay(changed=True) == INTERVAL


def test_a_mesh_that_has_ended_is_told_as_it_was_last_seen() -> None:
    table, seen = MeshTable(), LastSeen()
    for rows in ([row(0), row(1)], [row(0, state="busy"), row(1, state="failed", failure="x")]):
        delta = table.update([mesh(rows)])
        assert delta is not None
        seen.take(delta)
    delta = table.update([])
    assert delta is not None
    seen.take(delta)
    ended = seen.of(mesh([]).uid)
    assert ended is not None
    assert ended["state"] == "stopped"
    assert [one["state"] for one in ended["rows"]] == ["stopped", "failed"]
    assert seen.of("another") is None
