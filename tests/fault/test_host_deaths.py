"""The host agent or its zygote is killed: its procs end, calls tell, and the next mesh works."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from monarch.actor import ProcMesh, SupervisionError, this_host
from monarch.observe import snapshot
from tests.conftest import Faults
from tests.integration.failing_actors import Faulty
from tests.integration.gates import GateKeeper
from tests.integration.programs import watched
from tests.integration.sample_actors import Echo, Teller

Spawn = Callable[..., ProcMesh]


def agent() -> psutil.Process:
    """The host agent of this process's session."""
    (found,) = [child for child in psutil.Process().children() if child.children()]
    return found


def zygote() -> psutil.Process:
    """The parent of all procs."""
    (found,) = [child for child in agent().children() if child.children()]
    return found


@pytest.fixture(params=[agent, zygote], ids=["agent", "zygote"])
def victim(request: pytest.FixtureRequest, agent_errors: Callable[[], list[str]]) -> Any:
    """Which process of the host is killed. An agent says in its log that its zygote is gone."""
    yield request.param
    if request.param is zygote:
        assert all("the zygote is gone" in line for line in agent_errors())


def test_procs_end_calls_tell_and_the_next_mesh_is_on_a_new_host(
    faults: Faults, gate: GateKeeper, own_base_directory: Path, victim: Callable[[], psutil.Process]
) -> None:
    procs = this_host().spawn_procs({"gpus": 2}, name="lost")
    pids = procs.spawn("teller", Teller).pid.call().get().values()
    faulty = procs.spawn("faulty", Faulty)
    answers = [faulty.hold_on.call([0, 1], gate.gate), faulty.pid.call()]
    gate.wait_entered(2)
    first = agent()
    with watched([*pids, first.pid, zygote().pid]) as processes:
        os.kill(victim().pid, signal.SIGKILL)
        for answer in answers:
            with pytest.raises(SupervisionError, match=r"lost\[gpus=\d\]") as caught:
                answer.get(timeout=60)
            assert {failure.rank for failure in caught.value.failures} <= {0, 1}
        processes.wait_all_ended()
    assert "lost" in str(faults.take())
    with pytest.raises(SupervisionError):
        faulty.pid.call().get(timeout=60)
    with pytest.raises(SupervisionError):
        procs.spawn("another", Echo).rank.call().get(timeout=60)

    fresh = this_host().spawn_procs({"gpus": 2}, name="fresh")
    assert fresh.spawn("echo", Echo).rank.call().get(timeout=60).values() == [0, 1]
    assert agent().pid != first.pid
    assert len(list(own_base_directory.glob("monarch-*"))) == 1
    with pytest.raises(SupervisionError):
        faulty.pid.call().get(timeout=60)
    procs.stop().get(timeout=60)
    assert [seen.name for seen in snapshot()] == ["fresh"]
    fresh.stop().get(timeout=60)


def test_a_lost_host_is_told_as_such(faults: Faults) -> None:
    procs = this_host().spawn_procs({"gpus": 2}, name="lost")
    teller = procs.spawn("teller", Teller)
    teller.pid.call().get()
    lost = agent()
    os.kill(lost.pid, signal.SIGKILL)
    fault = faults.take()
    assert {failure.kind for failure in fault.failures} == {"host lost"}
    with pytest.raises(SupervisionError) as caught:
        teller.pid.call().get(timeout=60)
    assert {failure.kind for failure in caught.value.failures} == {"host lost"}
    assert f"the host agent of lost[gpus=0] is gone: its process (pid {lost.pid}) ended" in str(
        caught.value
    )
    (seen,) = snapshot()
    assert seen.state == "failed"
    assert {row.failure for row in seen.rows} == {"the host agent is gone"}


def test_what_was_started_on_a_lost_host_stops_at_once(faults: Faults) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    procs.initialized.get(timeout=60)
    with watched([agent().pid]) as processes:
        os.kill(agent().pid, signal.SIGKILL)
        procs.stop().get(timeout=60)
        procs.stop().get(timeout=60)
        processes.wait_all_ended()


def test_the_moment_after_an_agent_has_ended_another_one_is_started(faults: Faults) -> None:
    for _ in range(5):
        procs = this_host().spawn_procs({"gpus": 1})
        procs.initialized.get(timeout=60)
        with watched([agent().pid]) as processes:
            os.kill(agent().pid, signal.SIGKILL)
            processes.wait_all_ended()
        assert this_host().spawn_procs().spawn("echo", Echo).rank.call().get(timeout=60)


def test_an_agent_killed_before_its_procs_are_up(faults: Faults, gate: GateKeeper) -> None:
    procs = this_host().spawn_procs({"gpus": 4}, bootstrap=gate.gate.pass_through)
    answer = procs.spawn("teller", Teller).pid.call()
    gate.wait_entered(4)
    os.kill(agent().pid, signal.SIGKILL)
    assert isinstance(answer.exception(timeout=60), SupervisionError)
    with pytest.raises(SupervisionError):
        procs.initialized.get(timeout=60)
    faults.take()


def test_an_agent_killed_as_soon_as_it_is_there(faults: Faults) -> None:
    procs = this_host().spawn_procs({"gpus": 4})
    answer = procs.spawn("teller", Teller).pid.call()
    (child,) = psutil.Process().children()
    os.kill(child.pid, signal.SIGKILL)
    ends = [procs.initialized.exception(timeout=60), answer.exception(timeout=60)]
    # Its procs may have come up before, and may even have answered: each says what it knows.
    assert {type(end) for end in ends} <= {SupervisionError, type(None)}
    with pytest.raises(SupervisionError):
        procs.spawn("another", Echo).rank.call().get(timeout=60)
    faults.take()


def test_an_agent_that_is_asked_to_end_takes_its_procs_along(faults: Faults) -> None:
    procs = this_host().spawn_procs({"gpus": 2}, name="lost")
    pids = procs.spawn("teller", Teller).pid.call().get().values()
    asked = agent().pid
    with watched([*pids, asked]) as processes:
        os.kill(asked, signal.SIGTERM)
        processes.wait_all_ended()
    faults.take()
    with pytest.raises(SupervisionError, match="lost"):
        procs.spawn("echo", Echo).rank.call().get(timeout=60)
