"""A view of lines: of one mesh, or of what one cell has caused.

Runs in: the kernel; told of new lines on the output thread. The page's side is `log_view.js`.
"""

from __future__ import annotations

import traitlets

from monarch_jupyter.lines.log_store import LogStore
from monarch_jupyter.page.request_handler import RequestHandler
from monarch_jupyter.protocol.messages import AskMessage, MoreMessage
from monarch_jupyter.widgets.bundle import joined, styles
from monarch_jupyter.widgets.widget import RequestingWidget


class LogView(RequestingWidget):
    """Pages of lines; those of the newest page follow what ranks write."""

    _esm = joined("log_view")
    _css = styles("explorer")
    mesh = traitlets.Unicode("", help="the name of a mesh; empty for any").tag(sync=True)
    cell = traitlets.Int(0, help="the number of a cell; 0 for any").tag(sync=True)

    def __init__(
        self, desk: RequestHandler, store: LogStore, *, mesh: str = "", cell: int = 0
    ) -> None:
        super().__init__(desk, mesh=mesh, cell=cell)
        self._told = False
        self._unwatch = store.watch(self._more)

    def close(self) -> None:
        """End the updates and the widget. Idempotent."""
        self._unwatch()
        super().close()

    def last_view_left(self) -> None:
        """Nobody looks any more; a page that is loaded again asks, and hears of more again."""
        self._told = True

    def _more(self) -> None:
        if not self._told:
            self._told = True
            self.tell(MoreMessage(type="more"))

    def _ask(self, ask: AskMessage) -> None:
        self._told = False  # before the lines are read: what comes meanwhile is said
        super()._ask(ask)

    def __repr__(self) -> str:
        whose = self.mesh or f"cell {self.cell}"
        return f"lines of {whose}; `%monarch logs` shows them as text"
