"""Notices about paused ranks, and a console through `input()`.

Runs in: the kernel. The receiving thread queues pauses; a thread of this module reports them a
moment later, so that ranks that stop in one place share a notice. The same thread polls while a
cell runs and ranks are paused since earlier cells: if the cell waits for them, it has the notice
too.
Invariants: the views, and the shown ranks of a cell, belong to that thread, which has no timer
while no rank is paused or no cell runs.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from monarch import frontend, observe
from monarch.debug import IN_EDITOR, Console, DebugError, WaitingRank
from monarch.frontend import CodePlace, name_point, name_ranks
from monarch.observe import RankPaused
from monarch_jupyter.rendering.cell_names import place_text, with_cell_names
from monarch_jupyter.rendering.units import count

TOGETHER = 0.2
"""Seconds for which a pause waits for the next one."""
LATEST = 1.0
"""Seconds after which pauses are reported, even if more may follow."""
EVERY = 0.5
"""Seconds between two polls of a running cell."""
AFTER = 2.0
"""Seconds that a cell waits, not for paused ranks as far as is known, before it has the notice."""
MOST_VIEWS = 50
"""Views that are kept up to date; older ones stay as they are."""


Key = tuple[str, int, int]
Groups = Sequence[Sequence[RankPaused]]
"""Paused ranks, grouped by place."""


class PauseView(Protocol):
    """A view of paused ranks in a cell."""

    def update(self, waits: Groups) -> None:
        """Show these paused ranks."""
        ...


Show = Callable[[Groups, str, int], "PauseView | None"]
"""Shows paused ranks in the cell of that number, with a line of text; returns a view that can be
updated, if there is one."""


@dataclass
class _View:
    shown: PauseView
    cell: int
    keys: set[Key]


@dataclass
class _Cell:
    """The running cell, for whose waits paused ranks are reported again."""

    thread: int
    shown: set[Key] = field(default_factory=set[Key])
    waits_since: float | None = None


_CHANGED_CELL = object()


class PauseNotices:
    """Reports each paused thread once, and again in each later cell that waits for it.

    From construction until `close`.
    """

    def __init__(self, show: Show, cell_now: Callable[[], int]) -> None:
        self._show = show
        self._cell_now = cell_now
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._reported: set[Key] = set()
        self._paused: dict[Key, RankPaused] = {}
        self._views: list[_View] = []
        self._running: _Cell | None = None
        self._unsubscribe = observe.on_change(self._on_change)

    def begin(self) -> None:
        """Follow the cell that begins on this thread."""
        self._set_cell(_Cell(threading.get_ident()))

    def end(self) -> None:
        """Follow the cell no more, since it has ended."""
        self._set_cell(None)

    def close(self) -> None:
        """Stop reporting. Idempotent."""
        self._unsubscribe()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _set_cell(self, cell: _Cell | None) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # of a subshell, which runs beside the cell
        self._running = cell
        if self._thread is not None and self._paused:
            self._queue.put(_CHANGED_CELL)

    def _on_change(self, change: object) -> None:
        if not isinstance(change, RankPaused):
            return
        key = _key(change)
        if change.why == IN_EDITOR:  # the editor shows this pause
            given = [one for one in list(self._paused) if one[:2] == key[:2]]
            for one in given:
                del self._paused[one]
            if given:
                self._queue.put(change)
            return
        if change.paused:
            self._paused[key] = change
        else:
            self._paused.pop(key, None)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="monarch-pauses", daemon=True)
            self._thread.start()
        self._queue.put(change)

    # --- on the thread of this module -------------------------------------------------------------

    def _run(self) -> None:
        while True:
            polls = self._running is not None and bool(self._paused)
            try:
                change = self._queue.get(timeout=EVERY if polls else None)
            except queue.Empty:
                self._report_waits()
                continue
            if change is _CHANGED_CELL:
                continue
            until = monotonic() + LATEST
            with suppress(queue.Empty):
                while change is not None and (left := until - monotonic()) > 0:
                    change = self._queue.get(timeout=min(TOGETHER, left))
            self._report(dict(self._paused))
            if change is None:
                return

    def _report(self, paused: Mapping[Key, RankPaused]) -> None:
        # Some may have resumed by now, and a thread that steps has been reported already.
        news = {key: one for key, one in paused.items() if key not in self._reported}
        self._reported.update(news)
        self._show_in_cell(news, paused)

    def _report_waits(self) -> None:
        """Show the ranks paused since earlier cells in the running cell, if it waits for them."""
        cell, paused = self._running, dict(self._paused)
        if cell is None:
            return
        now = monotonic()
        if not frontend.is_waiting(cell.thread):
            cell.waits_since = None
            return
        if cell.waits_since is None:
            cell.waits_since = now
        found = list(paused.values())
        if now - cell.waits_since < AFTER:
            found = frontend.owing_answers(found)
        news = {key: one for one in found if (key := _key(one)) not in cell.shown}
        if self._running is cell:
            self._show_in_cell(news, paused)

    def _show_in_cell(
        self, news: Mapping[Key, RankPaused], paused: Mapping[Key, RankPaused]
    ) -> None:
        """Bring all views up to date, and show `news` in the cell that runs, or ran last."""
        number, running = self._cell_now(), self._running
        if running is not None:
            running.shown.update(news)
        if news and self._views and self._views[-1].cell == number:
            self._views[-1].keys.update(news)  # a cell has one view, however many ranks stop
            news = {}
        for view in self._views:
            view.shown.update(groups_of(paused[key] for key in view.keys & paused.keys()))
        if news:
            groups = groups_of(news.values())
            shown = self._show(groups, "\n".join(map(pause_line, groups)), number)
            if shown is not None:
                self._views = [*self._views, _View(shown, number, set(news))][-MOST_VIEWS:]


def gone_text(rank: WaitingRank, there: Iterable[WaitingRank]) -> str:
    """The reason why a paused rank is no longer in `there`."""
    place = (rank.mesh_uid, rank.rank)
    edited = any((o.mesh_uid, o.rank, o.why) == (*place, IN_EDITOR) for o in there)
    return f"{rank.name} {'is in an editor now' if edited else 'has gone on'}"


def _key(change: RankPaused) -> Key:
    return (change.uid, change.rank, change.session)


def groups_of(pauses: Iterable[RankPaused]) -> list[list[RankPaused]]:
    """Ranks of a mesh that stand in one place together, in the order of the ranks."""
    groups: dict[tuple[str, str, str, int, str], list[RankPaused]] = {}
    for one in sorted(pauses, key=lambda one: (one.uid, one.rank, one.session)):
        key = (one.uid, one.function, one.filename, one.line, one.why)
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def ranks_text(group: Sequence[RankPaused]) -> str:
    """`workers[gpus=1..2]`."""
    named = name_ranks([one.point for one in group])
    return f"{group[0].mesh}[{named.replace(' ', ', ')}]" if named else group[0].mesh


def where_text(group: Sequence[RankPaused]) -> str:
    """`Trainer.step, Cell In[3], line 7`, and the exception raised there, if any."""
    first = group[0]
    why = "" if first.why in ("breakpoint", "break", "step") else f": {first.why}"
    return place_text(CodePlace(first.function, first.filename, first.line)) + why


def pause_line(group: Sequence[RankPaused]) -> str:
    """`monarch: 2 ranks wait at a breakpoint in Trainer.step, Cell In[3], line 7: ...`."""
    first = group[0]
    at = {"breakpoint": "at a breakpoint", "break": "since it was broken into", "step": "at a step"}
    what = at.get(first.why, f"where it raised {first.why}")
    verb = "waits" if len(group) == 1 else "wait"
    point = name_point(first.point)
    one = f"{first.mesh}[{point.replace(' ', ', ')}]" if point else first.mesh
    place = place_text(CodePlace(first.function, first.filename, first.line))
    return (
        f"monarch: {count(len(group), 'rank')} {verb} {what} in {place}: {ranks_text(group)}. "
        f"`%monarch debug {one}` opens a console; while this cell runs, `monarch debug` in a "
        "terminal does"
    )


END = ("detach", "EOF")


def run_console(
    console: Console, ask: Callable[[str], str], say: Callable[[str], object], first: str = ""
) -> None:
    """Read commands and print their output, until the rank resumes or the user detaches.

    `ask` works like `input`: it raises EOFError at the end of the input.
    """
    say(with_cell_names(first))
    with console:
        while not console.is_over:
            try:
                line = ask(console.prompt)
            except EOFError:
                break
            if line.strip() in END and console.prompt.startswith("("):
                break
            try:
                said = console.send(line)
            except DebugError as error:
                say(f"{error}\n")
                break
            if said:
                say(with_cell_names(said))
    where = "has gone on" if console.is_over else "stays paused"
    say(f"{console.rank.name} {where}\n")
