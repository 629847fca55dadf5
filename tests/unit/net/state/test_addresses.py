"""Addresses: what can be written, what it means, and what another host may be told."""

from __future__ import annotations

import errno
import ipaddress
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.net.state.addresses import (
    Address,
    Attempt,
    Listening,
    Scope,
    attempts_text,
    candidates,
    is_beyond_this_host,
    parse_address,
    parse_dialled,
    parse_listening,
    scope_of,
)

INTERFACES = ["127.0.0.1", "10.77.0.1", "192.168.1.5", "::1", "fd77::1", "fe80::1"]


def tcp(host: str, port: int = 26600) -> Address:
    return Address("tcp", host, port)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp://h1:26600", tcp("h1")),
        ("tcp://10.77.0.1:0", tcp("10.77.0.1", 0)),
        ("tcp://[fd77::1]:26600", tcp("fd77::1")),
        ("tcp://[FD77:0:0::0001]:26600", tcp("fd77::1")),
        ("tcp://[::]:65535", tcp("::", 65535)),
        ("tcp://*:26600", tcp("*")),
        ("tcp://node-7.cluster_a.example.:26600", tcp("node-7.cluster_a.example.")),
        ("ipc:///tmp/a@b/worker", Address("ipc", path="/tmp/a@b/worker")),
    ],
)
def test_an_address_is_read_as_it_is_written(text: str, expected: Address) -> None:
    assert parse_address(text) == expected
    assert parse_address(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10.77.0.1:26600", "names no transport; write tcp://10.77.0.1:26600"),
        ("here", "write tcp://host:26600, tcp://[fd00::1]:26600 or ipc://"),
        ("udp://h1:5", "there is no transport 'udp'"),
        ("tcp://h1", "has no port; write tcp://h1:26600 (0: any that is free)"),
        ("tcp://h1:", "has no port"),
        ("tcp://[fd77::1]", "has no port; write tcp://[fd77::1]:26600"),
        ("tcp://:5", "names no host; '*' is every interface"),
        ("tcp://h1:65536", "'65536' is not a port; ports are numbers from 0 to 65535"),
        ("tcp://h1:-1", "is not a port"),
        ("tcp://h1:٣", "is not a port"),
        ("tcp://fd77::1:26600", "put an IPv6 address in brackets: tcp://[fd77::1]:26600"),
        ("tcp://fd77::1:5", "put an IPv6 address in brackets: tcp://[fd77::1:5]:26600"),
        ("tcp://fd77::zz:26600", "put an IPv6 address in brackets: tcp://[fd77::zz]:26600"),
        ("tcp://[fd77::1:26600", "close the bracket"),
        ("tcp://[h1]:5", "'h1' is not an IPv6 address, which brackets are for"),
        ("tcp://[ff02::1]:5", "is not an IPv6 address"),
        ("tcp://10.77.0.256:5", "10.77.0.256 is not an IPv4 address"),
        ("tcp://224.0.0.1:5", "224.0.0.1 stands for many hosts"),
        ("tcp://a b:5", "is not a host name"),
        ("tcp://user@h1:5", "is not a host name"),
        ("ipc://worker", "it is not absolute; give the path of a socket"),
        ("ipc://@worker", "others on this host could open it"),
        ("ipc:///" + "x" * 200, "the path has 201 bytes, and a socket's may have 103"),
    ],
)
def test_what_is_no_address_is_refused_with_the_way_to_write_it(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("value", [None, 5, b"tcp://h1:5"])
def test_what_is_no_text_is_refused_with_an_example(value: Any) -> None:
    for parse in (parse_address, parse_listening):
        with pytest.raises(TypeError, match="give text such as tcp://host:26600"):
            parse(value)


@given(st.text() | st.text("tcpi:/[]@*.0123456789abf-", max_size=40).map("tcp://".__add__))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        found = parse_listening(text)
    except ValueError:
        return
    assert parse_listening(str(found)) == found


def test_what_others_dial_stands_before_where_to_listen() -> None:
    found = parse_listening("tcp://cluster.example:443@tcp://0.0.0.0:26600")
    assert found == Listening(tcp("0.0.0.0"), tcp("cluster.example", 443))
    assert str(found) == "tcp://cluster.example:443@tcp://0.0.0.0:26600"
    assert parse_listening("tcp://*:0") == Listening(tcp("*", 0))


@pytest.mark.parametrize(
    ("asked", "is_at"),
    [
        ("tcp://*:0", "tcp://*:4711"),
        ("tcp://h.example:0@tcp://*:0", "tcp://h.example:4711@tcp://*:4711"),
        ("tcp://h.example:80@tcp://*:0", "tcp://h.example:80@tcp://*:4711"),
    ],
)
def test_a_listener_has_the_port_that_it_got_and_tells_it_where_none_was_said(
    asked: str, is_at: str
) -> None:
    listening = parse_listening(asked)
    assert str(listening.at(listening.bind.with_port(4711))) == is_at


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tcp://a:1@tcp://b:2@tcp://c:3", "more than two addresses"),
        ("tcp://*:1@tcp://10.77.0.1:2", "cannot be dialled: it stands for every interface"),
        ("tcp://a:1@ipc:///tmp/a", "a listener at ipc cannot be dialled by tcp"),
        ("tcp://a:1@tcp://b", "'tcp://b' has no port"),
    ],
)
def test_a_pair_that_cannot_work_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_listening(text)


