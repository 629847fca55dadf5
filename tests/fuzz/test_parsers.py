"""Whatever the bytes, a parser takes them or says in its own words why not; nothing is executed.

`MONARCH_FUZZ` says how many inputs each parser gets, `MONARCH_FUZZ_SEED` which.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch._src.host.status_board import Board
from monarch._src.wire.frames import FrameError, Payload, decode, encode
from monarch._src.wire.link_protocol import Data, decode_link, encode_link
from monarch._src.wire.messages import Call
from tests.fuzz.mutating import Bytes, Seeded
from tests.fuzz.parsers import Parser, parsers
from tests.untrusted_peers import Bomb

pytestmark = pytest.mark.slow

INPUTS = int(os.environ.get("MONARCH_FUZZ", "2000"))
SEED = int(os.environ.get("MONARCH_FUZZ_SEED", "0"))
GROWN = 16 << 20  # bytes, of memory that libraries keep
# One look at it is a look at the process table too.
SLOW = {"a session": 20}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Parser]]:
    folder = tmp_path_factory.mktemp("parsed")
    folder.chmod(0o700)
    board = Board(folder / "board", 1)
    yield {parser.name: parser for parser in parsers(folder, board)}
    board.close()


NAMES = [
    "a stream", "a message", "a link's", "figures", "actors", "columns of a table",
    "verbs: Connect", "verbs: Connected", "verbs: Wants", "verbs: Grants", "an invitation",
    "what is asked of a gateway", "what a gateway answers", "a handle",
    "the lock of a session",
    "a kept session", "a session", "a job", "the board", "a request of a page", "what a page says",
    "an address", "where to listen",
]  # fmt: skip


def test_every_parser_is_tried(every: dict[str, Parser]) -> None:
    assert list(every) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_parser_takes_or_refuses_whatever_was_made_of_valid_input(
    every: dict[str, Parser], name: str
) -> None:
    source, parser = Seeded(SEED), every[name]
    count = max(50, INPUTS // SLOW.get(name, 1))
    for _ in range(count // 5):
        parser.takes(source)
    before = psutil.Process().memory_info().rss
    taken = sum(parser.takes(source) for _ in range(count))
    grown = psutil.Process().memory_info().rss - before
    # Neither all nothing, nor all as valid as before.
    assert taken > 0
    assert taken < count or not parser.refuses
    assert grown < GROWN, f"{grown >> 10} KiB more"


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(drawn=st.binary(max_size=200))
def test_so_it_does_with_whatever_is_drawn(
    every: dict[str, Parser], name: str, drawn: bytes
) -> None:
    every[name].takes(Bytes(drawn))


@pytest.fixture
def bomb(tmp_path: Path) -> Iterator[bytes]:
    yield pickle.dumps(((Bomb(tmp_path / "ran"),), {}), protocol=5)
    assert not (tmp_path / "ran").exists()


def test_no_parser_unpickles(every: dict[str, Parser], bomb: bytes) -> None:
    given: list[Any] = [bomb, [bomb], [b"\x4d" + bomb]]
    for parser in every.values():
        for one in given:
            try:
                parser.parse(one)
            except (*parser.refuses, TypeError, AttributeError):  # frames where bytes are read
                pass


def test_a_payload_is_not_looked_at_by_who_reads_a_message(bomb: bytes) -> None:
    frames = encode(Call(1, 1, "endpoint", 0, [], []), Payload(bomb))
    assert bytes(decode(frames)[1].body) == bomb
    carried = [encode_link(Data(1, 1, 0, 0)), *frames]
    assert isinstance(decode_link(carried), Data)
    with pytest.raises(FrameError):
        decode([bomb])
