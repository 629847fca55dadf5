"""Failures that no supervisor handled, at the client.

Runs in: the client. The hook runs on a thread of its own, so it may block.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

from monarch._src.actor.runtime import Runtime
from monarch._src.errors import SupervisionError
from monarch._src.failures.report import MeshFailure
from monarch._src.mesh.client import leave
from monarch._src.net.local.waitable import RuntimeEnded

log = logging.getLogger("monarch.faults")
Hook = Callable[[MeshFailure], None]
UNWIND_S = 5.0
_ending = threading.Lock()
_exiting = threading.Lock()
_exiter: int | None = None  # the thread that runs the registered exit functions

_find_hook: Callable[[], Hook] = lambda: end_program  # noqa: E731


def set_hook_lookup(find: Callable[[], Hook]) -> None:
    """Set the function that finds the current hook. Called once, by `monarch.actor`."""
    global _find_hook
    _find_hook = find


def attach(runtime: Runtime) -> None:
    """Pass unhandled failures of what this client owns to the hook."""

    def failed(fault: MeshFailure) -> None:
        threading.Thread(
            target=_call_hook, args=(fault,), name="monarch-fault", daemon=True
        ).start()

    runtime.ownership.on_unhandled = failed


def _call_hook(fault: MeshFailure) -> None:
    try:
        _find_hook()(fault)
    except Exception:
        log.exception("unhandled_fault_hook raised")


def end_program(fault: MeshFailure) -> None:
    """The default hook: write the cause to stderr, interrupt the main thread, end with status 1.

    The main thread unwinds and runs the registered exit functions. If it has not ended within a few
    seconds, it is ended. In a program that ignores interrupts, as a shell's background jobs do,
    only the exit functions run.
    """
    sys.stderr.write(f"monarch: {fault}\n")
    sys.stderr.flush()
    if not _ending.acquire(blocking=False):
        return  # another fault is ending it already
    _silence_consequences()
    atexit.register(_exit_failed)
    # A real signal: `interrupt_main` would not wake a thread that sleeps in a system call.
    if callable(signal.getsignal(signal.SIGINT)):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        threading.Event().wait(UNWIND_S)
    else:
        _exit_failed()
    leave(f"{fault.mesh_name} has failed")
    _leave()


def _silence_consequences() -> None:
    before = sys.excepthook

    def silent(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        # `end_program` caused the interrupt, and the end of the session that fails calls of the
        # main thread. Their tracebacks would hide the cause.
        if not issubclass(kind, KeyboardInterrupt | SupervisionError | RuntimeEnded):
            before(kind, error, tb)

    sys.excepthook = silent


def _exit_failed() -> None:
    # Registered last and so called first; runs the others itself, since Python would then end with
    # the status of an interrupt.
    global _exiter
    if not _exiting.acquire(blocking=False):
        if threading.get_ident() != _exiter:
            threading.Event().wait()  # the exiting thread ends this one too
        return
    _exiter = threading.get_ident()
    try:
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    finally:
        _leave()


def _leave() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(1)
