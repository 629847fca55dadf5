"""The process of a host agent, seen by the client that started it."""

from __future__ import annotations

import subprocess
import sys

from monarch._src.mesh.agent_process import AgentProcess
from monarch._src.system.process_table import began_of
from tests.integration.programs import watched


def test_its_end_is_seen_while_another_thread_is_waiting_for_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    agent = AgentProcess(child.pid, began_of(child.pid), child)
    assert not agent.has_ended()
    # Held by whoever is in `wait`, from before the process is gone until its status is known.
    with watched([child.pid]) as processes, getattr(child, "_waitpid_lock"):  # noqa: B009
        assert child.stdin is not None
        child.stdin.close()
        processes.wait_all_ended()
        assert agent.has_ended()
    assert agent.wait(60)
    assert agent.has_ended()
