"""What a node was told."""

from __future__ import annotations

from collections.abc import Callable

from monarch._src.net.local.waitable import Waitable
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import AnyMessage, Hello, OutputFlushed
from tests.unit.net.pipe_end import Stranger

PATIENCE_S = 60.0
MakeNode = Callable[..., Node]
MakeStranger = Callable[..., Stranger]


class Heard:
    """What a node was told: (peer, message, body), and waits until enough was."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, AnyMessage, bytes]] = []
        self._wanted: tuple[int, Waitable] = (0, Waitable())

    def __call__(self, peer: str, message: AnyMessage, payload: Payload) -> None:
        self.messages.append((peer, message, bytes(payload.body)))
        count, what = self._wanted
        if self.count == count:
            what.finish()

    @property
    def answers(self) -> list[tuple[str, AnyMessage, bytes]]:
        """Without greetings."""
        return [m for m in self.messages if not isinstance(m[1], Hello)]

    @property
    def numbers(self) -> list[int]:
        """The numbers of all numbered messages, in the order in which they came."""
        return [m.request for _, m, _ in self.messages if isinstance(m, OutputFlushed)]

    @property
    def count(self) -> int:
        """How many came, without greetings."""
        return len(self.answers)

    def wait(self, node: Node, count: int) -> None:
        """Return when `count` messages have come in all."""
        self._wanted = count, Waitable()
        if self.count < count:
            assert node.wait(self._wanted[1], PATIENCE_S)


def numbered(number: int) -> OutputFlushed:
    return OutputFlushed(number)
