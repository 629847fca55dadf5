"""What happens to a failure at the client, where nobody above can handle it.

Runs in: the client. The hook runs on a thread of its own, so it may do what it likes.
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

from monarch._src.actor.local import LocalActors
from monarch._src.actor.runtime import Runtime
from monarch._src.errors import MeshFailure, RankFailure
from monarch._src.events import Output, bus
from monarch._src.mesh.proc_mesh import note_failures
from monarch._src.mesh.session import shutdown_context

log = logging.getLogger("monarch.faults")
Hook = Callable[[MeshFailure], None]
UNWIND_S = 5.0
_ending = threading.Lock()

_find_hook: Callable[[], Hook] = lambda: end_program  # noqa: E731


def set_hook_lookup(find: Callable[[], Hook]) -> None:
    """Say where the hook of the moment is found. Called once by `monarch.actor`."""
    global _find_hook
    _find_hook = find


def attach(runtime: Runtime, local: LocalActors) -> None:
    """Make this client, and the actors that live in it, hear of failures of what they own."""

    def failed(mesh: int, actor: int | None, failures: list[RankFailure]) -> None:
        found, actors = note_failures(mesh, actor, failures)
        if local.supervise(mesh, actor, failures):
            return  # an actor that lives in the client owns it
        # A constructor's is told by the first call, the place that can do something about it.
        told = tuple(f for f in failures if f.kind != "constructor")
        if not told or found is None or found.stopped:
            return
        fault = MeshFailure(found.name if actors is None else actors.name, told, found)
        threading.Thread(
            target=_call_hook, args=(fault,), name="monarch-fault", daemon=True
        ).start()

    runtime.ends.on_failure = failed


def _call_hook(fault: MeshFailure) -> None:
    try:
        _find_hook()(fault)
    except Exception:
        log.exception("unhandled_fault_hook raised")


def end_program(fault: MeshFailure) -> None:
    """The default: say the cause on stderr, interrupt the main thread, end with status 1.

    The main thread unwinds and runs what was registered for the exit; if it has not ended in a few
    seconds, it is ended.
    """
    sys.stderr.write(f"monarch: {fault}\n")
    sys.stderr.flush()
    if not _ending.acquire(blocking=False):
        return  # another fault is ending it already
    _silence_interrupts()
    atexit.register(_exit_failed)
    # A real signal: `interrupt_main` would not wake a thread that sleeps in a system call.
    if callable(signal.getsignal(signal.SIGINT)):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        threading.Event().wait(UNWIND_S)
    shutdown_context(f"{fault.mesh_name} has failed")
    _leave()


def _silence_interrupts() -> None:
    before = sys.excepthook

    def silent(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        # The interrupt is ours; its traceback would hide the cause.
        if not issubclass(kind, KeyboardInterrupt):
            before(kind, error, tb)

    sys.excepthook = silent


def _exit_failed() -> None:
    # Registered last and so called first: let the others have their turn. Python itself would end
    # with the status of an interrupt.
    atexit.unregister(_exit_failed)
    try:
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    finally:
        _leave()


def _leave() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(1)


def forward_output(wanted: Callable[[], bool]) -> Callable[[], None]:
    """Write what ranks print to this program's own streams, tagged. Returns how to end it."""

    def show(output: Output) -> None:
        if not wanted():
            return
        for line in output.lines:
            stream = sys.stderr if line.stream == "stderr" else sys.stdout
            at = ", ".join(f"{dim}={i}" for dim, i in line.point.items())
            try:
                print(f"[{line.mesh} {at}] {line.text}" if at else f"[{line.mesh}] {line.text}",
                      file=stream, flush=True)  # fmt: skip
            except (OSError, ValueError):
                return  # the program has closed its streams

    return bus.subscribe(Output, show)
