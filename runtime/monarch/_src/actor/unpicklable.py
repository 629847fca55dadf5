"""What to say when something cannot be sent: which argument, and what in it.

Runs in: the process that calls, and only after pickling has failed. Looks into containers,
attributes and closures for the innermost thing that fails by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any, cast

from monarch._src.actor.remote import ship

DEEPEST = 20
MOST_LOOKED_INTO = 1000  # things in one container


def unpicklable(
    who: str,
    signature: inspect.Signature | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: Exception,
) -> TypeError:
    """The error that names what of a call cannot be pickled.

    Args:
        who: what is called, as `Trainer.step`.
        signature: gives positional arguments their names.
        error: what pickling all of it raised.
    """
    named = [(_parameter(signature, at), value) for at, value in enumerate(args)]
    for name, value in [*named, *kwargs.items()]:
        cause = _why_not(value)
        if cause is not None:
            path, inner, cause = _innermost(value, cause)
            within = f", because of {name}{path}, a {_type_of(inner)}" if path else ""
            return TypeError(
                f"{who}: argument {name!r} of type {_type_of(value)} cannot be sent to another "
                f"process{within}: {cause}"
            )
    return TypeError(f"{who} cannot be sent to another process: {error}")


def _parameter(signature: inspect.Signature | None, position: int) -> str:
    parameters = () if signature is None else signature.parameters.values()
    for at, parameter in enumerate(parameters):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return f"{parameter.name}[{position - at}]"
        if at == position:
            return parameter.name
    return f"number {position + 1}"


def _why_not(value: object) -> Exception | None:
    try:
        ship(value)
    except Exception as error:
        return error
    return None


def _innermost(value: Any, cause: Exception) -> tuple[str, Any, Exception]:
    """The way into a value, what is there, and why that cannot be pickled."""
    path, found, why = "", value, cause
    for _ in range(DEEPEST):
        for step, part in _parts(found):
            deeper = _why_not(part)
            if deeper is not None:
                path, found, why = path + step, part, deeper
                break
        else:
            return path, found, why
    return "", value, cause  # it is the depth itself, or nobody would read the way


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a thing is pickled with, and how one gets to it from there."""
    if isinstance(value, dict):
        for key, item in list(cast("dict[Any, Any]", value).items())[:MOST_LOOKED_INTO]:
            yield f"[{key!r}]", item
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(cast("list[Any]", value)[:MOST_LOOKED_INTO]):
            yield f"[{at}]", item
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield f", its variable {name}", cell.cell_contents
    elif not isinstance(value, type) and _pickles_its_attributes(type(cast(object, value))):
        for name, item in list(getattr(value, "__dict__", {}).items())[:MOST_LOOKED_INTO]:
            yield f".{name}", item


def _pickles_its_attributes(kind: type[Any]) -> bool:
    return (
        kind.__reduce__ is object.__reduce__
        and kind.__reduce_ex__ is object.__reduce_ex__
        and getattr(kind, "__getstate__", None) is getattr(object, "__getstate__", None)
    )


def _type_of(value: object) -> str:
    return type(value).__qualname__
