"""What tests may not leave behind, and how it is found.

Runs in: the process of pytest; `tests/conftest.py` looks before and after every module.
Owns: nothing. Looks at five things that outlive the code that made them:

    processes     ours by descent, or by a token that they inherited in their environment: an agent
                  that was orphaned, or left its session, still has it, and others' agents do not
    threads       that keep the interpreter alive, or that the runtime made (`monarch-...`)
    descriptors   counted by kind, since numbers are used again
    segments      files of this user in /dev/shm that no process of another program has mapped
    directories   of sessions, with their sockets and boards; of sockets of workers

What is on its way out is waited for (processes on pidfds, threads by join), up to a bound.
"""

from __future__ import annotations

import gc
import os
import select
import shutil
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from monarch._src.net import session_directory as sessions
from monarch._src.session.workers.options import JOB_PREFIX

TOKEN_VARIABLE = "MONARCH_TEST_RUN"
PATIENCE_S = float(os.environ.get("MONARCH_TEST_PATIENCE", "10"))
_ENDS_S = 10.0  # what was killed is given this long
_SEGMENTS = Path("/dev/shm")
_DESCRIPTORS = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")


@dataclass(frozen=True)
class Holdings:
    """Everything of ours that exists at one moment."""

    processes: frozenset[psutil.Process] = frozenset()
    threads: frozenset[threading.Thread] = frozenset()
    descriptors: dict[str, str] = field(default_factory=dict[str, str])  # number -> what it is
    segments: frozenset[Path] = frozenset()
    directories: frozenset[Path] = frozenset()

    @staticmethod
    def now() -> Holdings:
        """Look at this process and this machine."""
        return Holdings(
            frozenset(processes()),
            frozenset(t for t in threading.enumerate() if _counts(t)),
            descriptors(),
            frozenset(segments()),
            frozenset(
                path
                for prefix in (sessions.PREFIX, JOB_PREFIX)
                for path in sessions.base_directory().glob(prefix + "*")
            ),
        )

    def with_gains(self, before: Holdings, after: Holdings) -> Holdings:
        """These, and what somebody who may keep it acquired in between."""
        gained = {n: what for n, what in after.descriptors.items() if n not in before.descriptors}
        return replace(
            self,
            processes=self.processes | (after.processes - before.processes),
            threads=self.threads | (after.threads - before.threads),
            descriptors=self.descriptors | gained,
            segments=self.segments | (after.segments - before.segments),
            directories=self.directories | (after.directories - before.directories),
        )


def processes() -> Iterator[psutil.Process]:
    """Processes that this one started, and those that they started, orphans among them."""
    yield from psutil.Process().children(recursive=True)
    token = os.environ.get(TOKEN_VARIABLE)
    for process in psutil.process_iter() if token else ():
        with suppress(psutil.Error, OSError):
            if process.environ().get(TOKEN_VARIABLE) == token and process.pid != os.getpid():
                yield process


def segments() -> Iterator[Path]:
    """What lies in shared memory, but for sessions of programs with another environment."""
    with suppress(FileNotFoundError), os.scandir(_SEGMENTS) as entries:
        # By what the listing says, for what goes meanwhile cannot be asked.
        yield from (Path(entry) for entry in entries if not entry.is_dir(follow_symlinks=False))


def descriptors() -> dict[str, str]:
    """Open descriptors of this process, and what each stands for."""
    found: dict[str, str] = {}
    for number in os.listdir(_DESCRIPTORS):
        with suppress(OSError):  # the one that listed them is closed by now
            mode = os.fstat(int(number)).st_mode
            kind = "socket" if stat.S_ISSOCK(mode) else "pipe" if stat.S_ISFIFO(mode) else ""
            found[number] = kind or os.path.realpath(_DESCRIPTORS / number).rpartition("/fd/")[2]
    return found


