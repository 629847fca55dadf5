"""The base of widgets whose views follow a stream: a snapshot first, then changes.

Runs in: the kernel. The publisher's thread sends; the page's side is `requests.js`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import traitlets

from monarch_jupyter.page.publisher import Publisher, Stream
from monarch_jupyter.page.request_handler import RequestHandler
from monarch_jupyter.protocol.messages import StreamMessage
from monarch_jupyter.widgets.widget import RequestingWidget


def _fresh(_: object, widget: Any) -> StreamMessage:
    # Serialised when a page asks for the model, so that a page loaded later starts from the state
    # of that time.
    return widget.current()


class StreamingWidget(RequestingWidget):
    """A widget whose views follow a stream of the publisher, until the last of them is gone."""

    first = traitlets.Any(None, help="what to show before the stream begins").tag(
        sync=True, to_json=_fresh
    )

    def __init__(
        self,
        publisher: Publisher,
        request_handler: RequestHandler,
        stream: Stream | None,
        **traits: object,
    ) -> None:
        """`stream`: None for the stream of all meshes."""
        super().__init__(request_handler, **traits)
        self._publisher = publisher
        self._stream = stream
        publisher.connect(self._sink, stream, repeat=True)

    @abstractmethod
    def current(self) -> StreamMessage:
        """The current state, under a number below 0, since it is not part of the stream."""

    def close(self) -> None:
        """End the updates and the widget. Idempotent."""
        self._publisher.disconnect(self._sink)
        super().close()

    def on_sync(self) -> None:
        """A page starts or has missed a message: send it a snapshot."""
        self._publisher.sync(self._sink, self._stream)

    def on_last_view_closed(self) -> None:
        """End the updates, since no view is left."""
        self._publisher.disconnect(self._sink)

    def _sink(self, message: StreamMessage) -> None:
        self.send_to_views(message)
