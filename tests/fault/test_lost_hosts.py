"""Meshes over worker hosts, while the network between them is cut, or a host is lost.

The hosts are network namespaces: two workers, and a third with the client.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from monarch._src.net.state.flow_control import ALLOWANCE, QUEUE
from monarch._src.net.state.link_actions import Bounds
from tests.audits import audited
from tests.fault.calling import (
    PROGRAM,
    calling,
    cuts_that_are_mended_cost_nothing,
    every_call_was_done_once_and_in_order,
    wait_for_progress,
)
from tests.fault.floods_hosts import TOTAL
from tests.netns import Hosts, Program, hosts_up, v4, v6, why_not
from tests.workers import PATIENCE_S, Worker, worker

FLOODS = str(Path(__file__).with_name("floods_hosts.py"))
CLIENT = 3
WINDOW = Bounds(1.0, 1.0).window

at_length = pytest.mark.skipif(
    "MONARCH_FLOODS" not in os.environ, reason="MONARCH_FLOODS is not set (`make stress` does)"
)
pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.slow]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with hosts_up(3) as made:
        yield made


@pytest.fixture
def liveness_s(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setenv("MONARCH_LIVENESS", str(getattr(request, "param", 20)))


@pytest.fixture
def where() -> list[str]:
    return [v4(1), v4(2)]


@pytest.fixture
def two(
    hosts: Hosts, job: str, liveness_s: None, tmp_path: Path, where: list[str]
) -> Iterator[list[Worker]]:
    """Workers on the first two hosts."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                worker(
                    "--address",
                    "tcp://*:26600",
                    "--keys",
                    job,
                    "--audit",
                    str(tmp_path / f"audit{number}"),
                    before=hosts.command(number),
                )
            )
            for number in (1, 2)
        ]


@pytest.fixture
def client(hosts: Hosts, job: str, two: list[Worker], where: list[str]) -> Iterator[Program]:
    """On the third host, with calls to all ranks on their way."""
    addresses = [f"tcp://{at}:26600" for at in where]
    with calling(hosts, CLIENT, job, *addresses) as program:
        yield program


def test_a_cut_that_is_mended_in_time_loses_nothing_and_repeats_nothing(
    hosts: Hosts, client: Program
) -> None:
    cuts_that_are_mended_cost_nothing(hosts, client, (1, CLIENT, 2))


@pytest.mark.parametrize("where", [[f"[{v6(1)}]", f"[{v6(2)}]"]])
def test_where_there_is_only_ipv6_it_works_alike(client: Program) -> None:
    client.tell("ask 0 1")
    client.wait_for(lambda line: "asked" in line)
    every_call_was_done_once_and_in_order(client)


@at_length
@pytest.mark.parametrize("liveness_s", [6], indirect=True)
def test_behind_a_translated_port_and_with_names_that_lead_astray_hosts_reach_each_other(
    hosts: Hosts, job: str, liveness_s: None
) -> None:
    for number in (1, 2, CLIENT):
        hosts.names(number, {f"h{other}": "127.0.1.1" for other in (1, 2, CLIENT)})
    hosts.translate(1, 27000, 26600)
    given = ("--keys", job, "--address")
    with (
        worker(*given, f"tcp://{v4(1)}:27000@tcp://*:26600", before=hosts.command(1)),
        worker(*given, "tcp://*:26600", before=hosts.command(2)),
        hosts.program(
            CLIENT, PROGRAM, job, f"tcp://{v4(1)}:27000", f"tcp://{v4(2)}:26600"
        ) as client,
    ):
        pids = client.wait_for(lambda line: "pids" in line)["pids"]
        for asks, asked in ((1, 0), (0, 1)):
            client.tell(f"ask {asks} {asked}")
            assert client.wait_for(lambda line: "asked" in line)["asked"] == pids[asked][0]
        every_call_was_done_once_and_in_order(client)
    refused = hosts.run(CLIENT, PROGRAM, job, f"tcp://{v4(1)}:26600")
    assert refused[0] != 0
    assert "HostUnreachableError" in refused[2]


def gone(pids: list[int]) -> None:
    """Wait until none of these is left."""
    found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, left = psutil.wait_procs(found, timeout=PATIENCE_S)
    assert left == []


