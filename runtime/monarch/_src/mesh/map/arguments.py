"""The arguments of a map, checked before any rank is told of it.

Runs in: the calling process, on the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import FunctionType
from typing import Any, Literal, TypeAlias, cast

import msgspec

from monarch._src.actor.as_completed import positive_seconds
from monarch._src.actor.call.pickling_errors import unpicklable_item
from monarch._src.actor.serialize import pack_value
from monarch._src.mesh.client_imports import note_imports_of
from monarch._src.mesh.map.items import ItemStream
from monarch._src.mesh.map.worker import spread

OnError: TypeAlias = Literal["raise", "collect"]
_ON_ERROR = ("raise", "collect")
_LISTS = ("map", "map_async")  # the methods that take all items before the first is sent
_PICKLED_AT_ONCE = 1000  # items
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class MapArguments(msgspec.Struct, frozen=True):
    """The arguments of one map. `name`: the function's, as errors and bars show it.

    `call`: is called with each item; it is the function, or spreads an item of several iterables.
    `items`: all of them, or those that are taken while the map runs, of which the first is there.
    """

    function: Callable[..., Any]
    name: str
    call: Callable[[Any], Any]
    items: Sequence[Any] | ItemStream
    chunk_size: int | None
    on_error: OnError
    timeout: float | None
    progress: bool
    buffersize: int | None = None


def checked(
    method: str, function: object, iterables: Sequence[object], chunk_size: object,
    on_error: object, timeout: object, progress: bool, buffersize: object = None,
) -> MapArguments:  # fmt: skip
    """The arguments of `mesh.map`, `map_async`, `imap` or `imap_unordered`, if they can be used.

    Raises:
        TypeError: one of the wrong type, or an item that cannot be pickled: any of a list, the
            first of a stream.
        ValueError: a size or time-out that is not positive, or an unknown `on_error`.
        Exception: whatever the items raise before the first of them.
    """
    called = checked_function(method, function)
    chunk = _size(method, "chunk_size", chunk_size, "a chunk")
    buffered = _size(method, "buffersize", buffersize, "a buffer")
    if on_error not in _ON_ERROR:
        raise ValueError(f'{method}: on_error={on_error!r}: give "raise" or "collect"')
    timeout_s = positive_seconds(method, timeout)
    given = _checked_iterables(method, iterables)
    found: Sequence[Any] | ItemStream
    if method in _LISTS:
        found = list(given[0] if len(given) == 1 else zip(*given, strict=False))
        _check_pickling(method, found)
    else:
        found = ItemStream(*given)
        found.take(1)  # others while the map runs
        if found.taken:
            _check_pickling(method, [found[0]])
        elif found.error is not None:
            raise found.error
    call = called if len(given) == 1 else partial(spread, called)
    return MapArguments(
        called, name_of(called), call, found, chunk, on_error, timeout_s, progress,
        buffered,
    )  # fmt: skip


def checked_function(method: str, function: object) -> Callable[..., Any]:
    """The function of `mesh.map` and its like. TypeError: it cannot be called."""
    if not callable(function):
        raise TypeError(
            f"{method}: the first argument has to be a function, and is of type "
            f"{type(function).__name__}"
        )
    if isinstance(function, FunctionType):
        note_imports_of(function)
    return function


def _checked_iterables(method: str, iterables: Sequence[object]) -> list[Iterable[Any]]:
    for at, items in enumerate(iterables):
        if isinstance(items, Iterable):
            continue
        kind = type(items).__name__
        if len(iterables) == 1:
            raise TypeError(
                f"{method}: the items have to be iterable, such as a list, and are of type {kind}"
            )
        raise TypeError(
            f"{method}: argument {at + 2} is of type {kind}; give an iterable for each argument "
            "of the function, and options by name"
        )
    return [cast("Iterable[Any]", items) for items in iterables]


def _size(method: str, name: str, size: object, what: str) -> int | None:
    """A size in items, or None."""
    if size is None:
        return None
    if not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(f"{method}: {name}={size!r}: give a whole number, or None")
    if size < 1:
        raise ValueError(f"{method}: {name}={size}: {what} has at least one item")
    return size


def name_of(function: object) -> str:
    """`fit` for a function; for a partial, that of its function; else that of its class."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).rpartition("<locals>.")[2]


def refused_function(
    method: str, arguments: MapArguments, error: Exception
) -> tuple[Exception, Exception | None]:
    """The error for a function that cannot be pickled, and its cause."""
    refusal = unpicklable_item(method, f"the function {arguments.name}", arguments.function, error)
    return refusal, error


def _check_pickling(method: str, items: Sequence[Any]) -> None:
    """Raise for the first item that cannot be pickled. Large buffers are not copied for this."""
    for begin in range(0, len(items), _PICKLED_AT_ONCE):
        some = [x for x in items[begin : begin + _PICKLED_AT_ONCE] if not isinstance(x, _PLAIN)]
        if not some or _problem(some) is None:
            continue
        for index in range(begin, min(len(items), begin + _PICKLED_AT_ONCE)):
            error = _problem(items[index])
            if error is not None:
                raise unpicklable_item(method, f"item {index}", items[index], error) from error


def _problem(value: object) -> Exception | None:
    try:
        pack_value(value, loose=True)
    except Exception as error:
        return error
    return None
