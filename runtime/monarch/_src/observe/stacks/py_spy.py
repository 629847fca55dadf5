"""Reads the stacks of ranks with py-spy, from outside: they may hold the GIL or be stopped.

Runs in: the host agent (`Looks`, `start_reader`), on its one thread, and a child of it for each
request (`main`). The child runs py-spy on the given processes, several at a time, and answers with
grouped stacks. The agent must not wait for py-spy, nor for a full pipe: the order is in a file, and
the agent reads the output as the selector says that there is some.
Owns: that child. It ends by itself at the deadline (SIGALRM), and with the agent; py-spy ends with
the child.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import msgspec

import monarch
from monarch._src.observe.stacks.state import grouping
from monarch._src.observe.stacks.state.grouping import Look
from monarch._src.system import process_table
from monarch._src.system.process import die_with_parent
from monarch._src.wire.messages import EndpointWait, MeshStacks, StacksRead
from monarch._src.wire.msgpack_text import UNREADABLE

_ROOT = str(Path(monarch.__file__).parent.parent)
_PROGRAM = (
    "import sys, importlib; sys.path[:] = [p for p in sys.path if p]; "
    "root, name = sys.argv[1:]; root in sys.path or sys.path.append(root); "
    "importlib.import_module(name).main()"
)
PY_SPY = "py-spy"
INSTALL = "pip install 'monarch-jupyter[stacks]'"
ONE_S = 10.0  # limit for one process, which takes some 30 ms
SPARE_S = 1.0  # from the deadline to the signal that enforces it
MOST_AT_ONCE = 16
_CHUNK = 1 << 20


def start_reader(
    selector: selectors.BaseSelector,
    module: str,
    order: bytes,
    ended: Callable[[bytes, int], None],
) -> None:
    """Run `main` of a module in a child, with the order as its standard input.

    `ended` is called with its output and its exit status.

    Raises:
        OSError: the process could not be started.
    """
    with tempfile.TemporaryFile() as file:
        file.write(order)
        file.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, _ROOT, module],
            stdin=file,
            stdout=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
    assert child.stdout is not None
    out = child.stdout
    os.set_blocking(out.fileno(), False)
    output = bytearray()
    selector.register(out, selectors.EVENT_READ, lambda: _read(selector, child, out, output, ended))


def _read(
    selector: selectors.BaseSelector,
    child: subprocess.Popen[bytes],
    out: IO[bytes],
    output: bytearray,
    ended: Callable[[bytes, int], None],
) -> None:
    try:
        while data := os.read(out.fileno(), _CHUNK):
            output += data
    except BlockingIOError:
        return
    selector.unregister(out)
    out.close()
    ended(bytes(output), child.wait())  # end-of-file came from its exit


class Subject(msgspec.Struct, array_like=True):
    """A rank to be read, and the endpoint that its status board shows.

    `otherwise` describes the rank if no thread is in user code; with `pid` 0 the rank is not read
    and `otherwise` is its whole description. `for_s`: for how many seconds it has been busy; None:
    it is not. `waits`: which of its endpoints wait, if its process has said so.
    """

    rank: int
    pid: int
    doing: str
    otherwise: str
    for_s: float | None = None
    waits: list[EndpointWait] = []


class Job(msgspec.Struct, array_like=True):
    """The part of an order for one mesh."""

    mesh: int
    name: str
    labels: list[str]
    sizes: list[int]
    subjects: list[Subject]


class Order(msgspec.Struct, array_like=True):
    """The child's input."""

    program: str
    jobs: list[Job]
    full: bool
    timeout_s: float


class Report(msgspec.Struct, array_like=True):
    """The child's answer. `problem`: why nothing could be read."""

    meshes: list[MeshStacks]
    problem: str = ""


def find_py_spy() -> str | None:
    """The path of py-spy, beside this interpreter or on PATH; None if it is not installed."""
    beside = Path(sys.executable).parent / PY_SPY
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(PY_SPY)


def not_installed() -> str:
    """The error text for a host without py-spy, with the remedy."""
    return (
        f"{PY_SPY} is not installed beside {sys.executable}, which the host agent runs under; "
        f"{INSTALL}"
    )


