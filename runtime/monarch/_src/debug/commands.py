"""Commands on paused ranks: list them, send commands to one or several, resume them.

Runs in: the client, or a terminal outside the session; any thread, which blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec.structs import replace as replaced

from monarch._src.config import settings
from monarch._src.debug.agent_connection import AgentConnection
from monarch._src.debug.listing import WaitingRank, WaitingRanks
from monarch._src.debug.rank.user_frames import Source
from monarch._src.errors import DebugError
from monarch._src.wire.messages import (
    AskDebugger,
    DebuggerAnswered,
    ListPaused,
    PausedAt,
    PausedMesh,
)
from monarch._src.wire.messages.debugger import (
    ATTACH,
    BREAK,
    COMMAND,
    COMPLETE,
    DROP,
    ENDED,
    KEEP,
    KEEP_ALL,
    RELEASE,
    RUNNING,
    SOURCE,
)

ANSWER_S = 5.0  # for answers of the agent, and of ranks without running the program


@dataclass(frozen=True)
class Reply:
    """The answer of one rank.

    `problem`: why the rank did not run the command; `ended`: the rank is no longer paused.
    """

    rank: WaitingRank
    text: str
    ended: bool = False
    problem: str = ""


class Replies(tuple[Reply, ...]):
    """The answers of several ranks. `str()` shows equal answers once."""

    __slots__ = ()

    def groups(self) -> list[tuple[str, list[WaitingRank]]]:
        """Each distinct answer with its ranks; the answer of most ranks first."""
        found: dict[str, list[WaitingRank]] = {}
        for reply in self:
            said = reply.problem or reply.text.rstrip("\n")
            found.setdefault(said, []).append(reply.rank)
        return sorted(found.items(), key=lambda one: -len(one[1]))

    def __str__(self) -> str:
        parts: list[str] = []
        for said, ranks in self.groups():
            names = ", ".join(rank.name for rank in ranks[:4])
            more = f" and {len(ranks) - 4:,} more" if len(ranks) > 4 else ""
            text = said or "(no output)"
            count = f"{len(ranks):,} rank{'s' * (len(ranks) != 1)}"
            parts.append(f"{count}: {names}{more}\n" + _indented(text))
        return "\n".join(parts) or "no ranks"

    __repr__ = __str__


class DebugCommands:
    """Lists and controls the paused ranks of one session."""

    def __init__(self, connection: AgentConnection) -> None:
        self._connection = connection

    def waiting(self, meshes: Sequence[tuple[int, list[int]]] = ()) -> WaitingRanks:
        """List the paused threads of these meshes and ranks; an empty list means all.

        Raises:
            TimeoutError: the host agent did not answer.
        """
        request = self._connection.request(lambda number: ListPaused(number, list(meshes)), 1)
        answers = _all_answers(request, ANSWER_S)
        found: dict[int, PausedMesh] = {}
        for mesh in (mesh for answer in answers for mesh in answer.meshes):
            found.setdefault(mesh.mesh, replaced(mesh, ranks=[])).ranks.extend(mesh.ranks)
        for mesh in found.values():  # of several hosts
            mesh.ranks.sort(key=lambda one: (one.rank, one.session))
        return WaitingRanks(found.values(), any(answer.keeps for answer in answers))

    def attach(self, rank: WaitingRank, *, take: bool = False) -> Console:
        """Open a console for that thread; other consoles cannot command it meanwhile.

        `take`: take the thread over if another console is attached to it.

        Raises:
            DebugError: it is running or has ended, or another console is attached to it.
        """
        return Console(self, rank, self._ask_one(ATTACH, rank, "", ANSWER_S, take=take))

    def cast(
        self, ranks: Iterable[WaitingRank], command: str, timeout_s: float | None = None
    ) -> Replies:
        """Send one command to all of these; a late rank gets a `Reply` with a `problem`."""
        targets = list(ranks)
        answers = self._ask(COMMAND, targets, command, timeout_s, take=False)
        found = [
            Reply(rank, "", problem="no answer yet; the command is still running there")
            if answer is None
            else Reply(rank, answer.text, answer.state in (ENDED, RUNNING), answer.problem)
            for rank, answer in zip(targets, answers, strict=True)
        ]
        return Replies(found)

    def resume(self, ranks: Iterable[WaitingRank], timeout_s: float | None = None) -> Replies:
        """Resume all of these, and clear the breakpoints set from their consoles."""
        targets = list(ranks)
        self.cast(targets, "clear_all", ANSWER_S)
        return self.cast(targets, "continue", timeout_s)

    def break_in(
        self, places: Sequence[tuple[int, int]], timeout_s: float = ANSWER_S
    ) -> list[tuple[tuple[int, int], int, str]]:
        """Pause the endpoints that run on these ranks, given as (mesh, rank).

        Returns for each rank: its place, the number of threads that will pause, and why the others
        will not. A thread pauses at its next line of Python, so one in C code when that returns.
        """
        targets = [(mesh, rank, 0) for mesh, rank in places]
        request = self._connection.request(
            lambda number: AskDebugger(number, BREAK, targets, "", False), len(targets)
        )
        if targets:
            request.wait(timeout_s)
        request.discard()
        answers = {(answer.mesh, answer.rank): answer for answer in request.answers}
        silent = "the rank did not answer; it may be in code that holds the GIL"
        return [
            (place, int(answers[place].text or 0), answers[place].problem)
            if place in answers
            else (place, 0, silent)
            for place in places
        ]

    def keep_failures(self, on: bool) -> None:
        """Turn post-mortem pauses on or off for all ranks; see `api.post_mortem`."""
        all_ones = settings().post_mortem_bystanders
        what = (KEEP_ALL if all_ones else KEEP) if on else DROP
        request = self._connection.request(
            lambda number: AskDebugger(number, what, [], "", False), 1
        )
        for answer in _all_answers(request, ANSWER_S):
            if answer.problem:
                raise DebugError(answer.problem)

    # --- for consoles -----------------------------------------------------------------------------

    def _ask_one(
        self, what: int, rank: WaitingRank, text: str, timeout_s: float | None, *, take: bool
    ) -> DebuggerAnswered:
        (answer,) = self._ask(what, [rank], text, timeout_s, take=take)
        if answer is None:
            raise TimeoutError(
                f"{rank.name} did not answer within {timeout_s} s; the command continues"
            )
        if answer.problem:
            raise DebugError(f"{rank.name}: {answer.problem}")
        return answer

    def _ask(
        self, what: int, ranks: Sequence[WaitingRank], text: str, timeout_s: float | None,
        *, take: bool,
    ) -> list[DebuggerAnswered | None]:  # fmt: skip
        if not ranks:
            return []
        targets = [_target(rank) for rank in ranks]
        request = self._connection.request(
            lambda number: AskDebugger(number, what, targets, text, take), len(targets)
        )
        try:
            request.wait(timeout_s)
        finally:
            request.discard()
        answers = {(answer.mesh, answer.rank, answer.session): answer for answer in request.answers}
        return [answers.get(target) for target in targets]

    def post(
        self, what: int, rank: WaitingRank, text: str, on_answer: Callable[[Any], None]
    ) -> None:
        """Send a command without blocking; `on_answer` is called on the receiving thread."""
        target = _target(rank)
        self._connection.request(
            lambda number: AskDebugger(number, what, [target], text, False), 1, on_answer
        )


class Console:
    """A pdb console of one paused thread. Also a context manager, which closes it.

    Closing the console leaves the thread paused; the command `continue` resumes it.
    """

    def __init__(
        self, commands: DebugCommands, rank: WaitingRank, attached: DebuggerAnswered
    ) -> None:
        self.rank = rank
        self._commands = commands
        self._closed = False
        self._update(attached)

    @property
    def prompt(self) -> str:
        """The prompt of the debugger: `(Pdb) `, or `>>> ` in `interact`."""
        return self._prompt

    @property
    def is_over(self) -> bool:
        """Whether the thread has resumed or ended, so that it takes no more commands."""
        return self._over

    def send(self, command: str, timeout: float | None = None) -> str:
        """Run a command and return its output; after a step, also where the thread has stopped.

        Args:
            command: one line of pdb, or of Python.
            timeout: seconds; None waits until the thread stops again or resumes for good.

        Raises:
            DebugError: the thread has resumed already, or its process has ended.
            TimeoutError: no answer in time; the command continues on the rank.
            ValueError: the command has several lines.
        """
        if "\n" in command.rstrip("\n"):
            raise ValueError("a command is one line; use `interact` or a function for more")
        self._check()
        try:
            answer = self._commands._ask_one(  # pyright: ignore[reportPrivateUsage]
                COMMAND, self.rank, command.rstrip("\n"), timeout, take=False
            )
        except DebugError:
            self._over = not self._is_listed()
            raise
        self._update(answer)
        return answer.text

    def complete(self, text: str) -> list[str]:
        """Completions of the last word of `text`: commands, variables, attributes."""
        return list(filter(None, self._query(COMPLETE, text).split("\n")))

    def source(self) -> Source | None:
        """The source lines around the current one; None if there is no source text."""
        text = self._query(SOURCE, "")
        return msgspec.json.decode(text, type=Source) if text else None

    def close(self) -> None:
        """Detach: the thread stays paused, and other consoles may attach. Idempotent."""
        if not self._closed and not self._over:
            self._closed = True
            try:
                self._commands._ask_one(  # pyright: ignore[reportPrivateUsage]
                    RELEASE, self.rank, "", ANSWER_S, take=False
                )
            except (DebugError, TimeoutError):
                self._over = True  # the thread has resumed already

    def _query(self, what: int, text: str) -> str:
        self._check()
        answer = self._commands._ask_one(what, self.rank, text, ANSWER_S, take=False)  # pyright: ignore[reportPrivateUsage]
        return answer.text

    def _check(self) -> None:
        if self._closed:
            raise DebugError("this console is closed; attach again")
        if self._over:
            raise DebugError(f"{self.rank.name} has resumed; attach again when it is paused")

    def _is_listed(self) -> bool:
        waiting = self._commands.waiting([(int(self.rank.mesh_uid, 16), [self.rank.rank])])
        return any(one.session == self.rank.session for one in waiting)

    def _update(self, answer: DebuggerAnswered) -> None:
        self._prompt = answer.prompt
        self._over = answer.state in (ENDED, RUNNING)
        if answer.at is not None:
            self.rank = moved(self.rank, answer.at)

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Console of {self.rank}{', which has resumed' if self._over else ''}>"


def moved(rank: WaitingRank, at: PausedAt) -> WaitingRank:
    """Return `rank` with the place where it stands now."""
    return replace(
        rank, function=at.function, filename=at.filename, line=at.line, code=at.code, why=at.why
    )


def _target(rank: WaitingRank) -> tuple[int, int, int]:
    return int(rank.mesh_uid, 16), rank.rank, rank.session


def _all_answers(request: Any, timeout_s: float) -> list[Any]:
    try:
        if not request.wait(timeout_s):
            raise TimeoutError(f"the host agent did not answer within {timeout_s:g} s")
    finally:
        request.discard()
    return request.answers


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
