"""The text of `/metrics` in the OpenMetrics format, from rows of tables. No I/O.

Source: the OpenMetrics specification 1.0: families are contiguous, a counter's sample ends in
`_total`, buckets are cumulative and end with `+Inf`, and the text ends with `# EOF`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Row: TypeAlias = "Mapping[str, Any]"
Labels: TypeAlias = "tuple[tuple[str, str], ...]"
Type: TypeAlias = Literal["counter", "gauge", "histogram"]

STATES = ("starting", "idle", "busy", "paused", "suspended", "failed", "stopped")
_RESERVED = ("session", "host", "mesh", "rank", "actor", "le")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")


@dataclass
class Distribution:
    """The values of a histogram: counts by upper bound, and the number and sum of all values."""

    buckets: dict[float, int]
    count: int
    total: float


@dataclass
class Family:
    """One metric: its type and its samples by labels. Values of equal labels are added up."""

    name: str
    type: Type
    help: str
    samples: dict[Labels, float] = field(default_factory=dict[Labels, float])
    distributions: dict[Labels, Distribution] = field(default_factory=dict[Labels, Distribution])

    def add(self, labels: Mapping[str, object], value: float | None) -> None:
        """Add a value; None is no value."""
        if value is not None:
            key = _labels(labels)
            self.samples[key] = self.samples.get(key, 0.0) + float(value)

    def add_distribution(self, labels: Mapping[str, object], more: Distribution) -> None:
        """Add the values of a histogram."""
        key = _labels(labels)
        found = self.distributions.setdefault(key, Distribution({}, 0, 0.0))
        found.count += more.count
        found.total += more.total
        for bound, count in more.buckets.items():
            found.buckets[bound] = found.buckets.get(bound, 0) + count

    def lines(self) -> Iterable[str]:
        """The lines of the family."""
        yield f"# TYPE {self.name} {self.type}"
        yield f"# HELP {self.name} {_escaped(self.help)}"
        suffix = "_total" if self.type == "counter" else ""
        for labels, value in self.samples.items():
            yield f"{self.name}{suffix}{_text(labels)} {number(value)}"
        for labels, one in self.distributions.items():
            below = 0
            for bound in sorted(bound for bound in one.buckets if math.isfinite(bound)):
                below += one.buckets[bound]
                yield f"{self.name}_bucket{_text((*labels, ('le', number(bound))))} {below}"
            yield f"{self.name}_bucket{_text((*labels, ('le', '+Inf')))} {one.count}"
            if min(one.buckets, default=0.0) < 0:
                continue  # the format allows no sum of values that may fall, nor a count without it
            yield f"{self.name}_count{_text(labels)} {one.count}"
            yield f"{self.name}_sum{_text(labels)} {number(one.total)}"


def _labels(labels: Mapping[str, object]) -> Labels:
    return tuple((name, "" if value is None else str(value)) for name, value in labels.items())


def _text(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(text: str) -> str:
    # A lone surrogate cannot be sent as UTF-8.
    text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    """A number as the format writes it; with a point, as `le` of buckets needs it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def sanitized(name: str) -> str:
    """The name with each sign that names of metrics may not have replaced by `_`."""
    found = _NOT_IN_NAMES.sub("_", name) or "_"
    return f"_{found}" if found[0].isdigit() else found


def exposition(tables: Mapping[str, Sequence[Row]], missing: int) -> str:
    """The whole text, from rows of `hosts`, `procs`, `endpoints`, `metric_sums` and so on."""
    families = [
        *_of_hosts(tables.get("hosts", ())),
        *_of_procs(tables.get("procs", ())),
        *_of_endpoints(tables.get("endpoints", ())),
        *_of_spans(tables.get("span_counts", ())),
        *_of_programs(tables.get("metric_sums", ()), tables.get("metric_histograms", ())),
    ]
    lacking = Family("monarch_scrape_missing", "gauge", "Hosts and ranks that have not answered.")
    lacking.add({}, missing)
    lines = [line for family in [*families, lacking] for line in family.lines()]
    return "\n".join([*lines, "# EOF", ""])


def _of_hosts(rows: Sequence[Row]) -> list[Family]:
    up = Family("monarch_host_up", "gauge", "1 for each host agent that has answered.")
    cores = Family("monarch_host_cores", "gauge", "Usable processors of the host.")
    dropped = Family(
        "monarch_host_log_lines_dropped", "counter", "Lines of output that the host has dropped."
    )
    for row in rows:
        place = {"session": row["session"], "host": row["host"]}
        up.add(place, 1)
        cores.add(place, row["cores"])
        dropped.add(place, row["log_lines_dropped"])
    return [up, cores, dropped]


_PROC_FAMILIES: tuple[tuple[str, str, Type, str], ...] = (
    ("messages", "monarch_proc_messages", "counter", "Messages that the rank has handled."),
    ("errors", "monarch_proc_errors", "counter", "Messages that have failed."),
    ("busy_s", "monarch_proc_busy_seconds", "counter", "Seconds in which an endpoint ran."),
    ("restarts", "monarch_proc_restarts", "counter", "Restarts of the rank."),
    ("rss_bytes", "monarch_proc_resident_memory_bytes", "gauge", "Resident memory of the rank."),
    ("since_s", "monarch_proc_state_age_seconds", "gauge", "Seconds in the present state."),
)


