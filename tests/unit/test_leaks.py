"""The guard of the whole suite: a leak of each kind is found, named, and fails the run."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from monarch._src.net import session_directory as sessions
from monarch.actor import Actor, ProcMesh, endpoint, shutdown_context, this_host
from tests.leaks import Holdings, leaks, processes

ROOT = Path(__file__).parents[2]
# Says that it is up, then lives until its stdin ends.
IDLER = "import sys; print('up', flush=True); sys.stdin.read()"


def one_leak(before: Holdings) -> str:
    """The only leak there is; found without patience, since nothing is on its way out."""
    (line,) = leaks(before, patience_s=0.0)
    return line


def test_nothing_is_found_where_nothing_was_left() -> None:
    assert leaks(Holdings.now()) == []


def test_a_child_that_lives_is_found_and_ended() -> None:
    before = Holdings.now()
    reader, writer = os.pipe()
    child = subprocess.Popen([sys.executable, "-c", IDLER], stdin=reader)
    os.close(reader)
    line = next(line for line in leaks(before, patience_s=0.0) if "process" in line)
    os.close(writer)
    assert line == f"process {child.pid}, alive: {sys.executable} -c {IDLER}"
    assert not psutil.pid_exists(child.pid)
    child.wait(timeout=10)
    assert leaks(before) == []


def test_a_child_that_nobody_waits_for_is_found() -> None:
    before = Holdings.now()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "pass"], os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert one_leak(before).startswith(f"process {pid}, dead, which nobody has waited for")
    assert not psutil.pid_exists(pid)


def spawn_orphan(program: str = IDLER, **options: Any) -> tuple[psutil.Process, int]:
    """A process in a session of its own whose parent has ended; closing the descriptor ends it."""
    parent = (
        "import subprocess, sys\n"
        f"command = [sys.executable, '-c', {program!r}]\n"
        "orphan = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,\n"
        "                          start_new_session=True)\n"
        "assert orphan.stdout.readline() == b'up\\n'\n"
        "print(orphan.pid)"
    )
    reader, writer = os.pipe()
    command = [sys.executable, "-c", parent]
    done = subprocess.run(
        command, stdin=reader, capture_output=True, check=True, timeout=60, **options
    )
    os.close(reader)
    return psutil.Process(int(done.stdout)), writer


def has_ended(process: psutil.Process) -> bool:
    """Also if whoever has inherited it has not waited for it yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_an_orphan_in_a_session_of_its_own_is_found_by_what_it_inherited() -> None:
    before = Holdings.now()
    orphan, lifeline = spawn_orphan()
    assert orphan not in psutil.Process().children(recursive=True)
    assert orphan in set(processes())
    lines = leaks(before, patience_s=0.0)
    os.close(lifeline)
    assert lines[0].startswith(f"process {orphan.pid}, alive")
    assert has_ended(orphan)


def test_a_process_that_is_on_its_way_out_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Holdings.now()
    orphan, lifeline = spawn_orphan()
    wait = select.select

    def wait_after_letting_go(*arguments: Any) -> Any:
        monkeypatch.undo()
        os.close(lifeline)
        return wait(*arguments)

    monkeypatch.setattr(select, "select", wait_after_letting_go)
    assert leaks(before) == []
    assert has_ended(orphan)


def test_what_a_process_that_was_there_before_starts_is_its_own_affair() -> None:
    program = (
        "import subprocess, sys\n"
        "sys.stdin.readline()\n"
        f"child = subprocess.Popen([sys.executable, '-c', {IDLER!r}], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
        "child.communicate()"
    )
    kept = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with kept:
        assert kept.stdin is not None
        assert kept.stdout is not None
        before = Holdings.now()
        kept.stdin.write("\n")
        kept.stdin.flush()
        grandchild = psutil.Process(int(kept.stdout.readline()))
        assert grandchild in set(processes())
        assert leaks(before, patience_s=0.0) == []


