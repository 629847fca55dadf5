"""Consoles that pages of the dashboard have opened for ranks.

Runs in: the admin server, on worker threads; a command blocks its thread until the program stops
again, for `COMMAND_S` seconds at most.
Owns: the consoles, by number, each with a connection of its own to the agent of its session.
Invariants: one thread at a time uses a connection, and others wait for `ANSWER_S` seconds; a
console that no page has used for `UNUSED_S` seconds is closed at the next request. A rank stays
paused when its console is closed.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from monarch._src.debug.commands import Console, DebugCommands
from monarch._src.debug.listing import WaitingRank
from monarch._src.debug.rank.user_frames import Source
from monarch._src.debug.terminal_connection import TerminalConnection
from monarch._src.errors import DebugError
from monarch._src.session.directories import Session

COMMAND_S = 20.0
ANSWER_S = 5.0
BREAK_S = 5.0
POLL_S = 0.05
UNUSED_S = 300.0
MOST_ENDED = 16
"""The number of ended consoles whose last state is kept."""


class StandingMessage(msgspec.Struct):
    """The state of a console; after a command, `text` is its output.

    `over`: the rank has resumed, and `note` says so. The page's side is `parseStanding` of
    `widgets/js/protocol.js`.
    """

    console: int
    title: str
    prompt: str
    over: bool
    text: str
    note: str
    source: Source | None


@dataclass
class _OpenConsole:
    number: int
    console: Console
    commands: DebugCommands
    connection: TerminalConnection
    used_s: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    last: StandingMessage | None = None
    dropped: bool = False  # closed by its page while a command ran


class DashboardConsoles:
    """The consoles of one server. `clock`: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # Guarded by _lock: the open consoles, and the last states of some that have ended.
        self._open: dict[int, _OpenConsole] = {}
        self._ended: dict[int, StandingMessage] = {}
        self._numbers = itertools.count(1)

    def open(self, session: Session, mesh: int, rank: int) -> StandingMessage:
        """Open the console of a rank. A rank that is not paused is paused where it runs.

        Args:
            mesh: the uid of the proc mesh.

        Raises:
            DebugError: the rank runs no endpoint, cannot be paused, or has another console.
        """
        self._close_unused()
        connection = TerminalConnection(session)
        with ExitStack() as on_error:
            on_error.callback(connection.close)
            commands = DebugCommands(connection)
            console = commands.attach(_paused_thread(commands, mesh, rank))
            on_error.pop_all()  # the console keeps the connection
        with self._lock:
            number = next(self._numbers)
            opened = _OpenConsole(number, console, commands, connection, self._clock())
            self._open[number] = opened
        with self._using(number):
            return self._standing(opened, "")

    def send(self, number: int, text: str) -> StandingMessage:
        """Run a command in a console, and wait for its output.

        Raises:
            DebugError: the console is closed, a command of it still runs, or this one runs on.
        """
        with self._using(number) as opened:
            try:
                said = opened.console.send(text.split("\n")[0], COMMAND_S)
            except TimeoutError:
                raise DebugError(f"the command still runs after {COMMAND_S:g} s") from None
            except DebugError as error:
                if not opened.console.is_over:
                    raise
                return self._standing(opened, "", str(error))
            return self._standing(opened, said)

    def complete(self, number: int, text: str) -> list[str]:
        """Completions of the last word of `text`."""
        with self._using(number) as opened:
            return opened.console.complete(text)

    def standing(self, number: int) -> StandingMessage:
        """The current state of a console; another client may have resumed its rank.

        While a command runs, this is the state before it. A request that comes after the end, on
        its way since before, gets the last state.
        """
        with self._lock:
            opened = self._open.get(number)
            ended = self._ended.get(number)
        if ended is not None:
            return ended
        if opened is not None and opened.lock.locked() and opened.last is not None:
            return opened.last
        with self._using(number) as opened:
            rank = opened.console.rank
            there = _threads(opened.commands, int(rank.mesh_uid, 16), rank.rank)
            found = next((one for one in there if one.session == rank.session), None)
            if found is None:
                return self._standing(opened, "", f"{rank.name} has gone on")
            opened.console.rank = found
            return self._standing(opened, "")

    def close_console(self, number: int) -> None:
        """Close a console; its rank stays paused. Idempotent."""
        with self._lock:
            opened = self._open.pop(number, None)
            if opened is None:
                return
            opened.dropped = True
        if opened.lock.acquire(blocking=False):
            opened.connection.close()  # the agent releases the rank

    # --- the table ----------------------------------------------------------------------------

    @contextmanager
    def _using(self, number: int) -> Generator[_OpenConsole]:
        """The console of that number, for this thread alone."""
        with self._lock:
            opened = self._open.get(number)
        if opened is None:
            raise DebugError("this console is closed; open another one")
        if not opened.lock.acquire(timeout=ANSWER_S):
            raise DebugError("a command of this console still runs")
        opened.used_s = self._clock()
        try:
            yield opened
        finally:
            with self._lock:
                dropped = opened.dropped
                if not dropped:
                    opened.lock.release()
            if dropped:
                opened.connection.close()

    def _standing(self, opened: _OpenConsole, text: str, problem: str = "") -> StandingMessage:
        console, note = opened.console, problem
        if console.is_over:
            note = note or f"{console.rank.name} has gone on"
        source = None
        if not note and console.rank.state == "paused":
            with suppress(DebugError):  # another client has just resumed it
                source = console.source()
        title = f"{console.rank.name} in {console.rank.where}"
        last = StandingMessage(opened.number, title, console.prompt, bool(note), "", note, source)
        with self._lock:
            opened.last = last
            if note:
                opened.dropped = True
                self._open.pop(opened.number, None)
                self._ended[opened.number] = last
                for number in list(self._ended)[:-MOST_ENDED]:
                    del self._ended[number]
        return msgspec.structs.replace(last, text=text.rstrip("\n"))

    def _close_unused(self) -> None:
        oldest = self._clock() - UNUSED_S
        with self._lock:
            unused = [number for number, one in self._open.items() if one.used_s < oldest]
        for number in unused:
            self.close_console(number)


