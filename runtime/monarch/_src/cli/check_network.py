"""`monarch reach`: check that two hosts can work together before a job needs them to.

On one host it listens, on another it dials: which address works, whether the keys fit, whether both
sides are of the same versions, how long an answer takes and how much passes. And whether the one
that dials can connect beside the link as well, which is how large payloads go
(`payload.hosts.client`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from monarch._src.cli.columns import columns
from monarch._src.net.hosts import keys
from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_ends import Notice, bounds_of
from monarch._src.net.hosts.links import Links
from monarch._src.net.interfaces import (
    first_that_answers,
    interface_addresses,
    listening_problem,
    resolve,
)
from monarch._src.net.state.access import MAKE_KEYS, TRUST_ALL, Role
from monarch._src.net.state.addresses import (
    Address,
    Listening,
    candidates,
    is_beyond_this_host,
    parse_dialled,
    parse_listening,
)
from monarch._src.net.state.link import NoRoomError
from monarch._src.net.state.link_actions import LinkDown, LinkState, PeerLost, PeerRefused
from monarch._src.net.streams.connection import Connection
from monarch._src.net.streams.dialling import Dialling
from monarch._src.net.streams.protocol import Request
from monarch._src.net.streams.sockets import ServerAddress
from monarch._src.wire.ids import OBSERVER

LISTENER = "reach"
PROBES = 50
PIECE = 1 << 20
ASK_PLACE = b"where do you serve payloads?"


class Missing(Exception):
    """The check cannot go on; the text tells the user why."""


def run_listen(where: str, own: str | None, audit: str | None, *, once: bool) -> int:
    """Answer peers that dial until interrupted; with `once`, until the first peer has left."""
    return _reported(lambda: _listen(where, own, audit, once))


def run_dial(
    addresses: Sequence[str], own: str | None, key: str | None, timeout_s: float, size: int
) -> int:
    """Dial the first address that answers and print what was measured."""
    return _reported(lambda: _dial(addresses, own, key, timeout_s, size))


def _reported(run: Callable[[], None]) -> int:
    try:
        run()
    except (Missing, OSError, ValueError) as error:
        print(f"monarch reach: {error}", file=sys.stderr)
        return 1
    return 0


def _keys(own: str | None, key: str | None, role: Role) -> tuple[Keys | None, bool]:
    """The keys to use, and whether all connections are trusted without keys."""
    if own is None or own == TRUST_ALL:
        return None, own == TRUST_ALL
    return keys.load(own, key, role), False


# --- listening ------------------------------------------------------------------------------------


def _listen(where: str, own: str | None, audit_file: str | None, once: bool) -> None:
    listening = parse_listening(where)
    found, trusts_all = _keys(own, None, Role.WORKER)
    left: list[str] = []

    def on_notice(peer: str, notice: Notice) -> None:
        print(f"{peer}: {_notice_text(notice)}", flush=True)
        if links.link_to(peer).is_final:
            left.append(peer)

    def on_data(peer: str, frames: Sequence[Any], size: int) -> None:
        links.handled(peer, size)
        if frames[0] == ASK_PLACE:
            links.send(peer, [msgspec.msgpack.encode(beside.serve(""))])

    def serves_at() -> tuple[str, list[str]]:
        if got.transport != "tcp":
            return "", []
        return got.host, [address.host for address in _others(where, got)] or [got.host]

    beside = Dialling(
        _NoRequests(), os.uname().nodename, serves_at, lambda _: False,
        seals=lambda: found is not None,
    )  # fmt: skip
    audit = Audit(audit_file)
    links = Links(LISTENER, found, audit, bounds_of(30.0), 5.0, on_data, on_notice)
    try:
        got = _listened(links, listening, trusts_all)
        print(f"listening at {got}", flush=True)
        print(f"other hosts reach it at {_advertised(where, got)}", flush=True)
        while not (once and left):
            links.wait(1.0)
    finally:
        beside.close()
        links.close("its program has ended")
        audit.close()


def _listened(links: Links, listening: Listening, trusts_all: bool) -> Address:
    try:
        return links.listen(listening, trusts_all=trusts_all)
    except OSError as error:
        if error.errno is None:
            raise
        raise Missing(listening_problem(listening.bind, error)) from None


class _NoRequests:
    """See `net.streams.server.Requests`: none but the server's own, which is the probe."""

    incarnation = bytes(16)
    kinds = ()

    def serve(self, connection: Connection, request: Request) -> bool:
        return False


def _others(where: str, got: Address) -> list[Address]:
    """Where other hosts may dial this one; none if they cannot."""
    try:
        return _candidates(where, got)
    except ValueError:
        return []


def _candidates(where: str, got: Address) -> list[Address]:
    listening = parse_listening(where)
    listening = type(listening)(got, listening.dial)
    resolved = resolve(got) if got.transport == "tcp" else []
    return candidates(listening, interface_addresses(), resolved=resolved)


