"""The last lines of all ranks of a host, bounded in number and in characters. No I/O.

The oldest lines are dropped first, and their number is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from typing import NamedTuple

MOST_LINES = 20_000
MOST_CHARS = 4 << 20
FINISHED = ("stdout", "stderr")
"""The names of the streams 1 and 2; others carry lines that have not ended."""


class WrittenLine(NamedTuple):
    """One line. `number` counts the lines of the host, `time_us` is when the agent read it.

    `client` is the client that held the host then.
    """

    number: int
    time_us: int
    mesh: int
    mesh_name: str
    rank: int
    stream: int
    text: str
    client: str


class LineRing:
    """The ring of one host agent.

    Invariants: it holds at most `most_lines`, which have at most `most_chars` characters in all;
    `dropped` + `len` is the number of lines that were added.
    """

    def __init__(self, most_lines: int = MOST_LINES, most_chars: int = MOST_CHARS) -> None:
        self._most_lines = most_lines
        self._most_chars = most_chars
        self._lines: deque[WrittenLine] = deque()
        self._chars = 0
        self._added = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._lines)

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
        for stream, text in lines:
            if stream > len(FINISHED):
                continue
            self._added += 1
            self._chars += len(text)
            line = WrittenLine(self._added, time_us, mesh, mesh_name, rank, stream, text, client)
            self._lines.append(line)
        while len(self._lines) > self._most_lines or self._chars > self._most_chars:
            self._chars -= len(self._lines.popleft().text)
            self.dropped += 1

    def of_client(self, client: str, meshes: Container[int]) -> Iterator[WrittenLine]:
        """The lines that this client may read, oldest first: its own, and those of these meshes."""
        return (line for line in self._lines if line.client == client or line.mesh in meshes)

    def validate(self) -> None:
        """Assert the invariants."""
        assert len(self._lines) <= self._most_lines
        assert self._chars == sum(len(line.text) for line in self._lines)
        assert self._chars <= self._most_chars
        assert self.dropped + len(self._lines) == self._added
        numbers = [line.number for line in self._lines]
        assert numbers == list(range(self.dropped + 1, self._added + 1))
