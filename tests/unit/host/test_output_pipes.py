"""Pipes of procs: read while their lines are received, and not while the receivers are behind."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterator
from math import inf

import pytest

from monarch._src.host.output_pipes import LONGEST_PAUSE_S, OutputPipes

NODE = "proc-1-0"


class Reader:
    """The loop of an agent that has one proc, whose lines it passes on."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.behind = False
        self.lines: list[str] = []
        self.pipes = OutputPipes(
            self.selector,
            lambda _, lines: self.lines.extend(text for _, text in lines),
            is_behind=lambda node: self.behind and node == NODE,
        )
        self.out, self.err = self.pipes.open(NODE)

    def write(self, text: str) -> None:
        os.write(self.out, text.encode())

    def turn(self) -> None:
        """One turn of the loop, which finds every deadline passed."""
        for key, _ in self.selector.select(0):
            key.data()
        self.pipes.time_passed(inf)

    def close(self) -> None:
        self.pipes.drop(NODE)
        assert not self.selector.get_map()
        self.selector.close()
        os.close(self.out)
        os.close(self.err)


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.close()


def test_a_pipe_is_not_read_while_the_receivers_of_its_lines_are_behind(reader: Reader) -> None:
    reader.write("one\n")
    reader.turn()
    assert reader.lines == ["one"]
    reader.behind = True
    reader.write("two\n")
    for _ in range(20):
        reader.turn()
    assert reader.lines == ["one"]
    reader.behind = False
    reader.turn()
    reader.turn()
    assert reader.lines == ["one", "two"]


def test_a_paused_pipe_keeps_the_loop_neither_busy_nor_asleep(reader: Reader) -> None:
    reader.behind = True
    reader.write("one\n")
    for key, _ in reader.selector.select(0):
        key.data()
    assert reader.selector.select(0) == [], "the selector does not find it again and again"
    assert reader.pipes.deadline is not None
    assert reader.pipes._pause_s <= LONGEST_PAUSE_S


def test_what_an_answer_or_an_end_waits_for_is_read_all_the_same(reader: Reader) -> None:
    reader.behind = True
    reader.write("before the answer\n")
    reader.turn()
    reader.pipes.read_held()
    assert reader.lines == ["before the answer"]
    reader.write("last words\n")
    reader.turn()
    reader.pipes.read_all(NODE)
    assert reader.lines == ["before the answer", "last words"]


def test_a_paused_pipe_may_be_dropped(reader: Reader) -> None:
    reader.behind = True
    reader.write("one\n")
    for key, _ in reader.selector.select(0):
        key.data()
    reader.pipes.drop(NODE)
    reader.pipes.time_passed(inf)
    assert reader.selector.select(0) == []


def test_a_line_whose_rest_is_in_a_paused_pipe_is_not_taken_for_unfinished(reader: Reader) -> None:
    reader.write("one l")
    reader.turn()
    reader.behind = True
    reader.write("ine\n")
    for _ in range(20):
        reader.turn()
    reader.behind = False
    reader.turn()
    reader.turn()
    assert reader.lines == ["one line"]
