"""`monarch reach` between two hosts, as shells on both run it, and on loopback."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monarch._src.net.hosts import keys
from monarch._src.net.state.access import Role
from tests.integration.commands import monarch
from tests.netns import PATIENCE_S, Hosts, v4, v6, why_not
from tests.workers import worker

pytestmark = pytest.mark.slow

needs_hosts = pytest.mark.skipif(bool(why_not()), reason=why_not())
Listen = Callable[..., list[str]]


@pytest.fixture
def job(tmp_path: Path) -> str:
    keys.make(tmp_path / "job", "training")
    return str(tmp_path / "job")


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts(2)
    try:
        made.up()
        yield made
    finally:
        made.down()


@contextmanager
def listening(command: list[str]) -> Iterator[list[str]]:
    """A listener, from when it listens to its end; its lines so far, and then all of them."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        try:
            yield lines
        except BaseException:
            process.kill()
            raise
        lines += process.stdout.readlines()
        assert process.wait(timeout=PATIENCE_S) == 0


def listen(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "monarch", "reach", "--once", "--listen", *arguments]


def test_it_says_what_passes_between_the_two(job: str, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    with listening(listen("tcp://127.0.0.1:0", "--keys", job, "--audit", str(audit))) as lines:
        address = lines[0].split()[-1]
        assert "no address: no other host could reach tcp://127.0.0.1" in lines[1]
        status, out, err = monarch("reach", "--keys", job, "--size", "4", address)
    assert (status, err) == (0, "")
    assert f"reached {address}\n" in out
    assert "keys      accepted, as owner of job training" in out
    assert "versions  match" in out
    assert re.search(r"answers   after [\d.]+ ms", out)
    assert re.search(r"carries   \d+ MiB/s, encrypted", out)
    assert re.search(r"payloads  beside the link, at 127\.0\.0\.1:\d+, encrypted", out)
    assert [line.split(": ")[1] for line in lines[2:]] == ["linked\n", "left\n"]
    assert '"what":"linked","role":"owner"' in audit.read_text()


def test_an_observer_learns_all_but_the_rate(job: str) -> None:
    with listening(listen("tcp://127.0.0.1:0", "--keys", job)) as lines:
        pair = f"{job}/{keys.key_file(Role.OBSERVER)}"
        status, out, _ = monarch("reach", "--keys", job, "--key", pair, lines[0].split()[-1])
    assert status == 0
    assert "accepted, as observer of job training" in out
    assert "not measured: observers send no data" in out


def test_keys_that_do_not_fit_are_told(job: str, tmp_path: Path) -> None:
    with listening(listen("tcp://127.0.0.1:0", "--keys", job)) as lines:
        address = lines[0].split()[-1]
        keys.make(tmp_path / "other", "serving")
        status, out, err = monarch(
            "reach", "--keys", str(tmp_path / "other"), "--timeout", "3", address
        )
        assert (status, out) == (1, f"reached {address}\n")
        assert "the handshake fails: is it a worker, with the keys of job serving?" in err
        monarch("reach", "--keys", job, "--size", "0", address)  # lets the listener end


def test_without_keys_it_neither_listens_beyond_this_host_nor_dials() -> None:
    status, _, err = monarch("reach", "--listen", "tcp://0.0.0.0:0")
    assert status == 1
    assert "`monarch keys make ~/.monarch/keys`" in err
    status, _, err = monarch("reach", "tcp://127.0.0.1:9")
    assert status == 1
    assert "pass the keys of the job" in err


def test_a_worker_that_answers_in_its_place_is_told_as_that(job: str) -> None:
    with worker("--address", "tcp://127.0.0.1:0", "--keys", job) as one:
        status, _, err = monarch("reach", "--keys", job, one.address)
    assert status == 1
    assert "not `monarch reach --listen`. If it is a worker, pass this address to" in err


@needs_hosts
def test_without_keys_nobody_on_another_host_is_greeted(hosts: Hosts, job: str) -> None:
    with listening(hosts.command(1, *listen("tcp://*:26600", "--keys", job))):
        dial = ("-m", "monarch", "reach", "--size", "0", f"tcp://{v4(1)}:26600", "--keys")
        status, _, err = hosts.run(2, *dial, "trust_all_connections")
        assert status == 1
        assert "works on loopback only; make keys for both hosts: `monarch keys make" in err
        assert hosts.run(2, *dial, job)[0] == 0  # lets the listener end


def test_where_it_cannot_listen_or_dial_it_says_what_helps(job: str) -> None:
    status, _, err = monarch("reach", "--keys", job, "--listen", "tcp://no-such-host.invalid:0")
    assert (status, err.partition(": the name")[0]) == (
        1, "monarch reach: cannot listen at tcp://no-such-host.invalid:0"
    )  # fmt: skip
    status, _, err = monarch("reach", "--keys", job, "tcp://*:26600")
    assert status == 1
    assert "tcp://*:26600 cannot be dialled" in err


def test_what_is_no_address_is_told(job: str) -> None:
    status, _, err = monarch("reach", "--keys", job, "10.0.0.1:26600")
    assert (status, err) == (
        1,
        "monarch reach: '10.0.0.1:26600' names no transport; write tcp://10.0.0.1:26600\n",
    )


@needs_hosts
def test_a_host_tells_others_the_addresses_that_they_can_reach_and_they_do(
    hosts: Hosts, job: str
) -> None:
    for told in (v4(1), f"[{v6(1)}]"):
        with listening(hosts.command(1, *listen("tcp://*:26600", "--keys", job))) as lines:
            assert lines[1] == (
                f"other hosts reach it at tcp://{v4(1)}:26600, tcp://[{v6(1)}]:26600\n"
            )
            status, out, _ = hosts.run(
                2, "-m", "monarch", "reach", "--keys", job, "--size", "1", f"tcp://{told}:26600"
            )
        assert (status, out.splitlines()[0]) == (0, f"reached tcp://{told}:26600")


@needs_hosts
@pytest.mark.parametrize("says_no", [True, False], ids=["refused", "dropped"])
def test_a_firewall_that_lets_the_link_through_alone_is_told(
    hosts: Hosts, job: str, says_no: bool
) -> None:
    hosts.open_only(1, 26600, says_no=says_no)
    with listening(hosts.command(1, *listen("tcp://*:26600", "--keys", job))):
        dial = ("-m", "monarch", "reach", "--keys", job, "--size", "1", "--timeout", "5")
        status, out, _ = hosts.run(2, *dial, f"tcp://{v4(1)}:26600")
    assert status == 0
    assert "payloads  by the link, which is slower: no connection to" in out
    assert "has to let more ports through than that of the link" in out


@needs_hosts
def test_a_name_that_leads_to_the_wrong_host_costs_one_attempt_and_is_listed(
    hosts: Hosts, job: str
) -> None:
    hosts.names(1, {"h1": "127.0.1.1"})
    hosts.names(2, {"h1": "127.0.1.1"})
    dial = ("-m", "monarch", "reach", "--keys", job, "--size", "0", "--timeout", "5")
    with listening(hosts.command(1, *listen("tcp://0.0.0.0:26600", "--keys", job))) as lines:
        assert lines[1] == f"other hosts reach it at tcp://{v4(1)}:26600\n"
        status, _, err = hosts.run(2, *dial, "tcp://h1:26600", "tcp://nowhere:26600")
        assert status == 1
        assert "none of the addresses of the listener could be reached:" in err
        assert "tcp://h1:26600 = tcp://127.0.1.1:26600" in err
        assert "(ECONNREFUSED, 111): nothing listens there" in err
        assert "tcp://nowhere:26600" in err
        assert "the name is not known here" in err
        status, out, _ = hosts.run(2, *dial, "tcp://h1:26600", f"tcp://{v4(1)}:26600")
        assert (status, out.splitlines()[0]) == (0, f"reached tcp://{v4(1)}:26600")


@needs_hosts
def test_what_others_are_to_dial_can_be_said(hosts: Hosts, job: str) -> None:
    both = f"tcp://gate.example:443@tcp://{v4(1)}:26600"
    with listening(hosts.command(1, *listen(both, "--keys", job))) as lines:
        assert lines[1] == "other hosts reach it at tcp://gate.example:443\n"
        hosts.run(2, "-m", "monarch", "reach", "--keys", job, f"tcp://{v4(1)}:26600")
