"""A job on hosts of a network, each with an sshd: what is lost when one of them is.

The hosts are network namespaces: two with sshd, and a third with the clients.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch._src.job.launchers import local_workers
from monarch._src.net import session_directory as sessions
from tests import ssh
from tests.integration.programs import watched
from tests.netns import Hosts, hosts_up, v4, why_not

PROGRAM = str(Path(__file__).with_name("client_of_ssh_job.py"))
CLIENT = 3
MISSING = why_not() or ssh.why_not()

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING), pytest.mark.slow]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with hosts_up(3) as made:
        yield made


@pytest.fixture
def job(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What a client is told: how to reach hosts `one` and `two`, and where the record is."""
    monkeypatch.setenv("MONARCH_LIVENESS", "9")
    reached = ssh.Reached(tmp_path / "ssh", [v4(1), v4(2)])
    # Aliases that only ssh knows: monarch has to ask it what they stand for.
    reached.configure("Host one", f"  HostName {v4(1)}", "Host two", f"  HostName {v4(2)}")
    env = {**ssh.environment(), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with reached.listening(hosts.command(1), v4(1)), reached.listening(hosts.command(2), v4(2)):
        yield json.dumps({"ssh": reached.ssh, "env": env, "path": str(tmp_path / "job")})


def test_a_host_that_is_cut_off_is_told_of_and_the_rest_is_given_back_until_it_can_be(
    hosts: Hosts, job: str
) -> None:
    with hosts.program(CLIENT, PROGRAM, job, "one", "two") as client:
        first = client.wait_for(lambda line: "pids" in line)
        assert first["dialled"] == [v4(1), v4(2)]
    with hosts.program(CLIENT, PROGRAM, job, "one", "two") as client:
        assert client.wait_for(lambda line: "pids" in line)["pids"] == first["pids"]
    hosts.cut(2)
    with hosts.program(CLIENT, PROGRAM, job, "one", "two") as client:
        error = client.wait_for(lambda line: "error" in line)
        warned = " ".join(client.said("warning"))
    assert "ssh cannot connect" in error["error"]
    assert "1 of 2 workers could not be ended" in warned
    assert f"hosts[1] (two), pid {first['pids'][1]}" in warned
    with hosts.program(CLIENT, PROGRAM, job, "one") as client:  # the other host works on
        one = client.wait_for(lambda line: "pids" in line)
        hosts.mend(2)
        client.tell("kill")
        client.wait_for(lambda line: "killed" in line)
    assert one["pids"] != first["pids"][:1]
    with watched(first["pids"][1:]) as left:  # as the warning says, somebody has to do this
        os.kill(first["pids"][1], signal.SIGTERM)
        left.wait_all_ended()
    for directory in sessions.base_directory().glob(f"{local_workers.PREFIX}*"):
        shutil.rmtree(directory)


def test_a_job_that_could_not_be_ended_whole_is_ended_by_another_try(
    hosts: Hosts, job: str
) -> None:
    with hosts.program(CLIENT, PROGRAM, job, "one", "two") as client:
        client.wait_for(lambda line: "pids" in line)
        client.tell("leave")
        client.wait_for(lambda line: "left" in line)
        hosts.cut(2)
        client.tell("kill")
        assert "hosts[1] (two)" in client.wait_for(lambda line: "error" in line)["error"]
        hosts.mend(2)
        client.tell("kill")
        client.wait_for(lambda line: "killed" in line)
