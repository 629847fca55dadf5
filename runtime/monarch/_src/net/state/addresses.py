"""Addresses: where a process listens, and how others may reach it. No I/O.

    tcp://HOST:PORT    HOST is a name, an IPv4 address, an IPv6 address in brackets, or `*` (every
                       interface of this host); PORT 0 is any free one
    ipc://PATH         a socket in this host's file system
    DIAL@BIND          listen at BIND, and have others dial DIAL: for a host behind an address
                       translator, or with a name that only others can resolve
    LABEL<UID>@...     any of these with the identity of the worker, which is left out

An address that is announced to other hosts must mean the same host everywhere. A loopback address
means the dialling host, and a link-local one depends on the link, so neither is ever announced.
Whether other hosts can reach a listener depends on the addresses that its name resolves to, since
`/etc/hosts` may assign the loopback address to any name.
"""

from __future__ import annotations

import enum
import errno
import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

EVERY_INTERFACE = "*"
LONGEST_PATH = 103  # macOS: `sun_path` has 104 bytes, the last of them 0; Linux has 108
_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_-]{1,63})*\.?\Z")
_TWO = re.compile(r"@(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_IDENTITY = re.compile(r"[A-Za-z0-9_.-]*<[0-9a-f]{1,16}>(?=@[A-Za-z])")
_OF_ANYBODY = "cannot be dialled: it stands for every interface of the dialling host"
_EXAMPLE = "tcp://host:26600, tcp://[fd00::1]:26600 or ipc:///run/user/1000/worker"


class Scope(enum.Enum):
    """From where an address means the same host."""

    EVERY_INTERFACE = "every interface"
    LOOPBACK = "loopback"
    LINK_LOCAL = "link-local"
    NAME = "name"
    ROUTED = "routed"


class Address(msgspec.Struct, frozen=True):
    """An address. `host` and `port` belong to tcp, `path` to ipc."""

    transport: Literal["tcp", "ipc"]
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def scope(self) -> Scope:
        """From where it means the same host; an ipc address is valid on its host only."""
        return Scope.LOOPBACK if self.transport == "ipc" else scope_of(self.host)

    @property
    def is_v6(self) -> bool:
        """Whether the host is written as an IPv6 address."""
        return ":" in self.host

    def with_port(self, port: int) -> Address:
        """The same with the port that a listener got."""
        return msgspec.structs.replace(self, port=port)

    def __str__(self) -> str:
        if self.transport == "ipc":
            return f"ipc://{self.path}"
        host = f"[{self.host}]" if self.is_v6 else self.host
        return f"tcp://{host}:{self.port}"


class Listening(msgspec.Struct, frozen=True):
    """The address to listen at, and the one for others to dial if given."""

    bind: Address
    dial: Address | None = None

    def at(self, bind: Address) -> Listening:
        """The same with the actual address of the listener, whose port replaces a 0 in `dial`."""
        dial = self.dial
        if dial is not None and dial.transport == "tcp" and not dial.port:
            dial = dial.with_port(bind.port)
        return Listening(bind, dial)

    def __str__(self) -> str:
        return str(self.bind) if self.dial is None else f"{self.dial}@{self.bind}"


def scope_of(host: str) -> Scope:
    """The scope of a name or of an address without brackets."""
    if host == EVERY_INTERFACE:
        return Scope.EVERY_INTERFACE
    if host.rstrip(".").lower() == "localhost" or host.rstrip(".").lower().endswith(".localhost"):
        return Scope.LOOPBACK
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return Scope.NAME
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_unspecified:
        return Scope.EVERY_INTERFACE
    if found.is_loopback:
        return Scope.LOOPBACK
    return Scope.LINK_LOCAL if found.is_link_local else Scope.ROUTED


# --- reading --------------------------------------------------------------------------------------


def parse_address(text: str) -> Address:
    """Parse one address.

    Raises:
        TypeError: not text.
        ValueError: it is malformed; the error says what is wrong and how to write it.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{text!r} is not an address; give text such as {_EXAMPLE}")
    transport, found, rest = text.partition("://")
    if not found:
        hint = f"write tcp://{text}" if re.search(r":\d+\Z", text) else f"write {_EXAMPLE}"
        raise ValueError(f"{text!r} names no transport; {hint}")
    if transport == "ipc":
        return _ipc(text, rest)
    if transport == "tcp":
        return _tcp(text, rest)
    raise ValueError(f"{text!r}: there is no transport {transport!r}; write {_EXAMPLE}")


def parse_listening(text: str) -> Listening:
    """Parse an address to listen at, or `DIAL@BIND`.

    Raises:
        TypeError, ValueError: see `parse_address`; also a `DIAL` that cannot be dialled.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{text!r} is not an address; give text such as {_EXAMPLE}")
    first, *rest = _TWO.split(text)
    if rest and identity_in(text):
        first, *rest = rest
    if not rest:
        return Listening(parse_address(first))
    if len(rest) > 1:
        raise ValueError(f"{text!r} has more than two addresses; write DIAL@BIND")
    dial, bind = parse_address(first), parse_address(rest[0])
    if dial.transport != bind.transport:
        raise ValueError(
            f"{text!r}: a listener at {bind.transport} cannot be dialled by {dial.transport}"
        )
    if dial.scope is Scope.EVERY_INTERFACE:
        raise ValueError(
            f"{dial} {_OF_ANYBODY}; put it "
            f"behind the @, and in front the name or address by which others reach this host"
        )
    return Listening(bind, dial)


def identity_in(text: str) -> str:
    """The identity of the worker in an address, without its label; empty if there is none."""
    found = _IDENTITY.match(text)
    return "" if found is None else found[0].partition("<")[2].rstrip(">")


def parse_dialled(text: str) -> Address:
    """Parse an address to dial; of `DIAL@BIND` the first.

    Raises:
        TypeError, ValueError: see `parse_listening`; also an address only for listeners.
    """
    listening = parse_listening(text)
    address = listening.dial or listening.bind
    if address.scope is Scope.EVERY_INTERFACE:
        raise ValueError(f"{address} {_OF_ANYBODY}; give the name or address of the host")
    if address.transport == "tcp" and not address.port:
        raise ValueError(f"{text!r} has port 0; give the port that the worker got, which it prints")
    return address


def _ipc(text: str, path: str) -> Address:
    if not path.startswith("/"):
        why = "others on this host could open it" if path.startswith("@") else "it is not absolute"
        raise ValueError(
            f"{text!r}: {why}; give the path of a socket, as in ipc:///tmp/mine/worker"
        )
    size = len(os.fsencode(path))
    if size > LONGEST_PATH:
        raise ValueError(
            f"{text!r}: the path has {size} bytes, and a socket's may have {LONGEST_PATH}; "
            "use a shorter directory"
        )
    if "\0" in path:
        raise ValueError(f"{text!r}: a path cannot contain NUL")
    return Address("ipc", path=path)


def _tcp(text: str, rest: str) -> Address:
    if rest.startswith("["):
        host, bracket, after = rest[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise ValueError(f"{text!r}: close the bracket and add a port: tcp://[{host}]:26600")
        port = after[1:]
        if not _is_v6(host):
            raise ValueError(f"{text!r}: {host!r} is not an IPv6 address, which brackets are for")
        host = _plain(host)
    else:
        host, _, port = rest.rpartition(":") if ":" in rest else (rest, "", "")
        if ":" in host:
            whole = rest if _is_v6(rest) else host
            raise ValueError(
                f"{text!r}: put an IPv6 address in brackets: tcp://[{whole}]:"
                f"{'26600' if whole == rest else port}"
            )
    if not host:
        raise ValueError(
            f"{text!r} names no host; {EVERY_INTERFACE!r} is every interface of this one"
        )
    if not port:
        raise ValueError(
            f"{text!r} has no port; write tcp://{_bracketed(host)}:26600 (0: any that is free)"
        )
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError(f"{text!r}: {port!r} is not a port; ports are numbers from 0 to 65535")
    _check_host(text, host)
    return Address("tcp", host, int(port))


def _check_host(text: str, host: str) -> None:
    if host == EVERY_INTERFACE or _is_v6(host):
        return
    if re.fullmatch(r"[0-9.]+", host):
        try:
            found = ipaddress.IPv4Address(host)
        except ValueError as error:
            raise ValueError(f"{text!r}: {host} is not an IPv4 address: {error}") from None
        if found.is_multicast or found == ipaddress.IPv4Address("255.255.255.255"):
            raise ValueError(f"{text!r}: {host} stands for many hosts; give the address of one")
    elif not _NAME.match(host):
        raise ValueError(f"{text!r}: {host!r} is not a host name: letters, digits and -_. only")


def _is_v6(host: str) -> bool:
    try:
        found = ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return not found.is_multicast


def _plain(host: str) -> str:
    """The canonical form: equal addresses compare equal."""
    return str(ipaddress.IPv6Address(host))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# --- addresses for other hosts --------------------------------------------------------------------


def is_beyond_this_host(bind: Address, resolved: Iterable[str] = ()) -> bool:
    """Whether other hosts could connect to a listener at that address.

    Args:
        resolved: the addresses that the name in `bind` resolves to on this host. If there are none,
            the answer is True.
    """
    if bind.transport == "ipc":
        return False
    if bind.scope is not Scope.NAME and bind.host.rstrip(".").lower() != "localhost":
        return bind.scope is not Scope.LOOPBACK
    scopes = [scope_of(host) for host in resolved]
    return not scopes or any(scope is not Scope.LOOPBACK for scope in scopes)


def candidates(
    listening: Listening,
    interfaces: Sequence[str],
    *,
    resolved: Sequence[str] = (),
    towards: str | None = None,
) -> list[Address]:
    """The addresses for another host to dial, best first; never loopback, never link-local.

    Args:
        listening: the requested address, with the port that the listener got.
        interfaces: the addresses of this host's interfaces, in the order of the system.
        resolved: those that the name in `listening.bind` resolves to on this host.
        towards: the address of this host from which it reaches that other host, if known: first.

    Raises:
        ValueError: there is none; the text says why each was left out.
    """
    bind, dial = listening.bind, listening.dial
    if dial is not None:
        if dial.scope in (Scope.LOOPBACK, Scope.LINK_LOCAL):
            raise ValueError(
                f"{dial} cannot be dialled from another host: it is a {dial.scope.value} "
                "address; put a name or address in front of the @ that others can reach"
            )
        return [dial]
    if bind.transport == "ipc":
        hosts = []
    elif bind.scope is Scope.EVERY_INTERFACE:
        hosts = [host for host in interfaces if _same_family(bind, host)]
        if towards in hosts:
            hosts = [towards, *hosts]
    elif bind.scope is Scope.NAME:
        # The addresses, not the name, which others may resolve differently.
        hosts = list(resolved)
    else:
        hosts = [bind.host]
    usable = [host for host in hosts if scope_of(host) in (Scope.ROUTED, Scope.NAME)]
    if not usable:
        found = ", ".join(f"{host} ({scope_of(host).value})" for host in dict.fromkeys(hosts))
        raise ValueError(
            f"no other host could reach {bind}: it stands for {found or 'no address'}; listen at "
            "an address of an interface, or give others an address to dial: DIAL@BIND"
        )
    return [Address("tcp", host, bind.port) for host in dict.fromkeys(usable)]


def _same_family(bind: Address, host: str) -> bool:
    return ":" not in host if bind.host == "0.0.0.0" else True


# --- errors of connecting and listening -----------------------------------------------------------

_REMEDIES = {
    errno.ECONNREFUSED: "nothing listens there; is the worker running, and on that port?",
    errno.ETIMEDOUT: "no answer at all; a firewall may drop it, or the host is down",
    errno.EHOSTUNREACH: "no route to that host from here",
    errno.ENETUNREACH: "no route to that network from here",
    errno.EADDRNOTAVAIL: "that is not an address of a host",
    errno.EACCES: "this process may not connect there",
    errno.ENOENT: "there is no such socket",
}
_LISTENING = {
    errno.EADDRINUSE: "another program listens there; end it, or take another port (0: any free)",
    errno.EADDRNOTAVAIL: "that is not an address of this host; `*` stands for all of them",
    errno.EACCES: "this user may not; take a port above 1023, or a directory of your own",
    errno.ENOENT: "there is no such directory; make it, with mode 0700",
}


def listening_remedy(code: int) -> str:
    """A remedy if listening failed with that errno; empty if there is none."""
    return _LISTENING.get(code, "")


class Attempt(msgspec.Struct, frozen=True):
    """A failed attempt to dial. `code` is an errno, or 0 with the reason in `said`."""

    address: str
    code: int
    said: str = ""


def attempts_text(who: str, attempts: Sequence[Attempt]) -> str:
    """The error for a peer that could not be reached: every attempt, in order, with its errno."""
    lines = [f"none of the addresses of {who} could be reached:"]
    width = max((len(attempt.address) for attempt in attempts), default=0)
    for attempt in attempts:
        code = attempt.code
        if code:
            name = errno.errorcode.get(code, "errno")
            said = f"{os.strerror(code)} ({name}, {code})"
        else:
            said = attempt.said
        remedy = _REMEDIES.get(code)
        lines.append(f"  {attempt.address:{width}}  {said}" + (f": {remedy}" if remedy else ""))
    if not attempts:
        lines = [f"{who} has no address that could be dialled"]
    return "\n".join(lines)
