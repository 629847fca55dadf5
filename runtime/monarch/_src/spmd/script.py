"""A script or module as the `__main__` of this process, as `python SCRIPT` runs it.

Runs in: a rank, on the thread of its actor.
"""

from __future__ import annotations

import linecache
import os
import runpy
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType

from monarch._src.system.process import signal_name

_ABOVE = (__file__, runpy.__file__, "<frozen runpy>")


class ScriptError(RuntimeError):
    """A script has exited with a status other than 0."""

    def __init__(self, script: str, code: object) -> None:
        self.script = script
        self.code = code
        super().__init__(f"{script} exited with {code!r}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.script, self.code)


def run_script(arguments: Sequence[str]) -> None:
    """Run `[script, arg, ...]` or `["-m", module, arg, ...]` as `__main__`.

    Raises:
        ValueError: there is no script or module in the arguments.
        FileNotFoundError, ModuleNotFoundError: it does not exist here.
        ScriptError: it exits with a status other than 0.
        Exception: the script's own.
    """
    __tracebackhide__ = True
    words = [os.fspath(word) for word in arguments]
    is_module = words[:1] == ["-m"]
    if is_module:
        del words[0]
    if not words:
        raise ValueError("No script or module specified")
    script, *rest = words
    if not is_module and not os.path.isfile(script):
        raise FileNotFoundError(
            f"there is no script {script!r} on {os.uname().nodename}, in {os.getcwd()}"
        )
    folder = os.getcwd() if is_module else os.path.dirname(script)
    with _command_line(script, rest, folder):
        if is_module:
            _run(script, partial(runpy.run_module, script, run_name="__main__", alter_sys=True))
        else:
            _run(script, partial(runpy.run_path, script, run_name="__main__"))


def run_source(source: str, arguments: Sequence[str]) -> None:
    """Run a text as `__main__`; `arguments` begin with the name that tracebacks call it by.

    Raises:
        ScriptError: it exits with a status other than 0.
        Exception: its own, such as a SyntaxError.
    """
    __tracebackhide__ = True
    name, *rest = arguments
    lines = source.splitlines(keepends=True)
    linecache.cache[name] = (len(source), None, lines, name)  # no file has that name
    before, main = sys.modules.get("__main__"), types.ModuleType("__main__")
    with _command_line(name, rest, os.getcwd()):
        sys.modules["__main__"] = main
        try:
            _run(name, lambda: exec(compile(source, name, "exec"), main.__dict__))
        finally:
            if before is not None:
                sys.modules["__main__"] = before


def execute(command: Sequence[str]) -> None:
    """Run a program in a process of its own, with this one's standard streams.

    Raises:
        FileNotFoundError: there is no such program here.
        ScriptError: it exits with a status other than 0, or by a signal.
    """
    __tracebackhide__ = True
    program = shutil.which(command[0])
    if program is None:
        raise FileNotFoundError(f"there is no program {command[0]!r} on {os.uname().nodename}")
    status = subprocess.run([program, *command[1:]], check=False).returncode
    if status:
        raise ScriptError(command[0], signal_name(-status) if status < 0 else status)


def _run(script: str, function: Callable[[], object]) -> None:
    """Run it; an exit is an error unless its status is 0, and tracebacks begin in the script."""
    __tracebackhide__ = True
    try:
        function()
    except SystemExit as end:
        if end.code not in (None, 0):
            raise ScriptError(script, end.code) from None
    except Exception as error:
        raise error.with_traceback(_from_script(error.__traceback__))  # noqa: B904


def _from_script(frames: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this module and of `runpy` above the script's."""
    while frames is not None and frames.tb_frame.f_code.co_filename in _ABOVE:
        frames = frames.tb_next
    return frames


@contextmanager
def _command_line(script: str, arguments: Sequence[str], folder: str) -> Generator[None]:
    """`sys.argv` and `sys.path` as Python sets them for a script; restored afterwards."""
    argv, path = sys.argv[:], sys.path[:]
    sys.argv[:] = [script, *arguments]
    sys.path.insert(0, os.path.abspath(folder))
    try:
        yield
    finally:
        sys.argv[:], sys.path[:] = argv, path
