"""What a process asks its host agent, and what the agent tells unasked: what ranks write."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from monarch._src.actor.future import Future
from monarch._src.actor.refs import Known
from monarch._src.core.ids import AGENT
from monarch._src.events import Output, OutputLine, bus
from monarch._src.net.node import Node
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import (
    FlushOutput,
    MeshState,
    OutputFlushed,
    OutputLines,
    Snapshot,
    Snapshotted,
    WantOutput,
)

_STREAMS = {1: "stdout", 2: "stderr"}


class Questions:
    """The questions of this process that are open."""

    def __init__(self, node: Node, known: Known, new_future: Callable[[], Future[Any]]) -> None:
        self._node = node
        self._known = known
        self._new_future = new_future
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}

    def snapshot(self, meshes: list[int]) -> Future[list[MeshState]]:
        """Ask what the ranks of these meshes do."""
        return self._ask(lambda number: Snapshot(number, meshes))

    def flush_output(self) -> Future[None]:
        """Ask for all that ranks have written; done when it has arrived."""
        return self._ask(FlushOutput)

    def want_output(self, wanted: bool) -> None:
        """Ask for what ranks write, or for no more of it."""
        self._node.send(AGENT, WantOutput(wanted))

    def agent_lost(self, reason: str) -> None:
        """Nobody will answer."""
        for future in list(self._asked.values()):
            future.fail(RuntimeError(f"the host agent is gone: {reason}"))
        self._asked.clear()

    def _ask(self, request: Callable[[int], Snapshot | FlushOutput]) -> Future[Any]:
        number = next(self._numbers)
        future = self._asked[number] = self._new_future()
        if not self._node.send(AGENT, request(number)):
            self._asked.pop(number, None)
            future.fail(RuntimeError("the host agent is gone"))
        return future

    # --- on the thread that receives --------------------------------------------------------------

    def on_snapshotted(self, _peer: str, message: Snapshotted, _payload: Payload) -> None:
        """An answer came."""
        future = self._asked.pop(message.request, None)
        if future is not None:
            future.settle(lambda: message.meshes)

    def on_flushed(self, _peer: str, message: OutputFlushed, _payload: Payload) -> None:
        """An answer came."""
        future = self._asked.pop(message.request, None)
        if future is not None:
            future.settle(lambda: None)

    def on_output(self, _peer: str, message: OutputLines, _payload: Payload) -> None:
        """A rank has written."""
        ref = self._known.ref(message.mesh)
        if ref is None:
            return
        point = dict(ref.extent.point_of_rank(message.rank))
        uid = f"{ref.uid:x}"
        lines = tuple(
            OutputLine(ref.name, uid, message.rank, point, _STREAMS[stream], text)
            for stream, text in message.lines
        )
        bus.emit(Output(lines))
