"""The end of a fork that user code has made of a rank, and that has come back from that code.

Runs in: such a fork. Nothing of the rank is its own: it has no socket, and nobody waits for what it
would answer. It ends as a program does whose last line was that code, with its own exit status.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

is_fork = False
"""Whether this process is a fork of a rank or a client; it may have begun a session of its own."""


def end_fork(error: BaseException | None) -> NoReturn:
    """End with the status that `error` stands for, which has left the code of the user."""
    status = 0
    try:
        if isinstance(error, SystemExit):
            status = exit_status(error)
        elif error is not None:
            status = 1
            sys.excepthook(type(error), error, error.__traceback__)
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def exit_status(end: SystemExit) -> int:
    """The exit status that it stands for; a text is written to stderr, as Python does."""
    code = end.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1
