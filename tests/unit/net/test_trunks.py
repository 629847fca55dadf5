"""Trunks of links: when there is one, what it is proof against, and that nothing is lost by it."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch._src.core import trunk_tries
from monarch._src.core.access import Role
from monarch._src.core.addresses import parse_address
from monarch._src.core.link_states import Bounds, PeerLeft, PeerLost
from monarch._src.net import trunks
from monarch._src.net.trunk import KNOCK_BYTES
from monarch._src.wire.linking import TrunkOffer
from tests.unit.net.linked import Load, Make, Party
from tests.unit.net.meddler import Meddler

Pair = tuple[Party, Party]


@pytest.fixture
def link(make_party: Make, job_keys: Load, audit_log: Path) -> Callable[..., Pair]:
    """A worker that listens, and an owner that has dialled it; the link is up."""

    def make(**options: Any) -> Pair:
        worker = make_party("worker-1", job_keys(Role.WORKER), audit_log, trunks=True, **options)
        owner = make_party("client-1", job_keys(Role.OWNER), trunks=True, **options)
        owner.dial(worker, worker.listen())
        owner.is_up()
        worker.is_up()
        return worker, owner

    return make


@pytest.fixture
def pair(link: Callable[..., Pair]) -> Pair:
    """The same, with a trunk."""
    worker, owner = link()
    owner.by_trunk(worker)
    return worker, owner


@pytest.fixture
def meddler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meddler]:
    """Stands between the two ends of each trunk."""
    one = Meddler()
    monkeypatch.setattr(trunks, "listener_at", one.in_front_of)
    yield one
    one.close()


def exchanged(one: Party, other: Party, count: int = 200) -> None:
    """Messages of many sizes go both ways, and each arrives once, in order."""
    numbers = [str(number).encode() + b" " * (number * number) for number in range(count)]
    for sender, receiver in ((one, other), (other, one)):
        threading.Thread(target=sender.send, args=(receiver, *numbers)).start()
    for receiver in (one, other):
        assert [receiver.next_message() for _ in numbers] == numbers


def lines(audit_log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in audit_log.read_text().splitlines()]


def listening_port(party: Party) -> int:
    listener = party.links._trunks._listener  # pyright: ignore[reportPrivateUsage]
    assert listener is not None
    return listener.getsockname()[1]


# --- that there is one ----------------------------------------------------------------------------


def test_a_link_gets_a_trunk_and_all_is_said_by_it(link: Callable[..., Pair]) -> None:
    worker, owner = link()
    exchanged(worker, owner)  # also while it begins
    owner.by_trunk(worker)
    exchanged(worker, owner)
    assert owner.links.why_no_trunk("worker-1") == worker.links.why_no_trunk("client-1") == ""


@pytest.mark.parametrize("wants", [(False, True), (True, False)])
def test_if_one_side_wants_none_there_is_none(
    make_party: Make, job_keys: Load, wants: tuple[bool, bool]
) -> None:
    worker = make_party("worker-1", job_keys(Role.WORKER), trunks=wants[0])
    owner = make_party("client-1", job_keys(Role.OWNER), trunks=wants[1])
    owner.dial(worker, worker.listen())
    owner.is_up()
    worker.is_up()
    exchanged(worker, owner)
    assert owner.links.why_no_trunk("worker-1")
    assert worker.links.why_no_trunk("client-1")


def test_what_passes_does_not_show(link: Callable[..., Pair], meddler: Meddler) -> None:
    meddler.leads_to = 0
    worker, owner = link()
    owner.by_trunk(worker)
    owner.send(worker, b"a secret word", b"a secret page " * 10_000)
    worker.next_message()
    worker.next_message()
    assert len(meddler.heard) > 140_000
    assert b"secret" not in meddler.heard
    assert b"client" not in meddler.heard, "nor who speaks"


def test_the_keys_of_an_offer_are_in_no_text_of_it() -> None:
    offer = TrunkOffer(1, 2, 3, b"k" * 64)
    assert "kkk" not in f"{offer!r} {offer}"


# --- that it costs nothing where it cannot be -----------------------------------------------------


def test_where_nobody_can_connect_the_link_stays_with_zeromq_and_says_why(
    link: Callable[..., Pair], meddler: Meddler
) -> None:
    meddler.close()
    worker, owner = link()
    while not (why := owner.links.why_no_trunk("worker-1")).startswith("cannot"):
        exchanged(worker, owner, 1)
    assert why == f"cannot connect to 127.0.0.1:{meddler.port}: Connection refused"
    exchanged(worker, owner)


def test_what_swallows_all_that_goes_to_the_port_swallows_no_message(
    link: Callable[..., Pair], meddler: Meddler
) -> None:
    meddler.leads_to = None
    worker, owner = link()
    while not meddler.connections:
        exchanged(worker, owner, 1)
    exchanged(worker, owner)
    assert owner.links.why_no_trunk("worker-1") == f"no answer from 127.0.0.1:{meddler.port} yet"
    assert worker.links.why_no_trunk("client-1") == "nobody has taken the offer yet"


def test_a_listener_without_room_for_another_port_offers_none(
    link: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_host: str, _backlog: int) -> socket.socket:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(trunks, "listener_at", full)
    worker, owner = link()
    exchanged(worker, owner)
    assert worker.links.why_no_trunk("client-1")


# --- that nothing is lost with it -----------------------------------------------------------------


def test_one_that_is_cut_under_load_loses_nothing_and_says_nothing_twice(
    link: Callable[..., Pair], meddler: Meddler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trunks, "ENDED_S", 0.0)
    meddler.leads_to = 0
    worker, owner = link()
    chance = random.Random(5)
    for _ in range(20):
        owner.by_trunk(worker)
        after = chance.randrange(300)
        numbers = [str(number).encode() + b"x" * chance.randrange(40_000) for number in range(300)]

        def say(sender: Party, receiver: Party, said: list[bytes] = numbers) -> None:
            sender.send(receiver, *said)

        for sender, receiver in ((worker, owner), (owner, worker)):
            threading.Thread(target=say, args=(sender, receiver)).start()
        for number in range(300):
            if number == after:
                meddler.cut()
            assert owner.next_message() == numbers[number]
        assert [worker.next_message() for _ in numbers] == numbers


def test_a_byte_that_was_changed_ends_the_trunk_and_not_the_link(
    link: Callable[..., Pair], meddler: Meddler, audit_log: Path
) -> None:
    meddler.leads_to = 0
    worker, owner = link()
    owner.by_trunk(worker)
    meddler.changes = True
    owner.send(worker, *[b"pay 1"] * 50)
    assert [worker.next_message() for _ in range(50)] == [b"pay 1"] * 50
    exchanged(worker, owner)
    assert {"was not sealed by the other end"} <= {
        line.get("why", "").partition("that ")[2] for line in lines(audit_log)
    }
    owner.by_trunk(worker)


def test_one_that_breaks_again_and_again_is_not_offered_for_a_while(
    link: Callable[..., Pair], meddler: Meddler
) -> None:
    meddler.leads_to = 0
    worker, owner = link()
    while (why := worker.links.why_no_trunk("client-1")) != "3 have ended of late":
        if not why:
            meddler.cut()
        exchanged(worker, owner, 20)
    connections = meddler.connections
    exchanged(worker, owner)
    assert meddler.connections == connections


def test_one_that_broke_again_and_again_is_tried_once_more_after_a_pause(
    link: Callable[..., Pair], meddler: Meddler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trunk_tries, "FIRST_S", 0.2)
    meddler.leads_to = 0
    worker, owner = link()
    for _ in range(4):  # before each there is at most a pause, and no other connection
        owner.by_trunk(worker)
        meddler.cut()
    owner.by_trunk(worker)
    exchanged(worker, owner)
    told = [notice for _, notice in drained(owner) if isinstance(notice, PeerLost | PeerLeft)]
    assert told == []


def test_where_one_broke_before_it_was_used_another_is_offered(
    link: Callable[..., Pair], meddler: Meddler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trunks, "OFFER_S", 0.3)
    monkeypatch.setattr(trunk_tries, "FIRST_S", 0.2)
    meddler.leads_to = 0
    meddler.swallows = True
    worker, owner = link()
    while meddler.connections < trunk_tries.MOST + 1:  # also when a pause was over
        exchanged(worker, owner, 1)
    assert not meddler.heard, "whatever was connected led nowhere"
    meddler.cut()
    meddler.swallows = False
    owner.by_trunk(worker)
    exchanged(worker, owner)


def test_offers_that_nobody_takes_pause(
    link: Callable[..., Pair], meddler: Meddler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trunks, "OFFER_S", 0.05)
    meddler.leads_to = None
    worker, owner = link()
    while worker.links.why_no_trunk("client-1") != "nobody has taken what was offered":
        exchanged(worker, owner, 1)
    while meddler.connections < trunk_tries.MOST:
        exchanged(worker, owner, 1)
    exchanged(worker, owner)
    assert meddler.connections == trunk_tries.MOST
    assert owner.links.why_no_trunk("worker-1") == f"no answer from 127.0.0.1:{meddler.port} yet"


def drained(party: Party) -> list[tuple[str, Any]]:
    return [party.notices.get() for _ in range(party.notices.qsize())]


def test_the_last_words_of_who_leaves_arrive(pair: Pair) -> None:
    worker, owner = pair
    owner.send(worker, *[b"word" * 10_000] * 50)
    owner.links.hang_up("worker-1", "that was all")
    assert [len(worker.next_message()) for _ in range(50)] == [40_000] * 50
    assert worker.next_notice(PeerLeft) == PeerLeft("that was all")


def test_a_node_that_is_dialled_anew_has_another_trunk(pair: Pair) -> None:
    worker, owner = pair
    address = worker.links._listener.socket.getsockopt_string(32)  # pyright: ignore[reportPrivateUsage]
    for _ in range(3):
        owner.links.hang_up("worker-1", "for now")
        worker.next_notice(PeerLeft)
        owner.dial(worker, parse_address(address.replace("0.0.0.0", "127.0.0.1")))
        owner.is_up()
        worker.is_up()
        owner.by_trunk(worker)
        exchanged(worker, owner, 50)


def test_a_peer_that_handles_nothing_bounds_what_waits(link: Callable[..., Pair]) -> None:
    bounds = Bounds(patience_s=30.0, ping_s=0.2, window=1 << 20, queue=4 << 20)
    worker, owner = link(bounds=bounds)
    owner.by_trunk(worker)
    worker.handles = False
    sent = 0
    while owner.links.has_room("worker-1"):
        owner.send(worker, bytes(100_000))
        sent += 1
    assert sent <= 45
    got = 0
    while got < 11:
        worker.next_message()
        got += 1
    assert worker.messages.empty(), "no more than the window, and one message"
    worker.handles = True
    for peer, size in worker.unhandled:
        worker.links.handled(peer, size)
    assert [len(worker.next_message()) for _ in range(sent - got)] == [100_000] * (sent - got)


# --- who is at the port ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n" * 10, bytes(KNOCK_BYTES), b"\xff" * 1000, b"x", b""]
)
def test_strangers_are_turned_away_written_down_and_cost_nobody_else_anything(
    pair: Pair, audit_log: Path, said: bytes
) -> None:
    worker, owner = pair
    port = listening_port(worker)
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.settimeout(60.0)
            stranger.sendall(said)
            if len(said) < KNOCK_BYTES:
                stranger.shutdown(socket.SHUT_WR)
            try:
                assert stranger.recv(1) == b""
            except ConnectionResetError:
                pass  # it was closed with something unread
    exchanged(worker, owner, 50)
    why = "it takes no offer of a trunk" if len(said) >= KNOCK_BYTES else "it left before it had"
    assert any(
        line["what"] == "refused" and line["why"].startswith(why) and line["address"] == "127.0.0.1"
        for line in lines(audit_log)
    )


def test_who_says_nothing_is_turned_away_in_time(
    pair: Pair, audit_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, _ = pair
    monkeypatch.setattr(trunks, "KNOCK_S", 0.0)
    with socket.create_connection(("127.0.0.1", listening_port(worker))) as silent:
        silent.settimeout(60.0)
        assert silent.recv(1) == b""
    assert any(line.get("why") == "it did not knock" for line in lines(audit_log))


def test_many_who_say_nothing_keep_nobody_out(link: Callable[..., Pair], meddler: Meddler) -> None:
    meddler.leads_to = 0
    worker, owner = link()
    owner.by_trunk(worker)
    silent = [
        socket.create_connection(("127.0.0.1", meddler.leads_to))
        for _ in range(2 * trunks.KNOCKERS)
    ]
    try:
        connections = meddler.connections
        meddler.cut()
        while meddler.connections == connections:
            exchanged(worker, owner, 1)
        owner.by_trunk(worker)
        exchanged(worker, owner, 50)
    finally:
        for one in silent:
            one.close()


def test_a_knock_that_was_overheard_opens_nothing(
    link: Callable[..., Pair], meddler: Meddler, audit_log: Path
) -> None:
    meddler.leads_to = 0
    worker, owner = link()
    owner.by_trunk(worker)
    with socket.create_connection(("127.0.0.1", meddler.leads_to)) as thief:
        thief.settimeout(60.0)
        thief.sendall(bytes(meddler.heard[:KNOCK_BYTES]))
        assert thief.recv(1) == b""
    assert any(line.get("why") == "it takes no offer of a trunk" for line in lines(audit_log))
    exchanged(worker, owner, 50)


def test_an_observer_is_one_by_a_trunk_too(
    make_party: Make, job_keys: Load, audit_log: Path
) -> None:
    worker = make_party("worker-1", job_keys(Role.WORKER), audit_log, trunks=True)
    owner = make_party("client-1", job_keys(Role.OWNER), trunks=True)
    observer = make_party("observer-1", job_keys(Role.OBSERVER), trunks=True)
    address = worker.listen()
    for one in (owner, observer):
        one.dial(worker, address)
        one.is_up()
        worker.is_up()
    while observer.links.why_no_trunk("worker-1"):
        observer.links.probe("worker-1")
    observer.send(worker, b"no message that an observer may send")
    owner.send(worker, b"hello")
    assert worker.next_message() == b"hello"
    while not any(line.get("node") == "observer-1" and line["what"] == "refused"
                  for line in lines(audit_log)):  # fmt: skip
        observer.links.probe("worker-1")
    assert worker.messages.empty()
