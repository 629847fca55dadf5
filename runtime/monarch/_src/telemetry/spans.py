"""`span` and `traced`: measure how long nested parts of a program take.

Runs in: any process, any thread or task. Counts are kept in the process
(`actor.state.program_metrics`), where `monarch.observe.metrics` reads them. If OpenTelemetry is
installed, each span is also a span of OpenTelemetry.
Invariant: the enclosing span is a context variable, so spans of overlapping calls do not mix.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from contextvars import ContextVar
from time import monotonic_ns
from types import TracebackType
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, cast, overload

from monarch._src.actor.attribution import Attribution, current_attribution
from monarch._src.actor.endpoint import EndpointMethod
from monarch._src.actor.state.endpoint_metrics import EndpointCounts
from monarch._src.actor.state.history import HISTORY, LONGEST_NAME, MOST_OPEN
from monarch._src.actor.state.program_metrics import TELEMETRY
from monarch._src.telemetry.opentelemetry import otel_tracer
from monarch._src.wire.process_codec import Key

P = ParamSpec("P")
R = TypeVar("R")

_enclosing: ContextVar[str] = ContextVar("monarch_span", default="")
_enclosing_id: ContextVar[int] = ContextVar("monarch_span_id", default=0)  # while history is kept


class Span:
    """A context manager that measures its block. It can be entered again after it was left."""

    __slots__ = ("_before", "_began_ns", "_counts", "_elsewhere", "_remembered", "name")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the name of a span must be a non-empty string, not {name!r}")
        self.name = name
        self._counts: EndpointCounts | None = None
        self._before = ""
        self._began_ns = 0
        self._elsewhere: Any = None
        self._remembered: OpenSpan | None = None

    def __enter__(self) -> Span:
        if self._counts is not None:
            raise RuntimeError(
                f"span {self.name!r} is entered already; create another one: span({self.name!r})"
            )
        me = current_attribution()
        before = self._before = _enclosing.get()
        key = Key(
            me.mesh, me.mesh_name, me.actor_class, me.actor, me.endpoint,
            span=self.name, parent=before or me.endpoint,
        )  # fmt: skip
        tracer = otel_tracer()
        if tracer is not None:
            self._elsewhere = _started(tracer, self.name, me)
        _enclosing.set(self.name)
        began_ns = self._began_ns = monotonic_ns()
        counts = self._counts = TELEMETRY.span(key, began_ns)
        counts.taken(0, 0)
        if HISTORY.spans is not None:
            self._remembered = _remember_begin(self.name, me, began_ns)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> Literal[False]:
        counts, elsewhere = self._counts, self._elsewhere
        if counts is None:
            raise RuntimeError(f"span {self.name!r} has not begun; use it as `with span(...):`")
        ended_ns = monotonic_ns()
        counts.ended(ended_ns - self._began_ns)
        if kind is not None:
            counts.errors += 1
        if self._remembered is not None:
            _remember_end(self._remembered, ended_ns, failed=kind is not None)
            self._remembered = None
        self._counts = self._elsewhere = None
        _enclosing.set(self._before)  # no token: a generator may be closed by another task
        if elsewhere is not None:
            elsewhere.__exit__(kind, error, traceback)
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        return Span, (self.name,)

    def __repr__(self) -> str:
        return f"<Span {self.name}>"


class OpenSpan(NamedTuple):
    """A run of a span that has not ended. `parent` 0: none."""

    id: int
    parent: int
    name: str
    place: Attribution
    begun_ns: int
    thread: int
    thread_name: str


def enclosing_id() -> int:
    """The number of the enclosing span, if history is kept; otherwise 0."""
    return _enclosing_id.get()


def _remember_begin(name: str, me: Attribution, began_ns: int) -> OpenSpan | None:
    if len(HISTORY.open_spans) >= MOST_OPEN:
        return None  # a program that abandons spans must not fill the memory
    thread = threading.current_thread()
    opened = OpenSpan(
        HISTORY.new_span_id(), _enclosing_id.get(), name[:LONGEST_NAME], me, began_ns,
        thread.ident or 0, thread.name,
    )  # fmt: skip
    _enclosing_id.set(opened.id)
    HISTORY.open_spans[opened.id] = opened
    return opened


def _remember_end(opened: OpenSpan, ended_ns: int, *, failed: bool) -> None:
    _enclosing_id.set(opened.parent)
    HISTORY.open_spans.pop(opened.id, None)
    if HISTORY.spans is not None:
        HISTORY.spans.add((ended_ns, *opened, failed))


def _started(tracer: Any, name: str, me: Attribution) -> Any:
    attributes = {
        "monarch.mesh": me.mesh_name,
        "monarch.actor": me.actor,
        "monarch.actor_class": me.actor_class,
        "monarch.endpoint": me.endpoint,
    }
    started = tracer.start_as_current_span(name, attributes=attributes)
    started.__enter__()
    return started


def span(name: str) -> Span:
    """Measure a part of a program: `with span("load"): ...`.

    A span works in clients and in sync and async actors, on any thread. The parent is the enclosing
    span, or else the running endpoint.
    """
    return Span(name)


@overload
def traced(fn: Callable[P, R]) -> Callable[P, R]: ...


@overload
def traced(*, name: str) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def traced(fn: Any = None, *, name: str | None = None) -> Any:
    """Measure each call of a sync or async function as a span, named `name` or as the function.

    Place it below `@endpoint`.

    Raises:
        TypeError: the decorated object is not a function.
    """
    if fn is None:
        return functools.partial(_traced, name=name)
    return _traced(fn, name)


def _traced(fn: Callable[..., Any], name: str | None) -> Callable[..., Any]:
    if not callable(fn) or isinstance(fn, (staticmethod, EndpointMethod)):
        raise TypeError(
            f"@traced measures functions, not {fn!r}; place it below @endpoint, @staticmethod "
            "and the like, next to the function"
        )
    name = name or fn.__name__
    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with span(name):
                return await fn(*args, **kwargs)

        return cast("Callable[..., Any]", awaited)

    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        with span(name):
            return fn(*args, **kwargs)

    return called
