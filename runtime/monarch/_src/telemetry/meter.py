"""`get_meter`: counters, gauges and histograms of user programs.

Runs in: any process, any thread. Values are kept in the process (`actor.state.program_metrics`),
where `monarch.observe.metrics` reads them, and passed on to OpenTelemetry if it is installed.
Invariant: an instrument that is pickled, for example as a global of a notebook class, counts in the
process where it is unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from monarch._src.actor.attribution import Attribution, current_attribution
from monarch._src.actor.state.program_metrics import TELEMETRY, Measure, attributes_of
from monarch._src.telemetry.opentelemetry import otel_meter
from monarch._src.wire.process_codec import MeasureKey, MeasureKind

Attributes: TypeAlias = "Mapping[str, Any] | None"


class Instrument:
    """Base class of the instruments."""

    KIND: MeasureKind

    def __init__(self, name: str, unit: str = "", description: str = "", **advice: Any) -> None:
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the name of a {self.KIND} must be a non-empty string, not {name!r}")
        self.name = name
        self.unit = unit
        self.description = description
        self._advice = advice
        meter = otel_meter()
        self._otel: Any = None
        if meter is not None:
            make: Callable[..., Any] = getattr(meter, f"create_{self.KIND}")
            self._otel = make(name, unit=unit, description=description, **advice)

    def _measure(self, attributes: Attributes) -> Measure:
        me: Attribution = current_attribution()
        return TELEMETRY.measure(
            MeasureKey(
                me.mesh, me.mesh_name, me.actor_class, me.actor, self.KIND, self.name, self.unit,
                self.description, attributes_of(attributes),
            )
        )  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.name, self.unit, self.description, self._advice)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


def _rebuild(
    kind: type[Instrument], name: str, unit: str, description: str, advice: dict[str, Any]
) -> Instrument:
    return kind(name, unit, description, **advice)


class Counter(Instrument):
    """A sum that only grows."""

    KIND = "counter"

    def add(self, amount: float, attributes: Attributes = None, context: Any = None) -> None:
        """Add to the sum of these attributes. `context` is OpenTelemetry's.

        Raises:
            ValueError: a negative amount.
        """
        if amount < 0:
            raise ValueError(
                f"counter {self.name!r} only grows, so {amount} cannot be added; "
                "use create_up_down_counter for values that also fall"
            )
        self._measure(attributes).add(float(amount))
        if self._otel is not None:
            self._otel.add(amount, attributes, context)


class UpDownCounter(Instrument):
    """A sum that grows and shrinks."""

    KIND = "up_down_counter"

    def add(self, amount: float, attributes: Attributes = None, context: Any = None) -> None:
        """Add to (or subtract from) the sum of these attributes. `context` is OpenTelemetry's."""
        self._measure(attributes).add(float(amount))
        if self._otel is not None:
            self._otel.add(amount, attributes, context)


class Histogram(Instrument):
    """A distribution of values."""

    KIND = "histogram"

    def record(self, amount: float, attributes: Attributes = None, context: Any = None) -> None:
        """Record a value for these attributes. `context` is OpenTelemetry's."""
        self._measure(attributes).record(float(amount))
        if self._otel is not None:
            self._otel.record(amount, attributes, context)


class Gauge(Instrument):
    """The last of some values."""

    KIND = "gauge"

    def set(self, amount: float, attributes: Attributes = None, context: Any = None) -> None:
        """Set the value of these attributes. `context` is OpenTelemetry's."""
        self._measure(attributes).set(float(amount))
        if self._otel is not None:
            self._otel.set(amount, attributes, context)


class Meter:
    """Creates instruments, with the signatures of OpenTelemetry.

    Instruments of the same kind, name, unit and description share their values.
    """

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Counter:
        """Create a sum that only grows."""
        return Counter(name, unit, description)

    def create_up_down_counter(
        self, name: str, unit: str = "", description: str = ""
    ) -> UpDownCounter:
        """Create a sum that grows and shrinks."""
        return UpDownCounter(name, unit, description)

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> Gauge:
        """Create an instrument that keeps the last value."""
        return Gauge(name, unit, description)

    def create_histogram(
        self,
        name: str,
        unit: str = "",
        description: str = "",
        *,
        explicit_bucket_boundaries_advisory: Sequence[float] | None = None,
    ) -> Histogram:
        """Create a histogram. Only OpenTelemetry uses the bucket boundaries."""
        if explicit_bucket_boundaries_advisory is None:
            return Histogram(name, unit, description)
        advice = list(explicit_bucket_boundaries_advisory)
        return Histogram(name, unit, description, explicit_bucket_boundaries_advisory=advice)


_METER = Meter()


def get_meter() -> Meter:
    """The meter of this process."""
    return _METER
