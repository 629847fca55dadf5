"""The actors that run the items of a map, or submitted functions, on a rank.

Runs in: procs. Each map spawns a mesh of `Map`, with the function, and stops it at its end. A mesh
of `Tasks` is there while functions are submitted, or run.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from msgspec.structs import replace

from monarch._src.actor.call.pickling_errors import unpicklable_answer
from monarch._src.actor.call.unpickling_errors import unreadable
from monarch._src.actor.current import context
from monarch._src.actor.endpoint import Actor, endpoint
from monarch._src.actor.errors.remote import describe, pack_failure, without_keyboard
from monarch._src.actor.run.running_calls import CallAborted
from monarch._src.actor.runtime import runtime
from monarch._src.failures.report import RankFailure
from monarch._src.mesh.map import name_scopes
from monarch._src.mesh.map.items import estimated_bytes
from monarch._src.mesh.map.name_scopes import Conflicts
from monarch._src.mesh.map.parcels import (
    Parcel,
    bytes_of,
    payload_of,
    shared_classes,
    unwrapped,
    wrapped,
    wrapped_classes,
)
from monarch._src.pickling.main_names import MAIN
from monarch._src.pickling.pickler import SharedClasses, is_plain

if TYPE_CHECKING:
    import asyncio

ALL = -1
"""The place of a failure that all items of a chunk share, since they could not be rebuilt."""
MOST_BYTES = 16 << 20
"""Bytes of values after which no further item of a chunk is begun."""
_SMALL = frozenset([bool, int, float, type(None)])
NamePair: TypeAlias = "tuple[list[str], list[str]]"
Call: TypeAlias = "tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]"


class ChunkAnswer(NamedTuple):
    """The answer for a chunk."""

    values: list[Any]
    parcels: list[int]  # the places of values that are parcels
    classes: list[Parcel]  # that these share
    failures: list[tuple[int, bytes]]  # the items that failed, and their failures
    seconds: float  # that it took
    begun: int  # how many of its items were begun
    conflicts: NamePair  # the fields of the `Conflicts` of names; in a rank's first answer


class Map(Actor):
    """Runs one function on chunks of items."""

    __monarch_label__ = "the map"
    __monarch_main_thread__ = "shared"

    def __init__(
        self, function: Callable[[Any], Any], *, stops_at_error: bool, longest_s: float
    ) -> None:
        """`longest_s`: after that time, in seconds, no further item of a chunk is begun.

        If it is infinite, the user has chosen the size of chunks, and each is run to its end.
        """
        self._function = function
        self._stops_at_error = stops_at_error
        self._longest_s = longest_s
        self._most_bytes = math.inf if math.isinf(longest_s) else MOST_BYTES
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cell = runtime().cells[context().actor_instance.actor_id.uid]
        self._conflicts = name_scopes.bind(function, vars(sys.modules[MAIN]))

    @endpoint
    def run(self, items: list[Any] | None, parcel: Parcel | None = None) -> ChunkAnswer:
        """Run the function on each item. An item that raises has None as its value.

        Every exception of the function is the error of its item, also one that is no `Exception`.
        Only the cancellation of this call, and the end of the actor, end the chunk.

        Args:
            items: the items of the chunk, if they consist of builtin types and arrays.
            parcel: the items otherwise.
        """
        __tracebackhide__ = True
        began_at = monotonic()
        try:
            given = unwrapped(parcel) if parcel is not None else items or []
        except CallAborted:
            raise
        except BaseException as error:
            self._raise_if_cancelled(error)
            assert parcel is not None
            failure = (ALL, _packed(_unreadable_item(parcel, error)))
            return ChunkAnswer([], [], [], [failure], 0.0, 1, self._new_conflicts())
        values: list[Any] = []
        parcels: list[int] = []
        failures: list[tuple[int, bytes]] = []
        shared = shared_classes()
        begun = nbytes = 0
        for at, item in enumerate(given):
            if at and (monotonic() - began_at > self._longest_s or nbytes > self._most_bytes):
                break
            begun += 1
            try:
                value = self._run_one(item)
                if type(value) in _SMALL:
                    pass
                elif _needs_no_parcel(value):
                    nbytes += estimated_bytes(value)
                else:
                    value = _wrapped_value(value, shared)
                    nbytes += bytes_of(value)
                    parcels.append(at)
            except CallAborted:
                raise
            except BaseException as error:
                self._raise_if_cancelled(error)
                failures.append((at, _packed(error)))
                value = None
                if self._stops_at_error:
                    break
            values.append(value)
        seconds, classes = monotonic() - began_at, wrapped_classes(shared)
        return ChunkAnswer(
            values, parcels, classes, failures, seconds, begun, self._new_conflicts()
        )

    def _new_conflicts(self) -> NamePair:
        found, self._conflicts = self._conflicts, Conflicts()
        return found.of_rank, found.of_sender

    def _raise_if_cancelled(self, error: BaseException) -> None:
        """Raise the error if the call of the chunk was cancelled, so that the chunk ends.

        The type does not tell: the function itself may raise KeyboardInterrupt, and it may turn the
        cancellation into an exception of its own.
        """
        if self._cell.runs_cancelled_call:
            raise error

    def _run_one(self, item: Any) -> Any:
        __tracebackhide__ = True
        try:
            value = self._function(item)
            if isinstance(value, CoroutineType):
                value = self._awaited(cast("Coroutine[Any, Any, Any]", value))
        except SystemExit as error:
            raise RuntimeError(f"the function asked its rank to exit ({error.code!r})") from None
        return value

    def _awaited(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            import asyncio  # takes 13 ms to load, and few functions need it

            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(coroutine)

    def __cleanup__(self, exc: BaseException | None) -> None:
        if self._loop is not None:
            self._loop.close()


def spread(function: Callable[..., Any], item: Sequence[Any]) -> Any:
    """Call a function with an item of several iterables."""
    __tracebackhide__ = True
    return function(*item)


def _needs_no_parcel(value: object) -> bool:
    """Whether the value travels, and can be rebuilt, for sure. A parcel takes 50 us."""
    if is_plain(value):
        return True
    return type(value).__module__ == "numpy" and isinstance(value, (float, complex, str, bytes))


def _wrapped_value(value: object, shared: SharedClasses) -> Parcel:
    try:
        return wrapped(value, shared)
    except Exception as error:
        raise unpicklable_answer(value, error) from error


def _unreadable_item(parcel: Parcel, cause: BaseException) -> TypeError:
    said = unreadable("the item", "on this rank", payload_of(parcel), cause)
    error = TypeError(f"{said}. Map over plain data, and make the object of it in the function")
    error.__cause__ = cause
    return error


def _packed(error: BaseException) -> bytes:
    return bytes(pack_failure(_described(error), error).body)


def _described(error: BaseException) -> RankFailure:
    here = runtime()
    procs = here.proc_ref
    assert procs is not None, "a map runs in procs only"
    failure = describe(
        error, mesh_name=procs.name, rank=here.rank,
        point=dict(procs.extent.point_of_rank(here.rank)), actor_class=Map.__monarch_label__,
        endpoint="run", host=here.host, kind="endpoint",
    )  # fmt: skip
    if isinstance(error, EOFError):
        return replace(failure, message=without_keyboard(failure))
    return failure


class Tasks(Map):
    """Runs one function after another, each with its arguments."""

    __monarch_label__ = "the submitted function"

    def __init__(self) -> None:
        super().__init__(self._call, stops_at_error=False, longest_s=math.inf)

    def _call(self, call: Call) -> Any:
        __tracebackhide__ = True
        function, args, kwargs = call
        found = name_scopes.bind(function, vars(sys.modules[MAIN]))
        self._conflicts.of_rank += found.of_rank
        self._conflicts.of_sender += found.of_sender
        return function(*args, **kwargs)
