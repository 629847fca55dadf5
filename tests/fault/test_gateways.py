"""A client whose workers only a gateway can reach, while that, the network, or a worker fails.

The hosts are network namespaces: the gateway, two workers, and the client, from which nothing gets
to the workers and back.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.fault.calling import (
    PROGRAM,
    calling,
    cuts_that_are_mended_cost_nothing,
    every_call_was_done_once_and_in_order,
    wait_for_progress,
)
from tests.fault.test_rdma_of_hosts import alone
from tests.netns import Hosts, Program, hosts_up, v4, why_not
from tests.workers import Worker, worker

RDMA = str(Path(__file__).with_name("rdma_of_hosts.py"))
GATEWAY, FIRST, SECOND, CLIENT = 1, 2, 3, 4
WORKERS = (FIRST, SECOND)
THROUGH = ("--through", f"tcp://{v4(GATEWAY)}:26600")
ADDRESSES = ["tcp://h2:26600", f"tcp://{v4(SECOND)}:26600"]

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.slow]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with hosts_up(4) as made:
        for number in WORKERS:
            made.silence(CLIENT, number)
            made.silence(number, CLIENT)
        made.names(CLIENT, {})  # the gateway knows what the workers are called
        yield made


@pytest.fixture(autouse=True)
def liveness_s(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setenv("MONARCH_LIVENESS", str(getattr(request, "param", 20)))


@contextmanager
def serving(hosts: Hosts, job: str, number: int) -> Iterator[Worker]:
    before = hosts.command(number, *alone(f"host{number}"))
    with worker("--address", "tcp://*:26600", "--keys", job, before=before) as found:
        yield found


@pytest.fixture
def gateway(hosts: Hosts, job: str, liveness_s: None) -> Iterator[Worker]:
    with serving(hosts, job, GATEWAY) as found:
        yield found


@pytest.fixture
def two(hosts: Hosts, job: str, liveness_s: None) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving(hosts, job, number)) for number in WORKERS]


@pytest.fixture
def client(hosts: Hosts, job: str, gateway: Worker, two: list[Worker]) -> Iterator[Program]:
    """With calls to all ranks on their way."""
    with calling(hosts, CLIENT, *THROUGH, job, *ADDRESSES) as program:
        yield program


@pytest.mark.parametrize("liveness_s", [3], indirect=True)
def test_without_the_gateway_there_is_no_way(hosts: Hosts, job: str, two: list[Worker]) -> None:
    status, _, said = hosts.run(CLIENT, PROGRAM, job, *ADDRESSES)
    assert status
    assert "HostUnreachableError" in said


def test_a_cut_that_is_mended_in_time_loses_nothing_and_repeats_nothing(
    hosts: Hosts, client: Program
) -> None:
    cuts_that_are_mended_cost_nothing(hosts, client, (GATEWAY, CLIENT, SECOND))


def test_a_gateway_that_is_started_again_in_time_costs_nothing(
    hosts: Hosts, job: str, client: Program, gateway: Worker
) -> None:
    gateway.process.send_signal(signal.SIGKILL)
    gateway.ended()
    with serving(hosts, job, GATEWAY):
        client.tell("ask 0 1")
        client.wait_for(lambda line: "asked" in line)
        for host in range(2):
            for _ in range(3):
                wait_for_progress(client, host)
        every_call_was_done_once_and_in_order(client)


@pytest.mark.parametrize("liveness_s", [5], indirect=True)
@pytest.mark.parametrize("how", ["cut", "killed", "stopped"])
def test_a_gateway_that_is_lost_takes_its_hosts_along_and_is_named(
    hosts: Hosts, client: Program, gateway: Worker, how: str
) -> None:
    if how == "cut":
        hosts.cut(GATEWAY)
    else:
        gateway.process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    lost = [client.wait_for(lambda line: "lost" in line) for _ in range(4)]
    assert sorted(line["lost"] for line in lost) == [0, 0, 1, 1]
    assert {line["kind"] for line in lost} == {"host lost"}
    where = f"it is reached through the gateway {THROUGH[1]}, to which there is no connection: "
    assert [line["why"] for line in lost if where not in line["why"]] == []
    if how == "cut":
        hosts.mend(GATEWAY)
    if how == "stopped":
        gateway.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("liveness_s", [5], indirect=True)
def test_a_host_behind_it_that_is_lost_is_lost_alone(
    hosts: Hosts, client: Program, two: list[Worker]
) -> None:
    pids = client.said("pids")[0]
    hosts.cut(SECOND)
    lost = [client.wait_for(lambda line: "lost" in line) for _ in range(2)]
    assert {(line["lost"], line["kind"]) for line in lost} == {(1, "host lost")}
    where = f"it is reached through the gateway {THROUGH[1]}, which is there"
    assert [line["why"] for line in lost if where not in line["why"]] == []
    wait_for_progress(client, 0)
    client.tell("call 0")
    assert client.wait_for(lambda line: "called" in line)["called"] == pids[0][0]
    hosts.mend(SECOND)


@pytest.mark.parametrize("liveness_s", [5], indirect=True)
def test_the_end_of_the_process_that_holds_the_tunnel_is_named(client: Program) -> None:
    [near] = [
        one for one in psutil.process_iter(["cmdline"])
        if "programs.tunnel_client" in " ".join(one.info["cmdline"] or []) and is_of(one, client)
    ]  # fmt: skip
    near.kill()
    lost = client.wait_for(lambda line: "lost" in line)
    assert f"the process that holds the tunnel (pid {near.pid}) has ended" in lost["why"]


def is_of(process: psutil.Process, program: Program) -> bool:
    return process.ppid() == program.pid


def test_large_arguments_are_freed_once_they_are_there(client: Program) -> None:
    client.tell("send 1")
    assert client.wait_for(lambda line: "segments" in line)["segments"] == 1
    client.tell("free")
    assert client.wait_for(lambda line: "free" in line)["free"]
    every_call_was_done_once_and_in_order(client)


def test_memory_of_the_client_and_of_workers_is_moved_through_the_gateway(
    hosts: Hosts, job: str, gateway: Worker, two: list[Worker]
) -> None:
    with hosts.program(CLIENT, RDMA, *THROUGH, job, *ADDRESSES) as client:
        client.wait_for(lambda line: "pid" in line)
        client.tell("move")
        moved = client.wait_for(lambda line: "read" in line)
        assert (moved["read"], moved["written"]) == (True, True)
        client.tell("home")
        moved = client.wait_for(lambda line: "home" in line)
        assert (moved["read"], moved["written"]) == ([True, True], [True, True])
        assert ["): tcp, encrypted; not ibverbs" in way for way in moved["ways"]] == [True] * 3
        client.tell("kill client")
        kind, text = client.wait_for(lambda line: "killed" in line)["killed"]
        assert (kind, "its process has ended" in text) == ("RDMAOwnerLostError", True), text
