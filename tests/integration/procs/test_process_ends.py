"""The orderly end of a proc: threads, executors and exit functions of the program, in order."""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch import configured
from monarch.actor import Actor, ProcMesh, endpoint
from tests.integration.gates import Gate, GateKeeper

Spawn = Callable[..., ProcMesh]


class Saver(Actor):
    """Saves its work on threads that are no daemons."""

    def __init__(self, record: Path) -> None:
        self._record = record

    def _note(self, text: str) -> None:
        with self._record.open("a") as record:
            record.write(f"{text}\n")

    @endpoint
    def begin_exit_functions(self) -> None:
        """Note the exit functions, the last registered first."""
        atexit.register(self._note, "first exit function")
        atexit.register(self._note, "second exit function")

    @endpoint
    def save_on_a_thread(self, gate: Gate) -> None:
        """Save on a thread, from when the gate is open."""

        def save() -> None:
            gate.pass_through()
            self._note("thread")

        threading.Thread(target=save).start()

    @endpoint
    def save_in_a_pool(self, gate: Gate) -> None:
        """Save in a pool of one thread, from when the gate is open."""
        pool = concurrent.futures.ThreadPoolExecutor(1)
        pool.submit(gate.pass_through)
        for number in range(2):
            pool.submit(self._note, f"job {number}")

    @endpoint
    def run_on(self) -> None:
        """Begin a thread that does not end."""
        threading.Thread(target=threading.Event().wait, name="endless").start()

    @endpoint
    def fork_with_a_thread(self) -> int:
        """The exit status of a fork whose thread saves after its code has returned."""
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        begin = threading.Event()

        def save() -> None:
            begin.wait()
            self._note("thread of the fork")

        threading.Thread(target=save).start()
        atexit.register(self._note, "exit function of the fork")
        begin.set()
        return 0


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


def lines(record: Path) -> list[str]:
    return record.read_text().splitlines() if record.exists() else []


def test_a_thread_is_waited_for_before_exit_functions_run(
    spawn_procs: Spawn, record: Path, gate: GateKeeper
) -> None:
    procs = spawn_procs({})
    saver = procs.spawn("saver", Saver, record)
    saver.begin_exit_functions.call_one().get()
    saver.save_on_a_thread.call_one(gate.gate).get()
    ended = procs.stop()
    gate.wait_entered()
    gate.open()
    ended.get()
    assert lines(record) == ["thread", "second exit function", "first exit function"]


def test_the_jobs_of_a_pool_are_waited_for(
    spawn_procs: Spawn, record: Path, gate: GateKeeper
) -> None:
    procs = spawn_procs({})
    procs.spawn("saver", Saver, record).save_in_a_pool.call_one(gate.gate).get()
    ended = procs.stop()
    gate.wait_entered()
    gate.open()
    ended.get()
    assert lines(record) == ["job 0", "job 1"]


def test_a_thread_that_runs_on_is_named_and_ends_with_its_process(
    spawn_procs: Spawn, record: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with configured(cleanup_timeout=1.0):
        procs = spawn_procs({}, name="workers")
        saver = procs.spawn("saver", Saver, record)
        saver.begin_exit_functions.call_one().get()
        saver.run_on.call_one().get()
        procs.stop().get()
    assert lines(record) == ["second exit function", "first exit function"]
    said = "[workers] this process ends though threads run that are no daemons: endless\n"
    assert said in capfd.readouterr().err


def test_a_fork_waits_for_its_threads(spawn_procs: Spawn, record: Path) -> None:
    saver = spawn_procs({}).spawn("saver", Saver, record)
    assert saver.fork_with_a_thread.call_one().get() == 0
    assert lines(record) == ["thread of the fork", "exit function of the fork"]
