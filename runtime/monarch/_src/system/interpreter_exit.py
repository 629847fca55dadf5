"""The steps of an interpreter's exit: join threads, run exit functions, flush, end with a status.

Runs in: a process that ends by `os._exit`, which skips the first three, as a fork must so that it
does not finalize its parent. On the thread that ends the process.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import Any, NoReturn


def join_threads(timeout_s: float | None = None) -> list[str]:
    """Wait for the threads that are no daemons, those of executors included.

    Args:
        timeout_s: the time for it in seconds; None waits as long as it takes, as Python does.

    Returns:
        the names of the threads that still run.
    """
    if timeout_s is None:
        _end_executors()
        while threads := _threads_to_join():
            for thread in threads:
                thread.join()
        return []
    if not _threads_to_join():
        return []
    deadline = time.monotonic() + timeout_s
    # Executors wait for their threads without a limit, so a thread of its own waits for them.
    ender = threading.Thread(target=_end_executors, name="ends-executors", daemon=True)
    ender.start()
    while threads := _threads_to_join():
        threads[0].join(max(0.0, deadline - time.monotonic()))
        if time.monotonic() >= deadline:
            break
    return [thread.name for thread in _threads_to_join()]


def _end_executors() -> None:
    # `threading` calls these before it joins threads. They run once, like all exit functions.
    ends: list[Any] = getattr(threading, "_threading_atexits", [])
    while ends:
        ends.pop()()


def _threads_to_join() -> list[threading.Thread]:
    own = threading.current_thread(), threading.main_thread()
    return [one for one in threading.enumerate() if not one.daemon and one not in own]


def run_exit_functions() -> None:
    """Run the functions that the program has registered with `atexit`."""
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]


def exit_status(end: SystemExit) -> int:
    """The exit status of a SystemExit; a text is written to stderr, as Python does."""
    code = end.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def exit_now(status: int) -> NoReturn:
    """Write what the standard streams hold, and end this process."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
