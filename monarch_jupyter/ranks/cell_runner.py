"""The actor that runs notebook cells on a rank.

Runs in: procs; imported there, so it imports nothing of Jupyter. The kernel only names the class.
Owns: the proc's `__main__`, which is the cells' namespace, so that classes of a cell pickle as they
do in any interactive session.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import linecache
import os
import sys
import types
from collections.abc import Coroutine, Sequence
from typing import cast

from monarch.actor import Actor, Extent, context, endpoint
from monarch.buffers import why_not_sent
from monarch_jupyter.ranks import display
from monarch_jupyter.ranks.display import is_figure, take_open_figures

# Values of these types always travel; asking pickle about each would cost more than the call.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


# Marks a `__main__` that an earlier cell runner of this proc has made.
_MARK, _OURS = "__monarch_cells__", object()


LABEL = "the cell"
"""The text for this actor in errors and views, in place of its class and endpoint."""


class StaysOnRank:
    """Stands in the kernel for a value that can't be pickled; shows the value's own text."""

    def __init__(self, text: str, why: str) -> None:
        self.text = text
        self.why = why

    def __repr__(self) -> str:
        return f"{self.text} (stays on its rank: {self.why})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaysOnRank) and (self.text, self.why) == (other.text, other.why)

    def __hash__(self) -> int:
        return hash((self.text, self.why))


class Cell(Actor):
    """Runs cells one after another, in one namespace."""

    __monarch_label__ = LABEL
    __monarch_main_thread__ = "shared"
    # Views of this actor show the names of the cells.
    __live_namespace__ = "_namespace"

    def __init__(self, extent: Extent, ranks: Sequence[int]) -> None:
        """`ranks`: the ranks of these actors, in order, in the spawned mesh with this extent."""
        rank = ranks[context().actor_instance.rank.rank]
        main = sys.modules["__main__"]
        if main.__dict__.get(_MARK) is not _OURS:
            before = vars(main)
            main = types.ModuleType("__main__")
            # Classes that were pickled by value keep their names here.
            main.__dict__.update({n: v for n, v in before.items() if not n.startswith("__")})
            main.__dict__.update({_MARK: _OURS, "rank": rank, "point": extent.point_of_rank(rank)})
            sys.modules["__main__"] = main
        self._namespace = main.__dict__
        self._loop: asyncio.AbstractEventLoop | None = None
        display.install()

    @endpoint
    def run(self, source: str, filename: str, shown: str | None = None) -> object:
        """Run `source`; return the value of its last line, if that is an expression without a `;`.

        `shown`: the cell as the user wrote it, with the same lines, if it has IPython's syntax.
        Tracebacks call the source by `filename`. Raises the errors of the cell; a request to exit
        the interpreter is a RuntimeError, because the rank serves other cells too.
        """
        __tracebackhide__ = True
        # With no modification time linecache keeps an entry, though there is no such file.
        text = source if shown is None else shown
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        if "get_ipython" in source and "get_ipython" not in self._namespace:
            from monarch_jupyter.ranks.shell import RankShell  # few cells need it

            shell = RankShell(self._namespace)
            self._namespace["get_ipython"] = lambda: shell
        body, last = split_cell(source, filename)
        try:
            self._execute(body)
            value = None if last is None else self._execute(last)
        except SystemExit as error:
            if sys.stdin is not None and sys.stdin.closed:  # by `exit()`
                sys.stdin = open(os.devnull)  # noqa: SIM115  # of the process
            raise RuntimeError(
                f"the cell asked its rank to exit ({error.code!r}); `%monarch stop` ends a mesh"
            ) from None
        self._namespace["_"] = value
        return _travelling(value) if self._shows(value) else None

    def _shows(self, value: object) -> bool:
        """Show open figures, as a cell does at its end; False if the value was one of them."""
        for bundle in take_open_figures():
            display.show(bundle)
        return not is_figure(value)

    def _execute(self, code: types.CodeType) -> object:
        __tracebackhide__ = True
        value: object = eval(code, self._namespace)
        if not code.co_flags & inspect.CO_COROUTINE:
            return value
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(cast("Coroutine[object, object, object]", value))

    def __cleanup__(self, exc: BaseException | None) -> None:
        if self._loop is not None:
            self._loop.close()


def split_cell(source: str, filename: str) -> tuple[types.CodeType, types.CodeType | None]:
    """Compile a cell: code to execute, and code of its last expression unless a `;` follows.

    Raises:
        SyntaxError: the source is not valid Python.
    """
    tree = ast.parse(source, filename)
    last: ast.Expression | None = None
    if (
        tree.body
        and isinstance(tree.body[-1], ast.Expr)
        and not _is_silenced(source, tree.body[-1])
    ):
        last = ast.Expression(cast("ast.Expr", tree.body.pop()).value)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    body = compile(tree, filename, "exec", flags=flags, dont_inherit=True)
    if last is None:
        return body, None
    return body, compile(last, filename, "eval", flags=flags, dont_inherit=True)


def _is_silenced(source: str, last: ast.Expr) -> bool:
    """Whether a `;` follows the last expression, as it silences a cell's value in any notebook."""
    lines = source.encode().splitlines()  # ast counts columns in bytes
    end_line, end_column = last.end_lineno or 1, last.end_col_offset or 0
    return lines[end_line - 1][end_column:].lstrip().startswith(b";")


def _travelling(value: object) -> object:
    """The value, or a `StaysOnRank` if the value cannot be pickled."""
    if isinstance(value, _PLAIN):
        return value
    why = why_not_sent(value)
    return value if why is None else StaysOnRank(_safe_repr(value), why)


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