@pytest.mark.parametrize("liveness_s", [5], indirect=True)
@pytest.mark.parametrize("how", ["cut", "killed", "stopped"])
def test_a_host_that_is_lost_is_told_so_its_procs_end_and_the_others_work_on(
    hosts: Hosts, two: list[Worker], client: Program, how: str
) -> None:
    pids = client.said("pids")[0]
    client.tell("ask 0 1")  # and so the two workers have a link
    client.wait_for(lambda line: "asked" in line)
    if how == "cut":
        hosts.cut(2)
    else:
        two[1].process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    if how != "killed":  # which may be known by now
        client.tell("send 1")
        assert client.wait_for(lambda line: "segments" in line)["segments"] == 1
    lost = client.wait_for(lambda line: "lost" in line)
    assert (lost["lost"], lost["kind"], lost["on"]) == (1, "host lost", os.uname().nodename)
    assert f"the host {os.uname().nodename} is lost: " in lost["why"]
    assert ("no process has listened at its address" in lost["why"]) == (how == "killed")
    if how == "stopped":
        two[1].process.send_signal(signal.SIGCONT)
    gone(pids[1])
    wait_for_progress(client, 0)
    client.tell("call 1")
    assert client.wait_for(lambda line: "error" in line)["error"] == "SupervisionError"
    client.tell("free")
    assert client.wait_for(lambda line: "free" in line)["free"]
    client.tell("ask 0 1")
    assert " is lost" in client.wait_for(lambda line: "error" in line)["text"]
    client.tell("call 0")
    assert client.wait_for(lambda line: "called" in line)["called"] == pids[0][0]
    client.tell("stop")
    for _ in range(2):
        end = client.wait_for(lambda line: "got" in line)
        assert (end["host"], end["in_order"]) == (0, True)
        assert end["got"] == end["of"]


@pytest.mark.parametrize("liveness_s", [5], indirect=True)
def test_a_worker_that_was_cut_off_is_free_for_the_next_client(
    hosts: Hosts, two: list[Worker], job: str, client: Program
) -> None:
    pids = client.said("pids")[0]
    hosts.cut(2)
    client.wait_for(lambda line: "lost" in line)
    gone(pids[1])
    hosts.mend(2)
    with hosts.program(CLIENT, PROGRAM, job, f"tcp://{v4(2)}:26600") as following:
        following.wait_for(lambda line: "pids" in line)
        wait_for_progress(following, 0)
        following.tell("end")
        following.wait_for(lambda line: "given_back" in line)


def test_each_thing_that_an_operator_does_is_in_the_audit(
    two: list[Worker], client: Program, tmp_path: Path
) -> None:
    client.tell("stop")
    client.wait_for(lambda line: "got" in line)
    client.tell("end")
    client.wait_for(lambda line: "given_back" in line)
    lines = audited(tmp_path / "audit1")
    told = {line["what"]: line for line in lines if line["what"] != "broke off"}
    assert list(told) == ["linked", "attach", "spawn", "left"]
    assert told["linked"]["role"] == "owner"
    assert told["attach"]["program"].endswith(f"tcp://{v4(2)}:26600")
    assert (told["spawn"]["mesh"], told["spawn"]["ranks"]) == ("procs", "2")
    assert len({line["node"] for line in told.values()}) == 1


@pytest.mark.parametrize("liveness_s", [60], indirect=True)
@pytest.mark.parametrize(
    ("who", "size"),
    [
        ("client", 60_000),
        pytest.param("client", 1 << 20, marks=at_length),
        pytest.param("rank", 60_000, marks=at_length),
        pytest.param("rank", 1 << 20, marks=at_length),
    ],
)
def test_who_floods_a_host_that_is_stopped_waits_others_do_not_and_nothing_is_lost(
    hosts: Hosts, two: list[Worker], job: str, where: list[str], who: str, size: int
) -> None:
    addresses = [f"tcp://{at}:26600" for at in where]
    with hosts.program(CLIENT, FLOODS, job, str(size), *addresses) as program:
        program.wait_for(lambda line: "pids" in line)
        passes_on = psutil.Process(agent_of(two[0]))
        before = passes_on.memory_info().rss
        os.kill(agent_of(two[1]), signal.SIGSTOP)
        program.tell(f"flood {who}")
        program.tell("stalled")
        stalled = program.wait_for(lambda line: "stalled" in line)
        bound = QUEUE + ALLOWANCE + WINDOW
        assert 0 < stalled["stalled"] <= bound + (2 << 20)
        assert stalled["rss"] < (QUEUE + WINDOW + (200 << 20))
        assert passes_on.memory_info().rss - before < 2 * bound
        os.kill(agent_of(two[1]), signal.SIGCONT)
        program.tell("finish")
        states = program.wait_for(lambda line: "states" in line)["states"]
        assert states == [[TOTAL // size, True]] * 2
        program.wait_for(lambda line: "ended" in line)


def agent_of(worker: Worker) -> int:
    """The process that serves: `ip netns exec` becomes it."""
    return worker.process.pid
