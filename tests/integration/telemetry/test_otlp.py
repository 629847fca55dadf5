"""Traces, metrics and logs by OTLP, from a program with two meshes to a strict receiver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.integration.otlp_receiver import (
    Received,
    Receiver,
    attributes_of,
    otlp_receiver,
    value_of,
)

pytestmark = pytest.mark.slow
PATIENCE_S = 120.0

PROGRAM = """
import logging
import sys

from monarch.actor import Actor, ActorError, endpoint, get_meter, span, this_host


class Worker(Actor):
    def __init__(self) -> None:
        self.tokens = get_meter().create_counter("tokens", unit="1")

    @endpoint
    def step(self, n: int) -> int:
        self.tokens.add(n)
        logging.getLogger("train").warning("step %d", n)
        with span("inner"):
            return n

    @endpoint
    def fail(self) -> None:
        raise ValueError("a bad shard")


class Driver(Actor):
    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    @endpoint
    async def go(self) -> int:
        answers = await self.worker.step.call(3)
        return sum(value for _, value in answers.items())


if __name__ == "__main__":
    worker = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("worker", Worker)
    driver = this_host().spawn_procs(name="drivers").spawn("driver", Driver, worker)
    with span("outer"):
        print(driver.go.call_one().get())
        try:
            worker.slice(gpus=1).fail.call_one().get()
        except ActorError:
            print("failed")
    print("opentelemetry.sdk" in sys.modules)
"""


def run_program(url: str, folder: Any, program: str = PROGRAM) -> tuple[str, str]:
    """Stdout and stderr of the program, which exports to that receiver."""
    path = folder / "program.py"
    path.write_text(program)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    if url:
        variables |= {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**variables, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """What the program has exported when it has ended."""
    with otlp_receiver() as receiver:
        out, _ = run_program(receiver.url, tmp_path_factory.mktemp("otlp"))
        assert out.splitlines() == ["6", "failed", "True"]
        yield receiver


def span_named(received: Receiver, name: str, rank: int | None = None) -> Received:
    (found,) = [
        one
        for one in received.spans
        if one.item.name == name and rank in (None, one.resource["monarch.rank"])
    ]
    return found


def test_whatever_is_exported_has_what_the_protocol_requires(received: Receiver) -> None:
    assert received.problems == []
    assert received.spans
    assert received.metrics
    assert received.logs


def test_each_process_names_its_host_mesh_and_rank(received: Receiver) -> None:
    resources = {
        (one.resource["monarch.mesh"], one.resource["monarch.rank"]): one.resource
        for one in received.spans
    }
    assert set(resources) == {("client", 0), ("workers", 0), ("workers", 1), ("drivers", 0)}
    assert {one["host.name"] for one in resources.values()} == {os.uname().nodename}
    assert len({one["process.pid"] for one in resources.values()}) == 4
    assert resources["workers", 1]["monarch.point.gpus"] == 1


def test_spans_are_joined_from_the_call_to_the_endpoint_in_another_process(
    received: Receiver,
) -> None:
    names = ["outer", "send Driver.go", "Driver.go", "send Worker.step", "Worker.step", "inner"]
    chain = [span_named(received, name, 1 if at > 3 else None) for at, name in enumerate(names)]
    assert len({one.item.trace_id for one in chain}) == 1
    assert chain[0].item.parent_span_id == b""
    for parent, child in pairwise(chain):
        assert child.item.parent_span_id == parent.item.span_id, child.item.name
    meshes = [one.resource["monarch.mesh"] for one in chain]
    assert meshes == ["client", "client", "drivers", "drivers", "workers", "workers"]
    both = [span_named(received, "Worker.step", rank).item for rank in (0, 1)]
    assert both[0].parent_span_id == both[1].parent_span_id


def test_an_endpoint_that_raises_is_a_span_with_an_error(received: Receiver) -> None:
    span = span_named(received, "Worker.fail").item
    assert span.status.code == 2  # STATUS_CODE_ERROR
    (event,) = span.events
    assert attributes_of(event)["exception.message"] == "a bad shard"
    assert span_named(received, "Worker.step", 0).item.status.code == 0


def test_instruments_of_the_program_and_counts_of_endpoints_are_exported(
    received: Receiver,
) -> None:
    totals: dict[int, float] = {}
    calls: dict[str, float] = {}
    for resource, metric in received.metrics:
        for point in metric.sum.data_points:
            value = point.as_double or point.as_int
            if metric.name == "tokens":
                assert metric.sum.is_monotonic
                totals[resource["monarch.rank"]] = value
            elif metric.name == "monarch.endpoint.calls":
                attributes = attributes_of(point)
                if attributes["monarch.side"] == "callee":
                    calls[attributes["monarch.endpoint"]] = value
    assert totals == {0: 3, 1: 3}
    assert calls == {"go": 1, "step": 1, "fail": 1}


def test_log_records_belong_to_the_span_in_which_they_were_written(received: Receiver) -> None:
    records = [one for one in received.logs if value_of(one.item.body) == "step 3"]
    assert sorted(one.resource["monarch.rank"] for one in records) == [0, 1]
    for resource, record in records:
        span = span_named(received, "Worker.step", resource["monarch.rank"]).item
        assert (record.trace_id, record.span_id) == (span.trace_id, span.span_id)
        assert (record.severity_text, record.severity_number) == ("WARNING", 13)


def test_a_rank_still_writes_its_log_to_stderr(tmp_path: Any) -> None:
    with otlp_receiver() as receiver:
        _, err = run_program(receiver.url, tmp_path)
    assert "train WARNING step 3" in err


def test_without_a_receiver_no_process_loads_the_sdk(tmp_path: Any) -> None:
    program = PROGRAM.replace("return n\n", 'return int("opentelemetry.sdk" in sys.modules)\n')
    out, _ = run_program("", tmp_path, program)
    assert out.splitlines() == ["0", "failed", "False"]


def test_a_receiver_that_is_gone_does_not_hold_up_the_program(tmp_path: Any) -> None:
    with otlp_receiver() as receiver:
        url = receiver.url
    out, err = run_program(url, tmp_path)
    assert out.splitlines() == ["6", "failed", "True"]
    assert "Connection refused" in err


MISSING = """
import logging, os, sys
os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:9"
sys.modules["opentelemetry.exporter"] = None
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from monarch._src.telemetry import otlp
otlp.begin(None)
otlp.begin(None)
"""


def test_a_missing_package_is_a_warning_with_the_remedy(run_python: Callable[..., str]) -> None:
    (line,) = run_python(MISSING).splitlines()
    assert "opentelemetry.exporter.otlp is missing: pip install 'monarch-jupyter[otlp]'" in line
