"""Links over loopback, with keys: who gets in, what arrives, and what a slow peer costs."""

from __future__ import annotations

import re
import sys
import types

import pytest

from monarch._src.net.hosts import link_ends, links
from monarch._src.net.state.access import Role
from monarch._src.net.state.addresses import Listening, parse_listening
from monarch._src.net.state.link import NoRoomError
from monarch._src.net.state.link_actions import Bounds, PeerLeft, PeerRefused, Room
from tests.unit.net.linked import Load, Make, Party


@pytest.fixture
def pair(make_party: Make, job_keys: Load) -> tuple[Party, Party]:
    """A worker that listens, and an owner that has dialled it."""
    worker = make_party("worker-1", job_keys(Role.WORKER))
    owner = make_party("client-1", job_keys(Role.OWNER))
    owner.dial(worker, worker.listen())
    owner.is_up()
    worker.is_up()
    return worker, owner


def test_messages_arrive_in_order_both_ways(pair: tuple[Party, Party]) -> None:
    worker, owner = pair
    numbers = [str(number).encode() for number in range(500)]
    owner.send(worker, *numbers)
    worker.send(owner, *numbers)
    assert [worker.next_message() for _ in numbers] == numbers
    assert [owner.next_message() for _ in numbers] == numbers


def test_a_large_message_arrives_in_its_frames(pair: tuple[Party, Party]) -> None:
    worker, owner = pair
    frames = [b"head", bytes(range(256)) * 40_000, b"", b"tail"]
    owner.links.send(worker.name, frames)
    assert worker.messages.get(timeout=60) == (owner.name, frames)


def test_who_leaves_says_so(pair: tuple[Party, Party]) -> None:
    worker, owner = pair
    owner.links.hang_up(worker.name, "the program has ended")
    assert worker.next_notice() == PeerLeft("the program has ended")


def test_a_node_may_be_dialled_again_when_its_link_has_ended(
    make_party: Make, job_keys: Load
) -> None:
    worker = make_party("worker-1", job_keys(Role.WORKER))
    owner = make_party("client-1", job_keys(Role.OWNER))
    address = worker.listen()
    for number in range(3):
        owner.dial(worker, address)
        owner.is_up()
        with pytest.raises(ValueError, match="there is a link to worker-1 already"):
            owner.dial(worker, address)
        worker.is_up()
        message = f"in session {number}".encode()
        owner.send(worker, message)
        assert worker.next_message() == message
        owner.links.hang_up(worker.name, "for now")
        assert worker.next_notice(PeerLeft) == PeerLeft("for now")


def test_of_many_that_leave_each_is_heard(make_party: Make, job_keys: Load) -> None:
    # Whoever has left takes a monitor along, and ZeroMQ's own thread may wait for who reads that.
    owner = make_party("client-1", job_keys(Role.OWNER))
    workers = [make_party(f"worker-{number}", job_keys(Role.WORKER)) for number in range(8)]
    for worker in workers:
        owner.dial(worker, worker.listen())
        owner.is_up()
    for worker in workers:
        worker.close()
        assert owner.next_notice(PeerLeft) == PeerLeft("it was closed")


def test_the_answer_to_a_probe_says_how_long_it_took(pair: tuple[Party, Party]) -> None:
    worker, owner = pair
    link = owner.links.link_to(worker.name)
    owner.links.probe(worker.name)
    owner.send(worker, b"behind the question")
    worker.next_message()
    worker.send(owner, b"behind the answer")
    owner.next_message()
    assert link.round_trip_s is not None
    assert link.round_trip_s > 0


