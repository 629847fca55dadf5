"""Which addresses this host has, what names stand for, and whether somebody listens."""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from monarch._src.errors import HostUnreachableError
from monarch._src.net.interfaces import (
    first_that_answers,
    interface_addresses,
    listening_problem,
    resolve,
)
from monarch._src.net.state.addresses import Address, parse_address
from monarch.tools.network import AddrType, get_ipaddr, get_sockaddr


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Somebody who listens on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def test_the_addresses_are_those_of_the_interfaces_that_are_up() -> None:
    up = {name for name, found in psutil.net_if_stats().items() if found.isup}
    expected = {
        entry.address.partition("%")[0]
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if name in up and entry.family in (socket.AF_INET, socket.AF_INET6)
    }
    found = interface_addresses()
    assert set(found) == expected
    assert len(set(found)) == len(found)
    assert "127.0.0.1" in found


def test_an_address_stands_for_itself_and_a_name_for_what_the_system_says() -> None:
    for host in ("10.1.2.3", "fd00::7", "*", "0.0.0.0"):
        assert resolve(Address("tcp", host, 5)) == [host]
    assert "127.0.0.1" in [*resolve(parse_address("tcp://localhost:5")), "127.0.0.1"]
    with pytest.raises(OSError, match=r"."):
        resolve(parse_address("tcp://no-such-host.invalid:5"))


def test_the_first_that_answers_is_found_behind_those_that_do_not(listener: socket.socket) -> None:
    port = port_of(listener)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = port_of(gone)
    tried = [parse_address(f"tcp://127.0.0.1:{closed}"), parse_address(f"tcp://127.0.0.1:{port}")]
    assert first_that_answers("worker 0", tried, 30.0) == tried[1]


def test_where_nobody_answers_every_address_is_listed_with_its_errno() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = port_of(gone)
    tried = [
        parse_address(f"tcp://127.0.0.1:{closed}"),
        parse_address("tcp://no-such-host.invalid:5"),
    ]
    with pytest.raises(HostUnreachableError) as caught:
        first_that_answers("worker 0", tried, 30.0)
    said = str(caught.value)
    assert said.startswith("none of the addresses of worker 0 could be reached:\n")
    refused = rf"tcp://127\.0\.0\.1:{closed} +Connection refused \(ECONNREFUSED, "
    assert re.search(refused + str(errno.ECONNREFUSED), said)
    assert "tcp://no-such-host.invalid:5" in said
    assert "the name is not known here" in said


@pytest.mark.skipif(sys.platform != "linux", reason="how a full backlog behaves is Linux's")
def test_one_that_never_answers_leaves_time_for_the_next(listener: socket.socket) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        try:
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(full.getsockname())
            silent = parse_address(f"tcp://127.0.0.1:{port_of(full)}")
            answers = parse_address(f"tcp://127.0.0.1:{port_of(listener)}")
            assert first_that_answers("worker 0", [silent, answers], 1.0) == answers
            with pytest.raises(HostUnreachableError, match="ETIMEDOUT"):
                first_that_answers("worker 0", [silent], 0.2)
        finally:
            for one in waiting:
                one.close()


def test_a_socket_of_this_host_is_tried_as_an_address_is(tmp_path: Path) -> None:
    there, gone = (parse_address(f"ipc://{tmp_path}/{name}") for name in ("there", "gone"))
    with pytest.raises(HostUnreachableError, match=r"gone  .*\(ENOENT, 2\): there is no such sock"):
        first_that_answers("worker 0", [gone], 30.0)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(there.path)
        with pytest.raises(HostUnreachableError, match="ECONNREFUSED"):
            first_that_answers("worker 0", [there], 30.0)
        listener.listen()
        assert first_that_answers("worker 0", [gone, there], 30.0) == there


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EADDRINUSE, "another program listens there; end it, or take another port"),
        (errno.EADDRNOTAVAIL, "that is not an address of this host; `*` stands for all"),
        (errno.EACCES, "this user may not; take a port above 1023"),
    ],
)
def test_where_it_cannot_be_listened_is_told_with_what_helps(code: int, remedy: str) -> None:
    address = parse_address("tcp://h1:80")
    said = listening_problem(address, OSError(code, "in the words of a library"))
    assert said.startswith(f"cannot listen at tcp://h1:80: {os.strerror(code)}; {remedy}")
    assert listening_problem(address, OSError(errno.EMFILE, "too many")) == "too many"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], str]:
    """The addresses of names by family, in place of a name server."""
    known = {
        ("both", socket.AF_INET6): "fd00::1", ("both", socket.AF_INET): "10.0.0.1",
        ("old", socket.AF_INET): "10.0.0.2",
        ("link", socket.AF_INET6): "fe80::1", ("link", socket.AF_INET): "10.0.0.3",
    }  # fmt: skip

    def getaddrinfo(host: str, port: int, family: socket.AddressFamily, kind: int) -> list[Any]:
        found = known.get((host, family))
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(family, kind, 0, "", (found, port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return {(host, int(family)): address for (host, family), address in known.items()}


def test_ipv6_comes_first_and_has_brackets_with_a_port(names: object) -> None:
    assert get_sockaddr("both", 80) == "[fd00::1]:80"
    assert get_sockaddr("old", 80) == "10.0.0.2:80"
    assert get_ipaddr("both", 80) == "fd00::1"
    assert get_ipaddr("both", 80, AddrType.IPv4) == "10.0.0.1"


def test_link_local_addresses_are_left_out(names: object) -> None:
    assert get_sockaddr("link", 80) == "10.0.0.3:80"
    with pytest.raises(RuntimeError, match="'link' has no IPv6 address that others can dial"):
        get_ipaddr("link", 80, AddrType.IPv6)


def test_an_unknown_name_is_told(names: object) -> None:
    with pytest.raises(RuntimeError, match=r"'nobody' has no address .*: Name or serv"):
        get_sockaddr("nobody", 80)
    with pytest.raises(RuntimeError, match="'old' has no IPv6 address"):
        get_ipaddr("old", 80, AddrType.IPv6)
