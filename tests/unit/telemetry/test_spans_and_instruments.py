"""`get_meter`, `span` and `traced` in a program that has no mesh."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import textwrap
import threading
from typing import Any

import cloudpickle
import pytest

import monarch._src.telemetry.meter as meter_module
import monarch._src.telemetry.spans as spans_module
from monarch._src.actor.state.program_metrics import TelemetryTable
from monarch.actor import endpoint, get_meter, span, traced


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> TelemetryTable:
    """An empty one for each test."""
    table = TelemetryTable()
    monkeypatch.setattr(meter_module, "TELEMETRY", table)
    monkeypatch.setattr(spans_module, "TELEMETRY", table)
    return table


def seen(table: TelemetryTable) -> dict[tuple[str, str], tuple[int, int, int]]:
    """How often each span began, by name and parent; errors; and how often it still runs."""
    return {
        (f.key.span, f.key.parent): (f.calls, f.errors, f.in_flight) for f in table.spans(2**62)
    }


def test_a_span_is_counted_and_what_is_within_it_names_it(table: TelemetryTable) -> None:
    for _ in range(3):
        with span("outer"):
            with span("inner"), span("innermost"):
                pass
            with span("inner"):
                pass
    with span("inner"):
        pass
    assert seen(table) == {
        ("outer", ""): (3, 0, 0),
        ("inner", "outer"): (6, 0, 0),
        ("innermost", "inner"): (3, 0, 0),
        ("inner", ""): (1, 0, 0),
    }


def test_an_exception_is_counted_and_goes_on_as_it_is(table: TelemetryTable) -> None:
    raised = KeyError("as it is")
    with pytest.raises(KeyError) as caught, span("fails"):
        raise raised
    assert caught.value is raised
    assert seen(table) == {("fails", ""): (1, 1, 0)}


def test_while_it_lasts_it_runs(table: TelemetryTable) -> None:
    with span("lasts"):
        assert seen(table) == {("lasts", ""): (1, 0, 1)}


def test_one_may_be_used_again_and_not_twice_at_a_time(table: TelemetryTable) -> None:
    again = span("again")
    for _ in range(2):
        with again, pytest.raises(RuntimeError, match="create another one"):
            again.__enter__()
    assert seen(table) == {("again", ""): (2, 0, 0)}
    with pytest.raises(RuntimeError, match="has not begun"):
        again.__exit__()


def test_traced_functions_are_spans_by_their_name_or_another(table: TelemetryTable) -> None:
    @traced
    def total(first: int, *, second: int = 2) -> int:
        """Adds."""
        return first + second

    @traced(name="another")
    def named() -> int:
        return total(3, second=4)

    assert (total(1), named()) == (3, 7)
    assert (total.__name__, total.__doc__) == ("total", "Adds.")
    assert list(inspect.signature(total).parameters) == ["first", "second"]
    assert seen(table) == {
        ("total", ""): (1, 0, 0), ("another", ""): (1, 0, 0), ("total", "another"): (1, 0, 0),
    }  # fmt: skip


def test_overlapping_tasks_have_spans_of_their_own(table: TelemetryTable) -> None:
    async def main() -> None:
        met, here = asyncio.Event(), [0]

        @traced
        async def within() -> None:
            here[0] += 1
            if here[0] == 2:
                met.set()
            await met.wait()

        async def outer(name: str) -> None:
            with span(name):
                await within()

        assert inspect.iscoroutinefunction(within)
        await asyncio.gather(outer("first"), outer("second"))

    asyncio.run(main())
    assert seen(table) == {
        ("first", ""): (1, 0, 0), ("second", ""): (1, 0, 0),
        ("within", "first"): (1, 0, 0), ("within", "second"): (1, 0, 0),
    }  # fmt: skip


def test_threads_have_spans_of_their_own(table: TelemetryTable) -> None:
    def work() -> None:
        with span("of the thread"):
            pass

    with span("of the main thread"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert ("of the thread", "") in seen(table)


@pytest.mark.parametrize("wrong", [7, "name", endpoint(lambda self: None), staticmethod(len)])
def test_what_is_no_function_is_not_traced(wrong: Any) -> None:
    with pytest.raises(TypeError, match="place it below @endpoint"):
        traced(wrong)


def test_names_are_texts() -> None:
    for wrong in ("", None, 7):
        with pytest.raises(TypeError, match="a non-empty string"):
            span(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a non-empty string"):
            get_meter().create_counter(wrong)  # type: ignore[arg-type]


def test_instruments_of_one_name_and_kind_are_one(table: TelemetryTable) -> None:
    get_meter().create_counter("tokens", "1", "seen").add(3)
    get_meter().create_counter("tokens", "1", "seen").add(4, {"phase": "train"})
    get_meter().create_counter("tokens", "1", "seen").add(5, attributes={"phase": "train"})
    load = get_meter().create_up_down_counter("load")
    load.add(5)
    load.add(-7.5)
    loss = get_meter().create_histogram("loss", explicit_bucket_boundaries_advisory=[1.0, 2.0])
    loss.record(2.0)
    loss.record(4.0)
    found = [(f.key.kind, f.key.name, f.count, f.total) for f in table.measures()]
    assert found == [
        ("counter", "tokens", 1, 3.0), ("counter", "tokens", 2, 9.0),
        ("up_down_counter", "load", 2, -2.5), ("histogram", "loss", 2, 6.0),
    ]  # fmt: skip


def test_a_counter_only_grows() -> None:
    with pytest.raises(ValueError, match="create_up_down_counter"):
        get_meter().create_counter("tokens").add(-1)


def test_instruments_and_traced_functions_travel_by_value(table: TelemetryTable) -> None:
    tokens = get_meter().create_counter("tokens")
    loss = get_meter().create_histogram("loss", explicit_bucket_boundaries_advisory=[1.0])
    inside = span("inside")

    @traced
    def step(count: int) -> int:
        with inside:
            tokens.add(count)
            loss.record(1.0)
        return count

    again = cloudpickle.loads(cloudpickle.dumps(step))
    assert again(3) == step(4) - 1
    assert seen(table) == {("step", ""): (2, 0, 0), ("inside", "step"): (2, 0, 0)}
    assert [(f.key.name, f.total) for f in table.measures()] == [("tokens", 7.0), ("loss", 2.0)]


def python(program: str) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=120)


def test_nothing_of_it_is_loaded_before_it_is_used_and_no_runtime_then() -> None:
    python("""
        import sys
        import monarch.actor
        def ours(): return [m for m in sys.modules if "telemetry" in m]
        assert ours() == [], ours()
        from monarch.actor import get_meter, span, traced
        traced(lambda: None)
        assert "monarch._src.actor.runtime" not in sys.modules
        assert "opentelemetry" not in sys.modules
    """)


def test_a_program_without_a_mesh_reads_what_it_has_measured() -> None:
    python("""
        from monarch.actor import get_meter, span
        from monarch.observe import metrics
        with span("load"):
            get_meter().create_histogram("loss", "nats").record(0.5, {"phase": "eval"})
        found = metrics()
        (load,), (loss,) = found.spans, found.instruments
        assert (load.mesh, load.actor) == ("client", "client")
        assert (load.endpoint, load.parent) == (None, None)
        assert (load.count, load.running, load.slowest[0].mesh) == (1, 0, "client")
        assert (loss.mean, loss.min, loss.p99, loss.max, loss.unit) == (0.5, 0.5, 0.5, 0.5, "nats")
        assert loss.attributes == {"phase": "eval"}
    """)


def test_where_opentelemetry_is_installed_it_is_handed_on() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="an installation from before it was needed")
    python("""
        from opentelemetry import metrics, trace
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from monarch.actor import get_meter, span
        from monarch.observe import metrics as counted

        early = get_meter().create_counter("early")  # before the SDK is set up
        reader, exporter = InMemoryMetricReader(), InMemorySpanExporter()
        metrics.set_meter_provider(MeterProvider([reader]))
        trace.set_tracer_provider(TracerProvider())
        trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
        early.add(2)
        advice = {"explicit_bucket_boundaries_advisory": [1.0]}
        get_meter().create_histogram("loss", "nats", **advice).record(0.5, {"phase": "eval"})
        get_meter().create_up_down_counter("load").add(-1)
        try:
            with span("outer"), span("inner"):
                raise KeyError("told")
        except KeyError:
            pass
        (data,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
        assert data.scope.name == "monarch"
        assert {m.name for m in data.metrics} == {"early", "loss", "load"}
        inner, outer = exporter.get_finished_spans()
        assert (inner.name, inner.parent.span_id) == ("inner", outer.context.span_id)
        assert inner.attributes["monarch.mesh"] == "client"
        assert not inner.status.is_ok
        assert len(counted().instruments) == 3 and len(counted().spans) == 2
    """)
