"""The publisher and the request handler that all views of this kernel share, made on first use."""

from __future__ import annotations

import sys
import threading
from collections.abc import MutableMapping

from monarch import observe
from monarch_jupyter.page.publisher import Publisher
from monarch_jupyter.page.request_handler import RequestHandler
from monarch_jupyter.page.usage import USAGE
from monarch_jupyter.protocol.messages import Debugged

_lock = threading.Lock()
_publisher: Publisher | None = None
_request_handler: RequestHandler | None = None


def shared_publisher() -> Publisher:
    """The publisher of every explorer and of the panel."""
    global _publisher
    with _lock:
        if _publisher is None:
            _publisher = Publisher(observe.snapshot, debugged=_debugged, usage=USAGE)
        return _publisher


def _debugged() -> Debugged:
    module = sys.modules.get("monarch_jupyter.debugger.lab")  # loaded with its first use
    return {} if module is None else module.ranks_debugged_in_lab()


def close_publisher() -> None:
    """Close the publisher; the next `shared_publisher` makes a new one. Idempotent."""
    global _publisher
    with _lock:
        publisher, _publisher = _publisher, None
    if publisher is not None:
        publisher.close()


def shared_request_handler(namespace: MutableMapping[str, object] | None = None) -> RequestHandler:
    """The request handler; the first caller's namespace is where it binds meshes."""
    global _request_handler
    with _lock:
        if _request_handler is None:
            _request_handler = RequestHandler({} if namespace is None else namespace)
        return _request_handler


def close_request_handler() -> None:
    """Close the request handler; the next `shared_request_handler` makes a new one. Idempotent."""
    global _request_handler
    with _lock:
        request_handler, _request_handler = _request_handler, None
    if request_handler is not None:
        request_handler.close()
