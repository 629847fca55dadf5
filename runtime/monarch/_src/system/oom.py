"""Finds out whether the kernel has killed a process for lack of memory.

Runs in: the host agent. The kernel does not report the victim. It only counts kills: in the control
group of the victim (v2: `memory.events.local`, v1: `memory.oom_control`), even if the whole host
was short of memory; and for the whole host (`/proc/vmstat`), which is used only for processes
without a group. So the agent reads the counts when a process says hello, and again when SIGKILL has
ended one. If a count has risen and no other process could be the victim, that is proof; in a shared
group it is evidence, and reported as such. Each kill explains one death.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from monarch._src.failures.report import OutOfMemory
from monarch._src.system.process import read_entry

_GROUPS = Path("/sys/fs/cgroup")
_VMSTAT = Path("/proc/vmstat")
_V2, _V1 = "memory.events.local", "memory.oom_control"
LOOK_EVERY_S = 1.0
_NO_LIMIT = 1 << 60


class Group:
    """A memory control group, of either version."""

    def __init__(self, path: str, folder: Path, *, v2: bool) -> None:
        self.path = path  # as the kernel names it
        self._folder = folder
        self._v2 = v2

    def kills(self) -> int | None:
        """How many processes of the group were killed for memory; None if that is unknown."""
        return _entry(self._folder / (_V2 if self._v2 else _V1))

    def limit(self) -> int | None:
        """Its limit in bytes: the least of its own and its ancestors' limits."""
        name = "memory.max" if self._v2 else "memory.limit_in_bytes"
        limits: list[int] = []
        for folder in (self._folder, *self._folder.parents):
            text = _read(folder / name).strip()
            if text.isdigit() and int(text) < _NO_LIMIT:
                limits.append(int(text))
        return min(limits, default=None)


class KillsForMemory:
    """The last counts of the host and of the groups of all procs."""

    def __init__(self, groups: Path = _GROUPS, kills_of_host: Path = _VMSTAT) -> None:
        self._root = groups
        self._host = kills_of_host
        self._own_text = _membership(os.getpid())
        self._own = group_of(self._own_text, groups)
        self._seen: dict[str, int] = {}  # by path; "" is the whole host
        self._of: dict[str, Group] = {}  # by node
        self._looked_at = -LOOK_EVERY_S

    def proc_started(self, node: str, pid: int, *, forked: bool) -> None:
        """A proc has started. `forked`: it shares the group of the agent."""
        group = self._own if forked else self._group(_membership(pid))
        if group is not None:
            self._of[node] = group
            if group.path not in self._seen:
                self._look(group.path, group.kills())
        now = time.monotonic()
        if now - self._looked_at >= LOOK_EVERY_S:  # earlier kills must not explain later deaths
            self._looked_at = now
            self._look("", _entry(self._host))
            if self._own is not None:
                self._look(self._own.path, self._own.kills())

    def forget(self, node: str) -> None:
        """A proc has ended."""
        group = self._of.pop(node, None)
        own = "" if self._own is None else self._own.path
        if group is not None and group.path not in (own, *(g.path for g in self._of.values())):
            self._seen.pop(group.path, None)

    def explain(self, node: str, peak_bytes: int) -> OutOfMemory | None:
        """The lack of memory because of which SIGKILL ended a proc; None if there was none."""
        group = self._of.get(node)
        held = peak_bytes or None
        if group is None:
            risen = self._risen("", _entry(self._host))
            return OutOfMemory("host", None, held, "", risen, shared=True) if risen else None
        risen = self._risen(group.path, group.kills())
        if not risen:
            return None
        others = sum(g.path == group.path for g in self._of.values()) > 1
        shared = others or (self._own is not None and group.path == self._own.path)
        return OutOfMemory("cgroup", group.limit(), held, group.path, risen, shared)

    def _group(self, text: str) -> Group | None:
        return self._own if text == self._own_text else group_of(text, self._root)

    def _look(self, path: str, kills: int | None) -> None:
        if kills is not None:
            self._seen[path] = kills

    def _risen(self, path: str, kills: int | None) -> int:
        seen = self._seen.get(path)
        if kills is None or seen is None or kills <= seen:
            return 0
        self._seen[path] = seen + 1
        return kills - seen


def _membership(pid: int) -> str:
    return _read(f"/proc/{pid}/cgroup")


def group_of(membership: str, groups: Path = _GROUPS) -> Group | None:
    """The memory control group in the text of `/proc/PID/cgroup`; None if it is not visible."""
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        v2 = number == "0" and not controllers
        if not v2 and "memory" not in controllers.split(","):
            continue
        top = groups if v2 else groups / "memory"
        # A container may see only its own group, mounted at the top, with the host's path.
        for folder in (top / path.lstrip("/"), top):
            if (folder / (_V2 if v2 else _V1)).exists():
                return Group(path, folder, v2=v2)
    return None


def _entry(path: Path) -> int | None:
    for line in _read(path).splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None


def _read(path: Path | str) -> str:
    try:
        return read_entry(str(path))
    except OSError:
        return ""
