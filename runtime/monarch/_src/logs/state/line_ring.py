"""The last lines of all ranks of a host, bounded in number and in characters. No I/O.

Lines are kept as they come, several of one rank at a time, because every line that a rank writes
passes here: one costs 0.1 us. The oldest are dropped first, and their number is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from typing import NamedTuple

MOST_LINES = 20_000
MOST_CHARS = 4 << 20
FINISHED = ("stdout", "stderr")
"""The names of the streams 1 and 2; others carry lines that have not ended."""


class WrittenLines(NamedTuple):
    """Lines of one rank, pairs of a stream and a text.

    `first` is the number of the first one, counted for the host; `time_us` is when the agent read
    them, and `client` is the client that held the host then.
    """

    first: int
    time_us: int
    mesh: int
    mesh_name: str
    rank: int
    client: str
    lines: list[tuple[int, str]]


class LineRing:
    """The ring of one host agent.

    Invariants: it holds at most `most_lines`, which have at most `most_chars` characters in all;
    `dropped` + `len` is the number of lines that were added.
    """

    def __init__(self, most_lines: int = MOST_LINES, most_chars: int = MOST_CHARS) -> None:
        self._most_lines = most_lines
        self._most_chars = most_chars
        self._entries: deque[WrittenLines] = deque()
        self._count = 0
        self._chars = 0
        self._added = 0
        self.dropped = 0

    @property
    def oldest_us(self) -> int:
        """The time of the oldest line, in microseconds since 1970; 0 without lines."""
        return self._entries[0].time_us if self._entries else 0

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        time_us: int,
        mesh: int,
        mesh_name: str,
        rank: int,
        lines: list[tuple[int, str]],
        client: str,
    ) -> None:
        """Add the finished lines among these pairs of a stream and a text."""
        last = len(FINISHED)
        finished = [line for line in lines if line[0] <= last]
        if not finished:
            return
        first = self._added + 1
        self._added += len(finished)
        self._count += len(finished)
        self._chars += _chars(finished)
        entry = WrittenLines(first, time_us, mesh, mesh_name, rank, client, finished)
        self._entries.append(entry)
        while self._is_over() and len(self._entries) > 1:
            oldest = self._entries.popleft().lines
            self._count -= len(oldest)
            self._chars -= _chars(oldest)
            self.dropped += len(oldest)
        if self._is_over():
            self._cut_last()

    def _is_over(self) -> bool:
        return self._count > self._most_lines or self._chars > self._most_chars

    def _cut_last(self) -> None:
        """Drop the first lines of the only entry, which is over a bound by itself."""
        entry = self._entries.pop()
        at = 0
        while self._is_over():
            self._chars -= len(entry.lines[at][1])
            self._count -= 1
            at += 1
        self.dropped += at
        if at < len(entry.lines):
            rest = entry.lines[at:]
            self._entries.append(entry._replace(first=entry.first + at, lines=rest))

    def of_client(self, client: str, meshes: Container[int]) -> Iterator[WrittenLines]:
        """Lines for this client, oldest first: its own, and those of these meshes."""
        return (one for one in self._entries if one.client == client or one.mesh in meshes)

    def validate(self) -> None:
        """Assert the invariants."""
        assert self._count == sum(len(one.lines) for one in self._entries) <= self._most_lines
        assert self._chars == sum(_chars(one.lines) for one in self._entries) <= self._most_chars
        assert self.dropped + self._count == self._added
        number = self.dropped + 1
        for one in self._entries:
            assert one.lines
            assert one.first == number
            number += len(one.lines)


def _chars(lines: list[tuple[int, str]]) -> int:
    return sum([len(text) for _, text in lines])  # a list is faster than a generator
