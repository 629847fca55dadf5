"""Export traces, metrics and logs of a process by OTLP over HTTP, with OpenTelemetry's SDK.

Runs in: clients and ranks whose environment names a receiver (`OTEL_EXPORTER_OTLP_ENDPOINT`). The
zygote loads the SDK, so that ranks do not. The SDK's own threads export, so neither a slow receiver
nor a missing one holds up a call.
Owns: the providers of this process, unless the program has set its own.
Invariants: a process exports as long as it lives, over several sessions; its end waits for the last
export for a bounded time.

A call carries the context of its sender's span (`Call.trace`, W3C's `traceparent`). The sender's
span is a PRODUCER, which ends when the message is sent; the endpoint's is its child, a CONSUMER.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from monarch._src.actor.runtime import Runtime, runtime_or_none
from monarch._src.actor.tracing import TRACE
from monarch._src.failures.endpoint_text import endpoint_text
from monarch._src.net.session_directory import PREFIX
from monarch._src.telemetry.opentelemetry import NAME
from monarch._src.version import VERSION
from monarch._src.wire.messages import Call

log = logging.getLogger("monarch.telemetry")
INSTALL = "pip install 'monarch-jupyter[otlp]'"
END_S = 2.0
"""How long the end of a process waits for the last export, in seconds."""

_SDK = (
    "opentelemetry._logs", "opentelemetry.sdk._logs.export", "opentelemetry.sdk.metrics.export",
    "opentelemetry.sdk.resources", "opentelemetry.sdk.trace.export",
    "opentelemetry.exporter.otlp.proto.http._log_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.trace.propagation.tracecontext",
)  # fmt: skip
_OWN_LOGS = ("opentelemetry", "urllib3", "requests", "charset_normalizer")
_begun = False


def preload() -> None:
    """Load the SDK, which takes half a second; forks have it then. Without it, do nothing."""
    _load()


def begin(run: Runtime) -> None:
    """Export from now on. Idempotent; a missing package is a warning with the remedy."""
    global _begun
    if _begun:
        return
    _begun = True
    missing = _load()
    if missing:
        log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, but %s is missing: %s", missing, INSTALL)
        return
    providers: list[Any] = []
    resource: Any = import_module("opentelemetry.sdk.resources").Resource.create(_resource_of(run))
    for signal, make in (("TRACES", _trace), ("METRICS", _measure), ("LOGS", _log)):
        if os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp") == "otlp":
            made = make(resource)
            if made is not None:
                providers.append(made)
    atexit.register(_end, providers)


def _load() -> str:
    """Import the SDK; returns the name of a package that is missing."""
    for name in _SDK:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "opentelemetry":
                raise
            return error.name
    return ""


def _resource_of(run: Runtime) -> dict[str, str | int]:
    """The attributes of this process. Those in the environment take precedence over the service's.

    A rank has its mesh, rank and coordinates; the client has none.
    """
    ref = run.proc_ref
    found: dict[str, str | int] = {
        "host.name": os.uname().nodename,
        "process.pid": os.getpid(),
        "service.instance.id": f"{run.name}@{Path(run.directory).name.removeprefix(PREFIX)}",
        "monarch.session": Path(run.directory).name.removeprefix(PREFIX),
        "monarch.version": VERSION,
        "monarch.mesh": "client" if ref is None else ref.name,
        "monarch.rank": 0 if ref is None else run.rank,
    }
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    ):
        found["service.name"] = NAME
    if ref is not None:
        found["monarch.mesh_id"] = f"{ref.uid:x}"
        for dim, index in dict(ref.extent.point_of_rank(run.rank)).items():
            found[f"monarch.point.{dim}"] = index
    return found


# --- traces ---------------------------------------------------------------------------------------


def _trace(resource: Any) -> Any:
    api: Any = import_module("opentelemetry.trace")
    made = None
    if isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        sdk: Any = import_module("opentelemetry.sdk.trace")
        export: Any = import_module("opentelemetry.sdk.trace.export")
        http: Any = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        made = sdk.TracerProvider(resource=resource, shutdown_on_exit=False)
        made.add_span_processor(export.BatchSpanProcessor(http.OTLPSpanExporter()))
        api.set_tracer_provider(made)
    tracer: Any = api.get_tracer(NAME, VERSION)
    TRACE.on_send, TRACE.on_run = _sender(api, tracer), _runner(api, tracer)
    return made


def _sender(api: Any, tracer: Any) -> Callable[[str, str, str], str]:
    propagation: Any = import_module("opentelemetry.trace.propagation.tracecontext")
    propagator = propagation.TraceContextTextMapPropagator()

    def send(class_name: str, actor: str, endpoint: str) -> str:
        carrier: dict[str, str] = {}
        name = f"send {endpoint_text(class_name.rpartition('.')[2], endpoint)}"
        attributes = {"monarch.actor": actor, "monarch.endpoint": endpoint}
        with tracer.start_as_current_span(name, kind=api.SpanKind.PRODUCER, attributes=attributes):
            propagator.inject(carrier)
        return carrier.get("traceparent", "")

    return send


def _runner(api: Any, tracer: Any) -> Callable[[Any, Call], Callable[[BaseException | None], None]]:
    propagation: Any = import_module("opentelemetry.trace.propagation.tracecontext")
    propagator = propagation.TraceContextTextMapPropagator()
    context: Any = import_module("opentelemetry.context")

    def run(cell: Any, call: Call) -> Callable[[BaseException | None], None]:
        parent = propagator.extract({"traceparent": call.trace}) if call.trace else None
        span = tracer.start_span(
            endpoint_text(cell.spec.class_name.rpartition(".")[2], call.endpoint),
            context=parent,
            kind=api.SpanKind.CONSUMER,
            attributes={
                "monarch.actor": cell.spec.name, "monarch.actor_class": cell.spec.class_name,
                "monarch.endpoint": call.endpoint,
            },
        )  # fmt: skip
        token = context.attach(api.set_span_in_context(span))

        def end(error: BaseException | None) -> None:
            context.detach(token)
            if error is not None:
                span.record_exception(error)
                span.set_status(api.StatusCode.ERROR, type(error).__name__)
            span.end()

        return end

    return run


# --- metrics --------------------------------------------------------------------------------------


def _measure(resource: Any) -> Any:
    api: Any = import_module("opentelemetry.metrics")
    internal: Any = import_module("opentelemetry.metrics._internal")
    made = None
    if isinstance(api.get_meter_provider(), internal._ProxyMeterProvider):
        sdk: Any = import_module("opentelemetry.sdk.metrics")
        export: Any = import_module("opentelemetry.sdk.metrics.export")
        http: Any = import_module("opentelemetry.exporter.otlp.proto.http.metric_exporter")
        reader = export.PeriodicExportingMetricReader(http.OTLPMetricExporter())
        made = sdk.MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        api.set_meter_provider(made)
    _observe_endpoints(api, api.get_meter(NAME, VERSION))
    return made


def _observe_endpoints(api: Any, meter: Any) -> None:
    """Instruments that read the counts of endpoints when the reader exports."""

    def observed(field: str, scale: float) -> Callable[[Any], Iterable[Any]]:
        def observe(_options: Any) -> Iterable[Any]:
            run = runtime_or_none()
            figures = () if run is None else run.inspect_handlers.counted().figures
            for one in figures:
                if not one.key.span:
                    attributes = {
                        "monarch.side": "caller" if one.key.adverb else "callee",
                        "monarch.actor": one.key.actor, "monarch.endpoint": one.key.endpoint,
                        "monarch.target_mesh": one.key.mesh_name,
                        "monarch.adverb": one.key.adverb,
                    }  # fmt: skip
                    yield api.Observation(getattr(one, field) * scale, attributes)

        return observe

    for name, field, unit, scale, text in (
        ("monarch.endpoint.calls", "calls", "{call}", 1, "Calls that have begun."),
        ("monarch.endpoint.errors", "errors", "{call}", 1, "Calls that have failed."),
        ("monarch.endpoint.time", "total_ns", "s", 1e-9, "Seconds of calls that have ended."),
        ("monarch.endpoint.queue_time", "waited_ns", "s", 1e-9, "Seconds of calls in a queue."),
    ):
        meter.create_observable_counter(name, [observed(field, scale)], unit, text)


# --- logs -----------------------------------------------------------------------------------------


def _log(resource: Any) -> Any:
    """Export log records of Python.

    Through the factory of records: a handler of the root logger would keep the program's
    `logging.basicConfig` from doing anything.
    """
    api: Any = import_module("opentelemetry._logs")
    sdk: Any = import_module("opentelemetry.sdk._logs")
    export: Any = import_module("opentelemetry.sdk._logs.export")
    http: Any = import_module("opentelemetry.exporter.otlp.proto.http._log_exporter")
    made = sdk.LoggerProvider(resource=resource, shutdown_on_exit=False)
    made.add_log_record_processor(export.BatchLogRecordProcessor(http.OTLPLogExporter()))
    factory = logging.getLogRecordFactory()

    def make(*args: Any, **options: Any) -> logging.LogRecord:
        record = factory(*args, **options)
        if record.name.partition(".")[0] not in _OWN_LOGS:
            _export_record(api, made, record)
        return record

    logging.setLogRecordFactory(make)
    return made


def _export_record(api: Any, provider: Any, record: logging.LogRecord) -> None:
    try:
        text = record.getMessage()
    except Exception:  # arguments that do not fit the format: logging itself reports that
        text = str(record.msg)
    attributes: dict[str, str | int] = {
        "code.file.path": record.pathname, "code.line.number": record.lineno,
        "code.function.name": record.funcName or "", "thread.name": record.threadName or "",
    }  # fmt: skip
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        attributes["exception.type"] = type(error).__name__
        attributes["exception.message"] = str(error)
    provider.get_logger(record.name).emit(
        api.LogRecord(
            timestamp=int(record.created * 1e9),
            context=import_module("opentelemetry.context").get_current(),
            severity_text=record.levelname,
            severity_number=api.SeverityNumber(_severity(record.levelno)),
            body=text,
            attributes=attributes,
        )
    )


def _severity(level: int) -> int:
    """OpenTelemetry's number of a level: 5 DEBUG, 9 INFO, 13 WARN, 17 ERROR, 21 FATAL."""
    for least, severity in ((50, 21), (40, 17), (30, 13), (20, 9), (10, 5)):
        if level >= least:
            return severity
    return 1


def _end(providers: list[Any]) -> None:
    """Export the rest, for a bounded time: a receiver that is gone must not hold up the end."""
    TRACE.on_send = TRACE.on_run = None
    threads = [threading.Thread(target=one.shutdown, daemon=True) for one in providers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(END_S / max(1, len(threads)))
