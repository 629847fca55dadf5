"""A console for one paused thread, in a cell.

Runs in: the kernel. Messages of the page may arrive off the main thread while a cell runs, so their
handlers never block; the receiving thread sends answers to the page. The page's side is
`debugger.js`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import anywidget
import msgspec
import traitlets

from monarch.debug import COMMAND, COMPLETE, SOURCE, Console, Source, moved, post, waiting
from monarch.observe import RankPaused, on_change
from monarch_jupyter.debugger.consoles import source_message, title
from monarch_jupyter.debugger.pause_notices import END, gone_text
from monarch_jupyter.page.comms import answer_while_busy
from monarch_jupyter.rendering.cell_names import with_cell_names
from monarch_jupyter.widgets.bundle import joined, styles

MOST = 400  # entries that a page keeps
ENDED_STATES = (2, 3)  # runs on, ended


class Debugger(anywidget.AnyWidget):
    """The debugger of one rank: commands of pdb, their answers, and the source around the line."""

    _esm = joined("debugger")
    _css = styles("explorer", "console")
    title = traitlets.Unicode("", help="which rank").tag(sync=True)
    prompt = traitlets.Unicode("(Pdb) ").tag(sync=True)
    busy = traitlets.Bool(False, help="a command runs").tag(sync=True)
    over = traitlets.Bool(False, help="the rank has gone on").tag(sync=True)
    entries = traitlets.List(traitlets.Dict(), help="commands and answers").tag(sync=True)
    source = traitlets.Dict(allow_none=True, help="the lines around the current one").tag(sync=True)

    def __init__(self, console: Console) -> None:
        super().__init__(
            title=title(console.rank),
            prompt=console.prompt,
            source=source_message(console.source()),
        )
        self._console = console
        self._rank = console.rank
        self._lock = threading.Lock()
        self._pending: deque[tuple[int, str, Callable[[Any], None]]] = deque()
        self._is_waiting = False
        cast("Any", self).on_msg(self._on_message)
        answer_while_busy(self.comm)
        self._unwatch = on_change(self._on_change)

    def close(self) -> None:
        """Detach from the rank, which stays paused, and end the widget. Idempotent."""
        self._unwatch()
        self._console.close()
        super().close()

    def command(self, text: str) -> None:
        """Send a command to the debugger; the answer is shown when it arrives. Any thread."""
        with self._lock:
            if self.busy or self.over:
                return
            self.busy = True
            self._add("said", f"{self.prompt}{text}")
        if text.strip() in END and self.prompt.startswith("("):
            # Detaching waits for the host agent, and handlers of page messages must not block.
            threading.Thread(target=self._detach, name="monarch-console", daemon=True).start()
            return
        self._post(COMMAND, text, self._on_reply)

    # --- from the page ----------------------------------------------------------------------------

    def _on_message(self, widget: object, content: object, buffers: object) -> None:
        match content:
            case {"type": "command", "text": str(text)}:
                self.command(text.split("\n")[0])
            case {"type": "complete", "text": str(text), "id": int(number)}:
                if not self.busy:
                    self._post(COMPLETE, text, partial(self._on_completions, number))
            case _:
                pass

    # --- on threads of the widget -----------------------------------------------------------------

    def _detach(self) -> None:
        self._console.close()
        name = self._rank.name
        self._end(f"{name} stays paused; `%monarch debug {name}` opens another console")

    def _check_gone(self) -> None:
        """Another client has resumed this rank; end the console if the rank is no longer paused."""
        try:
            there = waiting(self._rank.mesh)
        except TimeoutError:
            return  # the host agent is slow; the next command finds out
        rank = self._rank
        known = (rank.mesh_uid, rank.rank, rank.session)
        if not self.busy and all((o.mesh_uid, o.rank, o.session) != known for o in there):
            self._end(gone_text(rank, there))

    # --- on the receiving thread --------------------------------------------------------------

    def _on_change(self, change: object) -> None:
        rank = self._rank
        if not isinstance(change, RankPaused) or self.busy or self.over:
            return
        place = (change.uid, change.rank) == (rank.mesh_uid, rank.rank)
        if place and (
            change.session != rank.session if change.paused else change.session == rank.session
        ):
            threading.Thread(target=self._check_gone, name="monarch-console", daemon=True).start()

    def _post(self, what: int, text: str, on_answer: Callable[[Any], None]) -> None:
        """Queue a request: a rank takes one at a time. Any thread."""
        with self._lock:
            self._pending.append((what, text, on_answer))
            if self._is_waiting:
                return
            self._is_waiting = True
        self._ask_next()

    def _ask_next(self) -> None:
        with self._lock:
            if self.over or not self._pending:
                self._is_waiting = False
                return
            what, text, on_answer = self._pending.popleft()

        def on_reply(answer: Any) -> None:
            on_answer(answer)
            self._ask_next()

        try:
            post(what, self._rank, text, on_reply)
        except RuntimeError as error:  # the session has ended
            self._end(str(error))

    def _on_reply(self, answer: Any) -> None:
        if answer.problem:
            self._end(answer.problem)
            return
        if answer.text:
            self._add("answer", with_cell_names(answer.text))
        if answer.at is not None:
            self._rank = moved(self._rank, answer.at)
        if answer.state in ENDED_STATES:
            self._end(f"{self._rank.name} has gone on")
            return
        self.title, self.prompt = title(self._rank), answer.prompt
        self.busy = False
        self._post(SOURCE, "", self._on_source)

    def _on_source(self, answer: Any) -> None:
        if not answer.problem and answer.text:
            self.source = source_message(msgspec.json.decode(answer.text, type=Source))

    def _on_completions(self, number: int, answer: Any) -> None:
        matches = [] if answer.problem else [word for word in answer.text.split("\n") if word]
        cast("Any", self).send({"type": "completions", "id": number, "matches": matches})

    def _end(self, why: str) -> None:
        with self._lock:
            if self.over:
                return
            self.over = True
        self._unwatch()
        self._add("note", why)
        self.busy = False

    def _add(self, kind: str, text: str) -> None:
        self.entries = [*self.entries, {"kind": kind, "text": text.rstrip("\n")}][-MOST:]

    def __repr__(self) -> str:
        return "\n".join([self.title, *(entry["text"] for entry in self.entries)])
