"""`monarch logs`: the last lines that ranks have written, and further ones as they come.

Runs in: the command line, on one thread. Host agents keep the lines; this asks them again and
again while it follows.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from monarch._src.cli.selection import ANSWER_S, BadSelectionError, select
from monarch._src.failures.report import at_text
from monarch._src.logs.carriage_returns import shown
from monarch._src.net.observer import Answer, Question, ask_agents
from monarch._src.session.directories import (
    AGENT_LIVES,
    Session,
    find_sessions,
    look_at,
    short_name,
)
from monarch._src.shape import Extent
from monarch._src.wire.messages import (
    Condition,
    ReadTable,
    Refused,
    Snapshot,
    Snapshotted,
    TableRead,
)
from monarch._src.wire.table_codec import unpacked

EVERY_S = 0.25
"""Seconds between two questions to the agents while following."""
_TABLE = "log_lines"
_COLUMNS = ["number", "timestamp_us", "mesh_id", "mesh", "rank", "stream", "text"]


class Wanted(NamedTuple):
    """The lines to show: of which ranks, the number of the last ones, and a regular expression."""

    which: str
    tail: int
    grep: str | None


class Line(NamedTuple):
    """One line, as the agent of a session has it."""

    session: str
    number: int
    timestamp_us: int
    mesh_id: int
    mesh: str
    rank: int
    stream: str
    text: str


class PlacedLine(NamedTuple):
    """A line as it is shown, with the short name of its session and the place of its rank."""

    line: Line
    session: str
    where: str

    def text(self, *, several: bool) -> str:
        """The line behind its place, and behind its session if there are lines of several."""
        place = f"{self.session} {self.where}" if several else self.where
        return f"[{place}] {self.line.text}"


@dataclass
class _Source:
    """A session to ask. `ranks`: by mesh, those to show; None: all meshes, no rank: all ranks.

    `name`: the name of an ended mesh to show. `after`: the number of the last line that was read.
    """

    session: Session
    ranks: Mapping[int, Sequence[int]] | None
    name: str = ""
    after: int = 0
    extents: dict[int, Extent] = field(default_factory=dict[int, Extent])

    def question(self) -> ReadTable:
        conditions = [Condition("number", ">", [self.after])]
        if self.ranks is not None:
            conditions.append(Condition("mesh_id", "in", [*self.ranks]))
        if self.name:
            conditions.append(Condition("mesh", "=", [self.name]))
        return ReadTable(1, _TABLE, _COLUMNS, conditions, -1, ANSWER_S)

    def shows(self, line: Line) -> bool:
        if self.ranks is None:
            return True
        ranks = self.ranks.get(line.mesh_id)
        return ranks is not None and (not ranks or line.rank in ranks)

    def place(self, line: Line) -> str:
        """`workers[gpus=3]`; `workers[rank=3]` if the mesh has ended, so that its dims are gone."""
        extent = self.extents.get(line.mesh_id)
        point = {"rank": line.rank} if extent is None else dict(extent.point_of_rank(line.rank))
        return f"{line.mesh}{at_text(point)}"


def run(
    bases: Sequence[str] | None, timeout_s: float, wanted: Wanted, *, follow: bool, as_json: bool
) -> int:
    """Print the lines; return 1 if a selection is wrong or an agent did not answer."""
    try:
        pattern = re.compile(wanted.grep or "")
        reader = open_reader(find_sessions(bases), wanted.which, pattern, timeout_s)
    except re.error as error:
        return _complain([f"--grep {wanted.grep} is not a regular expression: {error}"])
    except BadSelectionError as error:
        return _complain([str(error)])
    if not reader.sources:
        print("you have no sessions on this machine")
        return 0
    several = len(reader.sources) > 1
    lines, complaints = reader.read_new(wanted.tail)
    _print(lines, several=several, as_json=as_json)
    status = _complain(complaints)
    while follow and reader.sources:
        time.sleep(EVERY_S)  # agents answer observers and push nothing
        _print(reader.read_new(None)[0], several=several, as_json=as_json)
    return status


def open_reader(
    found: Sequence[Session], which: str, pattern: re.Pattern[str], timeout_s: float
) -> LogReader:
    """A reader of the lines of the ranks that `which` selects, which match the pattern.

    Raises:
        BadSelectionError: `which` selects nothing.
    """
    return LogReader(_sources(found, which, timeout_s), timeout_s, pattern)


def _print(lines: Iterable[PlacedLine], *, several: bool, as_json: bool) -> None:
    for one in lines:
        if as_json:
            print(msgspec.json.encode(one.line._asdict()).decode())
        else:
            print(one.text(several=several))
    sys.stdout.flush()


def _complain(complaints: Sequence[str]) -> int:
    for complaint in complaints:
        print(f"monarch logs: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _sources(found: Sequence[Session], which: str, timeout_s: float) -> list[_Source]:
    live = [one for one in found if one.state in AGENT_LIVES]
    try:
        chosen = select(live, which)
    except BadSelectionError:
        ended = _sources_of_ended(live, which, timeout_s)
        if not ended:
            raise
        return ended
    return [_Source(session, dict(meshes) or None) for session, meshes in chosen]


def _sources_of_ended(live: Sequence[Session], which: str, timeout_s: float) -> list[_Source]:
    """The sessions that have lines of a mesh of that name, which has ended."""
    sources = [_Source(session, None, which) for session in live]
    answers = _ask(sources, [one.question() for one in sources], timeout_s)
    counts = [one.count if isinstance(one, TableRead) else 0 for one in answers]
    return [source for source, count in zip(sources, counts, strict=True) if count]


def _ask(
    sources: Sequence[_Source], questions: Sequence[Question], timeout_s: float
) -> list[Answer]:
    return ask_agents([one.session.directory for one in sources], timeout_s, questions)


class LogReader:
    """Asks the sessions for lines that it has not returned yet."""

    def __init__(self, sources: list[_Source], timeout_s: float, pattern: re.Pattern[str]) -> None:
        self.sources = sources
        self._timeout_s = timeout_s
        self._pattern = pattern

    def read_new(self, last: int | None) -> tuple[list[PlacedLine], list[str]]:
        """New lines, oldest first, or the `last` ones; and why those of others are missing.

        A session that has ended is asked no more.
        """
        questions = [one.question() for one in self.sources]
        answers = _ask(self.sources, questions, self._timeout_s)
        fresh: list[tuple[Line, _Source]] = []
        complaints: list[str] = []
        for source, answer in list(zip(self.sources, answers, strict=True)):
            if not isinstance(answer, TableRead) or answer.problem:
                complaints.append(self._why_none(source, answer))
                continue
            fresh += [(line, source) for line in _lines(source, answer)]
        if any(line.mesh_id not in source.extents for line, source in fresh):
            self._learn_dims()
        fresh = [pair for pair in fresh if self._pattern.search(pair[0].text)]
        fresh.sort(key=lambda pair: pair[0].timestamp_us)  # stable: each agent's order stays
        if last is not None:
            fresh = fresh[len(fresh) - min(last, len(fresh)) :]
        placed = [
            PlacedLine(
                line._replace(text=shown(line.text)), short_name(source.session), source.place(line)
            )
            for line, source in fresh
        ]
        return placed, complaints

    def _why_none(self, source: _Source, answer: Answer) -> str:
        label = source.session.label
        if isinstance(answer, TableRead):
            return f"{label}: {answer.problem}"
        if isinstance(answer, Refused):
            self.sources.remove(source)
            return f"{label} runs another version of monarch; use the command of its environment"
        now = look_at(source.session.directory)
        if now is None or now.state not in AGENT_LIVES:
            self.sources.remove(source)
        return f"the host agent of {label} does not answer"

    def _learn_dims(self) -> None:
        answers = _ask(self.sources, [Snapshot(1, []) for _ in self.sources], self._timeout_s)
        for source, answer in zip(self.sources, answers, strict=True):
            if isinstance(answer, Snapshotted):
                source.extents.update(
                    {one.mesh: Extent(one.labels, one.sizes) for one in answer.meshes}
                )


def _lines(source: _Source, answer: TableRead) -> Iterator[Line]:
    """The lines to show in an answer."""
    columns = unpacked(answer.columns, len(_COLUMNS), answer.count)
    for row in zip(*columns, strict=True):
        line = Line(source.session.name, *row)  # pyright: ignore[reportArgumentType]
        source.after = max(source.after, line.number)
        if source.shows(line):
            yield line
