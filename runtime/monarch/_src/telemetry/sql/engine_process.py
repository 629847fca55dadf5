"""The process of the query engine: DuckDB has its own, with bounded memory.

Runs in: the client, rank or command that queries, on the calling thread; `main` in the process of
the engine. The engine starts with the first query, and is kept for the next ones.
Owns: the process, one for each query that runs and at most one between them.
Invariants: a process that has not answered is killed, whatever it computes: DuckDB and Python's
conversions heed neither an interrupt nor a time-out everywhere, nor a memory limit. So an interrupt
raises KeyboardInterrupt here, in Python code. A process without its client ends.

On Linux the process may allocate `MEMORY_MB` for all: the tables, what DuckDB computes, and the
rows as Python objects. Elsewhere the kernel has no such bound, and only DuckDB's own memory limit
counts, which leaves out results.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pickle
import queue
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import monarch
from monarch._src.errors import QueryError, QueryTimeoutError
from monarch._src.net.local.interrupt import uninterrupted
from monarch._src.system.process import undebugged
from monarch._src.telemetry.sql.engine import INSTALL, MEMORY_MB, start_engine

P = ParamSpec("P")
T = TypeVar("T")

_ROOT = str(Path(monarch.__file__).parent.parent)
_PROGRAM = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; memory_mb = int(sys.argv.pop(1)); "
    "sys.path += [p for p in sys.argv[1:] if p not in sys.path]; "
    f"from {__name__} import main; main(memory_mb)"
)
_SLICE_S = 0.1
"""The cancellation of a call reaches an actor's thread between two waits of this length."""
_HEAD = struct.Struct("<Q")


