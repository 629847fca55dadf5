"""Links with something on the way that hears, changes and cuts: nothing shows, nothing is lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from monarch._src.net.state.access import Role
from monarch._src.net.state.addresses import Address
from monarch._src.net.state.link_actions import LinkDown, LinkUp, PeerLeft, Room
from tests.unit.net.linked import Load, Make, Party
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
        after = chance.randrange(300)
        numbers = [str(number).encode() + b"x" * chance.randrange(40_000) for number in range(300)]
        for sender, receiver in ((worker, owner), (owner, worker)):
            threading.Thread(target=sender.send, args=(receiver, *numbers)).start()
        for number in range(300):
            if number == after:
                meddler.cut()
            assert owner.next_message() == numbers[number]
        assert [worker.next_message() for _ in numbers] == numbers
        assert owner.next_notice() == LinkDown()
        assert owner.next_notice() == LinkUp(True)
    told = [worker.notices.get()[1] for _ in range(worker.notices.qsize())]
    assert {type(notice) for notice in told} <= {LinkDown, LinkUp, Room}, "it was never lost"


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
