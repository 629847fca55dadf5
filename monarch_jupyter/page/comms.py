"""Comms with the page: that of the side panel, and answers while a cell runs.

Runs in: the kernel. Comm handlers may run off the main thread; they pass each request on to the
publisher or to the request handler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from comm import create_comm, get_comm_manager

from monarch_jupyter.page.publisher import Publisher, Sink
from monarch_jupyter.page.request_handler import RequestHandler
from monarch_jupyter.protocol.messages import (
    COMM_TARGET,
    KernelMessage,
    answer_message,
    parse_page_message,
)


class PageComm(Protocol):
    """The used part of a comm; the comm package itself is untyped."""

    def send(self, data: dict[str, object]) -> None:
        """Send `data` to the page."""
        ...

    def close(self) -> None:
        """Close the comm on the page."""
        ...

    def on_msg(self, callback: Callable[[dict[str, Any]], None]) -> None:
        """Call `callback` with each message of the page."""
        ...

    def on_close(self, callback: Callable[[dict[str, Any]], None]) -> None:
        """Call `callback` when the page closes it."""
        ...


def answer_while_busy(page_comm: object) -> None:
    """Have messages on this comm handled where the page sent them to, also while a cell runs.

    ipykernel routes a page's message to the shell that last sent on the comm, usually the busy one;
    the comm's `_reply_subshell_for` decides. A comm without this method delivers messages after the
    cell, so answers are late; updates are sent from a thread in any case.
    """
    if hasattr(page_comm, "_reply_subshell_for"):
        setattr(page_comm, "_reply_subshell_for", _as_sent)  # noqa: B010


def _as_sent(data: object, default: str | None) -> str | None:
    return default


class PanelLink:
    """The comm target of the side panel, from construction until `close`.

    The kernel opens a comm, which a page without the panel closes again; a reloaded page reuses
    that comm, or opens its own. Either way the page starts the updates by asking for a snapshot.
    """

    def __init__(self, publisher: Publisher, request_handler: RequestHandler) -> None:
        self._publisher = publisher
        self._request_handler = request_handler
        self._sinks: dict[int, tuple[PageComm, Sink]] = {}
        self._comms: Any = get_comm_manager()
        self._comms.register_target(COMM_TARGET, self._on_open)
        self._adopt(cast("Any", create_comm(target_name=COMM_TARGET, data={})))

    def close(self) -> None:
        """Close the comms and forget the target. Idempotent."""
        if COMM_TARGET in self._comms.targets:
            self._comms.unregister_target(COMM_TARGET, self._on_open)
        for page_comm, sink in list(self._sinks.values()):
            self._publisher.disconnect(sink)
            page_comm.close()
        self._sinks.clear()

    def _on_open(self, page_comm: PageComm, message: object) -> None:
        self._publisher.connect(self._adopt(page_comm))

    def _adopt(self, page_comm: PageComm) -> Sink:
        def sink(message: KernelMessage) -> None:
            page_comm.send({**message})

        def on_message(message: dict[str, Any]) -> None:
            request = parse_page_message(message["content"]["data"])
            if request is None:
                return
            if request["type"] == "sync":
                self._publisher.sync(sink)
            elif request["type"] == "ask":
                ask = request
                self._request_handler.handle(
                    ask["what"], lambda error, result: sink(answer_message(ask, error, result))
                )

        def on_close(message: dict[str, Any]) -> None:
            self._publisher.disconnect(sink)
            self._sinks.pop(id(page_comm), None)

        answer_while_busy(page_comm)
        page_comm.on_msg(on_message)
        page_comm.on_close(on_close)
        self._sinks[id(page_comm)] = (page_comm, sink)
        return sink
