"""Worker hosts on loopback, used as one host is: calls, casts, output, deaths, stops."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from monarch.actor import (
    ActorError,
    Channel,
    HostMesh,
    ProcMesh,
    RestartedError,
    SupervisionError,
    this_host,
)
from monarch.observe import flush_output, snapshot
from tests.conftest import Faults
from tests.integration.worker_actors import CLIENT, WorkerActor
from tests.workers import PATIENCE_S, Worker, attached, workers


@pytest.fixture(scope="module")
def hosts(two: list[Worker]) -> HostMesh:
    return attached(two)


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> ProcMesh:
    return hosts.spawn_procs({"gpus": 2}, name="spread")


@pytest.fixture(scope="module")
def worker_actors(procs: ProcMesh) -> WorkerActor:
    return procs.spawn("worker_actors", WorkerActor)


# --- used as one host is --------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="it tells by eventfds, which Linux has")
def test_an_agent_that_has_done_what_it_was_woken_for_sleeps(
    two: list[Worker], worker_actors: WorkerActor
) -> None:
    worker_actors.pid.call().get()
    for one in two:
        worker = psutil.Process(one.process.pid)
        for process in (worker, *worker.children()):  # the agent is one of them
            deadline = time.monotonic() + PATIENCE_S
            while any(counts := wake_ups(process.pid)):
                assert time.monotonic() < deadline, f"wake-ups that nobody takes: {counts}"


def wake_ups(pid: int) -> list[int]:
    """What its eventfds count; one that is not 0 keeps whoever waits for it awake."""
    facts = "".join(info.read_text() for info in Path(f"/proc/{pid}/fdinfo").iterdir())
    counts = (line.split() for line in facts.splitlines() if line.startswith("eventfd-count:"))
    return [int(count, 16) for _, count in counts]


def test_hosts_are_a_dim_in_front_of_those_of_each_host(
    hosts: HostMesh, procs: ProcMesh, worker_actors: WorkerActor
) -> None:
    assert hosts.sizes == {"hosts": 2}
    assert procs.sizes == worker_actors.sizes == {"hosts": 2, "gpus": 2}
    places = worker_actors.place.call().get(timeout=PATIENCE_S)
    assert [dict(point) for point, _ in places.items()] == list(places.values())


def test_ranks_of_one_host_are_children_of_its_worker(
    two: list[Worker], worker_actors: WorkerActor
) -> None:
    parents = [
        {
            parent_of(parent_of(pid))
            for pid in worker_actors.slice(hosts=at).pid.call().get().values()
        }
        for at in range(2)
    ]
    assert parents == [{one.process.pid} for one in two]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_slice_of_hosts_has_procs_of_its_own(hosts: HostMesh) -> None:
    second = hosts.slice(hosts=1)
    mesh = second.spawn_procs({"gpus": 2}, name="second")
    assert mesh.sizes == {"gpus": 2}
    pids = mesh.spawn("a", WorkerActor).pid.call().get(timeout=PATIENCE_S)
    assert len(set(pids.values())) == 2
    mesh.stop().get(timeout=PATIENCE_S)


def test_messages_of_one_sender_stay_in_order(worker_actors: WorkerActor) -> None:
    one = worker_actors.slice(hosts=1, gpus=0)
    answers = [one.add.call_one(1) for _ in range(200)]
    counts = [answer.get(timeout=PATIENCE_S) for answer in answers]
    assert counts == list(range(counts[0], counts[0] + 200))


def test_large_arguments_and_answers_arrive_as_they_were(worker_actors: WorkerActor) -> None:
    one = worker_actors.slice(hosts=1, gpus=1)
    value = os.urandom(3 << 20)
    assert one.same.call_one(value).get(timeout=PATIENCE_S) == value
    buffer = bytearray(os.urandom(1 << 20))
    assert one.same.call_one([buffer, {"a": buffer}]).get(timeout=PATIENCE_S)[0] == buffer


def test_a_rank_calls_ranks_of_another_host_and_of_the_clients(worker_actors: WorkerActor) -> None:
    first, last = worker_actors.slice(hosts=0, gpus=0), worker_actors.slice(hosts=1, gpus=1)
    assert first.ask.call_one(last).get() == last.pid.call_one().get(timeout=PATIENCE_S)
    assert last.ask.call_one(first).get() == first.pid.call_one().get(timeout=PATIENCE_S)
    others = worker_actors.slice(hosts=0)
    assert last.ask_all.call_one(others).get() == list(others.pid.call().get().values())
    here = this_host().spawn_procs(name="here")
    local = here.spawn("local", WorkerActor)
    assert last.ask.call_one(local).get(timeout=PATIENCE_S) == local.pid.call_one().get()
    assert local.ask.call_one(last).get(timeout=PATIENCE_S) == last.pid.call_one().get()
    here.stop().get(timeout=PATIENCE_S)


def test_ports_of_the_client_are_reached_from_any_host(worker_actors: WorkerActor) -> None:
    port, receiver = Channel[str].open()
    for host in range(2):
        worker_actors.slice(hosts=host, gpus=0).tell.call_one(port, f"from {host}").get()
        assert receiver.recv().get(timeout=PATIENCE_S) == f"from {host}"


def test_errors_say_on_which_host_and_the_actor_lives(worker_actors: WorkerActor) -> None:
    one = worker_actors.slice(hosts=1, gpus=0)
    with pytest.raises(ActorError, match="it was so") as caught:
        one.fail.call_one("it was so").get(timeout=PATIENCE_S)
    assert caught.value.failures[0].host == os.uname().nodename
    assert one.same.call_one(1).get(timeout=PATIENCE_S) == 1


def test_what_ranks_print_reaches_the_client(
    worker_actors: WorkerActor, capfd: pytest.CaptureFixture[str]
) -> None:
    worker_actors.say.call("hello from afar").get(timeout=PATIENCE_S)
    flush_output(timeout=PATIENCE_S)
    assert capfd.readouterr().out.count("hello from afar") == 4


def test_an_actor_on_a_worker_spawns_on_its_own_host(
    two: list[Worker], worker_actors: WorkerActor
) -> None:
    pids = worker_actors.slice(hosts=1, gpus=0).spawn_here.call_one().get(timeout=PATIENCE_S)
    assert len(set(pids)) == 2


def test_an_actor_spawns_on_another_host_and_takes_that_with_it(
    hosts: HostMesh, worker_actors: WorkerActor, faults: Faults
) -> None:
    mesh = hosts.slice(hosts=0).spawn_procs(name="owners")
    owner = mesh.spawn("owner", WorkerActor)
    shown, pid = owner.spawn_on.call_one(hosts.slice(hosts=1)).get(timeout=PATIENCE_S)
    assert shown == f"<ProcMesh 'from afar' on {os.uname().nodename}>"
    inner = psutil.Process(pid)
    with pytest.raises(SupervisionError):
        owner.die.call_one().get(timeout=PATIENCE_S)
    assert psutil.wait_procs([inner], timeout=PATIENCE_S)[1] == []
    faults.take()
    mesh.stop().get(timeout=PATIENCE_S)


def test_waiting_in_a_cycle_over_hosts_is_told(worker_actors: WorkerActor) -> None:
    first, last = worker_actors.slice(hosts=0, gpus=1), worker_actors.slice(hosts=1, gpus=1)
    with pytest.raises(ActorError, match="DeadlockError"):
        first.ask_back.call_one(last, first).get(timeout=PATIENCE_S)


def test_options_of_processes_reach_each_rank_of_each_host(hosts: HostMesh) -> None:
    mesh = hosts.spawn_procs(
        {"gpus": 2},
        name="optional",
        bootstrap=lambda: os.environ.update(BOOTED="yes"),
        env=lambda point: {"PLACE": f"{point['hosts']}/{point['gpus']}", "PYTHONHASHSEED": "7"},
    )
    ranks = mesh.spawn("ranks", WorkerActor)
    places = ranks.variable.call("PLACE").get(timeout=PATIENCE_S)
    assert list(places.values()) == ["0/0", "0/1", "1/0", "1/1"]
    assert set(ranks.variable.call("BOOTED").get(timeout=PATIENCE_S).values()) == {"yes"}
    mesh.stop().get(timeout=PATIENCE_S)


def test_a_rank_of_a_worker_that_dies_is_started_again_if_it_should_be(hosts: HostMesh) -> None:
    mesh = hosts.spawn_procs({"gpus": 1}, name="restless", restart="on-failure")
    ranks = mesh.spawn("ranks", WorkerActor)
    one, other = ranks.slice(hosts=1), ranks.slice(hosts=0)
    before = one.pid.call_one().get(timeout=PATIENCE_S)
    assert other.ask.call_one(one).get(timeout=PATIENCE_S) == before
    with pytest.raises(RestartedError):
        one.die.call_one().get(timeout=PATIENCE_S)
    after = one.pid.call_one().get(timeout=PATIENCE_S)
    assert after != before
    assert other.ask.call_one(one).get(timeout=PATIENCE_S) == after
    mesh.stop().get(timeout=PATIENCE_S)


def test_a_mesh_of_workers_is_killed(hosts: HostMesh) -> None:
    mesh = hosts.spawn_procs(name="busy")
    mesh.initialized.get(timeout=PATIENCE_S)
    mesh.kill().get(timeout=PATIENCE_S)


def test_a_snapshot_shows_the_ranks_of_all_hosts(procs: ProcMesh) -> None:
    procs.initialized.get(timeout=PATIENCE_S)
    (found,) = [mesh for mesh in snapshot(PATIENCE_S) if mesh.name == "spread"]
    assert [row.point for row in found.rows] == [dict(p) for p in procs.extent.points()]
    assert {row.state for row in found.rows} == {"idle"}


def test_a_cast_to_many_ranks_is_one_message_a_host_and_its_answers_come_back(
    hosts: HostMesh,
) -> None:
    many = hosts.spawn_procs({"gpus": 20}, name="many")
    ranks = many.spawn("ranks", WorkerActor)
    places = ranks.place.call().get(timeout=PATIENCE_S)
    assert [dict(point) for point, _ in places.items()] == list(places.values())
    middle = ranks.slice(gpus=slice(2, 19))
    for amount in (1, 10):
        ranks.slice(hosts=0, gpus=3).add.broadcast(100)
        middle.add.broadcast(amount)
    sums = ranks.add.call(0).get(timeout=PATIENCE_S)
    for point, value in sums.items():
        cast = 11 if 2 <= point["gpus"] < 19 else 0
        assert value == cast + (200 if dict(point) == {"hosts": 0, "gpus": 3} else 0)
    many.stop().get(timeout=PATIENCE_S)


# --- deaths ---------------------------------------------------------------------------------------


def test_a_rank_that_is_killed_raises_as_it_does_on_one_host_and_others_work_on(
    hosts: HostMesh, faults: Faults
) -> None:
    mesh = hosts.spawn_procs({"gpus": 2}, name="faulty")
    ranks = mesh.spawn("ranks", WorkerActor)
    victim, other = ranks.slice(hosts=1, gpus=0), ranks.slice(hosts=0, gpus=1)
    os.kill(victim.pid.call_one().get(timeout=PATIENCE_S), signal.SIGKILL)
    with pytest.raises(SupervisionError, match="killed by SIGKILL") as caught:
        victim.add.call_one(1).get(timeout=PATIENCE_S)
    assert caught.value.failures[0].point == {"hosts": 1, "gpus": 0}
    assert other.add.call_one(1).get(timeout=PATIENCE_S) == 1
    with pytest.raises(ActorError, match=r"SupervisionError: .* killed by SIGKILL"):
        other.ask.call_one(victim).get(timeout=PATIENCE_S)
    assert faults.take().failures[0].point == {"hosts": 1, "gpus": 0}
    mesh.stop().get(timeout=PATIENCE_S)


def test_a_worker_that_is_killed_is_lost_once_its_address_refuses_connections(
    hosts: HostMesh, faults: Faults
) -> None:
    with workers(2) as two:
        more = attached(two)
        ranks = more.spawn_procs({"gpus": 1}, name="lost").spawn("ranks", WorkerActor)
        assert ranks.add.call(1).get(timeout=PATIENCE_S).values() == [1, 1]
        two[1].process.kill()
        with pytest.raises(SupervisionError, match="no process has listened at its address"):
            ranks.slice(hosts=1).add.call_one(1).get(timeout=PATIENCE_S)
        assert ranks.slice(hosts=0).add.call_one(1).get(timeout=PATIENCE_S) == 2
        assert faults.take().failures[0].kind == "host lost"
        more.stop().get(timeout=PATIENCE_S)
    with workers(1):  # a new session removes the directory of one that was killed
        pass


# --- refused --------------------------------------------------------------------------------------


def test_only_a_whole_mesh_of_workers_is_given_back_or_shut_down(hosts: HostMesh) -> None:
    for refused in (hosts.slice(hosts=0).stop, hosts.slice(hosts=1).shutdown):
        with pytest.raises(ValueError, match="slice of 2 workers"):
            refused()


def test_the_same_worker_is_a_host_once(two: list[Worker], hosts: HostMesh) -> None:
    with pytest.raises(ValueError, match="host of this process already"):
        attached(two[:1])


def test_dims_of_processes_cannot_be_called_as_those_of_hosts(hosts: HostMesh) -> None:
    with pytest.raises(ValueError, match="'hosts' is a dim of the hosts already"):
        hosts.spawn_procs({"hosts": 2})


def test_another_client_is_refused_and_told_who_has_it(
    two: list[Worker], hosts: HostMesh, run_python: Callable[..., str]
) -> None:
    said = run_python(CLIENT, two[0].address)
    assert said.startswith("SessionError: the worker at tcp://127.0.0.1:")
    assert f"process {os.getpid()} " in said
