"""Consoles that pages have opened for paused ranks.

Runs in: the kernel, on the request handler's threads, one for each request; a command that runs the
program blocks its thread until the program stops again.
Owns: the consoles, by number.
Invariants: a console is in the table until its rank has resumed or its page closes it; a request
for any other console is refused.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, TypedDict

import msgspec

import monarch.debug
from monarch.actor import ProcMesh
from monarch.debug import IN_EDITOR, Console, DebugError, Source
from monarch_jupyter.debugger.pause_notices import gone_text
from monarch_jupyter.errors import CommandError
from monarch_jupyter.rendering.cell_names import place_text, with_cell_names
from monarch_jupyter.rendering.units import count


class StandingMessage(TypedDict):
    """The state of a console; after a command, `text` is the command's output.

    `over`: the rank has resumed, and `note` says so.
    """

    console: int
    title: str
    prompt: str
    over: bool
    text: str
    note: str
    source: dict[str, Any] | None


class Consoles:
    """The consoles of one kernel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Console] = {}
        self._numbers = itertools.count(1)

    def open(self, mesh: ProcMesh, rank: int) -> StandingMessage:
        """Open the console of a rank. A rank that is not paused is paused where it runs.

        Raises:
            CommandError: the rank runs nothing, cannot be paused, or has another console.
        """
        point = mesh.extent.point_of_rank(rank)
        place = mesh.slice(**point) if point else mesh
        try:
            found = [one for one in monarch.debug.waiting(place) if one.state == "paused"]
            if not found:
                found = [one for one in monarch.debug.break_in(place) if one.state == "paused"]
            if not found:
                raise CommandError(
                    "the rank does not reach a line of Python; `%monarch stacks` shows where it is"
                )
            console = monarch.debug.attach(found[0])
        except DebugError as error:
            raise CommandError(str(error)) from None
        with self._lock:
            number = next(self._numbers)
            self._open[number] = console
        return self._standing(number, console, "")

    def send(self, number: int, text: str) -> StandingMessage:
        """Run a command in a console, and wait for its output.

        Raises:
            CommandError: the console is closed, or a command of it still runs.
        """
        console = self._find(number)
        try:
            return self._standing(number, console, console.send(text.split("\n")[0]))
        except DebugError as error:
            if not console.is_over:
                raise CommandError(str(error)) from None
            return self._standing(number, console, "", str(error))

    def complete(self, number: int, text: str) -> dict[str, list[str]]:
        """Completions of the last word of `text`."""
        try:
            return {"matches": self._find(number).complete(text)}
        except DebugError as error:
            raise CommandError(str(error)) from None

    def standing(self, number: int) -> StandingMessage:
        """The current state of a console; another client may have resumed its rank."""
        console = self._find(number)
        rank = console.rank
        there = monarch.debug.waiting(rank.mesh)
        if any((o.mesh_uid, o.rank, o.session) == _place(console) for o in there):
            return self._standing(number, console, "")
        self.close_console(number)
        return _message(number, console, "", None, gone_text(rank, there))

    def close_console(self, number: int) -> None:
        """Close a console; its rank stays paused. Idempotent."""
        with self._lock:
            console = self._open.pop(number, None)
        if console is not None:
            console.close()

    def close(self) -> None:
        """Close all consoles. Idempotent."""
        for number in list(self._open):
            self.close_console(number)

    def _find(self, number: int) -> Console:
        with self._lock:
            console = self._open.get(number)
        if console is None:
            raise CommandError("this console is closed; open another one")
        return console

    def _standing(
        self, number: int, console: Console, text: str, problem: str = ""
    ) -> StandingMessage:
        if console.is_over:
            with self._lock:
                self._open.pop(number, None)
            return _message(
                number, console, text, None, problem or f"{console.rank.name} has gone on"
            )
        try:
            source = console.source()
        except DebugError:  # another client has just resumed or commanded it
            source = None
        return _message(number, console, text, source, "")


def resume(mesh: ProcMesh, ranks: tuple[int, ...]) -> str:
    """Resume these ranks; return one line with their number.

    Raises:
        CommandError: none of them is paused, or some refused.
    """
    found = [
        one for one in monarch.debug.waiting(mesh) if one.rank in ranks and one.state == "paused"
    ]
    if not found:
        raise CommandError("no rank is paused there any more")
    replies = monarch.debug.resume(found)
    refused = [reply.problem for reply in replies if reply.problem]
    if refused:
        raise CommandError(f"{count(len(refused), 'rank')} did not go on: {refused[0]}")
    verb = "goes" if len(replies) == 1 else "go"
    return f"{count(len(replies), 'rank')} {verb} on"


def source_message(source: Source | None) -> dict[str, Any] | None:
    """A source excerpt as a message for a page."""
    return None if source is None else msgspec.structs.asdict(source)


def _place(console: Console) -> tuple[str, int, int]:
    return console.rank.mesh_uid, console.rank.rank, console.rank.session


def title(rank: monarch.debug.WaitingRank) -> str:
    """`workers[gpus=3] in Trainer.step, Cell In[3], line 7`, and why the rank is paused."""
    thread = f", thread {rank.thread}" if rank.thread else ""
    known = {"breakpoint": "", "step": "", "break": ", broken into", IN_EDITOR: ", in an editor"}
    why = known.get(rank.why, f": {rank.why}")
    return f"{rank.name} in {place_text(rank)}{thread}{why}"


def _message(
    number: int, console: Console, text: str, source: Source | None, note: str
) -> StandingMessage:
    return StandingMessage(
        console=number,
        title=title(console.rank),
        prompt=console.prompt,
        over=bool(note),
        text=with_cell_names(text).rstrip("\n"),
        note=note,
        source=source_message(source),
    )
