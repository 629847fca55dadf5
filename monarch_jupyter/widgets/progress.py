"""Bars of slow work in the cell that waits for it, live.

Runs in: the kernel; made, updated and closed on the thread of `monarch_jupyter.cells.progress`. The
page's side is `progress.js`, which uses `monarch_jupyter.protocol.messages`.
"""

from __future__ import annotations

from collections.abc import Sequence

from monarch_jupyter.page.publisher import Publisher
from monarch_jupyter.page.request_handler import RequestHandler
from monarch_jupyter.protocol.bars import Bar, BarTable
from monarch_jupyter.protocol.messages import BarsMessage
from monarch_jupyter.widgets.bundle import joined, styles
from monarch_jupyter.widgets.stream_widget import StreamingWidget


class ProgressBars(StreamingWidget):
    """Bars; `is_shown` once a page has said that it shows them."""

    _esm = joined("progress")
    _css = styles("explorer")

    def __init__(
        self, publisher: Publisher, request_handler: RequestHandler, bars: Sequence[Bar]
    ) -> None:
        self._table = BarTable(bars)  # before the traits, of which one is made of it
        self.is_shown = False
        super().__init__(publisher, request_handler, self._table)

    def update(self, bars: Sequence[Bar]) -> None:
        """Show these bars from now on."""
        self._table.put(bars)
        self._publisher.wake()

    def current(self) -> BarsMessage:
        return self._table.current()

    def on_sync(self) -> None:
        self.is_shown = True
        super().on_sync()
