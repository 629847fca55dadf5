"""`!command`, `%magic` and `name?` of cells on a rank: the object that `get_ipython()` returns.

Runs in: procs, on the thread of the actor that runs cells; imported there, so it imports nothing of
Jupyter. The notebook rewrites such lines to calls of this object, and refuses other magics before
anything is sent (`monarch_jupyter.actions.rank_syntax`).
Invariants: output goes to the rank's own streams, so it is shown by rank as any other. A command
ends with the call of its cell, cancelled or not.
"""

from __future__ import annotations

import ast
import inspect
import os
import pydoc
import re
import shlex
import signal
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, MutableMapping
from typing import Any, cast

LINE_MAGICS = (
    "cd", "env", "matplotlib", "pip", "pinfo", "pinfo2", "pwd", "sx", "system", "time", "timeit",
    "who",
)  # fmt: skip
CELL_MAGICS = ("bash", "sh", "time", "timeit")
POLL_S = 0.05
"""Seconds between two looks at a command, in which a cancelled cell ends it."""
RUNS = 7
LEAST_S = 0.1
"""`%timeit` repeats a statement until one run takes this many seconds."""

_NAMES = re.compile(r"\$\$|\$(?P<name>[A-Za-z_]\w*)|\{(?P<expression>[^{}]+)\}")


class Lines(list[str]):
    """The lines of a command's output: `files = !ls`. As in IPython, `n` is their text."""

    @property
    def n(self) -> str:
        """The lines, with line breaks between them."""
        return "\n".join(self)

    @property
    def s(self) -> str:
        """The lines, with spaces between them."""
        return " ".join(self)


class MagicError(ValueError):
    """A magic was used in a way that ranks do not support; the text names a way that they do."""


class RankShell:
    """The part of IPython's shell that ranks have."""

    def __init__(self, namespace: MutableMapping[str, Any]) -> None:
        self.user_ns = namespace
        self._magics: dict[str, Callable[[str], object]] = {
            "cd": self._cd, "env": self._env, "matplotlib": _matplotlib, "pip": self._pip,
            "pinfo": self._pinfo, "pinfo2": self._pinfo2, "pwd": _pwd, "sx": self.getoutput,
            "system": self.getoutput, "time": self._time, "timeit": self._timeit, "who": self._who,
        }  # fmt: skip

    def system(self, command: str) -> None:
        """Run a command of the shell; its exit status is then in `_exit_code`, as in IPython."""
        sys.stdout.flush()
        sys.stderr.flush()
        self.user_ns["_exit_code"] = _run(["/bin/sh", "-c", self._expanded(command)])

    def getoutput(self, command: str) -> Lines:
        """The lines that a command writes to stdout and stderr."""
        found = bytearray()
        shell = ["/bin/sh", "-c", self._expanded(command)]
        self.user_ns["_exit_code"] = _run(shell, found)
        return Lines(found.decode(errors="replace").splitlines())

    def run_line_magic(self, name: str, line: str) -> object:
        """Run one of `LINE_MAGICS`.

        Raises:
            MagicError: ranks have no such magic, or not with these arguments.
        """
        run = self._magics.get(name)
        if run is None:
            raise MagicError(f"ranks have no magic %{name}; {available()}")
        return run(line.strip() if name in ("time", "timeit") else self._expanded(line.strip()))

    def run_cell_magic(self, name: str, line: str, cell: str) -> object:
        """Run one of `CELL_MAGICS`; `cell` has a line for each line of the notebook's cell."""
        if name in ("bash", "sh"):
            sys.stdout.flush()
            self.user_ns["_exit_code"] = _run([name, "-c", cell.lstrip("\n"), *shlex.split(line)])
            return None
        if name == "time":
            return self._timed(cell, 0)
        if name == "timeit":
            return self._timeit(f"{line} {cell.strip()}".strip())
        raise MagicError(f"ranks have no magic %%{name}; {available()}")

    def _expanded(self, text: str) -> str:
        """The text with `{expression}` and `$name` replaced by values; `$$` is a dollar sign.

        As in IPython, the shell gets text that is no name or expression of the rank.
        """

        def value(match: re.Match[str]) -> str:
            name, expression = match["name"], match["expression"]
            if name is None and expression is None:
                return "$"
            if name is not None:
                return str(self.user_ns[name]) if name in self.user_ns else match[0]
            try:
                return str(eval(expression, cast("dict[str, Any]", self.user_ns)))
            except Exception:  # the shell gets the text, as IPython does it
                return match[0]

        return _NAMES.sub(value, text)

    # --- magics -----------------------------------------------------------------------------------

    def _cd(self, line: str) -> None:
        before = os.getcwd()
        target = self.user_ns.get("_oldpwd", before) if line == "-" else line.strip("'\"")
        os.chdir(os.path.expanduser(target or "~"))
        self.user_ns["_oldpwd"] = before
        print(os.getcwd())

    def _env(self, line: str) -> object:
        name, sign, value = line.partition("=")
        if not line:
            return dict(os.environ)
        if sign:
            os.environ[name.strip()] = value.strip()
            print(f"env: {name.strip()}={value.strip()}")
            return None
        parts = line.split(maxsplit=1)
        if len(parts) == 2:
            os.environ[parts[0]] = parts[1]
            print(f"env: {parts[0]}={parts[1]}")
            return None
        if name not in os.environ:
            raise MagicError(f"there is no environment variable {name}; `%env {name}=...` sets it")
        return os.environ[name]

    def _pip(self, line: str) -> None:
        self.system(f"{shlex.quote(sys.executable)} -m pip {line}")

    def _who(self, _line: str) -> None:
        hidden = ("rank", "point", "get_ipython")
        names = [n for n in self.user_ns if not n.startswith("_") and n not in hidden]
        print("\t".join(sorted(names)) or "this rank has no names yet")

    def _pinfo(self, line: str) -> None:
        found = self._evaluated(line)
        try:
            head = f"{line}{inspect.signature(cast('Callable[..., object]', found))}"
        except (TypeError, ValueError):
            head = f"{line}: {type(found).__name__}"
        print(f"{head}\n{inspect.getdoc(found) or 'no documentation'}")

    def _pinfo2(self, line: str) -> None:
        found = self._evaluated(line)
        try:
            print(inspect.getsource(cast("Any", found)))
        except (OSError, TypeError):
            print(pydoc.plain(pydoc.render_doc(found)))

    def _evaluated(self, line: str) -> object:
        try:
            return eval(line, cast("dict[str, Any]", self.user_ns))
        except (NameError, AttributeError):
            raise MagicError(f"this rank has nothing called {line}") from None

    def _time(self, line: str) -> object:
        return self._timed(line, _line_of_cell() - 1)

    def _timed(self, source: str, offset: int) -> object:
        """Run the source, print how long it took, and return the value of its last expression."""
        body, last = _compiled(source, offset)
        space = cast("dict[str, Any]", self.user_ns)
        began, cpu = time.perf_counter(), os.times()
        exec(body, space)
        value = None if last is None else eval(last, space)
        wall, after = time.perf_counter() - began, os.times()
        user, own = after.user - cpu.user, after.system - cpu.system
        print(f"CPU times: user {time_text(user)}, sys: {time_text(own)}")
        print(f"Wall time: {time_text(wall)}")
        return value

    def _timeit(self, line: str) -> None:
        options = re.match(r"(?:-n\s*(?P<n>\d+)\s*|-r\s*(?P<r>\d+)\s*)*", line)
        assert options is not None
        statement = line[options.end() :].strip()
        if not statement or statement.startswith("-"):
            raise MagicError("%timeit takes -n LOOPS, -r RUNS and a statement")
        timer = timeit.Timer(statement, globals=cast("dict[str, Any]", self.user_ns))
        loops = int(options["n"] or 0) or _loops_of(timer)
        runs = int(options["r"] or 0) or RUNS
        each = [taken / loops for taken in timer.repeat(runs, loops)]
        mean = sum(each) / len(each)
        spread = (sum((one - mean) ** 2 for one in each) / len(each)) ** 0.5
        print(
            f"{time_text(mean)} ± {time_text(spread)} per loop "
            f"(mean ± std. dev. of {runs} runs, {loops:,} loops each)"
        )


