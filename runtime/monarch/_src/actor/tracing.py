"""The hooks by which calls carry a trace from process to process, and the switch of OTLP.

Runs in: any process, any thread. `telemetry.otlp` sets the hooks where a program exports traces;
without it, a call costs one look at an attribute more, and its message one byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch._src.config import raw_environment

if TYPE_CHECKING:
    from monarch._src.wire.messages import Call

# Any of these variables switches the export on.
_ENDPOINTS = (
    b"OTEL_EXPORTER_OTLP_ENDPOINT", b"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    b"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", b"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
)  # fmt: skip


class TraceHooks:
    """The functions that `telemetry.otlp` sets."""

    __slots__ = ("on_run", "on_send")

    def __init__(self) -> None:
        # With the class, the name and the endpoint of the called actor; returns the trace context
        # that the call carries, as W3C's `traceparent`.
        self.on_send: Callable[[str, str, str], str] | None = None
        # On the actor's own thread or task, before an endpoint runs; returns the function to call
        # there after it has run, with its exception.
        self.on_run: Callable[[Any, Call], Callable[[BaseException | None], None]] | None = None


TRACE = TraceHooks()


def exports_otlp() -> bool:
    """Whether the environment names a receiver of OTLP, and does not switch the SDK off."""
    found = raw_environment()
    if found.get(b"OTEL_SDK_DISABLED", b"").lower() == b"true":
        return False
    return any(found.get(name) for name in _ENDPOINTS)
