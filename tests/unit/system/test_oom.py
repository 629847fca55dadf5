"""Whom the kernel has killed for want of memory, as far as its counts can tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch._src.system import oom
from monarch._src.system.oom import KillsForMemory, group_of

V1 = "9:cpuset:/\n4:memory:/a/b\n0::/\n"
V2 = "0::/a/b\n"


def count(folder: Path, kills: int, *, v2: bool = True) -> Path:
    """A control group whose count is that."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "memory.events.local" if v2 else "memory.oom_control"
    (folder / name).write_text(f"oom 7\noom_kill {kills}\noom_group_kill 0\n")
    return folder


@pytest.mark.parametrize("v2", [True, False])
def test_counts_and_limits_are_read_in_either_version(tmp_path: Path, v2: bool) -> None:
    top = tmp_path if v2 else tmp_path / "memory"
    folder = count(top / "a" / "b", 3, v2=v2)
    group = group_of(V2 if v2 else V1, tmp_path)
    assert group is not None
    assert (group.path, group.kills(), group.limit()) == ("/a/b", 3, None)
    name = "memory.max" if v2 else "memory.limit_in_bytes"
    (folder / name).write_text("max\n" if v2 else "9223372036854771712\n")
    assert group.limit() is None
    (folder.parent / name).write_text("4096\n")
    assert group.limit() == 4096, "what its ancestor may hold is a limit too"


def test_a_container_that_sees_only_its_own_group_finds_it_at_the_top(tmp_path: Path) -> None:
    count(tmp_path / "memory", 5, v2=False)
    group = group_of(V1, tmp_path)
    assert group is not None
    assert group.kills() == 5


def test_where_there_is_no_group_there_is_none(tmp_path: Path) -> None:
    assert group_of(V2, tmp_path) is None
    assert group_of("", tmp_path) is None


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KillsForMemory:
    """The agent is in group `/`, pid 1 and 2 are in `/a/b`, pid 3 in none."""
    texts = {os.getpid(): "0::/\n", 1: V2, 2: V2, 3: "", 4: "0::/\n"}
    monkeypatch.setattr(oom, "_membership", lambda pid: texts[pid])
    count(tmp_path, 10)
    count(tmp_path / "a" / "b", 20)
    (tmp_path / "vmstat").write_text("pgfault 1\noom_kill 30\n")
    return KillsForMemory(tmp_path, tmp_path / "vmstat")


def test_a_kill_in_a_group_of_its_own_is_a_proof(host: KillsForMemory, tmp_path: Path) -> None:
    host.proc_started("1.0", 1, forked=False)
    assert host.explain("1.0", 100) is None, "nothing has risen"
    count(tmp_path / "a" / "b", 21)
    found = host.explain("1.0", 100)
    assert found is not None
    assert (found.where, found.cgroup, found.kills, found.held) == ("cgroup", "/a/b", 1, 100)
    assert not found.shared
    assert host.explain("1.0", 100) is None, "each kill explains one death"


def test_two_deaths_by_two_kills_are_both_explained_and_a_third_is_not(
    host: KillsForMemory, tmp_path: Path
) -> None:
    host.proc_started("1.0", 1, forked=False)
    host.proc_started("1.1", 2, forked=False)
    count(tmp_path / "a" / "b", 22)
    first = host.explain("1.0", 0)
    assert first is not None
    assert (first.shared, first.held) == (True, None)
    host.forget("1.0")
    assert host.explain("1.1", 0) is not None
    assert host.explain("1.1", 0) is None


def test_in_the_group_of_the_agent_it_is_evidence(host: KillsForMemory, tmp_path: Path) -> None:
    host.proc_started("1.0", 4, forked=False)
    count(tmp_path, 11)
    found = host.explain("1.0", 100)
    assert found is not None
    assert (found.where, found.shared) == ("cgroup", True)


def test_a_fork_is_in_the_group_of_the_agent_and_nobody_has_to_look(
    host: KillsForMemory, tmp_path: Path
) -> None:
    unknown = 99
    host.proc_started("1.0", unknown, forked=True)
    count(tmp_path, 11)
    found = host.explain("1.0", 100)
    assert found is not None
    assert (found.where, found.cgroup, found.shared) == ("cgroup", "/", True)


def test_the_whole_host_is_looked_at_only_for_who_is_in_no_group(
    host: KillsForMemory, tmp_path: Path
) -> None:
    host.proc_started("1.0", 1, forked=False)
    host.proc_started("1.1", 3, forked=False)
    (tmp_path / "vmstat").write_text("pgfault 1\noom_kill 31\n")
    assert host.explain("1.0", 100) is None
    found = host.explain("1.1", 100)
    assert found is not None
    assert (found.where, found.shared) == ("host", True)


def test_what_others_died_of_before_explains_nothing(
    host: KillsForMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.proc_started("1.0", 1, forked=False)
    host.forget("1.0")
    count(tmp_path / "a" / "b", 29)
    host.proc_started("2.0", 1, forked=False)
    assert host.explain("2.0", 100) is None
    monkeypatch.setattr(oom, "LOOK_EVERY_S", 0.0)
    count(tmp_path, 19)
    host.proc_started("2.1", 4, forked=False)
    assert host.explain("2.1", 100) is None
