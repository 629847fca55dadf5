"""OpenTelemetry, where it is installed: what this process measures is handed on to it.

Runs in: any process, any thread. Without an SDK that the program sets up, OpenTelemetry drops what
it is given; with one, also one that is set up later, it exports it.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from monarch._src.version import VERSION

NAME = "monarch"


@cache
def otel_meter() -> Any:
    """The meter of the program's OpenTelemetry; None if that is not installed."""
    metrics = _module("opentelemetry.metrics")
    return None if metrics is None else metrics.get_meter(NAME, VERSION)


@cache
def otel_tracer() -> Any:
    """The tracer of it; None if it is not installed."""
    trace = _module("opentelemetry.trace")
    return None if trace is None else trace.get_tracer(NAME, VERSION)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # Another module that is missing is an installation that is broken, which has to be told.
        if error.name is None or error.name.partition(".")[0] != "opentelemetry":
            raise
        return None
