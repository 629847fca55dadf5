"""Links with something on the way that hears, changes and cuts: nothing shows, nothing is lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.authenticator import Gate
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.zmq_sockets import listening_at
from monarch._src.net.state.access import Role
from monarch._src.net.state.addresses import Address
from monarch._src.net.state.link_actions import LinkDown, LinkUp, PeerLeft, Room
from tests.unit.net.linked import PATIENCE_S, Load, Make, Party
from tests.unit.net.meddler import Meddler


@pytest.fixture
def worker(make_party: Make, job_keys: Load) -> Party:
    return make_party("worker-1", job_keys(Role.WORKER))


@pytest.fixture
def meddler(worker: Party) -> Iterator[Meddler]:
    """Stands before the worker."""
    one = Meddler(worker.listen().port)
    yield one
    one.close()


@pytest.fixture
def owner(make_party: Make, job_keys: Load, worker: Party, meddler: Meddler) -> Party:
    """Has dialled the worker, by way of the meddler."""
    one = make_party("client-1", job_keys(Role.OWNER))
    one.dial(worker, Address("tcp", "127.0.0.1", meddler.port))
    one.is_up()
    worker.is_up()
    return one


def exchanged(one: Party, other: Party, count: int = 200) -> None:
    """Messages of many sizes go both ways, and each arrives once, in order."""
    numbers = [str(number).encode() + b" " * (number * number) for number in range(count)]
    for sender, receiver in ((one, other), (other, one)):
        threading.Thread(target=sender.send, args=(receiver, *numbers)).start()
    for receiver in (one, other):
        assert [receiver.next_message() for _ in numbers] == numbers


def test_what_passes_does_not_show(worker: Party, meddler: Meddler, owner: Party) -> None:
    owner.send(worker, b"a secret word", b"a secret page " * 10_000)
    worker.next_message()
    worker.next_message()
    assert len(meddler.heard) > 140_000
    assert b"secret" not in meddler.heard
    assert b"client" not in meddler.heard, "nor who speaks"


def test_a_connection_that_is_cut_under_load_loses_nothing_and_says_nothing_twice(
    worker: Party, meddler: Meddler, owner: Party
) -> None:
    chance = random.Random(5)
    for _ in range(10):
        exchange_cut(chance, worker, meddler, owner, count=300, largest=40_000)
        assert owner.next_notice() == LinkDown()
        assert owner.next_notice() == LinkUp(True)
    told = [worker.notices.get()[1] for _ in range(worker.notices.qsize())]
    assert {type(notice) for notice in told} <= {LinkDown, LinkUp, Room}, "it was never lost"
    assert worker.links.dropped == 0, "messages that a cut has left over are no attack"


def exchange_cut(
    chance: random.Random, worker: Party, meddler: Meddler, owner: Party, count: int, largest: int
) -> None:
    """Send messages both ways, and cut the connection at one of them."""
    after = chance.randrange(count)
    numbers = [str(number).encode() + b"x" * chance.randrange(largest) for number in range(count)]
    senders = [
        threading.Thread(target=sender.send, args=(receiver, *numbers))
        for sender, receiver in ((worker, owner), (owner, worker))
    ]
    for sender in senders:
        sender.start()
    for number in range(count):
        if number == after:
            meddler.cut()
        assert owner.next_message() == numbers[number]
    assert [worker.next_message() for _ in numbers] == numbers
    for sender in senders:
        sender.join()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_300_cuts_at_random_moments_never_end_a_process(
    seed: int, worker: Party, meddler: Meddler, owner: Party
) -> None:
    # libzmq's own assertion would end it: a reader between two parts of a message, whose queue the
    # reconnecting socket had removed.
    chance = random.Random(seed)
    for _ in range(300):
        exchange_cut(chance, worker, meddler, owner, count=60, largest=4_000)
    assert worker.links.dropped == owner.links.dropped == 0


def test_a_listener_that_breaks_off_at_random_moments_ends_no_process_that_dials(
    make_party: Make, job_keys: Load
) -> None:
    with Flood(job_keys(Role.WORKER)) as flood:
        owner = make_party("client-1", job_keys(Role.OWNER))
        owner.links.dial("worker-1", Address("tcp", "127.0.0.1", flood.port))
        for _ in range(30):
            assert flood.broken_off.acquire(timeout=PATIENCE_S)
        owner.links.hang_up("worker-1", "that was enough")
    worker = make_party("worker-2", job_keys(Role.WORKER))
    owner.dial(worker, worker.listen())
    worker.is_up()
    exchanged(worker, owner)


class Flood:
    """Has a worker's key, answers each hello by messages of many parts, and breaks off."""

    def __init__(self, keys: Keys) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._gate = Gate(self._context, keys.allowed, Audit(None))
        self._socket = listening_at(self._context, Address("tcp", "127.0.0.1", 0), 5.0, keys)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 0)
        last = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._meddler = Meddler(int(last.rpartition(":")[2]))
        self.port = self._meddler.port
        self.broken_off = threading.Semaphore(0)
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        chance = random.Random(7)
        while not self._is_ending.is_set():
            if not self._socket.poll(50):
                continue
            route, *_ = self._socket.recv_multipart()
            for _ in range(chance.randrange(1, 20)):
                self._socket.send_multipart([route, *[b"part"] * 2000])
            self._meddler.cut()
            self.broken_off.release()

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ending.set()
        self._thread.join()
        self._meddler.close()
        self._socket.close(0)
        self._context.term()
        self._gate.join()


def test_a_byte_that_was_changed_ends_the_connection_and_not_the_link(
    worker: Party, meddler: Meddler, owner: Party
) -> None:
    meddler.changes.set()
    owner.send(worker, *[b"pay 1"] * 50)
    assert [worker.next_message() for _ in range(50)] == [b"pay 1"] * 50
    assert owner.next_notice() == LinkDown()
    assert owner.next_notice() == LinkUp(True)
    exchanged(worker, owner)


def test_the_last_words_of_who_leaves_arrive(worker: Party, owner: Party) -> None:
    owner.send(worker, *[b"word" * 10_000] * 50)
    owner.links.hang_up("worker-1", "that was all")
    assert [len(worker.next_message()) for _ in range(50)] == [40_000] * 50
    assert worker.next_notice(PeerLeft) == PeerLeft("that was all")
