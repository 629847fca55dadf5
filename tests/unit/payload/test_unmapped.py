"""Large parts that other hosts alone get: served from where they are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from monarch._src.payload.outgoing import OutgoingPayloads
from monarch._src.payload.sender import ALIGNED, HEADER
from monarch._src.payload.unmapped import in_place
from monarch._src.wire.frames import Payload, Placed, apart_of
from monarch._src.wire.messages import Call
from monarch._src.wire.segment_refs import SEGMENT_FROM

LARGE = b"l" * (SEGMENT_FROM + 1)


def placed_of(payload: Payload) -> Placed:
    found = apart_of(payload)
    assert isinstance(found, Placed)
    return found


@pytest.mark.parametrize(
    ("body", "buffers", "parts"),
    [
        (b"head", [LARGE, b"small"], [LARGE, b"small"]),
        (LARGE, [], [LARGE]),
        (LARGE, [memoryview(LARGE)], [LARGE, LARGE]),
    ],
)
def test_each_host_may_ask_for_every_part_and_what_it_gets_is_no_copy(
    body: bytes, buffers: Sequence[bytes | memoryview], parts: list[bytes]
) -> None:
    served = OutgoingPayloads()
    payload = in_place(served, Payload(body, buffers), sole=True)
    placed = placed_of(payload)
    assert len(placed) == sum(map(len, parts))
    for site in ("one", "other"):
        lent = placed.serve("rank", site)
        assert lent.is_sound(HEADER)
        assert all(at % ALIGNED == 0 for at, _ in lent.spans)
        assert [size for _, size in lent.spans] == [len(part) for part in parts]
        assert (lent.sole, lent.readonly, lent.body) == (True, True, body is LARGE)
        for at, part in enumerate(parts):
            piece = served.piece(lent.key, lent.word, at, 1, len(part) - 1)
            assert piece is not None
            assert piece.obj is part
            assert piece == part[1:]
        assert served.waits(site) == len(placed)
        placed.unserve(lent)
        assert served.waits(site) == 0
    assert not served


def test_who_is_on_this_host_gets_the_parts_with_the_message() -> None:
    for payload in (Payload(b"head", [LARGE]), Payload(LARGE, [LARGE])):
        kept = in_place(OutgoingPayloads(), payload, sole=False)
        placed = placed_of(kept)
        assert placed.lend("rank", Call(0, 0, "", 0, [], [])) is None
        whole = placed.carried(kept)
        assert (whole.body, list(whole.buffers)) == (payload.body, list(payload.buffers))
