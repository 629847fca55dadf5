"""A rank that dies or raises ends the collectives that wait for it, with an error that names it.

The time-outs of these groups are half an hour, so a collective that ends was ended.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ActorError, HostMesh, ProcMesh, RankFailure, SupervisionError
from monarch.spmd import setup_torch_elastic_env
from tests.conftest import Faults
from tests.integration.gates import GateKeeper
from tests.integration.spmd.conftest import Trainers, on
from tests.integration.spmd.trainers import TORCH, AsyncTrainer, Trainer

PATIENCE_S = 60


def failures_of(actors: Any, absent: int, how: str, gate: GateKeeper) -> dict[int, RankFailure]:
    """What each of four ranks tells, when rank `absent` goes while the others sum."""
    call = actors.add_unless.call(absent, how, gate.gate)
    gate.wait_entered(4)
    gate.open()
    with pytest.raises((ActorError, SupervisionError)) as raised:
        call.get(timeout=PATIENCE_S)
    call.exception(timeout=PATIENCE_S)
    for rank in range(4):  # until each of them has told
        one = actors.slice(gpus=rank)
        if how == "raises" or rank != absent:
            one.variables.call_one([]).get(timeout=PATIENCE_S)
    return {failure.rank: failure for failure in raised.value.failures}


def hold_rank_0(actors: Any, gate: GateKeeper) -> Any:
    """Keep rank 0 busy until the gate opens, so that calls wait in its mailbox; that call."""
    held = actors.slice(gpus=0).hold.call_one(gate.gate)
    gate.wait_entered()
    return held


def assert_told(found: dict[int, RankFailure], absent: int, text: str) -> None:
    assert sorted(found) == [0, 1, 2, 3]
    for rank, failure in found.items():
        if rank != absent:
            assert failure.exception_type == "CollectiveError", failure.what
            assert re.search(text, failure.message), failure.message


def test_a_rank_that_is_killed_ends_the_collective_of_all_others(
    trainers: Trainers, gate: GateKeeper, faults: Faults
) -> None:
    procs = trainers(gpus=4)
    procs.init_process_group()
    actors = on(procs, Trainer)
    found = failures_of(actors, 3, "killed", gate)
    assert_told(
        found, 3, r"^trainers\[gpus=3\] \(pid \d+\) died while it ran .*: killed by SIGKILL"
    )
    assert found[3].kind == "proc died"
    rest = procs.slice(gpus=slice(0, 3))
    rest.init_process_group()
    assert list(actors.slice(gpus=slice(0, 3)).add.call(1.0).get(timeout=60).values()) == [3.0] * 3


def test_a_rank_that_raises_ends_it_and_all_ranks_make_a_new_group(
    trainers: Trainers, gate: GateKeeper
) -> None:
    procs = trainers(gpus=4)
    procs.init_process_group()
    actors = on(procs, Trainer)
    assert list(actors.add.call(1.0).get(timeout=60).values()) == [4.0] * 4
    found = failures_of(actors, 1, "raises", gate)
    assert found[1].exception_type == "ValueError"
    assert_told(
        found, 1,
        r"^Trainer\.add_unless on trainers\[gpus=1\] raised ValueError: a bad batch "
        r"\(.*trainers\.py:\d+\), and did not come to collective 2\. ",
    )  # fmt: skip
    with pytest.raises(ActorError, match="did not come to collective 2"):
        actors.add.call(1.0).get(timeout=PATIENCE_S)
    procs.init_process_group()
    assert list(actors.add.call(1.0).get(timeout=60).values()) == [4.0] * 4


def test_a_call_that_begins_late_does_not_come_to_the_next_group(
    trainers: Trainers, gate: GateKeeper
) -> None:
    procs = trainers(gpus=2)
    procs.init_process_group()
    actors = on(procs, Trainer)
    held = hold_rank_0(actors, gate)
    late = actors.raise_before.call(1)  # rank 0 has it in its mailbox
    with pytest.raises(ActorError, match="a bad batch"):
        late.get(timeout=PATIENCE_S)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(procs.init_process_group)
        gate.open()
        held.get(timeout=PATIENCE_S)
        joining.result(timeout=PATIENCE_S)
    others = procs.spawn("others", Trainer)
    assert list(others.add.call(1.0).get(timeout=PATIENCE_S).values()) == [2.0] * 2


def test_a_call_that_waits_as_a_rank_dies_does_not_come_to_the_next_group(
    trainers: Trainers, gate: GateKeeper, faults: Faults
) -> None:
    procs = trainers(gpus=3)
    procs.init_process_group()
    actors = on(procs, Trainer)
    held = hold_rank_0(actors, gate)
    late = actors.kill_before.call(2)  # rank 0 has it in its mailbox
    with pytest.raises(SupervisionError, match="killed by SIGKILL"):
        late.get(timeout=PATIENCE_S)
    rest = procs.slice(gpus=slice(0, 2))
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(rest.init_process_group)
        with pytest.raises(FutureTimeoutError):
            joining.result(timeout=1)
        gate.open()
        held.get(timeout=PATIENCE_S)
        joining.result(timeout=PATIENCE_S)
    others = rest.spawn("others", Trainer)
    assert list(others.add.call(1.0).get(timeout=PATIENCE_S).values()) == [2.0] * 2


def test_an_actor_that_dies_ends_it_too(
    trainers: Trainers, gate: GateKeeper, faults: Faults
) -> None:
    procs = trainers(gpus=4)
    procs.init_process_group()
    found = failures_of(on(procs, Trainer), 0, "exits", gate)
    assert_told(found, 0, r"Trainer\.add_unless on trainers\[gpus=0\] .*SystemExit: exits")


def test_actors_with_a_loop_are_told_too(trainers: Trainers) -> None:
    procs = trainers(gpus=2)
    procs.init_process_group()
    actors = on(procs, AsyncTrainer)
    call = actors.add_unless.call(1)
    with pytest.raises(ActorError) as raised:
        call.get(timeout=PATIENCE_S)
    while len(raised.value.failures) < 2:  # until the rank that waited has told
        pass
    waits, raises = sorted(raised.value.failures, key=lambda failure: failure.rank)
    assert (raises.rank, raises.exception_type) == (1, "ValueError")
    assert (waits.rank, waits.exception_type) == (0, "CollectiveError")
    assert waits.message.startswith(
        "AsyncTrainer.add_unless on trainers[gpus=1] raised ValueError: a bad batch"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the agent keeps connections on Linux")
def test_the_death_of_a_rank_closes_none_of_its_connections(
    trainers: Trainers, gate: GateKeeper, faults: Faults
) -> None:
    """Gloo forgets a send whose write fails, and its collective would wait for half an hour."""
    established = 1
    procs = trainers(gpus=4)
    procs.init_process_group()
    actors = on(procs, Trainer)
    found = failures_of(actors, 3, "killed", gate)
    assert_told(found, 3, r"^trainers\[gpus=3\] \(pid \d+\) died")
    rest = actors.slice(gpus=slice(0, 3))
    states = rest.states_of_ended_connections.call().get(timeout=PATIENCE_S).values()
    assert [list(each) for each in states] == [[established] * 3] * 3


def test_a_rank_that_leaves_its_group_ends_the_collectives_of_the_others(
    trainers: Trainers,
) -> None:
    procs = trainers(gpus=2)
    procs.init_process_group()
    actors = on(procs, Trainer)
    actors.slice(gpus=1).leave.call_one().get(timeout=PATIENCE_S)
    with pytest.raises(ActorError, match=r"closed by peer|reset by peer"):
        actors.slice(gpus=0).add.call_one(1.0).get(timeout=PATIENCE_S)


def test_a_rank_that_raises_after_the_collective_harms_nothing(trainers: Trainers) -> None:
    procs = trainers(gpus=3)
    procs.init_process_group()
    actors = on(procs, Trainer)
    for _ in range(3):
        with pytest.raises(ActorError) as raised:
            actors.raise_after.call(1).get(timeout=PATIENCE_S)
        assert [failure.rank for failure in raised.value.failures] == [1]
        assert list(actors.add.call(1.0).get(timeout=60).values()) == [3.0] * 3


def test_groups_that_a_program_makes_itself_are_watched(
    trainers: Trainers, gate: GateKeeper, faults: Faults
) -> None:
    procs = trainers(gpus=4)
    setup_torch_elastic_env(procs)
    actors = on(procs, Trainer)
    actors.make_own_group.call().get(timeout=PATIENCE_S)
    found = failures_of(actors, 2, "killed", gate)
    assert_told(found, 2, r"^trainers\[gpus=2\] \(pid \d+\) died")


def test_a_rank_that_dies_before_it_joins_ends_the_joining_of_the_others(
    trainers: Trainers, gate: GateKeeper, faults: Faults
) -> None:
    procs = trainers(gpus=3)
    actors = on(procs, Trainer)
    actors.slice(gpus=2).die_when_it_joins.call_one(gate.gate).get(timeout=PATIENCE_S)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(procs.init_process_group)
        gate.wait_entered()
        gate.open()
        with pytest.raises(SupervisionError, match=r"trainers\[gpus=2\] \(pid \d+\) died"):
            joining.result(timeout=PATIENCE_S)
    rest = procs.slice(gpus=slice(0, 2))
    rest.init_process_group()
    assert list(actors.slice(gpus=slice(0, 2)).add.call(1.0).get(timeout=60).values()) == [2.0] * 2


def test_a_rank_that_dies_before_its_peers_connect_to_it_ends_the_joining_of_the_others(
    trainers: Trainers, faults: Faults
) -> None:
    """Gloo has no connection to that rank, and waits for one until its own time-out."""
    procs = trainers(gpus=4)
    actors = on(procs, Trainer)
    actors.slice(gpus=1).die_before_it_connects.call_one().get(timeout=PATIENCE_S)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(procs.init_process_group)
        with pytest.raises(SupervisionError, match=r"trainers\[gpus=1\] \(pid \d+\) died"):
            joining.result(timeout=PATIENCE_S)
    rest = procs.slice(gpus=slice(2, 4))
    rest.init_process_group()
    assert list(actors.slice(gpus=slice(2, 4)).add.call(1.0).get(timeout=60).values()) == [2.0] * 2


def test_a_rank_that_is_restarted_joins_the_next_group(
    spawn_procs: Callable[..., ProcMesh], gate: GateKeeper
) -> None:
    procs = spawn_procs({"gpus": 4}, name="trainers", preload=TORCH, restart="on-failure")
    procs.init_process_group()
    actors = on(procs, Trainer)
    found = failures_of(actors, 2, "killed", gate)
    assert_told(found, 2, r"^trainers\[gpus=2\] \(pid \d+\) died while .*: killed by SIGKILL")
    assert found[2].restarted == 1
    procs.init_process_group()
    assert list(actors.add.call(1.0).get(timeout=60).values()) == [4.0] * 4


def test_a_rank_of_another_host_that_is_killed_ends_it(
    two_hosts: HostMesh, gate: GateKeeper, faults: Faults
) -> None:
    procs = two_hosts.spawn_procs({"gpus": 2}, name="trainers", preload=TORCH)
    procs.init_process_group()
    actors = on(procs.flatten("gpus"), Trainer)
    found = failures_of(actors, 3, "killed", gate)
    assert_told(found, 3, r"^trainers\[hosts=1, gpus=1\] \(pid \d+\) died")
    procs.stop().get(timeout=PATIENCE_S)


def test_nothing_is_left_in_the_directory_of_the_session(
    trainers: Trainers, own_base_directory: Path
) -> None:
    procs: ProcMesh = trainers(gpus=2)
    procs.init_process_group()
    procs.stop().get(timeout=PATIENCE_S)
    assert list(own_base_directory.rglob("*.group")) == []


# --- collectives that fail by themselves ----------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["add", "meet"])
def test_a_group_is_made_anew_after_a_collective_that_a_rank_missed(
    trainers: Trainers, endpoint: str
) -> None:
    """Its connections are broken, so it would fail for ever."""
    procs = trainers(gpus=3)
    procs.init_process_group(timeout=2)
    actors = on(procs, Trainer)
    rest = actors.slice(gpus=slice(0, 2))  # the third one does not come
    call = rest.add.call(1.0) if endpoint == "add" else rest.meet.call()
    with pytest.raises(ActorError, match=r"Timed out waiting|(failed to pass|reached) monitoredB"):
        call.get(timeout=PATIENCE_S)
    call.exception(timeout=PATIENCE_S)
    procs.init_process_group(timeout=2)
    assert list(actors.add.call(1.0).get(timeout=PATIENCE_S).values()) == [3.0] * 3


TEXTS = [
    "s3: Broken pipe", "Connection reset by the database", "no module nvidia-nccl-cu12",
    "Connection closed by peer", "gloo/transport/tcp/pair.cc: Connection closed by peer",
]  # fmt: skip


def test_an_error_of_the_program_is_told_as_it_is_whatever_it_says(trainers: Trainers) -> None:
    procs = trainers(gpus=2)
    procs.init_process_group()
    actors = on(procs, Trainer)
    for _ in range(2):
        for text in TEXTS:
            with pytest.raises(ActorError, match=f"raised RuntimeError: {re.escape(text)}"):
                actors.slice(gpus=0).fail.call_one(text).get(timeout=PATIENCE_S)
        assert list(actors.add.call(1.0).get(timeout=PATIENCE_S).values()) == [2.0] * 2
    with pytest.raises(ActorError, match="a bad batch"):
        actors.raise_before.call(1).get(timeout=PATIENCE_S)
    with pytest.raises(ActorError, match=f"raised RuntimeError: {TEXTS[0]}"):
        actors.slice(gpus=0).fail.call_one(TEXTS[0]).get(timeout=PATIENCE_S)


def test_an_actor_serves_others_while_an_error_waits_for_its_reason(trainers: Trainers) -> None:
    procs = trainers(gpus=2)
    procs.init_process_group()
    one = on(procs, AsyncTrainer).slice(gpus=0)
    broken = one.add_on_broken_connections.call_one()
    assert one.end_groups.call_one("the test has ended them").get(timeout=PATIENCE_S)
    with pytest.raises(ActorError, match="CollectiveError: the test has ended them"):
        broken.get(timeout=PATIENCE_S)
