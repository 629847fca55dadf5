"""Slurm on hosts of a network of its own: addresses, keys, a host that is cut off, notebooks there.

The hosts are network namespaces with host names: two nodes, the login host, and that of a stranger.
Nodes are called n0 and n1, which no host resolves; their host names are h1 and h2.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch._src.net.hosts import keys
from tests import slurm
from tests.netns import Hosts, hosts_up, v4, why_not
from tests.support.slurm_cluster import cluster

__all__ = ["cluster"]
PROGRAM = str(Path(__file__).with_name("client_of_slurm_job.py"))
STRANGER_PROGRAM = str(Path(__file__).with_name("stranger_to_job.py"))
KERNEL_PROGRAM = str(Path(__file__).with_name("kernel_of_slurm_job.py"))
LOGIN, STRANGER = 3, 4
GREETING = 64  # bytes that ZeroMQ says to any peer, about its version
MISSING = why_not() or slurm.why_not()

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING), pytest.mark.slow]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with hosts_up(4) as made:
        yield made


@pytest.fixture(scope="module")
def running_cluster(
    hosts: Hosts, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[slurm.Cluster]:
    with slurm.cluster_up(tmp_path_factory.mktemp("slurm"), 2, hosts) as made:
        yield made


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {
        "path": str(tmp_path / "job"),
        "log_dir": str(tmp_path / "logs"),
        "env": slurm.environment(),
    }


def listening(hosts: Hosts, number: int) -> list[str]:
    """The TCP ports at which Python listens for others on that host, as `HOST:PORT`."""
    shown = subprocess.run(
        hosts.command(number, "ss", "-Htlnp"), capture_output=True, text=True, check=True
    ).stdout
    ports = [line.split()[3].rpartition(":") for line in shown.splitlines() if "python" in line]
    open_to_others = {int(port) for host, _, port in ports if not host.startswith("127.")}
    return [f"{v4(number)}:{port}" for port in sorted(open_to_others)]


@pytest.mark.parametrize("port", [0, 26600])
def test_ranks_are_on_two_hosts_and_call_each_other(
    hosts: Hosts, cluster: slurm.Cluster, options: dict[str, Any], port: int
) -> None:
    options["monarch_port"] = port
    with hosts.program(LOGIN, PROGRAM, json.dumps(options), named=True) as client:
        places = client.wait_for(lambda line: "places" in line)["places"]
        assert places == [["n0", "h1"], ["n1", "h2"]]
        for one, other in ((0, 1), (1, 0)):
            client.tell(f"ask {one} {other}")
            assert client.wait_for(lambda line: "asked" in line)["asked"] == places[other]
        client.tell("kill")
        client.wait_for(lambda line: "killed" in line)
    assert cluster.jobs() == []


@pytest.mark.parametrize(
    "names",
    [
        {"n0": v4(2), "n1": v4(1)},
        {"n0": "127.0.1.1", "n1": "127.0.1.1"},
        {"n0": v4(1), "n1": v4(1)},
    ],
    ids=["exchanged", "this host", "one host"],
)
def test_names_of_nodes_that_lead_astray_lead_to_no_other_host(
    hosts: Hosts, cluster: slurm.Cluster, options: dict[str, Any], names: dict[str, str]
) -> None:
    options["monarch_port"] = 26600
    hosts.names(LOGIN, names)
    try:
        with hosts.program(LOGIN, PROGRAM, json.dumps(options), named=True) as client:
            places = client.wait_for(lambda line: "places" in line)["places"]
            assert places == [["n0", "h1"], ["n1", "h2"]]
            client.tell("ask 0 1")
            client.wait_for(lambda line: "asked" in line)
            client.tell("kill")
            client.wait_for(lambda line: "killed" in line)
    finally:
        hosts.names(LOGIN, {})


def test_a_client_that_reaches_one_node_alone_is_told_so_and_goes_through_it(
    hosts: Hosts, cluster: slurm.Cluster, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONARCH_LIVENESS", "9")
    outside = STRANGER
    at = f"tcp://{v4(1)}:26600"
    through = {"out_of_cluster": True, "attach_to": at, "bind_to": "tcp://*:26600"}
    hosts.silence(outside, 2)
    hosts.silence(2, outside)
    try:
        with hosts.program(outside, PROGRAM, json.dumps(options), named=True) as client:
            error = client.wait_for(lambda line: "error" in line)["error"]
        assert "none of the addresses of the worker on n1 could be reached" in error
        assert "if this host is outside the cluster, give out_of_cluster=True" in error
        told = json.dumps({**options, **through})
        with hosts.program(outside, PROGRAM, told, named=True) as client:
            places = client.wait_for(lambda line: "places" in line)["places"]
            assert places == [["n0", "h1"], ["n1", "h2"]]
            client.tell("ask 0 1")
            assert client.wait_for(lambda line: "asked" in line)["asked"] == places[1]
            client.tell("kill")
            client.wait_for(lambda line: "killed" in line)
    finally:
        hosts.end_silence()


LISTENS = """
import socket, sys
with socket.create_server(("", 26600)):
    print("{}", flush=True)
    sys.stdin.read()
