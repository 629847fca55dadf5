"""Requests over several queue pairs: all of them once, never too many, and an end for everybody."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.rdma.verbs.scheduler import (
    LARGEST,
    PAGE,
    SMALLEST,
    Chunk,
    Post,
    Traffic,
    Transfer,
    cut_into,
)
from monarch._src.rdma.verbs.server import ExpiredKeys


def chunks(count: int) -> list[Chunk]:
    return [Chunk(n, 1, n, 2, 4096) for n in range(count)]


def test_chunks_are_spread_over_the_lanes_up_to_their_depth() -> None:
    traffic = Traffic(4, 2)
    transfer = traffic.add("read", chunks(20))
    posts = traffic.due()
    assert Counter(post.lane for post in posts) == {0: 2, 1: 2, 2: 2, 3: 2}
    assert traffic.due() == []
    traffic.landed(posts[3].number)
    (more,) = traffic.due()
    assert more.lane == posts[3].lane
    assert not transfer.over
    traffic.validate()


def test_a_small_transfer_does_not_wait_for_all_of_a_large_one() -> None:
    traffic = Traffic(1, 1)
    traffic.add("read", chunks(100))
    (post,) = traffic.due()
    small = traffic.add("write", chunks(1))
    seen = 0
    while not small.over:
        traffic.landed(post.number)
        (post,) = traffic.due() or (post,)
        seen += 1
    assert seen <= 3


def test_who_is_withdrawn_ends_with_what_is_on_its_way() -> None:
    traffic = Traffic(1, 2)
    transfer = traffic.add("read", chunks(5))
    posts = traffic.due()
    traffic.withdraw(transfer)
    assert traffic.landed(posts[0].number) is None
    assert traffic.landed(posts[1].number) is transfer
    assert transfer.left == [2, 3, 4]
    assert traffic.due() == []


def test_an_error_ends_all_and_says_whose_it_was() -> None:
    traffic = Traffic(2, 2)
    one, other = traffic.add("read", chunks(8)), traffic.add("write", chunks(8))
    first, *_ = traffic.due()
    struck = traffic.failed(first.number, 10, "no access")
    assert {id(t) for t in struck} == {id(one), id(other)}
    assert (one.status, other.status) == (10, None)
    assert one.why == other.why == traffic.why == "no access"
    assert one.over
    assert other.over
    assert traffic.landed(first.number) is None  # it comes after the end
    assert traffic.cut("again") == []
    late = traffic.add("read", chunks(1))
    assert late.over
    assert late.left == [0]
    traffic.validate()


EVENTS = st.lists(
    st.tuples(st.sampled_from(["add", "land", "fail", "withdraw"]), st.integers(0, 30)), max_size=60
)


@given(st.integers(1, 4), st.integers(1, 4), EVENTS)
def test_whatever_happens_each_chunk_is_posted_once_and_every_transfer_ends(
    lanes: int, depth: int, events: list[tuple[str, int]]
) -> None:
    traffic = Traffic(lanes, depth)
    transfers: list[Transfer] = []
    flying: list[Post] = []
    posted: Counter[int] = Counter()
    base = 0

    def post() -> None:
        for due in traffic.due():
            posted[due.chunk.address] += 1
            flying.append(due)

    for what, n in events:
        if what == "add":
            made = [Chunk(base + at, 1, 0, 2, 1) for at in range(n)]
            base += n
            transfers.append(traffic.add("read", made))
        elif what == "land" and flying:
            traffic.landed(flying.pop(n % len(flying)).number)
        elif what == "fail" and flying and n % 7 == 0:
            traffic.failed(flying.pop(n % len(flying)).number, 12, "no answer")
            flying.clear()
        elif what == "withdraw" and transfers:
            traffic.withdraw(transfers[n % len(transfers)])
        post()
        traffic.validate()
        assert len(flying) <= lanes * depth
    while flying:
        traffic.landed(flying.pop().number)
        post()
    assert all(transfer.over for transfer in transfers)
    assert all(count == 1 for count in posted.values())
    done = sum(len(transfer.landed) for transfer in transfers)
    assert done <= sum(posted.values())


@pytest.mark.parametrize("lanes", [1, 4])
@given(st.integers(1, 1 << 26))
def test_a_piece_is_cut_into_pages_that_make_it_up(lanes: int, size: int) -> None:
    cut = cut_into(size, size, lanes)
    assert sum(n for _, n in cut) == size
    assert [at for at, _ in cut] == [sum(n for _, n in cut[:k]) for k in range(len(cut))]
    assert all(n <= LARGEST for _, n in cut)
    assert all(n % PAGE == 0 for _, n in cut[:-1])
    if size >= lanes * SMALLEST * 2:
        assert len(cut) >= lanes


def test_a_key_that_ended_is_known_until_nobody_could_use_it() -> None:
    keys = ExpiredKeys(most=3)
    assert not keys.ended(7)
    assert not keys.ended(8)
    assert 7 in keys
    assert 9 not in keys
    assert keys.ended(9)  # too many: queue pairs are closed
    keys.forget()
    assert 7 not in keys
    assert len(keys) == 0
