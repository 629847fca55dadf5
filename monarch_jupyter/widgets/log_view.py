"""A view of the lines of one mesh or of one cell.

Runs in: the kernel; notified of new lines on the output thread. The page's side is `log_view.js`.
"""

from __future__ import annotations

import traitlets

from monarch_jupyter.lines.log_store import LogStore
from monarch_jupyter.page.request_handler import RequestHandler
from monarch_jupyter.protocol.messages import AskMessage, MoreMessage
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.lines import LogPage, page_text
from monarch_jupyter.widgets.bundle import joined, styles
from monarch_jupyter.widgets.widget import RequestingWidget


class LogView(RequestingWidget):
    """Pages of lines; the newest page follows the output of ranks."""

    _esm = joined("log_view")
    _css = styles("explorer")
    mesh = traitlets.Unicode("", help="the name of a mesh; empty for any").tag(sync=True)
    cell = traitlets.Int(0, help="the number of a cell; 0 for any").tag(sync=True)

    def __init__(
        self, request_handler: RequestHandler, store: LogStore, *, mesh: str = "", cell: int = 0
    ) -> None:
        super().__init__(request_handler, mesh=mesh, cell=cell)
        self._notified = False
        self._store = store
        self._unwatch = store.watch(self._on_new_lines)

    def close(self) -> None:
        """End the updates and the widget. Idempotent."""
        self._unwatch()
        super().close()

    def static_bundle(self) -> dict[str, str]:
        """The newest page of a mesh, which exports keep; a cell has its lines beside the view."""
        if not self.mesh:
            return super().static_bundle()
        try:
            page = self._store.page(self.mesh)
        except KeyError:
            page = LogPage(self.mesh, (), 0, 0)
        text = page_text(page) if page.total else f"{self.mesh} has written nothing yet"
        return {"text/plain": text, "text/html": str(html.card(html.block(text)))}

    def on_last_view_closed(self) -> None:
        """Stop notifying; the next request of a page starts it again."""
        self._notified = True

    def _on_new_lines(self) -> None:
        if not self._notified:
            self._notified = True
            self.send_to_views(MoreMessage(type="more"))

    def _ask(self, ask: AskMessage) -> None:
        self._notified = False  # before the lines are read, so that later ones notify again
        super()._ask(ask)

    def __repr__(self) -> str:
        whose = self.mesh or f"cell {self.cell}"
        return f"lines of {whose}; `%monarch logs` shows them as text"
