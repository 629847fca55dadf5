"""An RDMA card with both sides in one process: keys, queue pairs that meet errors, what is left.

Elsewhere than where a card is, `test_softroce.py` runs this in a virtual machine.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Iterator

import numpy
import pytest

from monarch._src.rdma.transports.base import (
    DeadlineExceeded,
    HandleExpired,
    OwnerGone,
    TransportFailed,
)
from monarch._src.rdma.verbs import sysfs
from monarch._src.rdma.verbs.channel import DEPTH, LANES
from monarch._src.rdma.verbs.pyverbs import REMOTE_ACCESS
from monarch._src.rdma.verbs.scheduler import Chunk
from monarch._src.wire.messages import CONNECT, GRANT
from monarch.config import configured
from monarch.rdma import shared_empty
from tests.integration.rdma.cards import PATIENCE_S, Both, both_sides, bytes_of, events_open

pytestmark = pytest.mark.skipif(
    not sysfs.present(), reason="no RDMA device here; test_softroce.py boots a machine that has one"
)
MIB = 1 << 20


@pytest.fixture(scope="module")
def shared() -> Iterator[Both]:
    with both_sides() as both:
        yield both
        both.owner.cards.server.grants.validate()


def later() -> float:
    return time.monotonic() + PATIENCE_S


def test_bytes_of_any_size_go_both_ways_and_touch_nothing_beside_them(shared: Both) -> None:
    for size in (1, 63, 4097, MIB + 1, 5 * MIB + 3):
        data = bytes_of(size + 3, size)[3:]
        handle = shared.owner.share(data)
        room = numpy.zeros(size + 2, numpy.uint8)
        shared.read(handle, room[1:-1])
        assert (room[1:-1] == data).all()
        assert not room[0]
        assert not room[-1]
        new = bytes_of(size, size + 1)
        shared.write(handle, new)
        assert (new == data).all()


def test_a_batch_asks_once_and_a_second_transfer_registers_nothing(shared: Both) -> None:
    data = [bytes_of(5000 + n, n) for n in range(8)]
    whole = numpy.zeros(8 * 6000, numpy.uint8)
    rooms = [whole[n * 6000 : n * 6000 + 5000 + n] for n in range(8)]
    pieces = [
        shared.piece(shared.owner.share(value), room)
        for value, room in zip(data, rooms, strict=True)
    ]
    asked = len(shared.asked)
    own, granted = shared.card.registered, shared.owner.cards.server.grants.registered
    for _ in range(3):
        shared.link.read_into(pieces, later())
    assert shared.asked[asked:] == [GRANT]
    assert shared.card.registered == own + 1  # the eight rooms are slices of one array
    assert shared.owner.cards.server.grants.registered == granted + 8
    assert all((room == value).all() for room, value in zip(rooms, data, strict=True))


def test_what_tells_no_end_is_registered_for_one_transfer(shared: Both) -> None:
    handle = shared.owner.share(bytearray(b"x" * 5000))
    room = bytearray(5000)
    for _ in range(2):
        own = shared.card.registered
        shared.read(handle, room)
        assert shared.card.registered == own + 1
    assert room == b"x" * 5000
    room.append(0)  # nobody holds it


def test_memory_of_a_segment_is_registered_whole(shared: Both) -> None:
    room = numpy.frombuffer(shared_empty(3 * 4096), numpy.uint8)
    handle = shared.owner.make(4096, 1)
    own = shared.card.registered
    for at in (0, 4096, 8192):
        shared.read(handle, room[at : at + 4096])
    assert shared.card.registered == own + 1


def test_a_key_that_is_refused_is_an_error_with_its_number_and_the_connection_made_anew(
    shared: Both,
) -> None:
    handle, room = shared.owner.make(MIB, 2), numpy.zeros(MIB, numpy.uint8)
    shared.read(handle, room)
    channel = shared.link.channel
    assert channel is not None
    grant = shared.link.granted(handle)
    lkey, _ = shared.key_of(room)
    bad = Chunk(room.ctypes.data, lkey, grant.address, grant.rkey ^ 0x5A00, 4096)
    done = channel.move("read", [bad], later())
    assert done.status == REMOTE_ACCESS
    assert done.why is not None
    assert "no access to that memory" in done.why
    beyond = Chunk(room.ctypes.data, lkey, grant.address + MIB - 100, grant.rkey, 4096)
    before = shared.link.connections
    shared.read(handle, room)
    assert shared.link.connections == before + 1
    again = shared.link.channel
    assert again is not None
    assert again.move("read", [beyond], later()).status == REMOTE_ACCESS
    shared.read(handle, room)


def test_freed_memory_is_out_of_reach_before_anything_else_lies_there(shared: Both) -> None:
    data, room = bytes_of(MIB, 3), numpy.zeros(MIB, numpy.uint8)
    handle = shared.owner.share(data)
    shared.read(handle, room)
    grant = shared.link.granted(handle)
    other = shared.another_link()  # so that there is always somebody who could remember the key
    del data
    gc.collect()
    with pytest.raises(HandleExpired):
        shared.read(handle, room)
    with pytest.raises(HandleExpired):
        shared.write(handle, room)
    assert grant.rkey in shared.owner.cards.server.grants.expired
    other.close()


def test_a_neighbour_that_is_dropped_costs_a_new_key_and_no_error(shared: Both) -> None:
    data = bytes_of(4 * MIB, 4)
    one, other = shared.owner.share(data[: 2 * MIB]), shared.owner.share(data[2 * MIB :])
    room = numpy.zeros(2 * MIB, numpy.uint8)
    shared.read(one, room)
    shared.read(other, room)
    before = shared.link.granted(other)
    assert shared.link.granted(one).rkey == before.rkey  # one registration for the storage
    shared.owner.regions.drop(one.slot, one.key)
    with pytest.raises(HandleExpired):
        shared.read(one, room)
    room[:] = 0
    shared.read(other, room)
    assert (room == data[2 * MIB :]).all()
    assert shared.link.granted(other).rkey != before.rkey


def test_what_is_read_only_is_not_written_to_by_the_card_either(shared: Both) -> None:
    data = bytes(range(256)) * 16
    handle, room = shared.owner.share(data), numpy.zeros(4096, numpy.uint8)
    shared.read(handle, room)
    assert room.tobytes() == data
    with pytest.raises(HandleExpired):
        shared.write(handle, room)
    grant = shared.link.granted(handle)
    lkey, _ = shared.key_of(room)
    channel = shared.link.channel
    assert channel is not None
    forged = Chunk(room.ctypes.data, lkey, grant.address, grant.rkey, 4096)
    assert channel.move("write", [forged], later()).status == REMOTE_ACCESS
    assert data == bytes(range(256)) * 16


def test_transfers_at_once_share_the_queue_pairs_and_survive_their_end(shared: Both) -> None:
    data = [bytes_of(3 * MIB + n, n) for n in range(8)]
    handles = [shared.owner.share(value) for value in data]
    rooms = [numpy.zeros(len(value), numpy.uint8) for value in data]
    errors: list[BaseException] = []

    def read(n: int) -> None:
        try:
            shared.read(handles[n], rooms[n])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        channel = shared.link.channel
        if channel is not None:
            channel.cut("the test cut it")
    for thread in threads:
        thread.join()
    assert errors == []
    assert all((room == value).all() for room, value in zip(rooms, data, strict=True))


def test_a_deadline_that_passes_leaves_nothing_under_way(shared: Both) -> None:
    handle, room = shared.owner.make(8 * MIB, 5), numpy.zeros(8 * MIB, numpy.uint8)
    with pytest.raises(DeadlineExceeded):
        shared.read(handle, room, deadline_s=-1.0)
    with contextlib.suppress(DeadlineExceeded):  # in the midst of it, unless the machine is fast
        shared.read(handle, room, deadline_s=0.03)
    room[:] = 0xEE
    other = numpy.zeros(8 * MIB, numpy.uint8)
    shared.read(handle, other)
    assert (room == 0xEE).all()
    assert (other == bytes_of(8 * MIB, 5)).all()


def test_more_requests_than_the_queues_hold_take_turns(shared: Both) -> None:
    count = 3 * LANES * DEPTH
    data = bytes_of(count * 4096, 6)
    handle, room = shared.owner.share(data), numpy.zeros(len(data), numpy.uint8)
    shared.read(handle, room[: len(data)])
    grant, channel = shared.link.granted(handle), shared.link.channel
    lkey, _ = shared.key_of(room)
    room[:] = 0
    chunks = [
        Chunk(room.ctypes.data + at, lkey, grant.address + at, grant.rkey, 4096)
        for at in range(0, len(data), 4096)
    ]
    assert channel is not None
    assert not channel.move("read", chunks, later()).left
    assert (room == data).all()


def test_an_owner_that_has_ended_is_told_from_a_card_that_fails() -> None:
    with both_sides() as both:
        handle, room = both.owner.make(MIB, 7), numpy.zeros(MIB, numpy.uint8)
        both.read(handle, room)
        both.owner.cards.server.cut_all()
        both.gone = True
        with pytest.raises(OwnerGone):
            both.read(handle, room)


def test_an_owner_that_cut_us_off_is_connected_to_anew() -> None:
    with both_sides() as both:
        handle, room = both.owner.make(MIB, 8), numpy.zeros(MIB, numpy.uint8)
        both.read(handle, room)
        both.owner.cards.server.cut_all()
        other = both.owner.make(1000, 9)
        both.read(other, room)  # the owner says that it knows no such connection
        assert (room[:1000] == bytes_of(1000, 9)).all()
        assert both.asked.count(CONNECT) == 2
        assert both.owner.cards.connections == 1


def test_an_owner_keeps_nothing_of_who_hung_up_or_ended() -> None:
    with both_sides() as both:
        assert both.owner.cards.connections == 1
        other = both.another_link()
        assert both.owner.cards.connections == 2
        other.close()
        assert both.owner.cards.connections == 1
        (ended,) = list(both.owner.watched.values())  # of the process that connected
        ended()
        assert both.owner.cards.connections == 0
        assert both.owner.watched == {}


def test_where_cards_may_not_be_used_none_is_opened() -> None:
    before = events_open()
    with (
        configured(rdma_disable_ibverbs=True),
        pytest.raises(TransportFailed, match="rdma_disable_ibverbs is True"),
        both_sides(),
    ):
        pass
    assert events_open() == before


def test_nothing_is_left_of_a_card() -> None:
    before, threads = events_open(), threading.active_count()
    with both_sides() as both:
        handle, room = both.owner.make(MIB, 1), numpy.zeros(MIB, numpy.uint8)
        for _ in range(3):
            both.read(handle, room)
            channel = both.link.channel
            assert channel is not None
            channel.cut("the test cut it")
        assert events_open() > before
    assert events_open() == before
    assert threading.active_count() == threads
