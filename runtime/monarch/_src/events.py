"""What happened, as typed records, and an in-process bus.

Low layers emit; front ends, telemetry and debuggers subscribe without the low layers knowing them.
Listeners run on whichever thread emits, often the one that receives messages: they must be quick,
must not block, and what they raise is logged and goes no further.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from monarch._src.failures.report import RankFailure

log = logging.getLogger("monarch.events")


class MeshSpawned(msgspec.Struct, frozen=True):
    """A proc mesh was asked for."""

    uid: str
    name: str


class ProcReady(msgspec.Struct, frozen=True):
    """A proc has said hello to this process."""

    mesh: int
    rank: int
    pid: int


class RankFailed(msgspec.Struct, frozen=True):
    """A proc or an actor of a mesh that this process uses has failed."""

    failure: RankFailure


class RankRestarting(msgspec.Struct, frozen=True):
    """A process of a mesh that this process uses is gone, and is started again; its state is lost.

    `failure.restarted`: for the so-maniest time. `ProcReady` follows at its owner.
    """

    failure: RankFailure


class RankPaused(msgspec.Struct, frozen=True):
    """A rank stands at a breakpoint, or (`paused` False, the rest empty) it runs on.

    `why`: `breakpoint`, `step`, `break`, or what an endpoint raised. `endpoint` is `Trainer.step`;
    `session` is the same from a thread's first stop until it runs on for good.
    """

    uid: str
    mesh: str
    rank: int
    point: dict[str, int]
    session: int
    paused: bool
    endpoint: str = ""
    function: str = ""
    filename: str = ""
    line: int = 0
    why: str = ""


class MeshStopped(msgspec.Struct, frozen=True):
    """A proc mesh has ended and all its processes are gone."""

    uid: str
    name: str


class OutputLine(msgspec.Struct, frozen=True):
    """One line that a rank wrote, without its newline. `stream` is `stdout` or `stderr`.

    `origin` is what whoever called had given as such, 0 if that is not known. One that is not
    `whole` is a line that is not ended yet: what it shows so far, or, if it is `written_over` as a
    progress bar is, what it shows now. One that is not `shown` is to be kept, where lines are kept,
    and not to be put in front of anybody.
    """

    mesh: str
    mesh_uid: str
    rank: int
    point: dict[str, int]
    stream: str
    text: str
    origin: int = 0
    whole: bool = True
    shown: bool = True
    written_over: bool = False


class Output(msgspec.Struct, frozen=True):
    """Lines of ranks, in the order in which each wrote them; `gathered` over a while or not."""

    lines: tuple[OutputLine, ...]
    gathered: bool = False


class FaultInjected(msgspec.Struct, frozen=True):
    """A fault that `monarch.testing` has injected, or (`lifted`) taken back.

    `at`: seconds since 1970. `kind`: kill, stop, slow, partition or drop; `ranks` of the mesh that
    it is on, `detail` in words, `number` the same for both ends of one fault.
    """

    number: int
    at: float
    kind: str
    mesh: str
    ranks: tuple[int, ...]
    detail: str
    lifted: bool = False


Event = (
    MeshSpawned | ProcReady | RankFailed | RankRestarting | RankPaused | MeshStopped | Output
    | FaultInjected
)  # fmt: skip
E = TypeVar("E")


_NOBODY: dict[int, Callable[[Any], None]] = {}


class Bus:
    """Listeners by event type. Thread-safe: who listens when it is emitted sees an event."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By number, so that one who listens twice can end each by itself.
        self._listeners: dict[type, dict[int, Callable[[Any], None]]] = {}
        self._numbers = itertools.count()

    def subscribe(self, kind: type[E], listener: Callable[[E], None]) -> Callable[[], None]:
        """Call `listener` with every event of that type; returns the function that ends it."""
        number = next(self._numbers)
        with self._lock:
            self._listeners[kind] = {**self._listeners.get(kind, {}), number: listener}

        def unsubscribe() -> None:
            with self._lock:
                listening = self._listeners.get(kind, {})
                self._listeners[kind] = {n: x for n, x in listening.items() if n != number}

        return unsubscribe

    def emit(self, event: Event) -> None:
        """Tell everyone who listens for this type of event."""
        for listener in self._listeners.get(type(event), _NOBODY).values():
            try:
                listener(event)
            except Exception:
                log.exception("a listener for %s raised", type(event).__name__)

    def wanted(self, kind: type) -> bool:
        """Whether anybody listens for that type of event."""
        return bool(self._listeners.get(kind))


bus = Bus()
