"""How times, sizes, states and extents are said. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from monarch_jupyter.rendering.html import Tone

ICONS = {"starting": "◌", "idle": "○", "busy": "●", "ready": "●", "failed": "✕", "stopped": "□"}
TONES: dict[str, Tone] = {
    "starting": "muted",
    "idle": "good",
    "busy": "busy",
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
