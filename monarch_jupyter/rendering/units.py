"""Texts of times, sizes, states and extents. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from monarch_jupyter.rendering.html import Tone

ICONS = {
    "starting": "◌", "idle": "○", "busy": "●", "paused": "◫", "suspended": "◧", "ready": "●",
    "failed": "✕", "stopped": "□",
}  # fmt: skip
TONES: dict[str, Tone] = {
    "starting": "muted",
    "idle": "good",
    "busy": "busy",
    "paused": "busy",
    "suspended": "bad",
    "ready": "good",
    "failed": "bad",
    "stopped": "muted",
}


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def short_time(seconds: float) -> str:
    """`3.7 µs`, `12 ms`, `1.5 s`; from 10 s on as `duration`."""
    for unit, worth in (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        shown = three_digits(seconds / worth)
        if float(shown) < 1000 or unit == "s":
            return f"{shown} {unit}" if seconds < 10 else duration(seconds)
    raise AssertionError("there is a unit for every time")


def byte_size(number: int) -> str:
    """`512 B`, `1.5 KiB`, `20 MiB`."""
    if number < 1024:
        return f"{number} B"
    size, unit = number / 1024, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if size < 1000:
            break
        size, unit = size / 1024, larger
    return f"{three_digits(size)} {unit}"


def three_digits(number: float) -> str:
    """`0.04`, `1.5`, `12`, `345`."""
    if number < 0.95:
        return f"{number:.2g}"
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 rank`, `8 ranks`, `2 processes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def extent_text(sizes: Mapping[str, int]) -> str:
    """`{hosts: 2, gpus: 4}`."""
    return "{" + ", ".join(f"{dim}: {size}" for dim, size in sizes.items()) + "}"


def tally(states: Iterable[str]) -> str:
    """`6 idle, 1 busy, 1 failed`."""
    return ", ".join(f"{number} {state}" for state, number in Counter(states).items())


def columns(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """Rows of words as lines, each column as wide as its widest word."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return [
        gap.join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
