"""Requests that an older ipykernel leaves unread.

Runs in: the kernel. Before 7.4 ipykernel reads requests with a stream and writes replies past it,
to the stream's socket. A request that comes during such a write does not wake the stream (ipykernel
issue 1554). The kernel is then idle, and the request waits until another client connects. 7.4 needs
Python 3.11.
"""

from __future__ import annotations

from typing import Any


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