def resume(session: Session, mesh: int, ranks: Sequence[int]) -> int:
    """Resume these ranks; returns the number of threads that went on.

    Raises:
        DebugError: none of them is paused, or some refused.
    """
    connection = TerminalConnection(session)
    try:
        commands = DebugCommands(connection)
        found = [one for one in commands.waiting([(mesh, list(ranks))]) if one.state == "paused"]
        if not found:
            raise DebugError("no rank is paused there any more")
        replies = commands.resume(found, COMMAND_S)
        refused = [reply.problem for reply in replies if reply.problem]
        if refused:
            raise DebugError(f"{len(refused)} of {len(replies)} did not go on: {refused[0]}")
        return len(replies)
    finally:
        connection.close()


def _threads(commands: DebugCommands, mesh: int, rank: int) -> Sequence[WaitingRank]:
    return commands.waiting([(mesh, [rank])])


def _paused_thread(commands: DebugCommands, mesh: int, rank: int) -> WaitingRank:
    """A paused thread of a rank, which is paused for it if need be."""
    found = _first_paused(commands, mesh, rank)
    if found is not None:
        return found
    ((_, threads, problem),) = commands.break_in([(mesh, rank)], BREAK_S)
    if not threads:
        raise DebugError(problem or "no endpoint is running there")
    until = time.monotonic() + BREAK_S
    while time.monotonic() < until:
        found = _first_paused(commands, mesh, rank)
        if found is not None:
            return found
        time.sleep(POLL_S)  # an agent tells clients of a pause, and no observer: ask again
    raise DebugError("the rank does not reach a line of Python; its stack shows where it is")


def _first_paused(commands: DebugCommands, mesh: int, rank: int) -> WaitingRank | None:
    there = _threads(commands, mesh, rank)
    return next((one for one in there if one.state == "paused"), None)
