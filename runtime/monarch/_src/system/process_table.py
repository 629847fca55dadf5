"""The process table of this machine: pids, start times, parents and groups.

Runs in: any process. The table is read from /proc, or from `ps` if there is none.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from monarch._src.system.process import pidfd, read_entry

_PROC = Path("/proc")
_HAS_PROC = (_PROC / "self" / "stat").exists()
_PS_TIMEOUT_S = 10.0
LOOK_S = 0.02
DEAD_STATES = ("Z", "X")


class Entry(msgspec.Struct, frozen=True, eq=False):
    """One process. `began` is its start time, which only serves to recognise a reused pid.

    Entries of the same process are equal, even if its state has changed.
    """

    pid: int
    parent: int
    group: int
    state: str  # one letter: T is stopped by a signal, Z is dead but not reaped
    began: str

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entry):
            return NotImplemented
        return (self.pid, self.began) == (other.pid, other.began)

    def __hash__(self) -> int:
        return hash((self.pid, self.began))


def entry(pid: int) -> Entry | None:
    """The entry of that process; None if there is none."""
    if _HAS_PROC:
        try:
            return _parse_stat(read_entry(f"{_PROC}/{pid}/stat"))
        except (OSError, ValueError, IndexError):
            return None
    return next(iter(_parse_ps(_ps("-p", str(pid)))), None)


def began_of(pid: int) -> str:
    """The start time of that process, which distinguishes it from others with its pid; or ""."""
    found = entry(pid)
    return "" if found is None else found.began


def children() -> set[int]:
    """The children of this process, including unreaped ones. It must have only one thread."""
    own = os.getpid()
    try:
        return {int(pid) for pid in read_entry(f"/proc/{own}/task/{own}/children").split()}
    except OSError:  # a kernel, or another system, without such a list
        return {one.pid for one in entries() if one.parent == own}


def entries() -> list[Entry]:
    """Every visible process."""
    if not _HAS_PROC:
        return _parse_ps(_ps("-A"))
    found = (entry(int(name)) for name in os.listdir(_PROC) if name.isdigit())
    return [one for one in found if one is not None]


def descendants(pid: int, table: Iterable[Entry] | None = None) -> list[Entry]:
    """The living children of that process, their children, and so on; parents first."""
    children: dict[int, list[Entry]] = {}
    for one in entries() if table is None else table:
        if one.state not in DEAD_STATES:
            children.setdefault(one.parent, []).append(one)
    found: list[Entry] = []
    look_at = [pid]
    while look_at:
        below = children.pop(look_at.pop(), [])
        found += below
        look_at += [one.pid for one in below]
    return found


def lives(known: Entry) -> bool:
    """Whether that very process is alive; an unreaped one is not."""
    now = entry(known.pid)
    return now is not None and now.began == known.began and now.state not in DEAD_STATES


def wait_ended(known: Sequence[Entry], timeout_s: float) -> list[Entry]:
    """Wait until all of these have ended; returns those that have not after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    for one in known:
        fd = pidfd(one.pid)
        if fd is None:  # it has ended, or this system has no pidfd
            while lives(one) and time.monotonic() < deadline:
                time.sleep(LOOK_S)
            continue
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        try:
            if lives(one):  # then the descriptor belongs to it, not to another with its pid
                poller.poll(max(0.0, deadline - time.monotonic()) * 1e3)
        finally:
            os.close(fd)
    return [one for one in known if lives(one)]


def command_of(pid: int) -> str:
    """The command line of that process; empty if it is unknown."""
    try:
        if _HAS_PROC:
            raw = (_PROC / str(pid) / "cmdline").read_bytes()
            words = raw.rstrip(b"\0").decode(errors="replace").split("\0")
            return " ".join(" ".join(words).split())
        return " ".join(_ps_raw("-o", "command=", "-p", str(pid)).split())
    except OSError:
        return ""


def _parse_stat(text: str) -> Entry:
    # The name is in parentheses, and may contain parentheses itself.
    pid = int(text[: text.index(" ")])
    rest = text[text.rindex(")") + 2 :].split()
    return Entry(pid, int(rest[1]), int(rest[2]), rest[0], rest[19])


def _ps(*which: str) -> str:
    return _ps_raw("-o", "pid=,ppid=,pgid=,stat=,lstart=", *which)


def _ps_raw(*arguments: str) -> str:
    import subprocess  # agents start without it where there is /proc

    done = subprocess.run(
        ["ps", *arguments], capture_output=True, text=True, timeout=_PS_TIMEOUT_S, check=False,
        env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    return done.stdout


def _parse_ps(text: str) -> list[Entry]:
    found: list[Entry] = []
    for line in text.splitlines():
        pid, parent, group, state, began = line.split(maxsplit=4)
        found.append(Entry(int(pid), int(parent), int(group), state[:1], began))
    return found
