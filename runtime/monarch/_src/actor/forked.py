"""The end of a process that user code has forked from a rank, when that code returns.

Runs in: the fork. It has no socket, and no caller waits for its answer. It exits as if the user
code had been the last line of a program, with an exit status of its own.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from monarch._src.system.interpreter_exit import join_threads, run_exit_functions

is_fork = False
"""Whether this process is a fork of a rank or client; it may have started its own session."""


def end_fork(error: BaseException | None) -> NoReturn:
    """Exit with the status for `error`, the exception that the user code has raised, if any."""
    status = 0
    try:
        if isinstance(error, SystemExit):
            status = exit_status(error)
        elif error is not None:
            status = 1
            sys.excepthook(type(error), error, error.__traceback__)
        join_threads()
        run_exit_functions()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def exit_status(end: SystemExit) -> int:
    """The exit status of a SystemExit; a text is written to stderr, as Python does."""
    code = end.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1
