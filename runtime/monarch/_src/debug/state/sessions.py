"""State of the debug sessions of one host: paused threads and their consoles. No I/O, no clock.

A *session* is one thread of one proc from its first stop until it resumes for good. A *console* is
a node that sends commands: the client, a proc that owns the mesh, or a terminal. The host agent
drives this table. It sees the sessions of all its ranks, so listing them takes one request per
host, and it decides in one place which commands are allowed.

    STOPPED --commanded--> COMMANDED --answered--> STOPPED
                              | |--steps--> STEPPING --stopped--> STOPPED, which is the answer
                              | +--runs on, may stop again--> RUNNING --stopped--> STOPPED
                              +--runs on--> gone
    any --thread has unwound, process has ended--> gone

Invariants: exactly the sessions that are COMMANDED or STEPPING owe an answer, to one console;
every command is answered once, also when its rank dies; a rank counts as paused while any session
on it is STOPPED or COMMANDED; only the console that is attached to a session can command it, and no
console can command a session that is stopped in the debugger of a bridge.

Events are methods; each returns the actions that follow, in order. `now`: seconds of a steady
clock.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from monarch._src.wire.messages.debugger import (
    ATTACH,
    COMMAND,
    COMPLETE,
    ENDED,
    IN_EDITOR,
    RELEASE,
    RUNNING,
    SOURCE,
    STEPPING,
    STOPPED,
    AskDebugger,
    DebugCommand,
    Debugged,
    DebuggerAnswered,
    PausedAt,
    PausedRank,
    RankPaused,
)

NOT_THERE = "it is no longer paused there; list the paused ranks again"
Place: TypeAlias = "tuple[int, int]"  # mesh, rank


class Phase(enum.Enum):
    """The state of a session."""

    STOPPED = STOPPED
    STEPPING = STEPPING
    RUNNING = RUNNING
    COMMANDED = -1


_S, _C = Phase.STOPPED, Phase.COMMANDED
# The next phase; None: the session is removed. Events without an entry are ignored.
TRANSITIONS: dict[tuple[Phase, str], Phase | None] = {
    (_S, "commanded"): _C,
    (_C, "stopped"): _S,
    (_C, "steps"): Phase.STEPPING,
    (_C, "runs"): Phase.RUNNING,
    (Phase.STEPPING, "stopped"): _S,
    (Phase.RUNNING, "stopped"): _S,
    **{(phase, end): None for phase in Phase for end in ("ended", "died")},
}
_EVENTS = {STOPPED: "stopped", STEPPING: "steps", RUNNING: "runs", ENDED: "ended"}


class AnswerConsole(msgspec.Struct, frozen=True):
    """Answer the request of a console."""

    console: str
    message: DebuggerAnswered


class SendToRank(msgspec.Struct, frozen=True):
    """Send a command to a rank."""

    place: Place
    message: DebugCommand


class NotifyWatchers(msgspec.Struct, frozen=True):
    """Notify the watchers of a rank that it has paused or resumed."""

    place: Place
    message: RankPaused


Action: TypeAlias = AnswerConsole | SendToRank | NotifyWatchers


class DebugSession(msgspec.Struct):
    """One debugged thread. `owes`: the console and request that wait for its answer."""

    place: Place
    number: int
    at: PausedAt
    since: float
    phase: Phase = Phase.STOPPED
    holder: str = ""
    owes: tuple[str, int] | None = None
    prompt: str = ""

    @property
    def pauses(self) -> bool:
        """Whether its rank counts as paused."""
        return self.phase in (_S, _C)

    @property
    def in_editor(self) -> bool:
        """Whether it is stopped in the debugger of a bridge, which takes no console commands."""
        return self.at.why == IN_EDITOR


class DebugTable:
    """All sessions of one host."""

    def __init__(self) -> None:
        self.sessions: dict[Place, dict[int, DebugSession]] = {}

    def __bool__(self) -> bool:
        return bool(self.sessions)

    # --- from procs -------------------------------------------------------------------------------

    def on_reported(
        self, place: Place, message: Debugged, now: float, editor: str = ""
    ) -> list[Action]:
        """A proc has reported a session. `editor`: the console of the bridge to that proc."""
        here = self.sessions.get(place, {})
        session = here.get(message.session)
        before = bool(here) and self.paused_at(place) is not None
        if session is None:
            if message.state != STOPPED or message.at is None:
                return []
            session = DebugSession(place, message.session, message.at, now, prompt=message.prompt)
            session.holder = editor if session.in_editor else ""
            self.sessions.setdefault(place, {})[message.session] = session
            return [NotifyWatchers(place, RankPaused(*place, message.session, True, message.at))]
        step = (session.phase, _EVENTS[message.state])
        if step not in TRANSITIONS:
            return []
        after = TRANSITIONS[step]
        if message.at is not None and session.at != message.at:
            session.at, session.since = message.at, now
        session.prompt = message.prompt
        actions: list[Action] = []
        if after is not Phase.STEPPING and session.owes is not None:
            answer = self._answer(session, message.state, message.text)
            actions.append(answer)
            session.owes = None
        if after is None:
            self._drop(session)
        else:
            session.phase = after
        return actions + self._notify_change(place, before, session)

    def on_proc_ended(self, place: Place) -> list[Action]:
        """A proc has ended, and its sessions with it."""
        paused = self.paused_at(place)
        actions: list[Action] = [
            self._answer(session, ENDED, "", "its process has ended")
            for session in self.sessions.pop(place, {}).values()
            if session.owes is not None
        ]
        if paused is not None:  # the next incarnation of the rank is not paused
            actions.append(NotifyWatchers(place, RankPaused(*place, paused.number, False, None)))
        return actions

    # --- from consoles ----------------------------------------------------------------------------

    def on_request(self, console: str, message: AskDebugger) -> list[Action]:
        """Handle a request of a console."""
        actions: list[Action] = []
        for mesh, rank, number in message.targets:
            session = self.sessions.get((mesh, rank), {}).get(number)
            why = NOT_THERE if session is None else self._refusal(session, console, message)
            if session is None or why:
                actions.append(
                    AnswerConsole(
                        console,
                        DebuggerAnswered(
                            message.request, mesh, rank, number, ENDED, "", "", None, why
                        ),
                    )
                )
                continue
            session.owes = (console, message.request)
            if message.what in (COMMAND, COMPLETE, SOURCE):
                session.phase = _C
                order = DebugCommand(number, message.what, message.text)
                actions.append(SendToRank(session.place, order))
                continue
            session.holder = console if message.what == ATTACH else ""
            actions.append(self._answer(session, session.phase.value, ""))
            session.owes = None
        return actions

    def _refusal(self, session: DebugSession, console: str, message: AskDebugger) -> str:
        if session.in_editor:
            return (
                f"{session.holder or 'a user'} debugs it in an editor, which must resume it first"
            )
        held = session.holder not in ("", console)
        if held and not message.take:
            return f"{session.holder} is attached to it; take it over, or wait"
        if message.what == RELEASE and session.holder != console:
            return "this console is not attached to it"
        if session.phase is _S:
            return ""
        if message.what in (ATTACH, RELEASE) and session.phase is Phase.RUNNING:
            return ""
        running = "a command" if session.phase is _C else "the program"
        return f"{running} is running; it takes commands again when it stops"

    def on_console_gone(self, console: str) -> None:
        """Release the sessions of a console that has disconnected."""
        for session in self._all():
            if session.holder == console:
                session.holder = ""
            if session.owes is not None and session.owes[0] == console:
                session.owes = ("", 0)  # the answer is still due; it will be dropped

    # --- queries ----------------------------------------------------------------------------------

    def paused_at(self, place: Place) -> DebugSession | None:
        """The session that has paused that rank, the latest if several; None: not paused."""
        found = [one for one in self.sessions.get(place, {}).values() if one.pauses]
        return max(found, key=lambda one: one.since, default=None)

    def holders(self) -> set[str]:
        """The consoles that are attached to a session."""
        return {session.holder for session in self._all() if session.holder}

    def holder_at(self, place: Place, but: str) -> str:
        """A console other than `but` that is attached to a session there; empty if none is."""
        found = {one.holder for one in self.sessions.get(place, {}).values()} - {"", but}
        return min(found, default="")

    def listed(self, mesh: int, ranks: Iterable[int] | None, now: float) -> list[PausedRank]:
        """The sessions of a mesh, or of these ranks of it, ordered by rank."""
        places = sorted(place for place in self.sessions if place[0] == mesh)
        wanted = None if ranks is None else set(ranks)
        return [
            PausedRank(
                one.place[1], one.number, STOPPED if one.pauses else one.phase.value,
                now - one.since, one.holder, one.phase is _C, one.at,
            )
            for place in places
            if wanted is None or place[1] in wanted
            for one in self.sessions[place].values()
        ]  # fmt: skip

    def pause_notices(self) -> list[RankPaused]:
        """The notifications that a new watcher needs."""
        return [
            RankPaused(*one.place, one.number, True, one.at) for one in self._all() if one.pauses
        ]

    # --- inside -----------------------------------------------------------------------------------

    def _all(self) -> list[DebugSession]:
        return [one for here in self.sessions.values() for one in here.values()]

    def _drop(self, session: DebugSession) -> None:
        here = self.sessions[session.place]
        del here[session.number]
        if not here:
            del self.sessions[session.place]

    def _notify_change(self, place: Place, before: bool, session: DebugSession) -> list[Action]:
        paused = self.paused_at(place)
        if (paused is not None) == before and session.number in self.sessions.get(place, {}):
            return []
        if paused is None:
            resumed = RankPaused(*place, session.number, False, None)
            return [NotifyWatchers(place, resumed)] if before else []
        # Also if another session has ended meanwhile: the rank is paused in this one.
        return [NotifyWatchers(place, RankPaused(*place, paused.number, True, paused.at))]

    def _answer(
        self, session: DebugSession, state: int, text: str, problem: str = ""
    ) -> AnswerConsole:
        console, request = session.owes or ("", 0)
        shown = STOPPED if state == Phase.COMMANDED.value else state
        answered = DebuggerAnswered(
            request, *session.place, session.number, shown, text, session.prompt, session.at,
            problem,
        )  # fmt: skip
        return AnswerConsole(console, answered)

    def validate(self) -> None:
        """Assert the invariants."""
        for place, here in self.sessions.items():
            assert here
            for number, one in here.items():
                assert (one.place, one.number) == (place, number)
                assert (one.owes is not None) == (one.phase in (_C, Phase.STEPPING))
        assert all(phase in Phase for phase, _ in TRANSITIONS)
