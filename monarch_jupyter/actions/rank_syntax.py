"""IPython's syntax in cells on ranks: `!command`, `%magic`, `name?`, as calls that ranks know.

Runs in: the kernel's main thread. IPython's own transformers do the work; each line keeps its
number, since errors of ranks name lines of the cell.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from IPython.core.inputtransformer2 import (
    TokenTransformBase,
    TransformerManager,
    make_tokens_by_line,
)

from monarch_jupyter.ranks.shell import CELL_MAGICS, LINE_MAGICS, available

REFUSED = "is the notebook's own"
"""Stands in the text of an error about a magic that ranks do not have."""


class _LineKeeper(TransformerManager):
    """Transforms without changing the number of lines."""

    def do_one_token_transform(self, lines: list[str]) -> Any:
        """Apply the first transform that fits, and fill up the lines that it has joined."""
        tokens_by_line = make_tokens_by_line(lines)
        kinds: list[Any] = self.token_transformers
        found = [one for one in (kind.find(tokens_by_line) for kind in kinds) if one]
        for transformer in sorted(found, key=TokenTransformBase.sortby):
            try:
                changed: list[str] = transformer.transform(lines)
            except SyntaxError:
                continue
            lost = len(lines) - len(changed)
            at = transformer.start_line + 1
            return True, [*changed[:at], *["\n"] * lost, *changed[at:]]
        return False, lines


def python_of(source: str, filename: str, above: int = 1) -> str:
    """The cell in plain Python, with the same lines.

    `above`: the number of comment lines in front of the cell's own first line.

    Raises:
        SyntaxError: it has a magic that ranks do not have. Other errors of syntax are left to the
            compiler.
    """
    lines = source.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    first = next((n for n, line in enumerate(lines) if n >= above and line.strip()), None)
    if first is not None and lines[first].startswith("%%"):
        return _cell_magic(lines, first, filename)
    try:
        transformed = _transformed(lines)
        tree = ast.parse(transformed, filename)
    except SyntaxError:
        return _transformed_or(source, lines) if _has_escapes(lines) else source
    for name, line in _magics_in(tree):
        if name.startswith("%"):
            _refuse(f"%{name}", filename, line, lines, "comes first in its cell")
        if name not in LINE_MAGICS:
            _refuse(f"%{name}", filename, line, lines)
    return transformed


def _transformed(lines: list[str]) -> str:
    keeper: Any = _LineKeeper()
    return "".join(keeper.do_token_transforms(lines))


def _transformed_or(source: str, lines: list[str]) -> str:
    """The cell with all possible transforms, in which the compiler then finds its error."""
    try:
        return _transformed(lines)
    except SyntaxError:
        return source


def _has_escapes(lines: list[str]) -> bool:
    return any(
        line.lstrip().startswith(("!", "%")) or line.rstrip().endswith("?") for line in lines
    )


def _cell_magic(lines: list[str], first: int, filename: str) -> str:
    name, _, arguments = lines[first][2:].strip().partition(" ")
    if name not in CELL_MAGICS:
        _refuse(f"%%{name}", filename, first + 1, lines)
    # Its lines keep their numbers, so that errors in them name the cell's.
    body = "\n" * (first + 1) + "".join(lines[first + 1 :])
    if name == "time":
        body = python_of(f"#{body}", filename)[1:]
    call = f"get_ipython().run_cell_magic({name!r}, {arguments.strip()!r}, {body!r})\n"
    return "\n" * first + call


def _magics_in(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The names and lines of the line magics that the cell calls."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "run_line_magic"
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value), node.lineno


def _refuse(magic: str, filename: str, line: int, lines: list[str], why: str = "") -> None:
    why = why or f"{REFUSED}; on ranks {available()}"
    raise SyntaxError(
        f"{magic} {why}",
        (filename, line, 1, lines[line - 1], line, len(lines[line - 1])),
    )
