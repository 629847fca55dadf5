"""Whether two processes understand each other, and a table of both if not. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

# Of these the first two numbers have to be equal; of all others the whole text.
BY_MINOR = frozenset({"python", "cloudpickle", "torch"})
# One that has not loaded it has nothing of it in what it sends.
IF_LOADED = frozenset({"torch"})


def mismatch(who: str, here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Why this side can't work with `who`, as a table of both; empty if it can.

    What is compared is what `here` has: what the other side says beyond that is its own.
    """
    rows = [(key, ours, there.get(key, "?")) for key, ours in here.items()]
    rows = [row for row in rows if row[0] not in IF_LOADED or row[2] != "?"]
    wrong = {key for key, ours, theirs in rows if _compared(key, ours) != _compared(key, theirs)}
    if not wrong:
        return ""
    wide = max(11, *(len(key) + 1 for key, _, _ in rows))
    column = max(9, *(len(ours) for _, ours, _ in rows))
    lines = [f"{who} speaks another version:", f"{'':{wide}}{'here':{column}} there"]
    lines += [
        f"{key:{wide}}{ours:{column}} {theirs:9} {'<-- differs' if key in wrong else ''}"
        for key, ours, theirs in rows
    ]
    return "\n".join(lines)


def _compared(key: str, version: str) -> list[str]:
    return version.split(".")[:2] if key in BY_MINOR else [version]
