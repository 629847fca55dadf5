"""A script or module as the `__main__` of this process, as `python SCRIPT` runs it.

Runs in: a rank, on the thread of its actor. A process that belongs to a script (`ends_process`)
does after it what an interpreter does at exit, before the caller has the answer
(`actor.run.finalize`). A process that others go on using keeps its threads and its exit functions.
"""

from __future__ import annotations

import builtins
import linecache
import os
import pkgutil
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any

from monarch._src.actor import forked
from monarch._src.actor.run.finalize import clear_names, clear_program
from monarch._src.system.interpreter_exit import join_threads, run_exit_functions
from monarch._src.system.process import signal_name

_ABOVE = (__file__, runpy.__file__, "<frozen runpy>")
_TO_PROGRAMS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class ScriptError(RuntimeError):
    """A script has exited with a status other than 0."""

    def __init__(self, script: str, code: object) -> None:
        self.script = script
        self.code = code
        super().__init__(f"{script} exited with {code!r}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.script, self.code)


def run_script(arguments: Sequence[str], *, ends_process: bool = False) -> None:
    """Run `[script, arg, ...]` or `["-m", module, arg, ...]` as `__main__`.

    Args:
        ends_process: whether nothing else uses this process afterwards.

    Raises:
        ValueError: there is no script or module in the arguments.
        FileNotFoundError, ModuleNotFoundError: it does not exist here.
        ScriptError: it exits with a status other than 0.
        BaseException: the script's own.
    """
    __tracebackhide__ = True
    words = [os.fspath(word) for word in arguments]
    is_module = words[:1] == ["-m"]
    if is_module:
        del words[0]
    if not words:
        raise ValueError("No script or module specified")
    script, *rest = words
    if not is_module and not os.path.exists(script):
        raise FileNotFoundError(
            f"there is no script {script!r} on {os.uname().nodename}, in {os.getcwd()}"
        )
    is_archive = not is_module and pkgutil.get_importer(script) is not None
    folder = os.getcwd() if is_module else script if is_archive else os.path.dirname(script)
    with _command_line(script, rest, folder):
        if is_module:
            _, spec, code = _runpy()._get_module_details(script)
            sys.argv[0] = spec.origin
        elif is_archive:  # a zip file or a folder, with a `__main__.py`
            _, spec, code = _runpy()._get_main_module_details()
        else:
            spec, code = None, _code_of(script)
        _run(script, code, _main_module(script, spec), ends_process)


def run_source(source: str, arguments: Sequence[str], *, ends_process: bool = False) -> None:
    """Run a text as `__main__`; `arguments` begin with the name that tracebacks call it by.

    Raises:
        ScriptError: it exits with a status other than 0.
        BaseException: its own, such as a SyntaxError.
    """
    __tracebackhide__ = True
    name, *rest = arguments
    lines = source.splitlines(keepends=True)
    linecache.cache[name] = (len(source), None, lines, name)  # no file has that name
    with _command_line(name, rest, os.getcwd()):
        code = compile(source, name, "exec", dont_inherit=True)
        _run(name, code, types.ModuleType("__main__"), ends_process)


def execute(command: Sequence[str]) -> None:
    """Run a program in a process of its own, with this one's standard streams.

    The program gets the signals that end a run, since it is in this process's group.

    Raises:
        FileNotFoundError: there is no such program here.
        ScriptError: it exits with a status other than 0, or by a signal.
    """
    __tracebackhide__ = True
    program = shutil.which(command[0])
    if program is None:
        raise FileNotFoundError(f"there is no program {command[0]!r} on {os.uname().nodename}")
    for number in _TO_PROGRAMS:  # a handler, unlike SIG_IGN, is not inherited
        signal.signal(number, _leave_to_program)
    status = subprocess.run([program, *command[1:]], check=False).returncode
    if status:
        raise ScriptError(command[0], signal_name(-status) if status < 0 else status)


def _leave_to_program(_number: int, _frame: FrameType | None) -> None:
    pass


# --- the code and its module ----------------------------------------------------------------------


def _runpy() -> Any:
    # Its private functions find a module's code as `python -m` does; its public ones run the code
    # in a namespace that goes at once, which can close a file before its buffer is written.
    return runpy


def _code_of(script: str) -> CodeType:
    if script.endswith(".pyc"):
        code = SourcelessFileLoader("__main__", script).get_code("__main__")
        assert code is not None
        return code
    loader = SourceFileLoader("__main__", script)
    return loader.source_to_code(loader.get_data(script), script)


def _main_module(script: str, spec: Any) -> ModuleType:
    """The module that a script or, with its spec, a module runs in."""
    main = types.ModuleType("__main__")
    names: dict[str, object] = {"__builtins__": builtins, "__cached__": None, "__spec__": spec}
    if spec is None:
        names["__file__"] = os.path.abspath(script)
        names["__loader__"] = SourceFileLoader("__main__", script)
    else:
        names |= {"__file__": spec.origin, "__cached__": spec.cached, "__loader__": spec.loader}
        names["__package__"] = spec.parent
    vars(main).update(names)
    return main


# --- from its begin to its end --------------------------------------------------------------------


def _run(script: str, code: CodeType, main: ModuleType, ends_process: bool) -> None:
    """Run it, and end it; an exit is an error unless its status is 0.

    Tracebacks begin in the script.
    """
    __tracebackhide__ = True
    before = sys.modules.get("__main__")
    threads = set(threading.enumerate())
    told = _Told()
    sys.excepthook, hook = told.hook, sys.excepthook
    sys.modules["__main__"] = main
    try:
        raised = _raised_by(script, code, main, told)
        if ends_process:
            _end_as_interpreter()
        elif not any(not one.daemon for one in set(threading.enumerate()) - threads):
            clear_names(main)
    finally:
        sys.excepthook = hook
        if before is not None:
            sys.modules["__main__"] = before
    if raised is not None:
        raise raised


def _raised_by(script: str, code: CodeType, main: ModuleType, told: _Told) -> BaseException | None:
    """Run the code; the error that it has ended by, if any."""
    try:
        exec(code, vars(main))
    except BaseException as error:
        if forked.is_fork:
            raise  # `actor.forked` ends the process
        if not isinstance(error, SystemExit):
            told.report(error.with_traceback(_from_script(error.__traceback__)))
            return error
        status = error.code
        if status is None or (isinstance(status, int) and not status & 0xFF):
            return None
        return ScriptError(script, status)
    return None


class _Told:
    """The hook for uncaught exceptions while a script runs: Python's, but for one exception.

    The caller is told of the exception that the script ends by, so Python's hook does not print it.
    A hook that the script has set instead is called with it, and may pass it on to this one.
    """

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def hook(
        self, kind: type[BaseException], error: BaseException, frames: TracebackType | None
    ) -> None:
        """Print an exception, as Python does."""
        if error is not self._error:
            sys.__excepthook__(kind, error, frames)

    def report(self, error: BaseException) -> None:
        """Call the present hook with the exception that the script has ended by."""
        self._error = error
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except BaseException as another:
            sys.stderr.write("Error in sys.excepthook:\n")
            sys.__excepthook__(type(another), another, another.__traceback__)
        finally:
            self._error = None


def _end_as_interpreter() -> None:
    """Join threads, run exit functions, destroy the program's objects, write all output."""
    try:
        join_threads()
    except BaseException as error:  # the handler of a signal has raised it; Python goes on too
        sys.stderr.write("Exception ignored at the end of the script's threads:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
    run_exit_functions()
    clear_program()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _from_script(frames: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this module and of `runpy` above the script's."""
    while frames is not None and frames.tb_frame.f_code.co_filename in _ABOVE:
        frames = frames.tb_next
    return frames


@contextmanager
def _command_line(script: str, arguments: Sequence[str], folder: str) -> Generator[None]:
    """`sys.argv` and `sys.path` as Python sets them for a script; restored afterwards."""
    argv, original, path = sys.argv[:], sys.orig_argv[:], sys.path[:]
    sys.argv[:] = [script, *arguments]
    sys.orig_argv[:] = [sys.executable, *sys.argv]
    sys.path.insert(0, os.path.abspath(folder))
    try:
        yield
    finally:
        sys.argv[:], sys.orig_argv[:], sys.path[:] = argv, original, path