def available() -> str:
    """`there are !command, %cd, ...`: the syntax that cells on ranks have."""
    shown = [f"%{name}" for name in LINE_MAGICS if name not in ("pinfo", "pinfo2", "sx", "system")]
    cells = [f"%%{name}" for name in CELL_MAGICS]
    return f"there are !command, name?, {', '.join(shown)}, {', '.join(cells)}"


def time_text(seconds: float) -> str:
    """`1.23 µs`, `45.6 ms`, `7 s`."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _loops_of(timer: timeit.Timer) -> int:
    loops = 1
    while timer.timeit(loops) < LEAST_S:
        loops *= 10
    return loops


def _pwd(_line: str) -> str:
    return os.getcwd()


def _matplotlib(line: str) -> None:
    if line not in ("", "inline"):
        raise MagicError(
            f"%matplotlib {line}: figures of ranks are shown in the cell, as with inline; ranks "
            "have no windows"
        )


def _line_of_cell() -> int:
    """The line of the cell that called a magic."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return 1 if frame is None else frame.f_lineno


def _file_of_cell() -> str:
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return "<magic>" if frame is None else frame.f_code.co_filename


def _compiled(source: str, offset: int) -> tuple[Any, Any]:
    """Code to execute, and code of the last expression or None; at the lines of the cell."""
    filename = _file_of_cell()
    tree = ast.parse(source, filename)
    ast.increment_lineno(tree, offset)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(cast("ast.Expr", tree.body.pop()).value)
    body = compile(tree, filename, "exec", dont_inherit=True)
    return body, None if last is None else compile(last, filename, "eval", dont_inherit=True)


def _run(command: list[str], output: bytearray | None = None) -> int:
    """Run a command to its end; return its exit status. It is killed if this call is cancelled."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=None if output is None else subprocess.PIPE,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=True,  # so that what it starts ends with it
    )
    try:
        while True:
            try:
                # In short waits: another thread can raise in this one only between them.
                out, _ = process.communicate(timeout=POLL_S)
            except subprocess.TimeoutExpired:
                continue
            if output is not None:
                output += out
            return process.returncode
    except BaseException:  # an interrupt too: the command would run on without a reader
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()
        raise
