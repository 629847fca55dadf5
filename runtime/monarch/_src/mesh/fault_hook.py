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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, TextIO

from monarch._src.actor.runtime import Runtime
from monarch._src.errors import SupervisionError
from monarch._src.events import Output, OutputLine, bus
from monarch._src.failures.report import MeshFailure
from monarch._src.mesh.client import leave
from monarch._src.net.local.waitable import RuntimeEnded

log = logging.getLogger("monarch.faults")
Hook = Callable[[MeshFailure], None]
UNWIND_S = 5.0
_ending = threading.Lock()
_exiting = threading.Lock()
_exiter: int | None = None  # the thread that runs what was registered for the exit

_find_hook: Callable[[], Hook] = lambda: end_program  # noqa: E731


def set_hook_lookup(find: Callable[[], Hook]) -> None:
    """Say where the hook of the moment is found. Called once by `monarch.actor`."""
    global _find_hook
    _find_hook = find


def attach(runtime: Runtime) -> None:
    """Make this client hear of failures of what it owns, and of those that nobody below handled."""

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
    """The default: say the cause on stderr, interrupt the main thread, end with status 1.

    The main thread unwinds and runs what was registered for the exit; if it has not ended in a few
    seconds, it is ended. Where a program ignores interrupts, as one that a shell has put in the
    background does, only what was registered for the exit is run.
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
        # The interrupt is ours, and so is the end of the session that a call of the main thread
        # may be told of: their tracebacks would hide the cause.
        if not issubclass(kind, KeyboardInterrupt | SupervisionError | RuntimeEnded):
            before(kind, error, tb)

    sys.excepthook = silent


def _exit_failed() -> None:
    # Registered last and so called first: let the others have their turn. Python itself would end
    # with the status of an interrupt.
    global _exiter
    if not _exiting.acquire(blocking=False):
        if threading.get_ident() != _exiter:
            threading.Event().wait()  # the one that runs them ends this thread too
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


def forward_output(wanted: Callable[[], bool]) -> Callable[[], None]:
    """Write what ranks print to this program's own streams, tagged. Returns how to end it."""

    streams = _Streams()

    def show(output: Output) -> None:
        if not wanted():
            return
        # What a line shows that is still written over comes as a line in the end.
        lines = [line for line in output.lines if line.shown and not line.written_over]
        try:
            if output.gathered:
                for stream, text in _once_each(lines):
                    streams.write(None, stream, text, whole=True)
            else:
                for line in lines:
                    place = (line.mesh_uid, line.rank)
                    streams.write(place, *_tagged(line), whole=line.whole)
        except (OSError, ValueError):
            return  # the program has closed its streams

    return bus.subscribe(Output, show)


class _Streams:
    """This program's own streams, on which one rank's line may be begun and not ended."""

    def __init__(self) -> None:
        self._begun: tuple[tuple[str, int] | None, TextIO] | None = None
        self._text = ""

    def write(self, rank: tuple[str, int] | None, stream: str, text: str, *, whole: bool) -> None:
        """Write a line, or how far it has come; what is there of it already stays."""
        target = sys.stderr if stream == "stderr" else sys.stdout
        begun = self._begun
        goes_on = (
            begun is not None and begun[0] == rank and begun[1] is target
            and text.startswith(self._text)
        )  # fmt: skip
        if begun is not None and not goes_on and not begun[1].closed:
            begun[1].write("\n")
            begun[1].flush()
        self._begun = None if whole else (rank, target)
        target.write((text[len(self._text) :] if goes_on else text) + ("\n" if whole else ""))
        self._text = text
        target.flush()


def _tagged(line: OutputLine) -> tuple[str, str]:
    at = ", ".join(f"{dim}={i}" for dim, i in line.point.items())
    tag = f"{line.mesh} {at}" if at else line.mesh
    return line.stream, f"[{tag}] {line.text}"


def _once_each(lines: Sequence[OutputLine]) -> Iterator[tuple[str, str]]:
    """Equal lines of a mesh once, where the first of them stood, with how many there were."""
    equal: dict[tuple[str, str, str], list[OutputLine]] = {}
    for line in lines:
        equal.setdefault((line.mesh_uid, line.stream, line.text), []).append(line)
    for same in equal.values():
        if len(same) == 1:
            yield _tagged(same[0])
        else:
            one, ranks = same[0], len({line.rank for line in same})
            yield one.stream, f"[{one.mesh} {len(same)} lines of {ranks} ranks] {one.text}"