@pytest.mark.parametrize(
    ("name", "daemon"), [("monarch-io-x", True), ("monarch-io-x", False), ("mine", False)]
)
def test_a_thread_is_found_that_is_the_runtimes_or_keeps_python_alive(
    name: str, daemon: bool
) -> None:
    before, release = Holdings.now(), threading.Event()
    thread = threading.Thread(target=release.wait, name=name, daemon=daemon)
    thread.start()
    line = one_leak(before)
    release.set()
    thread.join(timeout=10)
    assert line == f"thread {name!r}" + (", a daemon" if daemon else "")
    assert leaks(before) == []


def test_a_daemon_of_some_library_is_no_leak() -> None:
    before, release = Holdings.now(), threading.Event()
    thread = threading.Thread(target=release.wait, name="heartbeat", daemon=True)
    thread.start()
    assert leaks(before, patience_s=0.0) == []
    release.set()
    thread.join(timeout=10)


def test_a_thread_that_is_on_its_way_out_is_waited_for() -> None:
    before, release = Holdings.now(), threading.Event()

    class Thread(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            release.set()
            super().join(timeout)

    Thread(target=release.wait, name="monarch-late").start()
    assert leaks(before) == []


def test_descriptors_are_counted_by_kind(tmp_path: Path) -> None:
    before = Holdings.now()
    reader, writer = os.pipe()
    assert one_leak(before) == f"2 open descriptors of pipe (number {reader}, {writer})"
    os.close(reader)
    assert one_leak(before) == f"1 open descriptor of pipe (number {writer})"
    os.close(writer)
    with open(tmp_path / "log", "w") as log:
        assert one_leak(before) == f"1 open descriptor of {log.name} (number {log.fileno()})"
    assert leaks(before) == []


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="needs eventfd, new in Python 3.10 on Linux")
def test_a_descriptor_that_took_the_number_of_another_is_found_by_its_kind() -> None:
    reader, writer = os.pipe()
    before = Holdings.now()
    os.close(reader)
    event = os.eventfd(0)
    line = one_leak(before)
    os.close(event)
    os.close(writer)
    assert line == f"1 open descriptor of anon_inode:[eventfd] (number {event})"


def test_a_descriptor_that_only_garbage_holds_is_no_leak() -> None:
    before = Holdings.now()
    poller = select.epoll()
    cycle = [poller]
    cycle.append(cycle)  # type: ignore[arg-type]
    del poller, cycle
    assert leaks(before) == []


def test_a_segment_is_found_and_removed() -> None:
    before = Holdings.now()
    segment = Path("/dev/shm/mt-a-segment")
    segment.write_bytes(b"some")
    assert one_leak(before) == f"the shared-memory segment {segment}"
    assert not segment.exists()


def test_a_segment_that_a_stranger_has_mapped_is_the_strangers() -> None:
    before, segment = Holdings.now(), Path("/dev/shm/mt-a-strangers")
    segment.write_bytes(b"some")
    mapping = f"import mmap; f = open({str(segment)!r}, 'r+b'); kept = mmap.mmap(f.fileno(), 4)\n"
    stranger, lifeline = spawn_orphan(mapping + IDLER, env={})
    assert stranger not in set(processes())
    lines = leaks(before, patience_s=0.0)
    os.close(lifeline)
    segment.unlink()
    assert lines == [f"1 open descriptor of pipe (number {lifeline})"]


def test_a_segment_that_lost_its_name_meanwhile_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    # As the semaphores of another program's multiprocessing do.
    before, segment = Holdings.now(), Path("/dev/shm/sem.mt-of-a-moment")
    with monkeypatch.context() as patch:
        patch.setattr("tests.leaks.segments", lambda: [*before.segments, segment])
        assert leaks(before, patience_s=0.0) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_segment_of_another_user_is_not_ours() -> None:
    before, segment = Holdings.now(), Path("/dev/shm/mt-of-another")
    segment.write_bytes(b"some")
    try:
        os.chown(segment, 65534, 65534)
        assert leaks(before, patience_s=0.0) == []
        assert segment.exists()
    finally:
        segment.unlink()


