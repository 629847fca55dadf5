"""Gates at which ranks wait to be killed, meshes whose ranks are restarted, limits of memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch._src.system.oom import Group, group_of
from monarch.actor import BootstrapCommand, ProcMesh, default_bootstrap_cmd
from tests.fault.restarted_actors import OFTEN
from tests.integration.gates import GateKeeper, gate_in

MIB = 1 << 20


@pytest.fixture
def renewed(spawn_procs: Callable[..., ProcMesh]) -> ProcMesh:
    """Three procs that are started again."""
    return spawn_procs({"gpus": 3}, name="mesh", restart=OFTEN)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[GateKeeper]:
    """A gate that ranks can be held at."""
    with gate_in(tmp_path) as keeper:
        yield keeper


@pytest.fixture
def cgroup() -> Iterator[Group]:
    """A control group of our own that may hold 64 MiB."""
    own = group_of(Path("/proc/self/cgroup").read_text())
    if own is None:
        pytest.skip("this process is in no memory control group that it can see")
    folder = own._folder / f"monarch-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    limits = (folder / "memory.max", folder / "memory.limit_in_bytes")
    limit = next((path for path in limits if path.exists()), None)
    try:
        if limit is None:
            pytest.skip("the memory controller is not enabled for control groups made here")
        limit.write_text(str(64 * MIB))
        yield Group(own.path, folder, v2=limit.name == "memory.max")
    finally:
        folder.rmdir()


def allow(cgroup: Group, mib: int) -> None:
    """Change what the group may hold."""
    name = "memory.max" if cgroup._v2 else "memory.limit_in_bytes"
    (cgroup._folder / name).write_text(str(mib * MIB))


def within(cgroup: Group) -> BootstrapCommand:
    """How a process starts that belongs to that group."""
    shell = shutil.which("sh")
    assert shell is not None
    own = default_bootstrap_cmd()
    enter = f'echo $$ > {cgroup._folder}/cgroup.procs; exec "$0" "$@"'
    return BootstrapCommand(shell, None, ["-c", enter, own.program, *own.args])
