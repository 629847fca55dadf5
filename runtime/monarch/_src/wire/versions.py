"""Checks whether two processes are compatible, with a table of both versions if not. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

# Of these only the first two numbers have to be equal; of all others the whole text.
BY_MINOR = frozenset({"python", "cloudpickle", "torch"})
# A process that has not loaded these sends nothing that depends on them.
IF_LOADED = frozenset({"torch"})


def mismatch(who: str, here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Why this side cannot work with `who`, as a table of both; empty if it can.

    Only keys of `here` are compared.
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