@pytest.mark.parametrize(
    ("host", "scope"),
    [
        ("127.0.0.1", Scope.LOOPBACK), ("127.255.0.9", Scope.LOOPBACK), ("::1", Scope.LOOPBACK),
        ("localhost", Scope.LOOPBACK), ("LocalHost.", Scope.LOOPBACK),
        ("a.localhost", Scope.LOOPBACK), ("::ffff:127.0.0.1", Scope.LOOPBACK),
        ("169.254.3.4", Scope.LINK_LOCAL), ("fe80::1", Scope.LINK_LOCAL),
        ("fe80::1%eth0", Scope.LINK_LOCAL), ("::ffff:169.254.1.1", Scope.LINK_LOCAL),
        ("0.0.0.0", Scope.EVERY_INTERFACE), ("::", Scope.EVERY_INTERFACE),
        ("*", Scope.EVERY_INTERFACE), ("h1", Scope.NAME), ("10.0.0.1", Scope.ROUTED),
        ("fd77::1", Scope.ROUTED),
    ],
)  # fmt: skip
def test_each_address_has_a_scope(host: str, scope: Scope) -> None:
    assert scope_of(host) is scope


# --- addresses for others -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bind", "resolved", "beyond"),
    [
        ("tcp://127.0.0.1:5", [], False),
        ("tcp://[::1]:5", [], False),
        ("ipc:///tmp/x", [], False),
        ("tcp://0.0.0.0:5", [], True),
        ("tcp://*:5", [], True),
        ("tcp://10.77.0.1:5", [], True),
        ("tcp://169.254.1.1:5", [], True),
        ("tcp://h1:5", ["127.0.1.1"], False),
        ("tcp://h1:5", ["127.0.1.1", "10.77.0.1"], True),
        ("tcp://h1:5", [], True),
        # A file of hosts may say of the name localhost what it likes.
        ("tcp://localhost:5", ["10.77.0.1"], True),
        ("tcp://localhost:5", ["127.0.0.1", "::1"], False),
    ],
)
def test_addresses_decide_and_not_names_whether_others_could_connect(
    bind: str, resolved: list[str], beyond: bool
) -> None:
    assert is_beyond_this_host(parse_address(bind), resolved) is beyond


def told(text: str, interfaces: list[str] = INTERFACES, **options: Any) -> list[str]:
    return [str(address) for address in candidates(parse_listening(text), interfaces, **options)]


def test_every_interface_is_told_as_those_that_others_can_reach_in_their_order() -> None:
    assert told("tcp://*:7") == ["tcp://10.77.0.1:7", "tcp://192.168.1.5:7", "tcp://[fd77::1]:7"]
    assert told("tcp://0.0.0.0:7") == ["tcp://10.77.0.1:7", "tcp://192.168.1.5:7"]


def test_the_one_that_leads_to_who_asks_comes_first_and_once() -> None:
    assert told("tcp://*:7", towards="192.168.1.5")[0] == "tcp://192.168.1.5:7"
    assert len(told("tcp://*:7", towards="192.168.1.5")) == 3
    assert told("tcp://*:7", towards="172.16.0.9") == told("tcp://*:7")


