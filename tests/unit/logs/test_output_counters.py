"""A rank that answers says whether it has written anything, and ends the lines it has begun."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from monarch._src.host.status_board import SLOT, Reads
from monarch._src.logs.line_origin import MarkedFile
from monarch._src.logs.output_counters import LONG_NS, Written
from monarch._src.logs.pipe_reader import STDERR, STDOUT, Capture
from monarch._src.wire.messages import HEARD, WROTE

SHORT_NS = LONG_NS - 1


@dataclass
class Rank:
    """The pipes of a rank, what it writes by, and the agent that reads them."""

    written: Written
    files: list[MarkedFile]
    texts: Sequence[io.TextIOWrapper]
    agent: Capture
    fds: list[int] = field(default_factory=list[int])

    def lines(self) -> list[tuple[int, str]]:
        """The agent reads."""
        return self.agent.read_all()

    def answers(self, to: str = "client", ran_ns: int = LONG_NS) -> int:
        """What the status of an answer gets added."""
        return self.written.since(to, ran_ns)


@pytest.fixture
def rank() -> Iterator[Rank]:
    pipes = [os.pipe(), os.pipe()]
    for reader, _ in pipes:
        os.set_blocking(reader, False)
    board = bytearray(SLOT)
    agent = Capture(pipes[0][0], pipes[1][0], Reads(memoryview(board).cast("Q"), 0))
    files = [MarkedFile(fd, lambda: None) for _, fd in pipes]
    texts = [io.TextIOWrapper(io.BufferedWriter(raw), line_buffering=True) for raw in files]
    written = Written()
    written.files = files

    def flush() -> None:
        for text in texts:
            text.flush()

    fds = [fd for _, fd in pipes]
    written.begin(flush, (board, SLOT - 8), fds)
    yield Rank(written, files, texts, agent, fds)
    for text in texts:
        text.detach().detach()
    for fd in fds:
        os.close(fd)
    agent.close()


def test_who_has_written_nothing_says_nothing(rank: Rank) -> None:
    assert [rank.answers() for _ in range(3)] == [0, 0, 0]
    assert rank.answers(ran_ns=SHORT_NS) == 0
    assert rank.lines() == []


@pytest.mark.parametrize("stream", [0, 1])
def test_a_line_is_told_of_once_to_each_process_that_is_answered(rank: Rank, stream: int) -> None:
    print("a line", file=rank.texts[stream])
    assert [rank.answers(), rank.answers()] == [WROTE, 0]
    assert [rank.answers("other"), rank.answers("other")] == [WROTE, 0]
    assert rank.answers() == 0
    print("another", file=rank.texts[stream])
    assert [rank.answers("other"), rank.answers()] == [WROTE, WROTE]


@pytest.mark.parametrize("agent_was_quicker", [False, True])
def test_what_others_put_into_the_pipes_is_found(rank: Rank, agent_was_quicker: bool) -> None:
    os.write(rank.fds[1], b"C says\n")
    if agent_was_quicker:
        assert rank.lines() == [(STDERR, "C says")]
        assert rank.answers(ran_ns=SHORT_NS) == WROTE, "the agent has counted it"
    else:
        assert rank.answers() == WROTE
        assert rank.lines() == [(STDERR, "C says")]
    assert rank.answers() == 0


def test_to_read_what_was_told_of_is_no_news(rank: Rank) -> None:
    print("a line", file=rank.texts[0])
    os.write(rank.fds[0], b"and another\n")
    assert rank.answers() == WROTE
    assert [text for _, text in rank.lines()] == ["a line", "and another"]
    assert [rank.answers(), rank.answers(ran_ns=SHORT_NS)] == [0, 0]


def test_a_line_that_was_begun_is_a_line_once_its_rank_has_answered(rank: Rank) -> None:
    rank.texts[0].write("begun by Python")
    assert rank.lines() == []
    rank.answers()
    assert rank.lines() == [(STDOUT, "begun by Python")]
    os.write(rank.fds[1], b"begun by C")
    rank.answers()
    os.write(rank.fds[1], b"of the next call\n")
    rank.answers()
    assert rank.lines() == [(STDERR, "begun by C"), (STDERR, "of the next call")]


def test_a_line_that_c_has_begun_ends_also_while_the_agent_reads_on_and_on(rank: Rank) -> None:
    tally = rank.agent.streams[0].tally
    for text in ("first", "second", "third"):
        os.write(rank.fds[0], text.encode())
        tally.begin()  # the agent is held up in a read
        assert rank.answers() == WROTE
        tally.end(0)
        assert rank.lines() == [(STDOUT, text)]


def test_a_whole_line_is_not_followed_by_an_empty_one(rank: Rank) -> None:
    print("whole", file=rank.texts[0])
    os.write(rank.fds[0], b"whole too\n")
    rank.answers()
    rank.answers("other")
    assert [text for _, text in rank.lines()] == ["whole", "whole too"]


def test_a_bar_goes_on_over_several_calls(rank: Rank) -> None:
    for percent in (10, 20):
        rank.texts[1].write(f"\r {percent}%")
        assert rank.answers() == WROTE
        assert rank.lines() == []
        assert rank.agent.streams[1].unfinished == (8, f" {percent}%")
    rank.texts[1].write("\r100%\n")
    rank.answers()
    assert rank.lines() == [(STDERR, "\r 10%\r 20%\r100%")]


def test_an_answer_that_output_went_before_is_passed_on_as_such(rank: Rank) -> None:
    rank.written.heard()
    assert [rank.answers(), rank.answers()] == [WROTE | HEARD, 0]
    print("its own", file=rank.texts[0])
    assert rank.answers() == WROTE


def test_a_process_without_pipes_passes_on_what_it_has_heard() -> None:
    written = Written()
    assert written.since("client", LONG_NS) == 0
    written.heard()
    assert written.since("client", LONG_NS) == WROTE | HEARD


@pytest.mark.parametrize("instead", [os.devnull, "a file"])
def test_a_stream_that_leads_elsewhere_goes_before_no_answer(
    rank: Rank, tmp_path: Path, instead: str
) -> None:
    with open(tmp_path / instead, "wb") as file:  # /dev/null stays that
        os.dup2(file.fileno(), rank.fds[0])
    rank.answers()
    os.write(rank.fds[0], b"elsewhere\n")
    assert rank.answers() == 0
    os.write(rank.fds[1], b"here\n")
    assert rank.answers() == WROTE
    assert rank.lines() == [(STDERR, "here")]
