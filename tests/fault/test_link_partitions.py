"""A link between two hosts under load, while the network between them is cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netns import Hosts, Program, hosts_up, v4, v6, why_not

PROGRAM = str(Path(__file__).with_name("linked_host.py"))
Pair = tuple[Program, Program]

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.slow]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with hosts_up(2) as made:
        yield made


@pytest.fixture
def liveness_s() -> float:
    return 20.0


@pytest.fixture
def size() -> int:
    """Bytes of a message."""
    return 200


@pytest.fixture
def pair(hosts: Hosts, job: str, liveness_s: float, size: int, where: str) -> Iterator[Pair]:
    """The listening and the dialling side, with numbers on their way in both directions."""
    terms = (str(liveness_s), str(size))
    listen = (PROGRAM, job, "worker", *terms, "listen", "tcp://*:26600")
    dial = (PROGRAM, job, "client", *terms, "dial", "worker", f"tcp://{where}:26600")
    with hosts.program(1, *listen) as worker:
        worker.wait_for(lambda line: "listening" in line)
        with hosts.program(2, *dial) as client:
            for program in (worker, client):
                wait_for_notice(program, "LinkUp")
                program.wait_for(lambda line: "progress" in line)
            yield worker, client


@pytest.fixture
def where() -> str:
    return v4(1)


def wait_for_notice(program: Program, kind: str) -> str:
    return program.wait_for(lambda line: line.get("notice") == kind)["why"]


def everything_came_once_and_in_order(pair: Pair) -> None:
    for program in pair:
        program.tell("stop")
    for program in pair:
        end = program.wait_for(lambda line: "got" in line)
        assert end["in_order"]
        assert end["got"] == end["of"] > 0
        assert not {"PeerLost", "PeerLeft", "PeerRefused"} & set(program.said("notice"))


def test_a_cut_that_is_mended_in_time_loses_nothing_and_repeats_nothing(
    hosts: Hosts, pair: Pair
) -> None:
    for cut in (1, 2):
        hosts.cut(cut)
        for program in pair:
            wait_for_notice(program, "LinkDown")
        hosts.mend(cut)
        for program in pair:
            wait_for_notice(program, "LinkUp")
            program.wait_for(lambda line: "progress" in line)
    everything_came_once_and_in_order(pair)


@pytest.mark.parametrize("where", [f"[{v6(1)}]"])
def test_where_there_is_only_ipv6_it_works_alike(hosts: Hosts, pair: Pair) -> None:
    everything_came_once_and_in_order(pair)


@pytest.mark.parametrize("liveness_s", [4.0])
@pytest.mark.parametrize("size", [200, 4096])
def test_a_cut_that_lasts_is_told_as_a_lost_host_on_both_sides(hosts: Hosts, pair: Pair) -> None:
    hosts.cut(1)
    for program in pair:
        assert "no connection to it for" in wait_for_notice(program, "PeerLost")


@pytest.mark.parametrize("liveness_s", [4.0])
@pytest.mark.parametrize(("source", "target"), [(1, 2), (2, 1)])
def test_a_network_that_passes_one_way_only_is_as_good_as_cut_for_both(
    hosts: Hosts, pair: Pair, source: int, target: int
) -> None:
    hosts.silence(source, target)
    for program in pair:
        why = wait_for_notice(program, "PeerLost")
        assert "no connection to it for" in why or "it has given up this side" in why


@pytest.mark.parametrize("liveness_s", [2.0])
def test_a_host_whose_interpreter_is_held_for_longer_is_busy_and_not_lost(pair: Pair) -> None:
    worker, client = pair
    worker.tell("hold 5")
    worker.wait_for(lambda line: "held" in line)
    for program in (worker, client):
        program.wait_for(lambda line: "progress" in line)
    everything_came_once_and_in_order(pair)


@pytest.mark.parametrize("says_no", [True, False], ids=["refused", "dropped"])
def test_a_link_needs_no_port_but_the_one_that_was_dialled(
    hosts: Hosts, job: str, says_no: bool
) -> None:
    hosts.open_only(1, 26600, says_no=says_no)
    terms = ("20", "200")
    listen = (PROGRAM, job, "worker", *terms, "listen", "tcp://*:26600")
    dial = (PROGRAM, job, "client", *terms, "dial", "worker", f"tcp://{v4(1)}:26600")
    with hosts.program(1, *listen) as worker:
        worker.wait_for(lambda line: "listening" in line)
        with hosts.program(2, *dial) as client:
            for program in (worker, client):
                program.wait_for(lambda line: "progress" in line)
            everything_came_once_and_in_order((worker, client))