def test_an_address_that_was_given_is_the_only_one() -> None:
    assert told("tcp://192.168.1.5:7") == ["tcp://192.168.1.5:7"]
    assert told("tcp://gate.example:443@tcp://*:7") == ["tcp://gate.example:443"]


def test_a_name_is_told_as_where_it_listens_whatever_others_take_it_for() -> None:
    assert told("tcp://h1:7", resolved=["127.0.1.1", "10.77.0.1"]) == ["tcp://10.77.0.1:7"]


def test_where_there_is_only_ipv6_that_is_told() -> None:
    assert told("tcp://*:7", ["::1", "fd77::1", "fe80::1"]) == ["tcp://[fd77::1]:7"]


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("tcp://127.0.0.1:7", {}, "it stands for 127.0.0.1 (loopback)"),
        ("tcp://h1:7", {"resolved": ["127.0.1.1"]}, "it stands for 127.0.1.1 (loopback)"),
        ("tcp://h1:7", {}, "it stands for no address"),
        ("tcp://[fe80::1]:7", {}, "fe80::1 (link-local)"),
        ("ipc:///tmp/w", {}, "no other host could reach ipc:///tmp/w"),
        (
            "tcp://127.0.0.1:7@tcp://*:7",
            {},
            "cannot be dialled from another host: it is a loopback",
        ),
    ],
)
def test_where_nothing_can_be_told_it_is_said_why_and_what_to_do(
    text: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match="@") as caught:
        told(text, **options)
    assert says in str(caught.value)


ANY_HOST = st.one_of(
    st.ip_addresses().map(str), st.sampled_from([*INTERFACES, "127.0.1.1", "169.254.0.1"])
)


@given(
    st.lists(ANY_HOST, max_size=6),
    st.sampled_from(["*", "0.0.0.0", "[::]", "h1"]),
    st.none() | ANY_HOST,
)
def test_another_host_is_never_told_what_means_itself_or_nothing(
    hosts: list[str], bind: str, towards: str | None
) -> None:
    listening = parse_listening(f"tcp://{bind}:7")
    try:
        found = candidates(listening, hosts, resolved=hosts, towards=towards)
    except ValueError:
        return
    assert found
    assert len(set(found)) == len(found)
    for address in found:
        host = ipaddress.ip_address(address.host)
        host = getattr(host, "ipv4_mapped", None) or host
        assert [host.is_loopback, host.is_link_local, host.is_unspecified] == [False] * 3
        assert address.host in hosts


# --- when nobody answers --------------------------------------------------------------------------


def test_a_failure_lists_every_address_in_order_with_its_errno_and_what_to_do() -> None:
    attempts = [
        Attempt("tcp://10.77.0.2:26600", errno.ECONNREFUSED),
        Attempt("tcp://[fd77::2]:26600", errno.ENETUNREACH),
        Attempt("tcp://h2:26600", 0, "the name is not known here"),
    ]
    assert attempts_text("worker 1", attempts) == (
        "none of the addresses of worker 1 could be reached:\n"
        f"  tcp://10.77.0.2:26600  Connection refused (ECONNREFUSED, {errno.ECONNREFUSED}): "
        "nothing listens there; is the worker running, and on that port?\n"
        f"  tcp://[fd77::2]:26600  Network is unreachable (ENETUNREACH, {errno.ENETUNREACH}): "
        "no route to that network from here\n"
        "  tcp://h2:26600         the name is not known here"
    )


def test_one_without_addresses_is_told_as_such() -> None:
    assert attempts_text("worker 1", []) == "worker 1 has no address that could be dialled"


def test_what_is_dialled_is_the_first_of_two_and_one_host() -> None:
    assert parse_dialled("tcp://gate:443@tcp://*:26600") == parse_address("tcp://gate:443")
    assert parse_dialled("tcp://[::1]:26600").host == "::1"
    for text in ("tcp://*:26600", "tcp://0.0.0.0:26600", "tcp://[::]:26600"):
        with pytest.raises(ValueError, match=r"cannot be dialled: .*; give the name or address of"):
            parse_dialled(text)
    with pytest.raises(ValueError, match="has port 0; give the port that the worker got"):
        parse_dialled("tcp://h1:0")