# --- in the agent ---------------------------------------------------------------------------------


@dataclass
class _Request:
    peer: str
    request: int
    jobs: list[Job]
    full: bool
    timeout_s: float


class Looks:
    """The queue of requests; the agent serves one at a time."""

    def __init__(
        self, selector: selectors.BaseSelector, answer: Callable[[str, StacksRead], None]
    ) -> None:
        self._selector = selector
        self._answer = answer
        self._waiting: deque[_Request] = deque()
        self._is_reading = False

    def ask(
        self, peer: str, request: int, jobs: list[Job], *, full: bool, timeout_s: float
    ) -> None:
        """Queue a request; `answer` is called with the stacks, or with the reason for none."""
        self._waiting.append(_Request(peer, request, jobs, full, timeout_s))
        if not self._is_reading:
            self._next()

    def _next(self) -> None:
        while not self._is_reading and self._waiting:
            request = self._waiting.popleft()
            program = find_py_spy()
            if program is None:
                self._answer(request.peer, StacksRead(request.request, [], not_installed()))
                continue
            try:
                self._begin(request, program)
            except OSError as error:
                problem = f"the process that reads stacks could not be started: {error}"
                self._answer(request.peer, StacksRead(request.request, [], problem))

    def _begin(self, request: _Request, program: str) -> None:
        order = Order(program, request.jobs, request.full, request.timeout_s)
        start_reader(
            self._selector, __name__, msgspec.msgpack.encode(order),
            lambda output, status: self._on_end(request, output, status),
        )  # fmt: skip
        self._is_reading = True

    def _on_end(self, request: _Request, output: bytes, status: int) -> None:
        self._is_reading = False
        try:
            report = msgspec.msgpack.decode(output, type=Report)
        except UNREADABLE:
            why = f"the process that reads stacks ended with status {status}; see agent.log"
            if status == -signal.SIGALRM:
                why = f"nothing was read in {request.timeout_s:g} s"
            report = Report([], why)
        self._answer(request.peer, StacksRead(request.request, report.meshes, report.problem))
        self._next()


# --- in the child ---------------------------------------------------------------------------------