def _of_procs(rows: Sequence[Row]) -> list[Family]:
    states = Family("monarch_procs", "gauge", "The number of ranks in each state.")
    families = {
        column: Family(name, kind, text) for column, name, kind, text in _PROC_FAMILIES
    }  # fmt: skip
    for row in rows:
        mesh = {"session": row["session"], "host": row["host"], "mesh": row["mesh"]}
        for state in STATES:
            states.add({**mesh, "state": state}, int(row["state"] == state))
        for column, family in families.items():
            family.add({**mesh, "rank": row["rank"]}, row[column])
    return [states, *families.values()]


_ENDPOINT_FAMILIES = (
    ("calls", "monarch_endpoint_calls", "Calls that have begun."),
    ("errors", "monarch_endpoint_errors", "Calls that have failed."),
    ("timed", "monarch_endpoint_timed_calls", "Calls that have ended and were timed."),
    ("total_s", "monarch_endpoint_seconds", "Seconds of those calls."),
    ("waited_s", "monarch_endpoint_queue_seconds", "Seconds that calls waited in a queue."),
    ("bytes_in", "monarch_endpoint_received_bytes", "Bytes of pickled arguments or answers."),
    ("bytes_out", "monarch_endpoint_sent_bytes", "Bytes of pickled answers or arguments."),
)


def _of_endpoints(rows: Sequence[Row]) -> list[Family]:
    families = {column: Family(name, "counter", text) for column, name, text in _ENDPOINT_FAMILIES}
    running = Family("monarch_endpoint_in_flight", "gauge", "Calls that have not ended.")
    for row in rows:
        labels = {
            "session": row["session"], "mesh": row["mesh"], "rank": row["rank"],
            "side": row["side"], "adverb": row["adverb"], "target_mesh": row["target_mesh"],
            "actor": row["actor"], "class": row["class"], "endpoint": row["endpoint"],
        }  # fmt: skip
        running.add(labels, row["in_flight"])
        for column, family in families.items():
            family.add(labels, row[column])
    return [*families.values(), running]


def _of_spans(rows: Sequence[Row]) -> list[Family]:
    begun = Family("monarch_spans", "counter", "Spans of the program that have begun.")
    errors = Family("monarch_span_errors", "counter", "Spans that an exception has left.")
    seconds = Family("monarch_span_seconds", "counter", "Seconds of ended spans.")
    for row in rows:
        labels = {
            "session": row["session"], "mesh": row["mesh"], "rank": row["rank"],
            "actor": row["actor"], "endpoint": row["endpoint"], "span": row["name"],
            "parent": row["parent"],
        }  # fmt: skip
        begun.add(labels, row["count"])
        errors.add(labels, row["errors"])
        seconds.add(labels, row["total_s"])
    return [begun, errors, seconds]


# --- instruments of programs ----------------------------------------------------------------------


def _of_programs(sums: Sequence[Row], histograms: Sequence[Row]) -> list[Family]:
    """A family for each instrument. A name that several types share gets the type at its end."""
    typed: list[tuple[Type, Row]] = []
    typed.extend((_sum_type(row), row) for row in sums)
    typed.extend(("histogram", row) for row in histograms)
    types: dict[str, set[Type]] = {}
    for kind, row in typed:
        types.setdefault(_program_name(row), set()).add(kind)
    families: dict[tuple[str, Type], Family] = {}
    for kind, row in typed:
        name = _program_name(row)
        if len(types[name]) > 1:
            name = f"{name}_{kind}"
        text = f"{row['name']}, a {kind} of the program, in {row['unit'] or 'no unit'}."
        family = families.setdefault((name, kind), Family(name, kind, text))
        labels = _program_labels(row)
        if kind == "histogram":
            family.add_distribution(labels, _distribution(row))
        else:
            family.add(labels, row["sum_f64"])
    return list(families.values())


def _sum_type(row: Row) -> Type:
    return "counter" if row["is_monotonic"] else "gauge"


def _program_name(row: Row) -> str:
    name = f"monarch_program_{sanitized(str(row['name']))}"
    # These ends belong to the format.
    for end in ("_total", "_bucket", "_count", "_sum", "_created", "_info"):
        name = name.removesuffix(end)
    return name


def _program_labels(row: Row) -> dict[str, object]:
    labels: dict[str, object] = {name: row[name] for name in ("session", "mesh", "rank", "actor")}
    attributes: dict[str, str] = json.loads(row["attributes_json"] or "{}")
    for name, value in attributes.items():
        key = sanitized(name)
        if key in _RESERVED or key.startswith("__"):
            key = f"attribute_{key}"
        labels.setdefault(key, value)
    return labels


def _distribution(row: Row) -> Distribution:
    bounds: list[float | None] = json.loads(row["bounds_json"] or "[]")
    counts: list[int] = json.loads(row["bucket_counts_json"] or "[]")
    buckets = {
        math.inf if bound is None else float(bound): int(count)
        for bound, count in zip(bounds, counts, strict=False)
    }
    return Distribution(buckets, int(row["count"]), float(row["sum_f64"] or 0.0))