def leaks(before: Holdings, patience_s: float = PATIENCE_S) -> list[str]:
    """What exists now, did not exist before, and does not go away; one line each.

    Reported once: processes are ended, segments and directories removed.
    """
    deadline = time.monotonic() + patience_s
    lines = [*_processes_left(before, deadline), *_threads_left(before, deadline)]
    now = Holdings.now()
    if _grown(before, now):
        gc.collect()  # what only garbage holds is not held
        now = Holdings.now()
    lines += [_descriptor_line(kind, more, before, now) for kind, more in _grown(before, now)]
    for path in sorted(now.directories - before.directories):
        held = ", ".join(sorted(p.name for p in path.iterdir())) or "nothing"
        if path.name.endswith(sessions.GONE) and held == "nothing":
            # Slurm kills the other processes of a step when the first one ends; one of them may
            # be removing the directory. The next session finishes that.
            sessions.finish_removals(path.parent)
            continue
        lines.append(f"the directory {path}, with {held} in it")
        shutil.rmtree(path, ignore_errors=True)
    for path in sorted(now.segments - before.segments):
        if _may_be_ours(path) and not _used_by_others(path):
            lines.append(f"the shared-memory segment {path}")
            path.unlink(missing_ok=True)
    return lines


def _processes_left(before: Holdings, deadline: float) -> Iterator[str]:
    for process in _new_processes(before):
        _wait_for_end(process, deadline)
    for process in _new_processes(before):
        with suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                yield f"process {process.pid}, dead, which nobody has waited for: {process.name()}"
            else:
                yield f"process {process.pid}, alive: {' '.join(process.cmdline())[:200]}"
            process.kill()
            _wait_for_end(process, time.monotonic() + _ENDS_S)
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def _wait_for_end(process: psutil.Process, deadline: float) -> None:
    # Not psutil's wait: it reaps children, and would hide that nobody here has.
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        if not hasattr(os, "pidfd_open"):
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
            return
        fd = os.pidfd_open(process.pid)
        try:
            if process.is_running():  # and so the descriptor is of it, not of one with its number
                select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        finally:
            os.close(fd)


def _new_processes(before: Holdings) -> set[psutil.Process]:
    found: set[psutil.Process] = set()
    for process in set(processes()) - before.processes:
        with suppress(psutil.NoSuchProcess):
            # What was kept, a browser say, may start more of itself. The dead children of others,
            # init among them, are theirs to wait for.
            dead = process.status() == psutil.STATUS_ZOMBIE and process.ppid() != os.getpid()
            if not dead and before.processes.isdisjoint(process.parents()):
                found.add(process)
    return found


def _threads_left(before: Holdings, deadline: float) -> Iterator[str]:
    for thread in set(threading.enumerate()) - before.threads:
        if _counts(thread):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                yield f"thread {thread.name!r}{', a daemon' if thread.daemon else ''}"


def _counts(thread: threading.Thread) -> bool:
    return not thread.daemon or thread.name.startswith("monarch-")


def _grown(before: Holdings, now: Holdings) -> list[tuple[str, int]]:
    more = Counter(now.descriptors.values()) - Counter(before.descriptors.values())
    return sorted(more.items())


def _descriptor_line(kind: str, more: int, before: Holdings, now: Holdings) -> str:
    new = [n for n, what in now.descriptors.items() if before.descriptors.get(n) != what]
    numbers = ", ".join(sorted((n for n in new if now.descriptors[n] == kind), key=int))
    return f"{more} open descriptor{'s' if more > 1 else ''} of {kind} (number {numbers})"


def _may_be_ours(segment: Path) -> bool:
    """Whether it still exists, and belongs to this user.

    A semaphore of another program's multiprocessing has a name for a moment only.
    """
    try:
        return segment.stat().st_uid == os.getuid()
    except OSError:
        return False


def _used_by_others(segment: Path) -> bool:
    """Whether a process that is not ours has that file mapped: then it is not our leak."""
    ours = {p.pid for p in processes()} | {os.getpid()}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid not in ours and str(segment) in _maps(process.pid):
                return True
    return False


def _maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text(errors="replace")
