"""What ranks measure of themselves: `get_meter`, `span` and `traced`, read in the client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    ProcMesh,
    concurrent_endpoint,
    current_rank,
    endpoint,
    get_meter,
    get_or_spawn_controller,
    span,
    traced,
)
from monarch.observe import InstrumentMetrics, Metrics, SpanMetrics, metrics

Spawn = Callable[..., ProcMesh]

TOKENS = get_meter().create_counter("tokens", unit="1", description="seen by a rank")
LOSS = get_meter().create_histogram("loss")


class Trainer(Actor):
    """A sync one."""

    @endpoint
    def step(self) -> None:
        with span("load"), span("decode"):
            TOKENS.add(10 + current_rank().rank, {"phase": "train"})
        self.forward()
        LOSS.record(float(1 + current_rank().rank))

    @endpoint
    @traced
    def traced_step(self, count: int = 1) -> int:
        return count

    @traced
    def forward(self) -> None:
        self.matmul()

    @traced(name="mm")
    def matmul(self) -> None:
        return None

    @endpoint
    def fail(self) -> None:
        with span("fails"):
            raise KeyError("as it is")

    @endpoint
    def in_a_thread(self) -> None:
        thread = threading.Thread(target=self.forward)
        thread.start()
        thread.join()


def set_up_sdk() -> None:
    """Keeps what ends in the process."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    Exporting.exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Exporting.exporter))
    trace.set_tracer_provider(provider)


class Exporting(Actor):
    """Whose process has an SDK."""

    exporter: Any = None

    @endpoint
    def spans(self) -> list[tuple[str, str, str]]:
        with span("load"):
            pass
        ended = self.exporter.get_finished_spans()
        names = ("monarch.actor", "monarch.endpoint")
        return [(found.name, *(found.attributes[name] for name in names)) for found in ended]


class Server(Actor):
    """An async one, with calls that overlap."""

    def __init__(self) -> None:
        self.here = 0
        self.met = asyncio.Event()

    @concurrent_endpoint
    async def meet(self) -> None:
        with span("meeting"):
            await self.wait()

    @concurrent_endpoint
    async def join(self) -> None:
        with span("joining"):
            await self.wait()

    @traced
    async def wait(self) -> None:
        self.here += 1
        if self.here == 2:
            self.met.set()
        await self.met.wait()


def read(mesh: Any = None) -> Metrics:
    found = metrics(mesh, timeout=60)
    assert found.missing == ()
    return found


def spans(mesh: Any) -> dict[tuple[str | None, str | None, str], SpanMetrics]:
    """By endpoint, parent and name."""
    found = read(mesh).spans
    rows = {(row.endpoint, row.parent, row.name): row for row in found}
    assert len(rows) == len(found)
    return rows


def instrument(mesh: Any, name: str) -> InstrumentMetrics:
    (row,) = [row for row in read(mesh).instruments if row.name == name]
    return row


@pytest.fixture
def two(spawn_procs: Spawn) -> ProcMesh:
    return spawn_procs({"gpus": 2})


def test_spans_of_a_sync_actor_name_their_endpoint_and_what_encloses_them(two: ProcMesh) -> None:
    trainer = two.spawn("trainer", Trainer)
    for _ in range(3):
        trainer.step.call().get()
    found = spans(trainer)
    assert list(found) == [
        ("step", "step", "load"),
        ("step", "load", "decode"),
        ("step", "step", "forward"),
        ("step", "forward", "mm"),
    ]
    for row in found.values():
        assert (row.mesh, row.mesh_uid) == (two.name, two.uid)
        assert (row.actor_class, row.actor) == ("Trainer", "trainer")
        assert (row.processes, row.count, row.errors, row.running) == (2, 6, 0, 0)
        assert row.slowest is not None
        assert row.slowest[0].rank in (0, 1)
    assert found["step", "forward", "mm"].total_s <= found["step", "step", "forward"].total_s


def test_a_traced_endpoint_is_called_as_ever_and_within_its_call(two: ProcMesh) -> None:
    trainer = two.spawn("trainer", Trainer)
    assert list(trainer.traced_step.call(count=7).get().values()) == [7, 7]
    with pytest.raises(TypeError):
        trainer.traced_step.call(amount=7)  # pyright: ignore[reportCallIssue]
    assert list(spans(trainer)) == [("traced_step", "traced_step", "traced_step")]


