"""Which threads are paused, and which console may say what to each. No I/O, no clock.

A *session* is one thread of one proc from its first stop until it runs on for good. A *console* is
a node that asks: the client, a proc that owns the mesh, a terminal. The host agent drives this: it
sees the sessions of all ranks, their deaths, and who asks, so a list costs one question however
many ranks wait, and what may be asked is decided in one place.

    STOPPED --commanded--> COMMANDED --answered--> STOPPED
                              | |--steps--> STEPPING --stopped--> STOPPED, which is the answer
                              | +--runs on, may stop again--> RUNNING --stopped--> STOPPED
                              +--runs on--> gone
    any --its thread has unwound, its process has ended--> gone

Invariants: a session that is COMMANDED or STEPPING, and no other, owes an answer, to one console;
every command is answered once, also when its rank dies; a rank counts as paused while any session
on it is STOPPED or COMMANDED; a session that somebody holds is commanded by nobody else, and one
that stands in the debugger of a bridge by nobody at all.

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

NOT_THERE = "it is not paused there any more; list what waits again"
Place: TypeAlias = "tuple[int, int]"  # mesh, rank


class Phase(enum.Enum):
    """What a session is doing."""

    STOPPED = STOPPED
    STEPPING = STEPPING
    RUNNING = RUNNING
    COMMANDED = -1


_S, _C = Phase.STOPPED, Phase.COMMANDED
# Where each event leads; None: the session is gone. What is not here cannot be, and is ignored.
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


class Answer(msgspec.Struct, frozen=True):
    """Tell a console what came of what it asked."""

    console: str
    message: DebuggerAnswered


class Command(msgspec.Struct, frozen=True):
    """Have the rank of that place do something."""

    place: Place
    message: DebugCommand


class Notify(msgspec.Struct, frozen=True):
    """Tell whoever watches that rank."""

    place: Place
    message: RankPaused


Action: TypeAlias = Answer | Command | Notify


class DebugSession(msgspec.Struct):
    """One thread that is debugged. `owes`: the console and request that wait for its answer."""

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
        """Whether it stands in the debugger of a bridge, which hears no console."""
        return self.at.why == IN_EDITOR


class DebugTable:
    """All sessions of one host."""

    def __init__(self) -> None:
        self.sessions: dict[Place, dict[int, DebugSession]] = {}

    def __bool__(self) -> bool:
        return bool(self.sessions)

    # --- from procs -------------------------------------------------------------------------------

    def told(self, place: Place, message: Debugged, now: float, editor: str = "") -> list[Action]:
        """A proc has told of one of its sessions. `editor`: the console of the bridge to it."""
        here = self.sessions.get(place, {})
        session = here.get(message.session)
        before = bool(here) and self.paused_at(place) is not None
        if session is None:
            if message.state != STOPPED or message.at is None:
                return []
            session = DebugSession(place, message.session, message.at, now, prompt=message.prompt)
            session.holder = editor if session.in_editor else ""
            self.sessions.setdefault(place, {})[message.session] = session
            return [Notify(place, RankPaused(*place, message.session, True, message.at))]
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
        return actions + self._tell_change(place, before, session)

    def proc_ended(self, place: Place) -> list[Action]:
        """That process is gone, and its sessions with it."""
        paused = self.paused_at(place)
        actions: list[Action] = [
            self._answer(session, ENDED, "", "its process has ended")
            for session in self.sessions.pop(place, {}).values()
            if session.owes is not None
        ]
        if paused is not None:  # the next life of that rank is not
            actions.append(Notify(place, RankPaused(*place, paused.number, False, None)))
        return actions

    # --- from consoles ----------------------------------------------------------------------------

    def asked(self, console: str, message: AskDebugger) -> list[Action]:
        """A console wants something of sessions."""
        actions: list[Action] = []
        for mesh, rank, number in message.targets:
            session = self.sessions.get((mesh, rank), {}).get(number)
            why = NOT_THERE if session is None else self._refusal(session, console, message)
            if session is None or why:
                actions.append(
                    Answer(
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
                actions.append(Command(session.place, order))
                continue
            session.holder = console if message.what == ATTACH else ""
            actions.append(self._answer(session, session.phase.value, ""))
            session.owes = None
        return actions

    def _refusal(self, session: DebugSession, console: str, message: AskDebugger) -> str:
        if session.in_editor:
            who = session.holder or "somebody"
            return f"{who} debugs it in an editor, which has to let it go first"
        held = session.holder not in ("", console)
        if held and not message.take:
            return f"{session.holder} has attached to it; take it over, or wait"
        if message.what == RELEASE and session.holder != console:
            return "it is not held here"
        if session.phase is _S:
            return ""
        if message.what in (ATTACH, RELEASE) and session.phase is Phase.RUNNING:
            return ""
        doing = "a command" if session.phase is _C else "the program"
        return f"{doing} runs; it takes commands again when it stands still"

    def console_gone(self, console: str) -> None:
        """Nobody is there any more: what it held is free."""
        for session in self._all():
            if session.holder == console:
                session.holder = ""
            if session.owes is not None and session.owes[0] == console:
                session.owes = ("", 0)  # the answer is still to come, and goes to nobody

    # --- questions --------------------------------------------------------------------------------

    def paused_at(self, place: Place) -> DebugSession | None:
        """What that rank is paused in, the last that stopped first; None: it is not."""
        found = [one for one in self.sessions.get(place, {}).values() if one.pauses]
        return max(found, key=lambda one: one.since, default=None)

    def holders(self) -> set[str]:
        """The consoles that have attached to anything."""
        return {session.holder for session in self._all() if session.holder}

    def holder_at(self, place: Place, but: str) -> str:
        """A console other than `but` that has attached to a thread there; empty: there is none."""
        found = {one.holder for one in self.sessions.get(place, {}).values()} - {"", but}
        return min(found, default="")

    def listed(self, mesh: int, ranks: Iterable[int] | None, now: float) -> list[PausedRank]:
        """The sessions of a mesh, or of these ranks of it, by rank."""
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

    def told_anew(self) -> list[RankPaused]:
        """What somebody has to know who begins to watch now."""
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

    def _tell_change(self, place: Place, before: bool, session: DebugSession) -> list[Action]:
        stands = self.paused_at(place)
        if (stands is not None) == before and session.number in self.sessions.get(place, {}):
            return []
        if stands is None:
            told = RankPaused(*place, session.number, False, None)
            return [Notify(place, told)] if before else []
        # Also where another one has ended meanwhile: the rank stands in this one.
        return [Notify(place, RankPaused(*place, stands.number, True, stands.at))]

    def _answer(self, session: DebugSession, state: int, text: str, problem: str = "") -> Answer:
        console, request = session.owes or ("", 0)
        shown = STOPPED if state == Phase.COMMANDED.value else state
        answered = DebuggerAnswered(
            request, *session.place, session.number, shown, text, session.prompt, session.at,
            problem,
        )  # fmt: skip
        return Answer(console, answered)

    def validate(self) -> None:
        """What always holds."""
        for place, here in self.sessions.items():
            assert here
            for number, one in here.items():
                assert (one.place, one.number) == (place, number)
                assert (one.owes is not None) == (one.phase in (_C, Phase.STEPPING))
        assert all(phase in Phase for phase, _ in TRANSITIONS)