def _advertised(where: str, got: Address) -> str:
    try:
        return ", ".join(map(str, _candidates(where, got)))
    except ValueError as error:
        return f"no address: {error}"


def _notice_text(notice: Notice) -> str:
    if isinstance(notice, LinkDown):
        return "connection lost; waiting for it to come back"
    why = getattr(notice, "why", None)
    return {"LinkUp": "linked", "PeerLeft": "left"}.get(type(notice).__name__, str(why))


# --- dialling -------------------------------------------------------------------------------------


def _dial(
    addresses: Sequence[str], own: str | None, key: str | None, timeout_s: float, size: int
) -> None:
    parsed = [parse_dialled(text) for text in addresses]
    found, trusts_all = _keys(own, key, Role.OWNER)
    if found is None and not trusts_all:
        raise Missing(f"pass the keys of the job: --keys DIRECTORY (or {TRUST_ALL}, on loopback)")
    at = first_that_answers("the listener", parsed, timeout_s)
    print(f"reached {at}")
    if found is None and is_beyond_this_host(at, [at.host]):
        raise Missing(
            f"{TRUST_ALL} works on loopback only; make keys for both hosts: `{MAKE_KEYS}`"
        )
    problems: list[str] = []

    def on_notice(_peer: str, notice: Notice) -> None:
        if isinstance(notice, (PeerLost, PeerRefused)):
            problems.append(_why(notice.why))

    answers: list[bytes] = []

    def on_data(peer: str, frames: Sequence[Any], size: int) -> None:
        links.handled(peer, size)
        answers.append(bytes(frames[0]))

    role = "any peer" if found is None else found.role.value
    name = OBSERVER if found is not None and found.role is Role.OBSERVER else f"{LISTENER}-"
    links = Links(
        f"{name}{os.urandom(4).hex()}", found, Audit(None), bounds_of(timeout_s), timeout_s / 6,
        on_data, on_notice,
    )  # fmt: skip
    try:
        links.dial(LISTENER, at)
        link = links.link_to(LISTENER)
        _until(links, lambda: link.state is LinkState.UP, problems)
        job = "" if found is None else f" of job {found.allowed.job}"
        rows = [("  keys", f"accepted, as {role}{job}"), ("  versions", "match")]
        rows.append(("  answers", _answers(links, problems)))
        if found is not None and found.role is Role.OBSERVER:
            rows.append(("  carries", "not measured: observers send no data"))
        else:
            if size:
                rows.append(("  carries", _rate(links, size, problems)))
            links.send(LISTENER, [ASK_PLACE])
            _until(links, lambda: answers, problems)
            place = msgspec.msgpack.decode(answers[0], type=ServerAddress)
            rows.append(("  payloads", _beside(place, timeout_s)))
        print("\n".join(columns(rows)))
    finally:
        links.close("its check is complete")


def _beside(place: ServerAddress, timeout_s: float) -> str:
    """Whether large payloads can go beside the link."""
    if not place.hosts:
        return f"by the link: {place.why}"
    try:
        connection = place.connect(time.monotonic() + timeout_s)
    except OSError as error:
        return (
            f"by the link, which is slower: no connection to {place.text}: {error or 'no answer'}. "
            "A firewall between the two has to let more ports through than that of the link"
        )
    at = place.found_at(connection.host).text.partition(" or ")[0]
    connection.close()
    return f"beside the link, at {at}{', encrypted' if place.sealed else ''}"


def _why(said: str) -> str:
    node, found, _ = said.partition(f", and not {LISTENER}")
    if not found:
        return said
    return (
        f"{node}, not `monarch reach --listen`. If it is a worker, pass this address to "
        "attach_to_workers; to measure, run `monarch reach --listen` there on another port"
    )


def _until(links: Links, done: Callable[[], Any], problems: list[str]) -> None:
    while not done():
        if problems:
            raise Missing(problems[0])
        links.wait(1.0)


def _answers(links: Links, problems: list[str]) -> str:
    link = links.link_to(LISTENER)
    times: list[float] = []
    for _ in range(PROBES):
        link.round_trip_s = None
        links.probe(LISTENER)
        _until(links, lambda: link.round_trip_s is not None, problems)
        times.append(1e3 * (link.round_trip_s or 0.0))
    times.sort()
    return f"after {times[len(times) // 2]:.2f} ms (best {times[0]:.2f}, worst {times[-1]:.2f})"


def _rate(links: Links, size: int, problems: list[str]) -> str:
    link = links.link_to(LISTENER)
    piece = bytes(PIECE)
    began = time.perf_counter()
    for _ in range(size):
        try:
            links.send(LISTENER, [piece])
        except NoRoomError:
            _until(links, lambda: link.has_room, problems)
            links.send(LISTENER, [piece])
        links.work()
    links.probe(LISTENER)
    _until(links, lambda: not link.unacknowledged, problems)
    took = time.perf_counter() - began
    return f"{size / took:.0f} MiB/s, encrypted ({size} MiB in {took:.2f} s)"
