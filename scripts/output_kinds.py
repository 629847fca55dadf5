"""The kinds of a notebook's outputs: what stays the same from run to run. No I/O.

Texts, times and pictures differ between runs and machines, kinds do not: a cell that answered with
a table and now answers with plain text, or with another error, shows its readers something else.

The rule: **results, errors and displays count one by one, in order; of text, only whether a cell
writes to stdout.** Ranks write while a cell runs. So their text may come in other pieces, and
before or after a picture that the same cell shows. Text on stderr does not count: notices and
warnings stand there, which come when something is noticed. That may be one cell later, or, if the
error of a cell tells of the same failure in time, never.

A display that has been emptied, such as the bar of a map that has ended, is no output: it comes
only if the map took long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

STDOUT, STDERR = "stream stdout", "stream stderr"


class Difference(NamedTuple):
    """A cell, by its place in the notebook, and the kinds of its outputs, which differ."""

    cell: int
    stored: list[str]
    new: list[str]


def is_emptied(output: Mapping[str, Any]) -> bool:
    """Whether that is a display which the kernel has emptied, such as a bar that has ended."""
    return output.get("data") == {"text/plain": ""}


def kinds_of(outputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The kinds of these outputs, in order; neighbouring pieces of one stream are one.

    `stream stdout`, `error ValueError`, `execute_result text/html text/plain`.
    """
    kinds: list[str] = []
    for output in outputs:
        kind = output["output_type"]
        if kind == "stream":
            kind = f"{kind} {output['name']}"
            if kinds[-1:] == [kind]:
                continue
        elif kind == "error":
            kind = f"{kind} {output['ename']}"
        elif is_emptied(output):
            continue
        else:
            kind = " ".join([kind, *sorted(output["data"])])
        kinds.append(kind)
    return kinds


def are_the_same(stored: Sequence[str], new: Sequence[str]) -> bool:
    """Whether a cell's outputs are of the same kinds, by the rule of this module."""
    return _comparable(stored) == _comparable(new)


def _comparable(kinds: Sequence[str]) -> tuple[bool, list[str]]:
    return STDOUT in kinds, [kind for kind in kinds if kind not in (STDOUT, STDERR)]


def differences(stored: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """The cells of a notebook whose new outputs are of other kinds; both have the same cells."""
    for index, (before, now) in enumerate(zip(stored["cells"], new["cells"], strict=True)):
        if before["cell_type"] == "code":
            kinds = kinds_of(before["outputs"]), kinds_of(now["outputs"])
            if not are_the_same(*kinds):
                yield Difference(index, *kinds)


def complaint(path: str, found: Sequence[Difference]) -> str:
    """What differs in the notebook at that path, and the remedy."""
    cells = f"cell{'s' * (len(found) > 1)} {', '.join(str(one.cell) for one in found)}"
    lines = [f"{path}: {cells}: new outputs are of other kinds than the stored ones"]
    for cell, stored, new in found:
        lines += [f"cell {cell}", f"  stored: {_listed(stored)}", f"  new:    {_listed(new)}"]
    lines.append(f"run `python scripts/execute_notebooks.py {path}`, and read what it has changed")
    return "\n".join(lines)


def _listed(kinds: Sequence[str]) -> str:
    return "; ".join(kinds) or "none"
