"""A node that asks another one and waits for the answers, and threads that do so at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monarch._src.net.local.waitable import Waitable
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import AnyMessage, FlushOutput, OutputFlushed

PATIENCE_S = 60.0
MakeNode = Callable[..., Node]


class Asker:
    """A node that asks another one, and what waits for the answers."""

    def __init__(self, make_node: MakeNode, sockets: Path, **options: Any) -> None:
        self.waiting: dict[int, Waitable] = {}
        self.answered: list[int] = []
        self.inside = 0
        self.node = make_node("asker", self.handle, **options)
        self.echo = make_node("echo", self.answer)
        self.node.link("echo", f"ipc://{sockets}/echo")

    def handle(self, peer: str, message: AnyMessage, payload: Payload) -> None:
        self.inside += 1
        assert self.inside == 1, "handlers run one at a time"
        if isinstance(message, OutputFlushed):
            self.answered.append(message.request)
            self.waiting[message.request].finish()
        self.inside -= 1

    def answer(self, peer: str, message: AnyMessage, payload: Payload) -> None:
        if isinstance(message, FlushOutput):
            self.echo.send(peer, OutputFlushed(message.request))

    def ask(self, number: int) -> Waitable:
        what = self.waiting[number] = Waitable()
        assert self.node.send("echo", FlushOutput(number))
        return what


def run_all(*works: Callable[[], object]) -> None:
    """Each on a thread of its own, begun together; what one raises is raised here."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def body(work: Callable[[], object]) -> None:
        try:
            start.wait(timeout=PATIENCE_S)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=2 * PATIENCE_S)
        assert not thread.is_alive()
    for error in errors:
        raise error