def test_spans_of_calls_that_overlap_do_not_mix(spawn_procs: Spawn) -> None:
    server = spawn_procs({"gpus": 1}).spawn("server", Server)
    calls = [server.meet.call_one(), server.join.call_one()]
    for call in calls:
        call.get()
    assert set(spans(server)) == {
        ("meet", "meet", "meeting"),
        ("meet", "meeting", "wait"),
        ("join", "join", "joining"),
        ("join", "joining", "wait"),
    }


def test_a_span_that_an_exception_leaves_counts_as_an_error(two: ProcMesh) -> None:
    trainer = two.spawn("trainer", Trainer)
    for answer in trainer.fail.stream():
        with pytest.raises(ActorError, match="as it is"):
            answer.get()
    assert spans(two)["fail", "fail", "fails"].errors == 2


def test_a_thread_that_is_no_actors_counts_for_its_process(two: ProcMesh) -> None:
    trainer = two.spawn("trainer", Trainer)
    trainer.in_a_thread.call().get()
    row = spans(two)[None, None, "forward"]
    assert (row.mesh, row.actor, row.processes, row.count) == (two.name, "", 2, 2)
    assert spans(trainer) == {}


def test_instruments_add_up_over_ranks_and_by_rank(two: ProcMesh) -> None:
    trainer = two.spawn("trainer", Trainer)
    for _ in range(2):
        trainer.step.call().get()
    tokens = instrument(trainer, "tokens")
    assert (tokens.kind, tokens.unit, tokens.description) == ("counter", "1", "seen by a rank")
    assert (tokens.attributes, tokens.count, tokens.total) == ({"phase": "train"}, 4, 42.0)
    assert [(p.point, total) for p, total in tokens.by_process] == [
        ({"gpus": 0}, 20.0), ({"gpus": 1}, 22.0),
    ]  # fmt: skip
    assert (tokens.mean, tokens.max) == (None, None)
    loss = instrument(two, "loss")
    assert (loss.mean, loss.min, loss.max, loss.p99, loss.count) == (1.5, 1.0, 2.0, 2.0, 4)
    assert instrument(trainer.slice(gpus=1), "tokens").total == 22.0


def test_the_client_and_its_controllers_are_measured_too(two: ProcMesh) -> None:
    with span("of the test"):
        two.spawn("trainer", Trainer).step.call().get()
    mine = [row for row in read().spans if row.name == "of the test"]
    assert [(row.mesh, row.actor, row.parent) for row in mine] == [("client", "client", None)]
    assert "of the test" not in {row.name for row in read(two).spans}
    controller = get_or_spawn_controller("measured", Trainer).get()
    controller.traced_step.call_one().get()
    (row,) = read(controller).spans
    assert (row.mesh, row.actor, row.endpoint) == ("client", "measured", "traced_step")


def test_what_is_measured_ends_with_its_mesh(two: ProcMesh) -> None:
    two.spawn("trainer", Trainer).step.call().get()
    assert two.uid in {row.mesh_uid for row in (*read().spans, *read().instruments)}
    uid = two.uid
    two.stop().get(timeout=60)
    assert uid not in {row.mesh_uid for row in (*read().spans, *read().instruments)}


def test_what_a_preload_measured_is_not_counted_again_by_each_rank(
    spawn_procs: Spawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "measures_on_import.py").write_text(
        "from monarch.actor import get_meter, span\n"
        "with span('of a preload'):\n"
        "    get_meter().create_counter('of a preload').add(1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    procs = spawn_procs({"gpus": 2}, preload=["measures_on_import"])
    procs.spawn("trainer", Trainer).step.call().get()
    found = read()
    assert procs.uid in {row.mesh_uid for row in found.spans}
    assert "of a preload" not in {row.name for row in (*found.spans, *found.instruments)}


def test_spans_of_ranks_go_to_the_opentelemetry_that_their_bootstrap_has_set_up(
    spawn_procs: Spawn,
) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="an installation from before it was needed")
    procs = spawn_procs({"gpus": 2}, bootstrap=set_up_sdk)
    exporting = procs.spawn("exporting", Exporting)
    assert list(exporting.spans.call().get().values()) == [[("load", "exporting", "spans")]] * 2
