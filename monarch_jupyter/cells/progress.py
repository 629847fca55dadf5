"""Progress bars for the slow work of a cell: calls, spawning, pulls, waits for hosts of jobs.

Runs in: the kernel. `begin` and `end` on the main thread; a thread of this module polls and shows.
Owns: that thread, from `start` until `close`, and the view of the cell that runs.
Invariants: work gets a bar only after `bars.AFTER` seconds; a bar is removed when its work or its
cell ends. If no page confirms that it shows the widget, HTML replaces it and is updated instead.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from monarch import frontend, observe
from monarch.job import open_waits
from monarch_jupyter.protocol.bars import Bar, bars_html, bars_of, bars_text, keys_of

EVERY = 0.5
"""Seconds between two polls, and so between two updates."""
UNHEARD = 2
"""Polls within which a page must confirm that it shows the view."""


class Shows(Protocol):
    """Puts a mime bundle into a cell, or replaces the one with this `display_id`."""

    def __call__(
        self, data: dict[str, Any], origin: int, *, display_id: str, update: bool
    ) -> None: ...


class ProgressView(Protocol):
    """The widget that shows bars."""

    is_shown: bool
    """Whether a page has said that it shows the view."""

    def bundle(self) -> dict[str, Any]:
        """The mime bundle that displays the view."""
        ...

    def update(self, bars: Sequence[Bar]) -> None:
        """Show these bars from now on."""
        ...

    def close(self) -> None:
        """End the view."""
        ...


class Progress:
    """Shows the bars of the running cell; `view` makes their widget, or returns None."""

    def __init__(
        self,
        show: Shows,
        origin_now: Callable[[], int],
        view: Callable[[list[Bar]], ProgressView | None],
    ) -> None:
        self._show = show
        self._origin_now = origin_now
        self._view = view
        # Guarded by _changed: the cell that runs.
        self._changed = threading.Condition()
        self._cell: _CellProgress | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="monarch-progress", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def begin(self) -> None:
        """Follow the cell that begins."""
        if threading.current_thread() is threading.main_thread():
            self._set(_CellProgress(self._show, self._view, self._origin_now()))

    def end(self) -> None:
        """Stop following the cell, which has ended."""
        if threading.current_thread() is threading.main_thread():
            self._set(None)

    def close(self) -> None:
        """End the thread. Idempotent."""
        with self._changed:
            self._closed = True
            self._cell = None
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _set(self, cell: _CellProgress | None) -> None:
        with self._changed:
            self._cell = cell
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._cell is not None)
                cell = self._cell
            if cell is None:
                return
            while self._is_running(cell):
                cell.refresh()
            cell.end()

    def _is_running(self, cell: _CellProgress) -> bool:
        with self._changed:
            return not self._changed.wait_for(lambda: self._cell is not cell, timeout=EVERY)


class _CellProgress:
    """The bars of one cell. The progress thread uses it."""

    def __init__(
        self, show: Shows, view: Callable[[list[Bar]], ProgressView | None], origin: int
    ) -> None:
        self._show = show
        self._make_view = view
        self._origin = origin
        self._since = frontend.newest_call()
        self._others = {one.uid for one in frontend.starting()}
        self._began: dict[str, float] = {}
        self._place = uuid.uuid4().hex
        self._shown: dict[str, Any] | None = None
        self._view: ProgressView | None = None
        self._refreshes = 0  # since the view was made

    def refresh(self) -> None:
        """Show the work that is under way now."""
        now = time.monotonic()
        others = frontend.calls_of_others(self._since)
        calls = [one for one in observe.open_calls(self._since) if one.number not in others]
        starting = [one for one in frontend.starting() if one.uid not in self._others]
        pulls = observe.open_pulls()
        # A map of an earlier cell counts if this cell takes its results.
        maps = [one for one in observe.open_maps() if one.number > self._since or one.awaited]
        waits = open_waits()
        keys = keys_of(calls, starting, pulls, maps, waits)
        self._began = {key: self._began.get(key, now) for key in keys}
        bars = bars_of(calls, starting, self._began, now, pulls, maps, waits)
        if not bars:
            self.end()
            return
        if self._shown is None or self._shown == _NOTHING:
            self._view, self._refreshes = self._make_view(bars), 0
            widget = {} if self._view is None else self._view.bundle()
            self._put({**widget, **_static(bars, now)})
            return
        self._refreshes += 1
        if self._view is not None and (self._view.is_shown or self._refreshes <= UNHEARD):
            self._view.update(bars)
        else:
            self._close_view()
            self._put(_static(bars, now))

    def end(self) -> None:
        """Remove the bars."""
        if self._shown is not None:
            self._put(_NOTHING)
        self._close_view()

    def _close_view(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.close()

    def _put(self, data: dict[str, Any]) -> None:
        if data != self._shown:
            update, self._shown = self._shown is not None, data
            self._show(data, self._origin, display_id=self._place, update=update)


_NOTHING: dict[str, Any] = {"text/plain": ""}


def _static(bars: list[Bar], now: float) -> dict[str, Any]:
    return {"text/plain": bars_text(bars, now), "text/html": str(bars_html(bars, now))}
