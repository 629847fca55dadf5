"""The base of all widgets: views that come and go and send requests.

Runs in: the kernel. Messages of a page may arrive off the main thread while a cell runs, so
handlers never block. The page's side is `requests.js`.
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
    """A widget whose views send requests to the request handler."""

    def __init__(self, request_handler: RequestHandler, **traits: object) -> None:
        super().__init__(**traits)
        self._request_handler = request_handler
        self._views: set[str] = set()
        cast("Any", self).on_msg(self._on_message)
        answer_while_busy(self.comm)

    def send_to_views(self, message: KernelMessage) -> None:
        """Send a message to all views. Any thread."""
        cast("Any", self).send(message)

    def on_sync(self) -> None:
        """A view starts or has missed a message."""

    def on_last_view_closed(self) -> None:
        """The last view is gone."""

    def static_bundle(self) -> dict[str, str]:
        """The mime bundle for readers without widgets."""
        return {"text/plain": repr(self)}

    def _on_message(self, widget: object, content: object, buffers: object) -> None:
        request = parse_page_message(content)
        if request is None:
            return
        if request["type"] == "sync":
            self._views.add(request["view"])
            self.on_sync()
        elif request["type"] == "leave":
            self._views.discard(request["view"])
            if not self._views:
                self.on_last_view_closed()
        else:
            self._ask(request)

    def _ask(self, ask: AskMessage) -> None:
        def reply(error: str | None, result: object) -> None:
            self.send_to_views(answer_message(ask, error, result))

        self._request_handler.handle(ask["what"], reply)

    def bundle(self) -> dict[str, Any]:
        """The mime bundle that displays the widget."""
        made = self._repr_mimebundle_()
        return dict(self.static_bundle()) if made is None else made[0]

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = cast("Any", super())._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = cast("tuple[dict[str, Any], dict[str, Any]]", bundle)
        return {**data, **self.static_bundle()}, metadata
