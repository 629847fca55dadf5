"""The search for the address of a worker, over real sockets that no worker serves."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from monarch._src.errors import HostUnreachableError
from monarch._src.job.launchers.slurm.reaching import Search
from monarch._src.job.launchers.slurm.state.reports import Worker

TIMEOUT_S = 60.0


@pytest.fixture
def port() -> Iterator[int]:
    """A port at which a program accepts connections, at each address of this host."""
    with socket.create_server(("", 0)) as server:
        yield server.getsockname()[1]


def test_addresses_that_lead_elsewhere_are_passed_over_in_order(port: int) -> None:
    worker = Worker("127.0.0.1", 1, port, [f"127.0.0.3:{port}", f"127.0.0.2:{port}"], "n0-1")
    search = Search(worker)
    seen: list[str] = []
    for site in ("n1-2", "", "n0-1"):
        assert not search.found
        seen.append(str(search.dial(TIMEOUT_S)))
        search.check(site)
    assert search.found
    assert seen == [f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.3:{port}", f"tcp://127.0.0.2:{port}"]


def test_each_address_that_led_elsewhere_is_in_the_error(port: int) -> None:
    search = Search(Worker("no.such.invalid", 1, port, [f"127.0.0.1:{port}", "127.0.0.1:1"], "a-1"))
    search.dial(TIMEOUT_S)
    search.check("n7-2")
    with pytest.raises(HostUnreachableError) as failed:
        search.dial(TIMEOUT_S)
    text = str(failed.value)
    assert "none of the addresses of the worker on no.such.invalid could be reached" in text
    assert f"tcp://127.0.0.1:{port}  the worker of n7 answers there" in text
    assert "tcp://127.0.0.1:1  Connection refused" in text


def test_a_search_without_an_address_left_says_what_answered(port: int) -> None:
    search = Search(Worker("127.0.0.1", 1, port, [], "n0-1"))
    search.dial(TIMEOUT_S)
    search.check("")
    with pytest.raises(HostUnreachableError, match="no worker of this job answers"):
        search.dial(TIMEOUT_S)