class _PySpyRun:
    """A running py-spy that reads one rank."""

    def __init__(self, program: str, job: Job, subject: Subject) -> None:
        self.job = job
        self.subject = subject
        entry = process_table.entry(subject.pid)
        self.stopped = entry is not None and entry.state in ("T", "t")
        self.until = time.monotonic() + ONE_S
        self.out = bytearray()
        me = os.getpid()
        # py-spy cannot stop a process that a signal has stopped already, and need not.
        command = [program, "dump", "--json", "--pid", str(subject.pid)]
        self.process = subprocess.Popen(
            [*command, "--nonblocking"] if self.stopped else command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: die_with_parent(me),  # noqa: PLW1509 - there is one thread here
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.pipe = self.process.stdout

    def end(self) -> str:
        """Wait for its end; returns its stderr."""
        _, complaint = self.process.communicate()
        return complaint.decode(errors="replace")


class StackReader:
    """Carries out one order in the child."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._until = time.monotonic() + order.timeout_s
        self._looks: dict[int, list[Look]] = {job.mesh: [] for job in order.jobs}
        self._refusals: list[str] = []
        self._selector = selectors.DefaultSelector()

    def run(self, at_once: int) -> Report:
        """Read all ranks, `at_once` at a time."""
        waiting: deque[tuple[Job, Subject]] = deque()
        for job in self._order.jobs:
            for subject in job.subjects:
                if subject.pid:
                    waiting.append((job, subject))
                else:
                    self._looks[job.mesh].append(Look(subject.rank, subject.otherwise))
        requested = len(waiting)
        running: set[_PySpyRun] = set()
        while waiting or running:
            late = time.monotonic() >= self._until
            while waiting and not late and len(running) < at_once:
                running.add(self._start(*waiting.popleft()))
            if late:
                for job, subject in waiting:
                    why = f"not read: the {self._order.timeout_s:g} s were over"
                    self._looks[job.mesh].append(Look(subject.rank, why))
                waiting.clear()
            if running:
                self._wait(running, late=late)
        self._selector.close()
        if requested and len(self._refusals) == requested:
            return Report([], refusal(self._refusals[0]))
        return Report([
            grouping.group(job.mesh, job.name, dict(zip(job.labels, job.sizes, strict=True)),
                         self._looks[job.mesh])
            for job in self._order.jobs
        ])  # fmt: skip

    def _start(self, job: Job, subject: Subject) -> _PySpyRun:
        looking = _PySpyRun(self._order.program, job, subject)
        os.set_blocking(looking.pipe.fileno(), False)
        self._selector.register(looking.pipe, selectors.EVENT_READ, looking)
        return looking

    def _wait(self, running: set[_PySpyRun], *, late: bool) -> None:
        now = time.monotonic()
        for looking in running:
            if late or now >= looking.until:
                looking.process.kill()  # the end of its pipe is handled below
        ends = [looking.until for looking in running] + [self._until]
        for key, _ in self._selector.select(max(0.0, min(ends) - now) if not late else None):
            looking: _PySpyRun = key.data
            if data := os.read(looking.pipe.fileno(), _CHUNK):
                looking.out += data
                continue
            self._selector.unregister(looking.pipe)
            running.discard(looking)
            self._on_dump(looking, looking.end())

    def _on_dump(self, looking: _PySpyRun, complaint: str) -> None:
        subject, status = looking.subject, looking.process.returncode
        if status == 0:
            try:
                threads = grouping.parse(bytes(looking.out))
            except ValueError as error:
                what = f"could not be read: {PY_SPY} printed no valid dump: {error}"
                found = Look(subject.rank, what)
            else:
                found = grouping.look(
                    subject.rank,
                    threads,
                    subject.doing,
                    subject.otherwise,
                    full=self._order.full,
                    waits=subject.waits,
                )
                if looking.stopped:
                    found = replace(found, what=f"stopped by a signal, {found.what}")
                if found.for_s is None:
                    found = replace(found, for_s=subject.for_s)
        elif status == -signal.SIGKILL:
            found = Look(subject.rank, "could not be read in time")
        elif (
            entry := process_table.entry(subject.pid)
        ) is None or entry.state in process_table.DEAD_STATES:
            found = Look(subject.rank, "ended while it was read")
        else:
            if is_refusal(complaint):
                self._refusals.append(complaint)
            found = Look(subject.rank, f"could not be read: {in_short(complaint)}")
        self._looks[looking.job.mesh].append(found)


def is_refusal(complaint: str) -> bool:
    """Whether the system has refused to let py-spy read the process."""
    lowered = complaint.lower()
    return any(
        said in lowered
        for said in ("permission denied", "operation not permitted", "requires root", "eperm")
    )


def refusal(complaint: str) -> str:
    """The error text for a system that refuses, with the remedy."""
    if sys.platform == "darwin":
        remedy = "macOS lets only root read other processes: start the program with sudo"
    else:
        remedy = (
            "in a container, add the capability SYS_PTRACE (docker run --cap-add SYS_PTRACE); "
            "elsewhere `sysctl kernel.yama.ptrace_scope=1`, or run as the user who started it"
        )
    return f"{PY_SPY} may not read other processes here ({in_short(complaint)}); {remedy}"


def in_short(complaint: str) -> str:
    """py-spy's error in one line: the last cause that it names."""
    lines = [line.strip() for line in complaint.partition("Stack backtrace")[0].splitlines()]
    lines = [line for line in lines if line and not line.startswith("Caused by")]
    last = lines[-1] if lines else f"{PY_SPY} gave no reason"
    head, _, rest = last.partition(": ")
    return rest if head.isdigit() else last


def main() -> None:
    """Read an order from stdin, write the report to stdout. See `reader_child`."""
    die_with_parent(os.getppid())
    with open(0, "rb", closefd=False) as orders:
        order = msgspec.msgpack.decode(orders.read(), type=Order)
    # Runs of py-spy are killed at the deadline; the timer ends this process if that fails.
    signal.setitimer(signal.ITIMER_REAL, order.timeout_s + SPARE_S)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    report = StackReader(order).run(min(MOST_AT_ONCE, max(2, usable or 2)))
    with open(1, "wb", closefd=False) as answer:
        answer.write(msgspec.msgpack.encode(report))
