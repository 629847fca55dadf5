"""What the widgets have in common: views that come and go, and ask for things.

Runs in: the kernel. Messages of a page are handled off the main thread while a cell runs, and only
passed on. The page's side is `requests.js`.
"""

from __future__ import annotations

from typing import Any, cast

import anywidget

from monarch_jupyter.page.comms import answer_while_busy
from monarch_jupyter.page.request_handler import RequestHandler
from monarch_jupyter.protocol.messages import (
    AskMessage,
    KernelMessage,
    answer_message,
    parse_page_message,
)


class RequestingWidget(anywidget.AnyWidget):
    """A widget whose views ask the desk."""

    def __init__(self, desk: RequestHandler, **traits: object) -> None:
        super().__init__(**traits)
        self._desk = desk
        self._views: set[str] = set()
        cast("Any", self).on_msg(self._received)
        answer_while_busy(self.comm)

    def tell(self, message: KernelMessage) -> None:
        """Send to all views; any thread."""
        cast("Any", self).send(message)

    def view_asks_all(self) -> None:
        """A view starts, or has missed something."""

    def last_view_left(self) -> None:
        """Nobody looks any more."""

    def static_bundle(self) -> dict[str, str]:
        """What shows it to readers without widgets."""
        return {"text/plain": repr(self)}

    def _received(self, widget: object, content: object, buffers: object) -> None:
        said = parse_page_message(content)
        if said is None:
            return
        if said["type"] == "sync":
            self._views.add(said["view"])
            self.view_asks_all()
        elif said["type"] == "leave":
            self._views.discard(said["view"])
            if not self._views:
                self.last_view_left()
        else:
            self._ask(said)

    def _ask(self, ask: AskMessage) -> None:
        def reply(error: str | None, result: object) -> None:
            self.tell(answer_message(ask, error, result))

        self._desk.ask(ask["what"], reply)

    def bundle(self) -> dict[str, Any]:
        """What shows it, by mime type."""
        made = self._repr_mimebundle_()
        return dict(self.static_bundle()) if made is None else made[0]

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = cast("Any", super())._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = cast("tuple[dict[str, Any], dict[str, Any]]", bundle)
        return {**data, **self.static_bundle()}, metadata
