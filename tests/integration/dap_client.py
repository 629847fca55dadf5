"""A scripted client of the Debug Adapter Protocol, as an editor would be one."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monarch.actor import Actor, ActorMesh, ProcMesh
from monarch.debug import open_bridge
from tests.integration.programs import PATIENCE_S

Message = dict[str, Any]


class DapClient:
    """Asks, and waits for answers and events in the order in which they come."""

    def __init__(self, send: Callable[[Message], None], came: queue.SimpleQueue[Message]) -> None:
        self.came = came
        self.events: list[Message] = []
        self._send = send
        self._numbers = itertools.count(1)

    def ask(self, command: str, **arguments: Any) -> Message:
        """Ask for that; the whole response."""
        number = next(self._numbers)
        self._send({"seq": number, "type": "request", "command": command, "arguments": arguments})
        while True:
            message = self.came.get(timeout=PATIENCE_S)
            if message["type"] == "event":
                self.events.append(message)
            elif message["request_seq"] == number:
                return message

    def do(self, command: str, **arguments: Any) -> Message:
        """The same for what has to work; its body."""
        answer = self.ask(command, **arguments)
        assert answer["success"], answer
        return answer["body"]

    def event(self, name: str) -> Message:
        """The body of the next such event."""
        while True:
            for at, event in enumerate(self.events):
                if event["event"] == name:
                    del self.events[at]
                    return event["body"]
            message = self.came.get(timeout=PATIENCE_S)
            assert message["type"] == "event", message
            self.events.append(message)

    def begin(self) -> None:
        """What editors say until they are ready."""
        self.do("initialize", adapterID="test", clientID="test")
        self.do("attach")
        self.event("initialized")
        self.do("configurationDone")

    def set_breakpoints(self, path: str | Path, *lines: int, **more: Any) -> list[Message]:
        """Breakpoints on these lines of a file."""
        asked = [{"line": line, **more} for line in lines]
        return self.do("setBreakpoints", source={"path": str(path)}, breakpoints=asked)[
            "breakpoints"
        ]

    def stack(self, thread: int) -> list[Message]:
        """The frames of a thread that stands still, innermost first."""
        return self.do("stackTrace", threadId=thread)["stackFrames"]

    def variables(self, frame: int) -> dict[str, str]:
        """The locals of a frame."""
        scopes = self.do("scopes", frameId=frame)["scopes"]
        found = self.do("variables", variablesReference=scopes[0]["variablesReference"])
        return {one["name"]: one["value"] for one in found["variables"]}


@contextmanager
def debugging(mesh: ProcMesh | ActorMesh | Actor) -> Iterator[DapClient]:
    """A client of those ranks that has begun."""
    came: queue.SimpleQueue[Message] = queue.SimpleQueue()
    with open_bridge(mesh, came.put) as bridge:
        client = DapClient(bridge.said, came)
        client.begin()
        yield client
