"""Format tables, durations and sizes for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def columns(
    rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: str = ""
) -> list[str]:
    """Pad the cells of `rows` to columns; `right` numbers the columns to align to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def duration(seconds: float) -> str:
    """`4 s`, `2 min 5 s`, `3 h 10 min`, `2 d 4 h`."""
    whole = int(seconds)
    for size, name, part, less in (
        (86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"),
    ):  # fmt: skip
        if whole >= size:
            return f"{whole // size} {name} {whole % size // part} {less}"
    return f"{whole} s"


def memory(size: int) -> str:
    """A size in bytes as MiB; a dash for 0, which means that the size is not known."""
    return f"{size / 2**20:.0f} MiB" if size else "-"
