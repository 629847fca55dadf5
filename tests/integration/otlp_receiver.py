"""A strict receiver of OTLP over HTTP: it checks the fields that the protocol requires.

Runs in: the process of pytest, a thread for each connection.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

REQUIRED = ("service.name", "host.name", "process.pid", "monarch.mesh", "monarch.rank")


class Received(NamedTuple):
    """A span, a metric or a log record, with the attributes of its process."""

    resource: dict[str, Any]
    item: Any


class Receiver:
    """The requests that have arrived, and their faults."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.metrics: list[Received] = []
        self.logs: list[Received] = []
        self.problems: list[str] = []
        self.lock = threading.Lock()
        self.url = ""

    def take(self, path: str, headers: Any, body: bytes) -> bytes | None:
        """Check and keep one request; the body of the answer, or None for an unknown path."""
        self._check(headers.get("content-type") == "application/x-protobuf", "the content type")
        self._check(headers.get("content-encoding") == "gzip", "the content encoding")
        data = gzip.decompress(body)
        with self.lock:
            if path == "/v1/traces":
                for part in ExportTraceServiceRequest.FromString(data).resource_spans:
                    for scope in part.scope_spans:
                        self._check(bool(scope.scope.name), "a scope without a name")
                        self._keep(self.spans, part.resource, scope.spans, self._check_span)
                return ExportTraceServiceResponse().SerializeToString()
            if path == "/v1/metrics":
                for part in ExportMetricsServiceRequest.FromString(data).resource_metrics:
                    for scope in part.scope_metrics:
                        self._keep(self.metrics, part.resource, scope.metrics, self._check_metric)
                return ExportMetricsServiceResponse().SerializeToString()
            if path == "/v1/logs":
                for part in ExportLogsServiceRequest.FromString(data).resource_logs:
                    for scope in part.scope_logs:
                        self._keep(self.logs, part.resource, scope.log_records, self._check_log)
                return ExportLogsServiceResponse().SerializeToString()
        self.problems.append(f"a request to {path}")
        return None

    def _check(self, is_right: bool, what: str) -> None:
        if not is_right:
            self.problems.append(what)

    def _keep(self, kept: list[Received], resource: Any, items: Any, check: Any) -> None:
        attributes = {one.key: value_of(one.value) for one in resource.attributes}
        for name in REQUIRED:
            self._check(name in attributes, f"a resource without {name}")
        for item in items:
            check(item)
            kept.append(Received(attributes, item))

    def _check_span(self, span: Any) -> None:
        self._check(len(span.trace_id) == 16 and any(span.trace_id), f"trace id of {span.name}")
        self._check(len(span.span_id) == 8 and any(span.span_id), f"span id of {span.name}")
        self._check(len(span.parent_span_id) in (0, 8), f"parent of {span.name}")
        self._check(bool(span.name) and span.kind != 0, f"name or kind of {span.name}")
        self._check(
            0 < span.start_time_unix_nano <= span.end_time_unix_nano, f"time of {span.name}"
        )

    def _check_metric(self, metric: Any) -> None:
        kind = metric.WhichOneof("data")
        self._check(bool(metric.name) and kind is not None, f"name or data of {metric.name}")
        if kind is None:
            return
        data = getattr(metric, kind)
        if kind in ("sum", "histogram"):
            self._check(data.aggregation_temporality != 0, f"temporality of {metric.name}")
        for point in data.data_points:
            self._check(point.time_unix_nano > 0, f"time of {metric.name}")
            self._check(
                point.start_time_unix_nano <= point.time_unix_nano, f"start of {metric.name}"
            )

    def _check_log(self, record: Any) -> None:
        self._check(record.time_unix_nano > 0, "time of a log record")
        self._check(record.body.WhichOneof("value") is not None, "body of a log record")
        self._check(record.severity_number != 0, "severity of a log record")


def value_of(value: Any) -> Any:
    """The Python value of an attribute."""
    return getattr(value, value.WhichOneof("value"))


def attributes_of(item: Any) -> dict[str, Any]:
    """The attributes of a span, a data point or a record."""
    return {one.key: value_of(one.value) for one in item.attributes}


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    """A receiver at a free port of loopback."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = receiver.take(self.path, self.headers, body)
            self.send_response(404 if answer is None else 200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer or b"")))
            self.end_headers()
            self.wfile.write(answer or b"")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