"""


def test_another_program_at_the_name_of_a_node_is_passed_over(
    hosts: Hosts, cluster: slurm.Cluster, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONARCH_LIVENESS", "9")
    options["monarch_port"] = 26600
    hosts.names(LOGIN, {"n0": "127.0.1.1"})
    try:
        with (
            hosts.program(LOGIN, "-c", LISTENS) as other,
            hosts.program(LOGIN, PROGRAM, json.dumps(options), named=True) as client,
        ):
            other.wait_for(lambda line: line == {})
            places = client.wait_for(lambda line: "places" in line)["places"]
            assert places == [["n0", "h1"], ["n1", "h2"]]
            client.tell("kill")
            client.wait_for(lambda line: "killed" in line)
    finally:
        hosts.names(LOGIN, {})


def test_a_host_without_the_keys_of_the_job_gets_nothing_at_its_ports(
    hosts: Hosts, cluster: slurm.Cluster, options: dict[str, Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    keys.make(tmp_path / "other")
    given = {"keys": str(tmp_path / "other"), "bang": str(tmp_path / "bang")}
    with hosts.program(LOGIN, PROGRAM, json.dumps(options), named=True) as client:
        places = client.wait_for(lambda line: "places" in line)["places"]
        client.tell("ask 0 1")  # and so the two workers have a link
        client.wait_for(lambda line: "asked" in line)
        at = [*listening(hosts, 1), *listening(hosts, 2)]
        assert len(at) >= 2
        told = json.dumps({**given, "at": at})
        monkeypatch.setenv("MONARCH_LIVENESS", "6")  # of the stranger, which gets no answer
        with hosts.program(STRANGER, STRANGER_PROGRAM, told, named=True) as stranger:
            stranger.wait_for(lambda line: "done" in line)
            assert stranger.said("attached") == []
            assert len(stranger.said("refused")) == len(at)
            assert max(stranger.said("heard")) <= GREETING
        client.tell("ask 1 0")
        assert client.wait_for(lambda line: "asked" in line)["asked"] == places[0]
        client.tell("kill")
        client.wait_for(lambda line: "killed" in line)
    assert not (tmp_path / "bang").exists()


def test_a_node_that_is_cut_off_ends_in_errors_that_say_so(
    hosts: Hosts, cluster: slurm.Cluster, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONARCH_LIVENESS", "6")
    with hosts.program(LOGIN, PROGRAM, json.dumps(options), named=True) as client:
        job = client.wait_for(lambda line: "places" in line)["job"]
        client.tell("wait")
        client.wait_for(lambda line: "waits" in line)
        hosts.cut(2)
        try:
            failed = client.wait_for(lambda line: "failed" in line)
            assert (failed["kind"], failed["on"]) == ("host lost", "h2")
            assert "the host h2 is lost: no connection to it" in failed["failed"]
            client.tell("state")  # Slurm has not noticed it yet
            error = client.wait_for(lambda line: "error" in line)["error"]
            assert "none of the addresses of the worker on n1 could be reached" in error
            assert f"if that node has failed, `scancel {job}`" in error
            cluster.wait_for_state(job, "NODE_FAIL")
            client.tell("state")
            error = client.wait_for(lambda line: "error" in line)["error"]
            assert f"Slurm job {job} on n[0-1] has ended (NODE_FAIL" in error
        finally:
            hosts.mend(2)
        client.tell("kill")
        client.wait_for(lambda line: "killed" in line)
    cluster.wait_for(cluster.is_idle, "the node does not come back")
    cluster.wait_for(lambda: not slurm.of_jobs(), "the node does not end what it had")


def test_a_notebook_has_its_nodes_again_after_its_kernel_was_killed_and_gives_them_back(
    hosts: Hosts, cluster: slurm.Cluster, options: dict[str, Any], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('rank', os.environ['RANK'], 'is on', os.uname().nodename)")
    del options["path"]
    told = json.dumps({"options": options, "script": str(script)})
    with hosts.program(LOGIN, KERNEL_PROGRAM, told, named=True) as notebook:
        first, again = (notebook.wait_for(lambda line: "spawned" in line) for _ in range(2))
        assert first["spawned"] == again["spawned"] == "['h1', 'h2']"
        assert first["job"] == again["job"]
        served = notebook.wait_for(lambda line: "served" in line)["served"]
        assert sorted(re.findall(r"rank (\d) is on (h\d)", served)) == [("0", "h1"), ("1", "h2")]
        notebook.wait_for(lambda line: "killed" in line)
    assert cluster.jobs() == []
