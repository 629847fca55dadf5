"""`monarch debug`: a session's breakpoints from a terminal, whatever its client is busy with."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module

from monarch._src.cli.agent_connection import TerminalConnection, chosen
from monarch._src.cli.prompt_interrupts import heeding_interrupts
from monarch._src.debug.commands import Console, DebugCommands, Replies
from monarch._src.debug.listing import WaitingRank
from monarch._src.debug.rank_selection import HOW, Selection, parse_ranks
from monarch._src.errors import DebugError
from monarch._src.session.directories import AGENT_LIVES, Session, find_sessions

PROMPT = "monarch debug> "
HELP = f"""\
list                          what waits, and where
attach ACTOR RANK             talk to that one: the commands of pdb; `detach` leaves it paused
cast ACTOR ranks(...) CMD     give one command to many, equal answers shown once
continue [ACTOR [ranks(...)]] let them go on, without the breakpoints set at consoles
post-mortem on|off            pause where endpoints fail, with their frames
help, quit
ACTOR is the name of a mesh of actors or of processes; for ranks, {HOW}."""
_TARGET = re.compile(
    r"(?P<name>\S+)\s*(?P<ranks>ranks\([^()]*(?:\([^()]*\)[^()]*)*\))?\s*(?P<rest>.*)"
)


def run(bases: Sequence[str] | None, which: str, lines: Sequence[str] | None) -> int:
    """Do these commands, or those of the standard input; 1 if one could not be done."""
    live = [one for one in find_sessions(bases) if one.state in AGENT_LIVES]
    try:
        session = chosen(live, which)
        line = TerminalConnection(session)
    except DebugError as error:
        print(f"monarch debug: {error}", file=sys.stderr)
        return 1
    try:
        prompt = _Prompt(DebugCommands(line))
        with heeding_interrupts():
            if lines is not None:
                done = [prompt.do(text) for text in lines]
                return 0 if all(done) else 1
            return prompt.ask(session)
    finally:
        line.close()


class _Prompt:
    """Does one command after another."""

    def __init__(self, desk: DebugCommands) -> None:
        self._desk = desk
        self._commands: dict[str, Callable[[str], None]] = {
            "list": self._list, "l": self._list, "attach": self._attach, "cast": self._cast,
            "continue": self._continue, "c": self._continue, "post-mortem": self._post_mortem,
            "help": self._help,
        }  # fmt: skip

    def ask(self, session: Session) -> int:
        """Until the input ends, or somebody quits."""
        with suppress(ImportError):
            import_module("readline")  # editing and history, where there is a terminal
        print(f"session {session.name}; `help` lists commands")
        self.do("list")
        well = True
        while True:
            try:
                text = input(PROMPT)
            except EOFError:
                print()
                return 0 if well else 1
            except KeyboardInterrupt:
                print()
                continue
            if text.strip() in ("quit", "q", "exit"):
                return 0
            well = self.do(text) and well

    def do(self, text: str) -> bool:
        """One command; whether it could be done."""
        name, _, rest = text.strip().partition(" ")
        if not name:
            return True
        command = self._commands.get(name)
        try:
            if command is None:
                raise DebugError(f"there is no command {name!r}; `help` lists them")
            command(rest.strip())
        except (DebugError, TimeoutError) as error:
            print(f"monarch debug: {error}", file=sys.stderr)
            return False
        except KeyboardInterrupt:
            print("left waiting; the rank goes on with it")
        return True

    def _list(self, _rest: str) -> None:
        print(self._desk.waiting())

    def _help(self, _rest: str) -> None:
        print(HELP)

    def _attach(self, rest: str) -> None:
        name, _, ranks = rest.partition(" ")
        found = self._paused(parse_ranks(ranks, name))
        if len(found) != 1:
            known = ", ".join(one.name for one in found[:4])
            raise DebugError(
                f"{len(found)} wait there ({known}); name one rank"
                if found
                else f"nothing waits on {rest}; `list` says what does"
            )
        with self._desk.attach(found[0]) as console:
            print(console.send("where"), end="")
            _talk(console)

    def _cast(self, rest: str) -> None:
        selection, command = _target(rest)
        if not command:
            raise DebugError("cast needs a command: cast trainers ranks(0:4) p self.loss")
        print(self._desk.cast(self._some(selection), command))

    def _continue(self, rest: str) -> None:
        found = self._some(_target(rest)[0]) if rest else self._paused(Selection())
        replies = self._desk.resume(found)
        refused = Replies(reply for reply in replies if reply.problem)
        went = len(replies) - len(refused)
        print(f"{went} rank{' goes' if went == 1 else 's go'} on")
        if refused:
            raise DebugError(f"not these:\n{refused}")

    def _post_mortem(self, rest: str) -> None:
        if rest not in ("on", "off"):
            raise DebugError("write post-mortem on, or off")
        self._desk.keep_failures(rest == "on")

    def _paused(self, selection: Selection) -> list[WaitingRank]:
        found = self._desk.waiting()
        return [one for one in found if one.state == "paused" and one.is_in(selection)]

    def _some(self, selection: Selection) -> list[WaitingRank]:
        found = self._paused(selection)
        if not found:
            raise DebugError(f"nothing waits on {selection.name} there; `list` says what does")
        return found


def _target(text: str) -> tuple[Selection, str]:
    """`trainers ranks(0:4) p x` as which ranks, and the rest."""
    match = _TARGET.match(text)
    if match is None:
        raise DebugError("name a mesh of actors, as in: cast trainers ranks(0:4) p self.loss")
    return parse_ranks(match["ranks"] or "", match["name"]), match["rest"]


def _talk(console: Console) -> None:
    while not console.is_over:
        try:
            text = input(console.prompt)
        except EOFError:
            break
        except KeyboardInterrupt:  # as in a shell: forget the line
            print()
            continue
        if text.strip() == "detach":
            break
        try:
            print(console.send(text), end="")
        except KeyboardInterrupt:
            print("left waiting; the rank goes on with it")
            break
    print(f"{console.rank.name} {'has gone on' if console.is_over else 'stays paused'}")
