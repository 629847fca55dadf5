"""RDMABuffers between worker hosts: found by addresses that mean the same there, lost with theirs.

The hosts are network namespaces with host names of their own: two workers, a third for the client.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from monarch._src.net.hosts import keys
from tests.netns import Hosts, Program, hosts_up, v4, why_not
from tests.workers import worker

PROGRAM = str(Path(__file__).with_name("rdma_of_hosts.py"))
CLIENT = 3

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.slow]


def alone(name: str) -> list[str]:
    """What runs a command under that host name, as on a machine of its own."""
    return ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh"]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with hosts_up(3) as made:
        yield made


@pytest.fixture(params=["tcp", "tcp, encrypted"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MONARCH_RDMA_ENCRYPT_TCP", str(request.param != "tcp"))
    return request.param


@pytest.fixture
def client(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> Iterator[Program]:
    monkeypatch.setenv("MONARCH_LIVENESS", "5")
    keys.make(tmp_path / "job")
    job = str(tmp_path / "job")
    with ExitStack() as stack:
        two = [
            stack.enter_context(
                worker(
                    "--address", "tcp://*:26600", "--keys", job,
                    before=hosts.command(number, *alone(f"host{number}")),
                )
            )
            for number in (1, 2)
        ]  # fmt: skip
        assert all(v4(at) in one.others for at, one in enumerate(two, 1))
        addresses = [f"tcp://{v4(number)}:26600" for number in (1, 2)]
        yield stack.enter_context(hosts.program(CLIENT, PROGRAM, job, *addresses))


def test_memory_of_one_host_is_read_and_written_from_another_until_its_host_is_lost(
    hosts: Hosts, client: Program, way: str
) -> None:
    owner = client.wait_for(lambda line: "pid" in line)["pid"]
    client.tell("move")
    moved = client.wait_for(lambda line: "read" in line)
    assert (moved["read"], moved["written"]) == (True, True)
    (said,) = moved["ways"]
    assert f"): {way}; not ibverbs" in said
    client.tell("home")
    moved = client.wait_for(lambda line: "home" in line)
    assert (moved["read"], moved["written"]) == ([True, True], [True, True])
    assert [f"): {way}; not ibverbs" in said for said in moved["ways"]] == [True] * 3
    client.tell("gpu")
    moved = client.wait_for(lambda line: "gpu" in line)
    assert (moved["read"], moved["written"]) == ([True, True], [True, True])
    assert [f"): {way}" in said for said in moved["ways"]] == [True] * 2
    for where in ("worker", "client"):
        client.tell(f"kill {where}")
        kind, text = client.wait_for(lambda line: "killed" in line)["killed"]
        assert (kind, "its process has ended" in text) == ("RDMAOwnerLostError", True), text
    client.tell("lose")
    client.wait_for(lambda line: "begun" in line)
    hosts.cut(1)
    try:
        kind, text = client.wait_for(lambda line: "lost" in line)["lost"]
    finally:
        os.kill(owner, signal.SIGCONT)
    assert kind == "RDMAOwnerLostError"
    assert "its process has ended" in text
