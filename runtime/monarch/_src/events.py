"""Typed events of this process, and the bus that delivers them.

Low layers emit events; front ends, telemetry and debuggers subscribe, and the low layers do not
know them. A listener runs on the emitting thread, often the receiving thread: it must be quick and
must not block. The bus logs the exceptions of listeners and goes on.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from monarch._src.failures.report import RankFailure

log = logging.getLogger("monarch.events")


class MeshSpawned(msgspec.Struct, frozen=True):
    """The spawning of a proc mesh has begun."""

    uid: str
    name: str


class ProcReady(msgspec.Struct, frozen=True):
    """A proc has connected to this process."""

    mesh: int
    rank: int
    pid: int


class RankFailed(msgspec.Struct, frozen=True):
    """A proc or an actor of a mesh that this process uses has failed.

    `mesh` is the uid of the proc mesh if a proc has ended, else 0.
    """

    failure: RankFailure
    mesh: int = 0


class RankRestarting(msgspec.Struct, frozen=True):
    """A proc of a mesh that this process uses has died and is being restarted; its state is lost.

    `failure.restarted` counts its restarts. Its owner gets `ProcReady` next. `mesh` is the uid of
    the proc mesh.
    """

    failure: RankFailure
    mesh: int = 0


class RankPaused(msgspec.Struct, frozen=True):
    """A rank is paused at a breakpoint, or (`paused` False, other fields empty) has resumed.

    `why` is `breakpoint`, `step`, `break`, or the exception that an endpoint raised. `endpoint` is
    such as `Trainer.step`; `session` stays the same from a thread's first pause until the debugger
    lets it go.
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

    `origin` is the number that the caller gave to the call which wrote the line, 0 if unknown. A
    line that is not `whole` has not ended yet: `text` is its beginning, or, if the rank has
    `written_over` it like a progress bar, its present content. It is `answered` if the rank has
    answered a call since: it may be overwritten further, or ends with this content. A line that is
    not `shown` goes into stored output, but is not displayed.
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
    answered: bool = False


class Output(msgspec.Struct, frozen=True):
    """Lines of ranks, in order for each rank; `gathered` if they were collected over some time."""

    lines: tuple[OutputLine, ...]
    gathered: bool = False


class FaultInjected(msgspec.Struct, frozen=True):
    """`monarch.testing` has injected a fault, or (`lifted`) removed it.

    `at` is in seconds since 1970. `kind` is kill, stop, slow, partition or drop; `ranks` are the
    affected ranks of the mesh; `detail` is in words; the two events of one fault have the same
    `number`.
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


_NO_LISTENERS: dict[int, Callable[[Any], None]] = {}


class Bus:
    """Listeners by event type. Thread-safe: an event goes to the listeners subscribed just then."""

    def __init__(self) -> None:
        # By number, so that a function that is subscribed twice can be unsubscribed once. Without a
        # lock, which an interrupt could leave taken: each change is a single operation on a dict.
        self._listeners: dict[type, dict[int, Callable[[Any], None]]] = {}
        self._numbers = itertools.count()

    def subscribe(self, kind: type[E], listener: Callable[[E], None]) -> Callable[[], None]:
        """Call `listener` with every event of that type; returns a function to unsubscribe it."""
        number = next(self._numbers)
        listeners = self._listeners.setdefault(kind, {})
        listeners[number] = listener

        def unsubscribe() -> None:
            listeners.pop(number, None)

        return unsubscribe

    def emit(self, event: Event) -> None:
        """Call each listener for this type of event."""
        for listener in list(self._listeners.get(type(event), _NO_LISTENERS).values()):
            try:
                listener(event)
            except Exception:
                log.exception("a listener for %s raised", type(event).__name__)

    def wanted(self, kind: type) -> bool:
        """Whether that type of event has a listener."""
        return bool(self._listeners.get(kind))


bus = Bus()
