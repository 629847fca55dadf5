"""The editor's end of a Debug Adapter Protocol session with several ranks.

Runs in: the client, or a terminal outside the session. `said` runs on any thread; the receiving
thread delivers messages of ranks. `debug.dap.state.multiplexer` decides where each message goes.
Owns: the bridges to its ranks, until `close`.
Invariants: messages are delivered in order in both directions; the loss of a bridge is reported to
the editor as events of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from monarch._src.debug.agent_connection import AgentConnection
from monarch._src.debug.dap.state.multiplexer import (
    Action,
    BreakIn,
    Multiplexer,
    ToClient,
    ToRank,
)
from monarch._src.errors import DebugError
from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.wire.dap_codec import DapError, Message, Unpacker, packed
from monarch._src.wire.messages import (
    AskBridge,
    AskDebugger,
    BridgeBytes,
    BridgeClosed,
    DebuggerAnswered,
)
from monarch._src.wire.messages.debugger import BREAK, PIECE

OPEN_S = 60.0  # loading debugpy takes long where many ranks share few cores
CLOSE_S = 10.0
Say: TypeAlias = Callable[[Message], None]
SILENT = "the rank did not answer; it may be in code that holds the GIL"


@dataclass(frozen=True)
class BridgedRank:
    """One rank of a session; the editor shows its threads under `name`."""

    name: str
    mesh: int
    rank: int


class Bridge:
    """One session. Also a context manager, which closes it; stopped threads then resume.

    `say` is called with each message for the editor, in order, on any thread. It must not block or
    call this object.
    """

    def __init__(self, connection: AgentConnection, ranks: Sequence[BridgedRank], say: Say) -> None:
        self.ranks = tuple(ranks)
        self._connection = connection
        self._say = say
        self._mux = Multiplexer([one.name for one in ranks])
        self._index = {(one.mesh, one.rank): at for at, one in enumerate(self.ranks)}
        self._numbers: dict[int, int] = {}  # of bridges, by index in `ranks`
        self._unpackers = [Unpacker() for _ in self.ranks]
        self._lock = GuardedLock(reentrant=True)
        self._closed = False

    @property
    def is_over(self) -> bool:
        """Whether the session is closed or all its ranks have ended."""
        return self._closed or not self._mux.living

    @property
    def stopped(self) -> list[int]:
        """The stopped threads, by their numbers in this session."""
        with self._lock:
            return self._mux.stopped

    def open(self, timeout: float = OPEN_S) -> Bridge:
        """Load and connect the debugger of each rank.

        Raises:
            DebugError: a rank cannot load its debugger; the others are unloaded again.
        """
        places = [(one.mesh, one.rank) for one in self.ranks]
        for place in places:
            self._connection.set_listener(place, self._on_rank_message)
        request = self._connection.request(
            lambda number: AskBridge(number, places, True), len(places)
        )
        try:
            request.wait(timeout)
        except BaseException:
            self.close()
            raise
        finally:
            request.discard()
        answers = {(one.mesh, one.rank): one for one in request.answers}
        problems: dict[str, list[str]] = {}
        for at, place in enumerate(places):
            answer = answers.get(place)
            if answer is not None and not answer.problem:
                self._numbers[at] = answer.bridge
                continue
            why = SILENT if answer is None else answer.problem
            problems.setdefault(why, []).append(self.ranks[at].name)
        if problems:
            self.close()
            raise DebugError(
                "; ".join(_problem_text(names, why) for why, names in problems.items())
            )
        return self

    def said(self, message: Message) -> None:
        """Handle a message of the editor."""
        with self._lock:
            self._perform(self._mux.on_request(message))

    def lost(self, why: str) -> None:
        """Report all ranks to the editor as ended: the session is out of reach."""
        with self._lock:
            for at in sorted(self._mux.living):
                self._perform(self._mux.on_rank_gone(at, why))

    def close(self) -> None:
        """Unload the debuggers; stopped threads resume. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            places = [(one.mesh, one.rank) for one in self.ranks]
        try:
            request = self._connection.request(
                lambda number: AskBridge(number, places, False), len(places)
            )
            request.wait(CLOSE_S)
            request.discard()
        except RuntimeError:
            pass  # the host agent is gone, and its ranks with it
        finally:
            for place in places:
                self._connection.set_listener(place, None)

    # --- on the receiving thread ------------------------------------------------------------------

    def _on_rank_message(self, message: BridgeBytes | BridgeClosed) -> None:
        at = self._index[message.mesh, message.rank]
        with self._lock:
            if self._closed:
                return
            if isinstance(message, BridgeClosed):
                self._perform(self._mux.on_rank_gone(at, message.why))
                return
            try:
                for one in self._unpackers[at].feed(message.data):
                    self._perform(self._mux.on_rank_message(at, one))
            except DapError as error:
                self._perform(
                    self._mux.on_rank_gone(at, f"its debugger sent an invalid message: {error}")
                )

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case ToClient(message):
                    self._say(message)
                case ToRank(at, message):
                    self._send(at, packed(message))
                case BreakIn(at):
                    self._break_in(at)

    def _send(self, at: int, data: bytes) -> None:
        rank, number = self.ranks[at], self._numbers[at]
        for begin in range(0, len(data), PIECE):
            piece = data[begin : begin + PIECE]
            self._connection.send_bytes(BridgeBytes(rank.mesh, rank.rank, number, piece))

    def _break_in(self, at: int) -> None:
        rank = self.ranks[at]

        def on_answer(answer: DebuggerAnswered) -> None:
            if answer.problem:
                with self._lock:
                    self._perform(self._mux.note(f"{rank.name}: {answer.problem}"))

        target = (rank.mesh, rank.rank, 0)
        self._connection.request(
            lambda number: AskDebugger(number, BREAK, [target], "", False), 1, on_answer
        )

    def __enter__(self) -> Bridge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = ", ".join(one.name for one in self.ranks[:3])
        more = f" and {len(self.ranks) - 3} more" if len(self.ranks) > 3 else ""
        return f"<Bridge to {names}{more}{', which is over' if self.is_over else ''}>"


def _problem_text(names: Sequence[str], why: str) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}: {why}"
