"""A kept session whose workers are behind a gateway is taken up, and ended, through that."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from monarch._src.net.hosts import keys
from monarch._src.session.reap import reap
from monarch.actor import attach as attach_through
from monarch.actor import attach_to_workers, shutdown_context
from monarch.session import attach, detach
from tests.audits import audited
from tests.fault.keepers import Keeper, info, keeper, kept_name
from tests.integration.programs import watched
from tests.workers import PATIENCE_S, Worker, worker, workers

KEEPS = """
    from monarch.actor import attach as attach_through, attach_to_workers
    ca, gateway, *addresses = sys.argv[2:]
    attach_through(gateway)
    hosts = attach_to_workers(ca=ca, workers=addresses)
    procs = hosts.spawn_procs({"gpus": 1}, name="workers")
    mine = procs.spawn("mine", Mine)
    mine.add.call(1).get()
    keep(name, [procs])
"""


class Site:
    """A gateway and two workers behind it, with the keys of one job."""

    def __init__(self, folder: Path, gateway: Worker, behind: list[Worker]) -> None:
        self.job = str(folder / "keys")
        self.folder = folder
        self.gateway = gateway
        self.addresses = [one.address for one in behind]

    def tunnelled(self) -> int:
        """How often the gateway was asked for a connection."""
        lines = audited(self.folder / "audit")
        return sum(line["what"] == "linked" and "tunnel-" in line["node"] for line in lines)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("job")
    keys.make(folder / "keys")
    given = ("--keys", str(folder / "keys"))
    listens = ("--address", "tcp://127.0.0.1:0", "--audit", str(folder / "audit"))
    with worker(*given, *listens) as gateway, workers(2, *given) as behind:
        yield Site(folder, gateway, behind)


@pytest.fixture
def name(own_base_directory: Path, site: Site) -> Iterator[str]:
    """A name for a session; what is kept under it is ended after the test."""
    with kept_name(own_base_directory) as found:
        yield found


@pytest.fixture
def first(tmp_path: Path, name: str, site: Site) -> Iterator[Keeper]:
    """A client that keeps a mesh with a rank on each of the two, and is killed."""
    given = (site.job, site.gateway.address, *site.addresses)
    with keeper(tmp_path, name, KEEPS, *given) as found:
        yield found


def killed(client: Keeper) -> None:
    client.program.signal(signal.SIGKILL)
    assert client.program.end()[0] == -9


def connected_to() -> set[str]:
    """To where this process has TCP connections."""
    found = psutil.Process().net_connections(kind="tcp")
    return {f"tcp://{one.raddr.ip}:{one.raddr.port}" for one in found if one.raddr}


def are_free(site: Site) -> bool:
    """Whether a client that knows nothing of any session can have the workers now."""
    mesh = attach_to_workers(ca=site.job, workers=site.addresses)
    mesh.initialized.get(timeout=PATIENCE_S)
    mesh.stop().get(timeout=PATIENCE_S)
    shutdown_context()
    return True


def test_the_next_client_finds_the_state_through_the_same_gateway(
    name: str, first: Keeper, site: Site
) -> None:
    killed(first)
    before = site.tunnelled()
    session = attach(name)
    assert session["mine"].add.call(10).get(timeout=PATIENCE_S).values() == [11, 11]
    assert site.tunnelled() == before + 1
    assert not connected_to() & {*site.addresses, site.gateway.address}
    attach_through(site.gateway.address)  # as a cell that is run again says
    hosts = attach_to_workers(ca=site.job, workers=site.addresses)
    hosts.initialized.get(timeout=PATIENCE_S)
    assert hosts.size("hosts") == 2
    detach()
    session = attach(name)
    assert session["mine"].add.call(0).get(timeout=PATIENCE_S).values() == [11, 11]
    session["workers"].stop().get(timeout=PATIENCE_S)


def test_what_is_left_of_it_is_ended_through_the_gateway(
    name: str, first: Keeper, site: Site, own_base_directory: Path
) -> None:
    pids = json.loads(first.value("procs.spawn('t', Teller).pid.call().get().values()"))
    killed(first)
    agent = info(own_base_directory, name).agent
    assert agent is not None
    with watched([agent.pid]) as processes:
        os.kill(agent.pid, signal.SIGKILL)
        processes.wait_all_ended()
    shutdown_context()
    before = site.tunnelled()
    assert all(psutil.pid_exists(pid) for pid in pids)
    assert not reap([str(own_base_directory)]).complaints
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert site.tunnelled() == before + 1
    assert are_free(site)


def test_a_session_that_is_ended_ends_its_workers_through_the_gateway(
    name: str, first: Keeper, site: Site
) -> None:
    pids = json.loads(first.value("procs.spawn('t', Teller).pid.call().get().values()"))
    killed(first)
    attach(name)
    before = site.tunnelled()
    shutdown_context()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert site.tunnelled() >= before
    assert are_free(site)
