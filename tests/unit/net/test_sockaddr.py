"""`monarch.tools.network`: addresses of names."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from monarch.tools.network import AddrType, get_ipaddr, get_sockaddr


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
