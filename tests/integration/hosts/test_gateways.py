"""A client that reaches its workers through a gateway: as if it did so itself, and by nothing else.

All of it is on loopback, where a client could also connect directly; that it does not is shown.
Where it cannot: `tests/fault/test_gateways.py`.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from monarch._src.mesh.channel_transport import forget_transport
from monarch._src.net.hosts import keys
from monarch._src.net.state.access import Role
from monarch._src.net.tunnel.state.tunnel import MOST_STREAMS
from monarch._src.wire.frames import NO_PAYLOAD, Payload, encode
from monarch._src.wire.messages import (
    SiteFree,
    TunnelBytes,
    TunnelClose,
    TunnelCredit,
    TunnelOpen,
    TunnelOpened,
)
from monarch.actor import (
    ProcMesh,
    SupervisionError,
    attach,
    attach_to_workers,
    enable_transport,
    shutdown_context,
    this_host,
)
from monarch.config import configured
from monarch.session import SessionError
from tests.audits import audited
from tests.conftest import Faults
from tests.integration.programs import running
from tests.integration.worker_actors import CLIENT, WorkerActor
from tests.untrusted_peers import Caller, linked
from tests.workers import PATIENCE_S, TRUST_ALL, Worker, worker, workers

pytestmark = pytest.mark.slow

LARGE = 64 << 20


class Site:
    """A gateway and two workers behind it, with the keys of one job."""

    def __init__(self, job: str, folder: Path, gateway: Worker, behind: list[Worker]) -> None:
        self.job = job
        self.folder = folder
        self.gateway = gateway
        self.behind = behind
        self.addresses = [one.address for one in behind]

    def audit(self, what: str) -> list[dict[str, Any]]:
        return [line for line in audited(self.folder / "audit") if line["what"] == what]

    def wait_until_refused(self, caller: Caller, why: str) -> None:
        """Until that is in the audit; what was only received is not yet."""
        until = time.monotonic() + PATIENCE_S
        while not any(why == line["why"] for line in self.audit("refused")):
            assert time.monotonic() < until
            caller.links.wait(0.05)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, agent_errors: object) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("job")
    job = str(folder / "keys")
    keys.make(folder / "keys")
    audit = ("--audit", str(folder / "audit"))
    given = ("--address", "tcp://127.0.0.1:0", "--keys", job)
    with worker(*given, *audit) as gateway, workers(2, "--keys", job) as behind:
        yield Site(job, folder, gateway, behind)


@pytest.fixture
def through(site: Site) -> Iterator[Site]:
    """This process goes through the gateway."""
    attach(site.gateway.address)
    yield site
    shutdown_context()


@pytest.fixture
def procs(through: Site) -> ProcMesh:
    mesh = attach_to_workers(ca=through.job, workers=through.addresses)
    return mesh.spawn_procs({"gpus": 2})


def connected_to() -> set[int]:
    """The ports of loopback to which this process has TCP connections."""
    found = psutil.Process().net_connections(kind="tcp")
    return {one.raddr.port for one in found if one.raddr and one.status == "ESTABLISHED"}


def port_of(one: Worker) -> int:
    return int(one.address.rpartition(":")[2])


def test_a_client_has_all_hosts_through_one_and_connects_to_none_itself(
    through: Site, procs: ProcMesh
) -> None:
    worker_actors = procs.spawn("worker_actors", WorkerActor)
    pids = worker_actors.pid.call().get(timeout=PATIENCE_S).values()
    parents = [psutil.Process(pid).parents() for pid in pids]
    for at, one in enumerate(through.behind):
        assert all(psutil.Process(one.process.pid) in parents[2 * at + rank] for rank in (0, 1))
    assert not connected_to() & {port_of(one) for one in (*through.behind, through.gateway)}
    first, second = (worker_actors.slice(hosts=host, gpus=0) for host in (0, 1))
    assert first.ask.call_one(second).get(timeout=PATIENCE_S) == pids[2]
    others = worker_actors.slice(hosts=1)
    assert first.ask_all.call_one(others).get(timeout=PATIENCE_S) == pids[2:]
    here = this_host().spawn_procs(name="here").spawn("here", WorkerActor)
    assert first.ask.call_one(here).get(timeout=PATIENCE_S) == here.pid.call_one().get()
    assert here.ask.call_one(second).get(timeout=PATIENCE_S) == pids[2]


def test_what_is_large_arrives_whole_both_ways(procs: ProcMesh) -> None:
    worker_actors = procs.spawn("worker_actors", WorkerActor)
    sent = np.frombuffer(os.urandom(1 << 20) * (LARGE >> 20), np.uint8)
    for came in worker_actors.slice(gpus=0).same.call(sent).get(timeout=PATIENCE_S).values():
        assert (came == sent).all()


def test_the_failure_of_a_rank_and_its_death_are_told_as_ever(
    procs: ProcMesh, faults: Faults
) -> None:
    worker_actors = procs.spawn("worker_actors", WorkerActor)
    with pytest.raises(Exception, match="on purpose"):
        worker_actors.slice(hosts=1, gpus=0).fail.call_one("on purpose").get(timeout=PATIENCE_S)
    others = procs.spawn("others", WorkerActor)
    pid = others.slice(hosts=0, gpus=1).pid.call_one().get(timeout=PATIENCE_S)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SupervisionError, match="SIGKILL"):
        others.pid.call().get(timeout=PATIENCE_S)
    assert faults.take().failures[0].point == {"hosts": 0, "gpus": 1}


def test_each_address_that_is_asked_for_is_in_the_audit_of_the_gateway(
    through: Site, procs: ProcMesh
) -> None:
    procs.initialized.get(timeout=PATIENCE_S)
    noted = through.audit("tunnel")
    assert set(through.addresses) <= {line["address"] for line in noted}
    assert all(line["node"].startswith("tunnel-") for line in noted)
    owner = keys.load(through.job, None, Role.OWNER)
    links = {line["node"]: line for line in through.audit("linked")}
    assert links[noted[-1]["node"]]["role"] == "owner"
    assert owner.allowed.of(Role.OWNER)


def test_the_gateway_may_be_a_host_too_and_is_then_dialled_directly(through: Site) -> None:
    everyone = [through.gateway.address, *through.addresses]
    mesh = attach_to_workers(ca=through.job, workers=everyone)
    worker_actors = mesh.spawn_procs().spawn("worker_actors", WorkerActor)
    pids = worker_actors.pid.call().get(timeout=PATIENCE_S).values()
    others = worker_actors.slice(hosts=slice(0, 2))
    last = worker_actors.slice(hosts=2)
    assert last.ask_all.call_one(others).get(timeout=PATIENCE_S) == pids[:2]
    assert connected_to() & {port_of(one) for one in (*through.behind, through.gateway)} == {
        port_of(through.gateway)
    }


def test_it_is_a_gateway_whoever_has_its_host(through: Site) -> None:
    program = CLIENT.replace('"trust_all_connections"', repr(through.job))
    with running(through.folder, program, through.gateway.address) as other:
        assert other.line() == "has it"
        mesh = attach_to_workers(ca=through.job, workers=through.addresses)
        worker_actors = mesh.spawn_procs().spawn("worker_actors", WorkerActor)
        assert worker_actors.add.call(3).get(timeout=PATIENCE_S).values() == [3, 3]
        assert other.end()[0] == 0


def test_attach_says_at_its_line_whether_the_gateway_lets_one_in(
    site: Site, tmp_path: Path
) -> None:
    attach(site.gateway.address, ca=site.job)
    attach(site.gateway.address, ca=site.job)  # again is nothing
    shutdown_context()
    stranger = tmp_path / "stranger"
    keys.make(stranger)
    with (
        configured(liveness=3),
        pytest.raises(ConnectionError, match=f"{site.gateway.address}.*the handshake fails"),
    ):
        attach(site.gateway.address, ca=str(stranger))
    shutdown_context()
    assert any("has no CURVE" in line["why"] for line in site.audit("refused"))


def test_a_key_that_is_not_listed_is_refused_at_once_and_written_down(
    site: Site, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(shutdown_context)
    keys.make(tmp_path / "forged")
    listed = json.loads((tmp_path / "forged" / "job.public").read_text())
    known = json.loads((Path(site.job) / "job.public").read_text())
    forged = json.dumps({**listed, "worker": known["worker"]})
    (tmp_path / "forged" / "job.public").write_text(forged)
    for _ in range(2):  # whoever asks again is told so again
        with pytest.raises(ConnectionError, match="refuses the key"):
            attach(site.gateway.address, ca=str(tmp_path / "forged"))
    assert any("is not one of this job" in line["why"] for line in site.audit("refused"))


def test_who_is_no_owner_goes_through_no_gateway(site: Site) -> None:
    asks = TunnelOpen(1, site.addresses[0])
    with linked(
        keys.load(site.job, None, Role.WORKER), "tunnel-of-a-worker", site.gateway.address
    ) as caller:
        caller.links.send(caller.site, encode(asks))
        why = "its key is that of worker, and only owners use gateways"
        site.wait_until_refused(caller, why)
    with linked(
        keys.load(site.job, None, Role.OBSERVER), "observer-1", site.gateway.address
    ) as caller:
        caller.links.send(caller.site, encode(asks))
        site.wait_until_refused(caller, "an observer may not send TunnelOpen")


def test_a_tunnel_says_what_tunnels_say_and_nothing_else(site: Site) -> None:
    own = keys.load(site.job, None, Role.OWNER)
    with linked(own, "tunnel-of-a-stranger", site.gateway.address) as caller:
        caller.links.send(caller.site, encode(SiteFree(1)))
        for number in range(1, MOST_STREAMS + 2):
            caller.links.send(caller.site, encode(TunnelOpen(number, "ipc:///tmp/x")))
        site.wait_until_refused(caller, "a SiteFree is not a message of a tunnel")


def test_whatever_an_owner_says_in_a_tunnel_its_gateway_serves_on(
    site: Site, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(shutdown_context)
    own = keys.load(site.job, None, Role.OWNER)
    rng = random.Random(5)
    addresses = [site.addresses[0], "tcp://127.0.0.1:1", "tcp://nobody.invalid:1", "tcp://*:1", ""]
    with linked(own, "tunnel-of-a-fool", site.gateway.address) as caller:
        for number in range(1, 1500):
            at = rng.choice((number // 5, rng.randrange(-5, number), rng.getrandbits(60)))
            message, payload = rng.choice(
                (
                    (TunnelOpen(number // 5, rng.choice(addresses)), NO_PAYLOAD),
                    (TunnelBytes(at), Payload(rng.randbytes(rng.randrange(1 << 12)))),
                    (TunnelCredit(at, rng.choice((-1, rng.getrandbits(62)))), NO_PAYLOAD),
                    (TunnelClose(at, "because"), NO_PAYLOAD),
                    (TunnelOpened(at, "", rng.choice(("", "no"))), NO_PAYLOAD),
                )
            )
            caller.links.send(caller.site, encode(message, payload))
        caller.all_was_heard()
        attach(site.gateway.address)
        mesh = attach_to_workers(ca=site.job, workers=site.addresses)
        worker_actors = mesh.spawn_procs().spawn("worker_actors", WorkerActor)
        assert worker_actors.add.call(2).get(timeout=PATIENCE_S).values() == [2, 2]


def test_a_worker_that_is_not_there_is_named_as_the_gateway_sees_it(through: Site) -> None:
    with configured(liveness=3):
        shutdown_context()
        attach(through.gateway.address)
        hosts = [through.addresses[0], "tcp://127.0.0.1:1"]
        with pytest.raises(ConnectionError) as raised:
            attach_to_workers(ca=through.job, workers=hosts).initialized.get(timeout=PATIENCE_S)
    assert "tcp://127.0.0.1:1, as resolved by the gateway" in str(raised.value)
    assert "ECONNREFUSED" in str(raised.value)
    mesh = attach_to_workers(ca=through.job, workers=through.addresses)  # nothing is left of that
    mesh.stop().get(timeout=PATIENCE_S)


def test_what_makes_no_sense_is_refused_where_it_is_said(
    site: Site, request: pytest.FixtureRequest
) -> None:
    for address, kind in (
        ("h1:26600", ValueError),
        ("tcp://127.0.0.1:0", ValueError),
        (7, TypeError),
        ("udp://h1:1", ValueError),
    ):
        with pytest.raises(kind):
            attach(address)  # pyright: ignore[reportArgumentType]
    with pytest.raises(FileNotFoundError):
        attach(site.gateway.address, ca="/no/such/keys")
    with pytest.raises(PermissionError, match="without keys"):
        attach("tcp://10.99.0.1:26600", ca=TRUST_ALL)
    with configured(liveness=1), pytest.raises(ConnectionError, match="ECONNREFUSED"):
        attach("tcp://127.0.0.1:1")
    shutdown_context()
    request.addfinalizer(forget_transport)
    enable_transport("ipc")
    with pytest.raises(RuntimeError, match="enable_transport"):
        attach(site.gateway.address)


def test_a_client_that_has_workers_keeps_its_way_to_them(
    site: Site, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(shutdown_context)
    mesh = attach_to_workers(ca=site.job, workers=site.addresses[:1])
    with pytest.raises(SessionError, match=r"comes too late: .* which it reaches directly"):
        attach(site.gateway.address)
    mesh.stop().get(timeout=PATIENCE_S)
    attach(site.addresses[1])  # which is meant as little as a wrong address
    attach(site.gateway.address)
    mesh = attach_to_workers(ca=site.job, workers=site.addresses[:1])
    mesh.initialized.get(timeout=PATIENCE_S)
    assert port_of(site.behind[0]) not in connected_to()
    attach(site.gateway.address)
    with pytest.raises(SessionError, match=f"through the gateway {site.gateway.address}"):
        attach(site.addresses[1])
    mesh.stop().get(timeout=PATIENCE_S)
    attach(site.addresses[1])
    mesh = attach_to_workers(ca=site.job, workers=site.addresses)
    mesh.initialized.get(timeout=PATIENCE_S)
    assert port_of(site.behind[0]) not in connected_to()
    assert port_of(site.behind[1]) in connected_to()


def test_without_keys_it_works_on_loopback(agent_errors: object) -> None:
    with workers(2) as (gateway, behind):
        attach(gateway.address)
        mesh = attach_to_workers(ca=TRUST_ALL, workers=[behind.address])
        worker_actors = mesh.spawn_procs().spawn("worker_actors", WorkerActor)
        assert worker_actors.add.call_one(2).get(timeout=PATIENCE_S) == 2
        with pytest.raises(PermissionError, match="without keys"):
            attach_to_workers(ca=TRUST_ALL, workers=["tcp://10.99.0.1:26600"])
        shutdown_context()


def test_a_client_that_holds_the_interpreter_for_longer_than_liveness_is_not_lost(
    site: Site, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(shutdown_context)
    with configured(liveness=2):
        attach(site.gateway.address)
        mesh = attach_to_workers(ca=site.job, workers=site.addresses)
        worker_actors = mesh.spawn_procs().spawn("worker_actors", WorkerActor)
        assert worker_actors.add.call(1).get(timeout=PATIENCE_S).values() == [1, 1]
        ctypes.PyDLL(None).usleep(5_000_000)  # no thread of this process runs meanwhile
        assert worker_actors.add.call(1).get(timeout=PATIENCE_S).values() == [2, 2]


def test_nothing_is_left_of_a_way_through_a_gateway(through: Site, procs: ProcMesh) -> None:
    procs.initialized.get(timeout=PATIENCE_S)
    [near] = [
        child
        for child in psutil.Process().children()
        if "programs.tunnel_client" in " ".join(child.cmdline())
    ]
    shutdown_context()
    assert not near.is_running()
    gateway = psutil.Process(through.gateway.process.pid)
    until = time.monotonic() + PATIENCE_S
    while {port_of(one) for one in through.behind} & {
        one.raddr.port for one in gateway.net_connections(kind="tcp") if one.raddr
    }:
        assert time.monotonic() < until
