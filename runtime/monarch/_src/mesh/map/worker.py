"""The actor that runs the items of a map on a rank.

Runs in: procs. Each map spawns a mesh of it, with the function, and stops it at its end. Users read
its name in "busy in Map.run".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from types import CoroutineType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from msgspec.structs import replace

from monarch._src.actor.call.pickling_errors import unpicklable_answer
from monarch._src.actor.endpoint import Actor, endpoint
from monarch._src.actor.errors.remote import describe, pack, ship, without_keyboard
from monarch._src.actor.runtime import runtime
from monarch._src.failures.report import RankFailure
from monarch._src.wire.pickling.main_names import MAIN

if TYPE_CHECKING:
    import asyncio

Answer: TypeAlias = "tuple[list[Any], list[tuple[int, bytes]], float]"
"""The values of a chunk; the items that raised, each with its failure; how many seconds it took."""

# Values of these types always travel; asking pickle about each would cost more than to send it.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Map(Actor):
    """Runs one function on chunks of items."""

    def __init__(self, function: Callable[[Any], Any], *, stops_at_error: bool) -> None:
        self._function = function
        self._stops_at_error = stops_at_error
        self._loop: asyncio.AbstractEventLoop | None = None
        _find_names_here(function)

    @endpoint
    def run(self, items: list[Any]) -> Answer:
        """Run the function on each item. An item that raises has None as its value."""
        __tracebackhide__ = True
        values: list[Any] = []
        failures: list[tuple[int, bytes]] = []
        began = monotonic()
        for at, item in enumerate(items):
            try:
                value = self._run_one(item)
            except Exception as error:
                failures.append((at, bytes(pack(_described(error), error).body)))
                value = None
                if self._stops_at_error:
                    break
            values.append(value)
        return values, failures, monotonic() - began

    def _run_one(self, item: Any) -> Any:
        __tracebackhide__ = True
        try:
            value = self._function(item)
            if isinstance(value, CoroutineType):
                value = self._awaited(cast("Coroutine[Any, Any, Any]", value))
        except SystemExit as error:
            raise RuntimeError(f"the function asked its rank to exit ({error.code!r})") from None
        if not isinstance(value, _PLAIN):
            try:
                ship(value, loose=True)  # large buffers are not copied for this
            except Exception as error:
                raise unpicklable_answer(value, error) from error
        return value

    def _awaited(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            import asyncio  # takes 13 ms to load, and few functions need it

            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(coroutine)

    def __cleanup__(self, exc: BaseException | None) -> None:
        if self._loop is not None:
            self._loop.close()


def _find_names_here(function: object) -> None:
    """Let a function that came by value use names of this rank's `__main__` that it came without.

    These are names that `push` or a cell has bound here.
    """
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    if not isinstance(function, FunctionType | MethodType):
        function = type(function).__call__ if callable(function) else function
    plain = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(plain, FunctionType) or plain.__module__ != MAIN:
        return
    for name, value in list(vars(sys.modules[MAIN]).items()):
        if not name.startswith("__"):
            plain.__globals__.setdefault(name, value)


def _described(error: Exception) -> RankFailure:
    here = runtime()
    procs = here.proc_ref
    assert procs is not None, "a map runs in procs only"
    failure = describe(
        error, mesh_name=procs.name, rank=here.rank,
        point=dict(procs.extent.point_of_rank(here.rank)), actor_class=Map.__name__,
        endpoint="run", host=here.host, kind="endpoint",
    )  # fmt: skip
    if isinstance(error, EOFError):
        return replace(failure, message=without_keyboard(failure))
    return failure