def test_a_session_of_a_program_with_another_environment_is_no_segment() -> None:
    before = Holdings.now()
    with tempfile.TemporaryDirectory(prefix=sessions.PREFIX, dir="/dev/shm"):
        assert leaks(before) == []


def test_a_session_directory_is_found_with_the_sockets_in_it() -> None:
    before = Holdings.now()
    directory = sessions.make()
    (directory / "agent").touch()
    assert one_leak(before) == f"the directory {directory}, with agent in it"
    assert not directory.exists()


def test_sessions_of_this_run_are_kept_apart_from_those_of_others(own_base_directory: Path) -> None:
    assert sessions.base_directory() == own_base_directory
    assert own_base_directory != Path(tempfile.gettempdir())


class Greeter(Actor):
    @endpoint
    def greet(self) -> str:
        return "hello"


def test_every_kind_of_leak_is_found_in_a_runtime_that_was_not_ended() -> None:
    shutdown_context()
    before = Holdings.now()
    mesh = this_host().spawn_procs({"gpus": 2})
    assert mesh.spawn("greeter", Greeter).greet.call().get().values() == ["hello", "hello"]
    now = Holdings.now()
    started = now.processes - before.processes
    assert len(started) == 4, "the agent, its zygote, two procs"
    assert all(t.name.startswith("monarch-io-") for t in now.threads - before.threads)
    assert len(now.threads) > len(before.threads)
    assert len(now.descriptors) > len(before.descriptors)
    assert len(now.directories - before.directories) == 1
    shutdown_context()
    assert leaks(before) == []


def test_the_procs_fixture_gives_procs_and_takes_them_back(procs: ProcMesh) -> None:
    assert procs.sizes == {"gpus": 2}
    assert procs.spawn("greeter", Greeter).greet.call().get().values() == ["hello", "hello"]


LEAKY_MODULES = {
    "process": "subprocess.Popen([sys.executable, '-c', 'input()'], stdin=os.pipe()[0])",
    "thread": "threading.Thread(target=threading.Event().wait, name='monarch-x', daemon=True)"
    ".start()",
    "descriptor": "os.dup(0)",
    "segment": "open('/dev/shm/mt-leaked', 'w').close()",
    "the directory": "sessions.make()",
    "logged errors": "logging.getLogger('monarch.net').error('swallowed')",
    "faults that nobody handled": "monarch.actor.unhandled_fault_hook('a fault')",
}


def test_each_leak_fails_the_run_and_is_blamed_on_its_module(tmp_path: Path) -> None:
    imports = (
        "import logging, os, subprocess, sys, threading\n"
        "import monarch.actor\n"
        "from monarch._src.net import session_directory as sessions\n"
    )
    for number, leak in enumerate(LEAKY_MODULES.values()):
        test = f"{imports}\ndef test_it():\n    {leak}\n"
        (tmp_path / f"test_{number}.py").write_text(test)
    (tmp_path / "test_clean.py").write_text("def test_it():\n    pass\n")
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, tmp_path],
        env={**os.environ, "PYTHONPATH": path, "MONARCH_TEST_PATIENCE": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert f"{len(LEAKY_MODULES) + 1} passed" in run.stdout, run.stdout
    _, *blamed, blamed_on_the_run = run.stdout.split("ERROR at teardown of test_it")
    assert len(blamed) == len(LEAKY_MODULES)
    for number, (kind, report) in enumerate(zip(LEAKY_MODULES, blamed, strict=True)):
        assert kind in report
        if number < 5:
            assert f"test_{number}.py left behind" in report
    # What cannot be taken back is still there at the end.
    assert "the test run left behind" in blamed_on_the_run
    assert "thread 'monarch-x'" in blamed_on_the_run
