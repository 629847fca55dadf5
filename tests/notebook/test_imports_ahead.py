"""A kernel's libraries are imported for ranks before the first mesh is spawned."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from monarch._src.session.listing import snapshot_sessions
from monarch._src.system.process_table import descendants
from tests.leaks import PATIENCE_S
from tests.notebook.kernel import Kernel

pytest.importorskip("numpy")
NUMPY = "_multiarray_umath"


def agents(kernel: Kernel) -> set[int]:
    """The agents that this kernel has started; those of other tests come and go."""
    started = {one.pid for one in descendants(getattr(kernel.manager.provisioner, "pid", 0))}
    found = (one.session.agent for one in snapshot_sessions(None, PATIENCE_S))
    return started & {agent.pid for agent in found if agent is not None}


def new_agent(kernel: Kernel) -> int:
    """The agent that the kernel starts, or has started."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := agents(kernel)):
        assert time.monotonic() < deadline, "no session was started"
    (agent,) = found
    return agent


def has_numpy(pid: int) -> bool:
    try:
        return NUMPY in Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # it has ended
        return False


def test_what_a_cell_imports_is_there_for_the_first_spawn(fresh_kernel: Kernel) -> None:
    fresh_kernel.ok("1 + 1")
    assert not agents(fresh_kernel)  # a kernel without libraries starts nothing
    fresh_kernel.ok("import numpy as np")
    agent = new_agent(fresh_kernel)
    deadline = time.monotonic() + PATIENCE_S
    while not any(has_numpy(one.pid) for one in descendants(agent)):
        assert time.monotonic() < deadline, "nothing was imported ahead"
    fresh_kernel.ok("%monarch spawn workers gpus=2")
    fresh_kernel.ok("%%monarch on workers\nimport os\nopen(f'/proc/{os.getppid()}/maps').read()")
    assert fresh_kernel.value(f"[{NUMPY!r} in maps for maps in _.values()]") == "[True, True]"


def test_a_session_that_was_shut_down_is_not_started_for_imports(fresh_kernel: Kernel) -> None:
    fresh_kernel.ok("import numpy as np")
    new_agent(fresh_kernel)
    fresh_kernel.ok("from monarch.actor import shutdown_context; shutdown_context().get()")
    fresh_kernel.ok("1 + 1")
    assert not agents(fresh_kernel)


def test_nothing_is_imported_ahead_if_the_user_wants_none(fresh_kernel: Kernel) -> None:
    fresh_kernel.ok("from monarch.config import configure; configure(preload=())")
    fresh_kernel.ok("import numpy as np")
    assert not agents(fresh_kernel)
