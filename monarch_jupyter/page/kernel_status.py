"""Corrects the status of a kernel on the page, and replies that ipykernel leaves unread.

JupyterLab and its server take the newest status message for the state of the kernel. A kernel with
subshells sends an `idle` of its own for each message of a widget or the panel that it handles while
a cell runs, so the page shows an idle kernel. Both leave out statuses whose parent is of one of a
few types (`untracked_message_types` of the server). So statuses of messages that a subshell or the
control thread handles are sent with such a type. Their message ids stay, by which pages tell that a
message is done with.

Before 7.4 ipykernel reads requests with a stream and writes replies past it, to the stream's
socket. A request that comes during such a write does not wake the stream (ipykernel issue 1554).
The kernel is then idle, and the request waits until another client connects. 7.4 needs Python 3.11.

Runs in: the kernel, on the thread that handles the message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

UNTRACKED = "comm_info_request"
"""A type that the server, and by it the page, leaves out."""
_OWN_STATUS = ("execute_request",)
"""Types whose statuses count on any thread: a cell that the user runs on a subshell."""


class KernelStatus:
    """The statuses of one kernel, from `install` until `restore`."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._publish: Callable[..., None] | None = getattr(kernel, "_publish_status", None)

    def install(self) -> None:
        """Relabel statuses from now on. A kernel of another kind stays as it is."""
        if self._publish is not None:
            self._kernel._publish_status = self._publish_status

    def restore(self) -> None:
        """Undo it. Idempotent."""
        if "_publish_status" in vars(self._kernel):
            del self._kernel._publish_status

    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None:
        publish = cast("Callable[..., None]", self._publish)
        if threading.current_thread() is not threading.main_thread():
            parent = relabelled(parent or self._kernel.get_parent(channel))
        publish(status, channel, parent)


def relabelled(parent: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same message under the untracked type; a cell, or no message, as it is."""
    header = parent.get("header") if parent else None
    if not header or header.get("msg_type") in _OWN_STATUS:
        return parent
    return {**parent, "header": {**header, "msg_type": UNTRACKED}, "msg_type": UNTRACKED}


class ShellReplies:
    """Sends the kernel's replies through its stream, as ipykernel does from 7.4 on."""

    def __init__(self, kernel: Any) -> None:
        self._stream = kernel.shell_stream
        thread = getattr(kernel, "shell_channel_thread", None)
        self._manager = None if thread is None else thread.manager
        self._socket: object = None

    def install(self) -> None:
        """Replace the socket for replies by the stream, where this ipykernel has one."""
        self._socket = getattr(self._manager, "_shell_socket", None)
        if self._socket is not None:
            setattr(self._manager, "_shell_socket", self._stream)  # noqa: B010

    def restore(self) -> None:
        """Undo `install`. Idempotent."""
        if self._socket is not None:
            setattr(self._manager, "_shell_socket", self._socket)  # noqa: B010
            self._socket = None
