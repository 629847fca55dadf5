"""The end of a process that user code has forked from a rank, when that code returns.

Runs in: the fork. It has no socket, and no caller waits for its answer. It exits as if the user
code had been the last line of a program, with an exit status of its own.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from monarch._src.system.interpreter_exit import (
    exit_now,
    exit_status,
    join_threads,
    run_exit_functions,
)

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
        exit_now(status)