class EngineProcess:
    """One process with an engine, which runs one function at a time."""

    def __init__(self, memory_mb: int = MEMORY_MB) -> None:
        self.memory_mb = memory_mb
        self.moved = 0  # bytes of requests and answers
        self._child = subprocess.Popen(
            undebugged([sys.executable, "-c", _PROGRAM, str(memory_mb), _ROOT, *_path()]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", bufsize=0,
            start_new_session=True,  # so that an interrupt of this program does not reach it
        )  # fmt: skip
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._stdin, self._stdout = self._child.stdin, self._child.stdout
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)

    def call(self, deadline: float, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function of a module there. After an exception other than QueryError: `end` it.

        Raises:
            QueryError: the function has raised it. MemoryError: it needs more than there is.
            TimeoutError: there is no answer at the deadline, a time of `time.monotonic`.
            EOFError: the process has ended.
        """
        request = pickle.dumps((function, arguments), pickle.HIGHEST_PROTOCOL)
        self._write(_HEAD.pack(len(request)) + request, deadline)
        (size,) = _HEAD.unpack(self._read(_HEAD.size, deadline))
        self.moved += len(request) + size
        kind, value = pickle.loads(self._read(size, deadline))
        if kind == "value":
            return value
        if kind == "refused":
            raise QueryError(value)
        if kind == "too large":
            raise MemoryError
        raise RuntimeError(f"the query engine failed:\n{value}")

    def _write(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            wait_for(self._stdin.fileno(), select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self._stdin.fileno(), rest[: 1 << 20]) :]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                raise EOFError from None

    def _read(self, size: int, deadline: float) -> bytearray:
        found = bytearray()
        while len(found) < size:
            wait_for(self._stdout.fileno(), select.POLLIN, deadline)
            try:
                data = os.read(self._stdout.fileno(), min(size - len(found), 1 << 20))
            except BlockingIOError:
                continue
            if not data:
                raise EOFError
            found += data
        return found

    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._child.poll() is None

    def end(self) -> int:
        """Kill the process, if it has not ended; its status. Idempotent."""
        with uninterrupted():
            self._child.kill()
            self._stdin.close()
            self._stdout.close()
            return self._child.wait()

    def forget(self) -> None:
        """In a fork: leave the process to the one that has started it."""
        self._stdin.close()
        self._stdout.close()
        self._child.returncode = 0


def _path() -> list[str]:
    """Where this process finds packages: DuckDB may be in a folder that the program has added."""
    return [os.path.abspath(entry) for entry in sys.path if entry]


def wait_for(fd: int, event: int, deadline: float) -> None:
    """Wait until the descriptor is ready. Raises TimeoutError at the deadline."""
    poll = select.poll()
    poll.register(fd, event)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if poll.poll(1000 * min(left, _SLICE_S)):
            return


_idle: list[EngineProcess] = []  # at most one; pop and append are atomic
MOST_IDLE = 1
MOST_KEPT = 64 << 20
"""A process that has exchanged more bytes than this is not kept, for it keeps memory of them."""


def call_engine(
    function: Callable[..., T],
    *arguments: Any,
    deadline: float = inf,
    memory_mb: int | None = None,
) -> T:
    """Run a function of a module in an engine's process.

    Raises:
        QueryError: the function has raised it, it needs too much memory, the process has ended, or
            DuckDB is not installed. QueryTimeoutError: it has not ended at the deadline, a time of
            `time.monotonic`.
    """
    check_installed()
    memory_mb = MEMORY_MB if memory_mb is None else memory_mb
    process: EngineProcess | None = None
    keep = False
    try:
        with uninterrupted():
            process = _taken(memory_mb)
        try:
            value = process.call(deadline, function, *arguments)
        except QueryError:
            keep = True
            raise
        keep = True
        return value
    except EOFError:
        assert process is not None
        raise QueryError(_ended(process.end(), memory_mb)) from None
    except MemoryError:
        raise QueryError(too_large(memory_mb)) from None
    except TimeoutError:
        raise QueryTimeoutError("the query has not ended in time") from None
    finally:
        if process is not None:
            with uninterrupted():
                _give_back(process, keep)


def _taken(memory_mb: int) -> EngineProcess:
    try:
        process = _idle.pop()
    except IndexError:
        return EngineProcess(memory_mb)
    if process.memory_mb == memory_mb and process.is_alive():
        return process
    process.end()
    return EngineProcess(memory_mb)


def _give_back(process: EngineProcess, keep: bool) -> None:
    if keep and process.moved <= MOST_KEPT and len(_idle) < MOST_IDLE:
        _idle.append(process)
    else:
        process.end()


def too_large(memory_mb: int) -> str:
    """Why a query that needs too much memory fails."""
    return (
        f"Out of Memory: the query, its tables and its rows need more than {memory_mb} MB; select "
        "fewer rows or columns, or aggregate them"
    )


def end_idle_engines() -> None:
    """End the processes that wait for a query. The next query starts one."""
    while _idle:
        _idle.pop().end()


def _forget_engines() -> None:
    while _idle:
        _idle.pop().forget()


atexit.register(end_idle_engines)
os.register_at_fork(after_in_child=_forget_engines)


def _ended(status: int, memory_mb: int) -> str:
    """Why a query fails whose process has ended."""
    if -status in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGKILL):
        name = signal.Signals(-status).name
        return f"the query engine has died ({name}), most likely of this: {too_large(memory_mb)}"
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return f"the process of the query engine ended with {how}; standard error may say why"


def check_installed() -> None:
    """Check that there is DuckDB.

    Raises:
        QueryError: it is not installed.
    """
    blocked = "duckdb" in sys.modules and not sys.modules["duckdb"]
    if blocked or ("duckdb" not in sys.modules and importlib.util.find_spec("duckdb") is None):
        raise QueryError(f"queries need DuckDB, which is not installed; {INSTALL}")


# --- in the process of the engine -----------------------------------------------------------------


def main(memory_mb: int) -> None:
    """Run what arrives on standard input, until it is closed."""
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed is no answer
    start_engine(memory_mb)
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    while True:
        answer = _answer(requests.get())
        answers.write(_HEAD.pack(len(answer)))
        answers.write(answer)
        answers.flush()
        del answer


def _read_requests(requests: queue.SimpleQueue[bytes]) -> None:
    source = sys.stdin.buffer
    while len(head := source.read(_HEAD.size)) == _HEAD.size:
        requests.put(source.read(*_HEAD.unpack(head)))
    os._exit(0)  # the client has gone, whatever is computed here


def _answer(request: bytes) -> bytes:
    try:
        try:
            function, arguments = pickle.loads(request)
            return _packed("value", function(*arguments))
        except QueryError as error:
            return _packed("refused", str(error))
        except MemoryError:
            return _packed("too large", None)
    except BaseException:
        return _packed("failed", traceback.format_exc())


def _packed(kind: str, value: object) -> bytes:
    return pickle.dumps((kind, value), pickle.HIGHEST_PROTOCOL)
