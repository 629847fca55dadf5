"""Pass measurements of this process on to OpenTelemetry, if it is installed.

Runs in: any process, any thread. OpenTelemetry drops them unless the program sets up an SDK, which
it may also do later.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from monarch._src.version import VERSION

NAME = "monarch"


@cache
def otel_meter() -> Any:
    """OpenTelemetry's meter; None if it is not installed."""
    metrics = _module("opentelemetry.metrics")
    return None if metrics is None else metrics.get_meter(NAME, VERSION)


@cache
def otel_tracer() -> Any:
    """OpenTelemetry's tracer; None if it is not installed."""
    trace = _module("opentelemetry.trace")
    return None if trace is None else trace.get_tracer(NAME, VERSION)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # If another module is missing, the installation is broken: raise.
        if error.name is None or error.name.partition(".")[0] != "opentelemetry":
            raise
        return None