def test_a_peer_that_handles_nothing_bounds_who_sends_and_costs_others_nothing(
    make_party: Make, job_keys: Load
) -> None:
    bounds = Bounds(patience_s=30.0, ping_s=0.2, window=100_000, queue=300_000)
    owner = make_party("client-1", job_keys(Role.OWNER), bounds=bounds)
    slow = make_party("worker-1", job_keys(Role.WORKER), bounds=bounds)
    quick = make_party("worker-2", job_keys(Role.WORKER), bounds=bounds)
    slow.handles = False
    for worker in (slow, quick):
        owner.dial(worker, worker.listen())
        owner.is_up()
    piece = bytes(10_000)
    sent = 0
    try:
        for sent in range(1000):  # noqa: B007
            owner.send(slow, piece)
    except NoRoomError as error:
        assert "bytes wait to be sent to worker-1" in str(error)  # noqa: PT017
    assert sent <= (100_000 + 300_000) // len(piece) + 1
    for _ in range(100):
        owner.send(quick, piece)
        quick.next_message()
    got = 0
    while got < sent:
        slow.next_message()
        got += 1
        slow.handles = True
        for peer, size in slow.unhandled:
            slow.links.handled(peer, size)
        slow.unhandled.clear()
    owner.next_notice(Room)


def test_a_listener_beyond_loopback_without_keys_is_refused(make_party: Make) -> None:
    party = make_party("worker-1", None)
    with pytest.raises(PermissionError, match=re.escape("`monarch keys make ~/.monarch/keys`")):
        party.listen(parse_listening("tcp://0.0.0.0:0"))
    with pytest.raises(PermissionError, match="every user of this host could connect"):
        party.listen()


def test_on_loopback_all_are_trusted_if_that_was_said(make_party: Make) -> None:
    worker, owner = make_party("worker-1", None), make_party("client-1", None)
    owner.dial(worker, worker.listen(trusts_all=True))
    owner.is_up()
    owner.send(worker, b"hello")
    assert worker.next_message() == b"hello"


def test_a_port_that_is_taken_is_told(
    pair: tuple[Party, Party], make_party: Make, job_keys: Load
) -> None:
    other = make_party("worker-2", job_keys(Role.WORKER))
    taken = other.listen()
    third = make_party("worker-3", job_keys(Role.WORKER))
    with pytest.raises(OSError, match=f"cannot listen at {re.escape(str(taken))}: Address already"):
        third.listen(Listening(taken))


FIELDS = ("protocol", "link", "monarch", "python", "cloudpickle", "platform", "torch")


def test_what_is_compared_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.13.0+cpu"))
    assert tuple(link_ends.link_versions()) == FIELDS


@pytest.mark.parametrize("dialled", [True, False], ids=["the owner differs", "the worker differs"])
@pytest.mark.parametrize("field", FIELDS)
def test_versions_that_differ_are_told_on_both_sides(
    make_party: Make, job_keys: Load, monkeypatch: pytest.MonkeyPatch, field: str, dialled: bool
) -> None:
    mine = {**link_ends.link_versions(), "torch": "2.13.0"}
    said = iter([mine, {**mine, field: "1.2.3"}] if dialled else [{**mine, field: "1.2.3"}, mine])
    monkeypatch.setattr(links, "link_versions", lambda: next(said))
    worker = make_party("worker-1", job_keys(Role.WORKER))
    owner = make_party("client-1", job_keys(Role.OWNER))
    owner.dial(worker, worker.listen())
    for party, other in ((owner, worker), (worker, owner)):
        refused = party.next_notice()
        assert isinstance(refused, PeerRefused)
        assert refused.why.startswith(f"{other.name} speaks another version:")
        marked = [" ".join(line.split()) for line in refused.why.splitlines() if "<--" in line]
        both = [mine[field], "1.2.3"]
        both = both if (party is worker) == dialled else both[::-1]
        assert marked == [f"{field} {both[0]} {both[1]} <-- differs"]


def test_a_second_worker_of_a_name_is_told_with_the_addresses_of_both(make_party: Make) -> None:
    client = make_party("client-1", None)
    first, second = (make_party("worker-1", None) for _ in range(2))
    places = [one.listen(trusts_all=True) for one in (first, second)]
    client.links.dial("?0", places[0], anybody=True)
    client.is_up()
    client.links.dial("?1", places[1], anybody=True)
    refused = client.next_notice(PeerRefused)
    assert refused.why == (
        f"the node at {places[1]} has the name worker-1, and so has the one at "
        f"{places[0]}, to which there is a link already: is that the same worker?"
    )
    client.send(first, b"you are meant")
    assert first.next_message() == b"you are meant"
