"""Explains why a value cannot be pickled: which argument it is, and which part of it.

Runs in: the sending process, and only after pickling has failed. Searches containers, attributes,
closures, classes and the globals that their code uses, for the innermost object that cannot be
pickled by itself.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

from monarch._src.actor.serialize import pack_value

DEEPEST = 20  # steps from the value to the part of it that is named
MOST_LOOKED_INTO = 1000  # items of one container
# The step from a function to a global that its code uses.
_USES = ", which uses "
# Methods of a class whose errors keep their type.
_PICKLE_METHODS = frozenset(
    ("__getstate__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__")
)
_MADE_ANEW = ("__dict__", "__weakref__", "_abc_impl")  # attributes of a class that are not pickled
# Modules whose objects belong to one process; the remedy is the same for all of them.
_OF_A_PROCESS = ("_thread", "threading", "_contextvars", "_queue", "queue", "socket", "_socket",
                 "select", "weakref", "_weakref", "concurrent.futures.thread",
                 "concurrent.futures.process", "multiprocessing.synchronize")  # fmt: skip
# The ways out, which end the text of an error.
_MAKE_IT_THERE = "; make it on the rank: in `__init__` of the actor, or where it is first used"
_NOTEBOOKS_OWN = (
    "lines with % and ! run in the notebook only; subprocess.run(...) runs a command on a rank"
)


def unpicklable(
    callee: str,
    signature: inspect.Signature | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: Exception,
    extra: object = None,
) -> tuple[Exception, Exception | None]:
    """The error that names the part of a call that cannot be pickled, and its cause if useful.

    The error is a TypeError, or of the type of `error` if a class's own `__getstate__` or
    `__reduce__` has raised that.

    Args:
        callee: the name of the endpoint or class, like `Trainer.step`.
        signature: names the positional arguments.
        error: the exception that pickling the whole call has raised.
        extra: an object that is sent with the arguments, like an actor's class.
    """
    refusal = as_refusal(_refusal_text(callee, signature, args, kwargs, error, extra), error)
    return refusal, None if _NOTEBOOKS_OWN in str(refusal) else error


def unpicklable_item(callee: str, item: str, value: object, error: Exception) -> Exception:
    """The error that names the part of one of many values that cannot be pickled, as `error` says.

    The text is one line, and `item` names the value in it, like `item 3`.
    """
    text = f"{callee}: {item}, a {_type_of(value)}, cannot be sent to another process"
    return as_refusal(f"{text}{_why('it', value, error)}", error)


def _refusal_text(
    callee: str,
    signature: inspect.Signature | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: Exception,
    extra: object,
) -> str:
    named = [(_parameter(signature, at), value) for at, value in enumerate(args)]
    for name, value in [*named, *kwargs.items()]:
        cause = _why_not(value)
        if cause is not None:
            return (
                f"{callee}: argument {name!r} of type {_type_of(value)} cannot be sent to another "
                f"process{_why(name, value, cause)}"
            )
    cause = None if extra is None else _why_not(extra)
    path, inner, why = ("", extra, error) if cause is None else _innermost(extra, cause)
    at = f"{callee}{path}, a {_type_of(inner)}: " if path else ""
    return f"{callee} cannot be sent to another process: {at}{why}{_way_out(inner)}"


def as_refusal(text: str, error: Exception) -> Exception:
    """A TypeError with that text, or one of the type of `error` if a pickling method raised it."""
    if _raised_by_a_class(error):
        try:
            refusal = type(error)(text)
            if type(refusal) is type(error) and text in " ".join(map(str, refusal.args)):
                return refusal
        except Exception:
            pass  # its constructor takes other arguments
    return TypeError(text)


def _raised_by_a_class(error: Exception) -> bool:
    """Whether a class's own pickling method has raised the error."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_name in _PICKLE_METHODS for frame, _ in frames)


def unpicklable_answer(value: object, error: Exception) -> Exception:
    """The error that names the part of an answer that cannot be pickled, as `error` says."""
    text = f"the value that it returned, a {_type_of(value)}, cannot be sent to another process"
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        return TypeError(f"{text}: an endpoint answers once; return a list of what it yields")
    if inspect.iscoroutine(value):
        value.close()  # it can no longer be awaited
        return TypeError(f"{text}: await it in an `async def` endpoint")
    return as_refusal(f"{text}{_why('it', value, error)}", error)


def _why(name: str, value: object, cause: Exception) -> str:
    """The end of a sentence: the part of the value that cannot be pickled, and the reason."""
    path, inner, cause = _innermost(value, cause)
    within = f", because of {name}{path}, a {_type_of(inner)}" if path else ""
    return f"{within}: {cause}{_way_out(inner)}"


def _way_out(inner: object) -> str:
    return _MAKE_IT_THERE if type(inner).__module__ in _OF_A_PROCESS else ""


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
        pack_value(value)
    except Exception as error:
        return error
    return None


def _innermost(value: Any, cause: Exception) -> tuple[str, Any, Exception]:
    """The path to the innermost part that cannot be pickled, that part, and the reason."""
    path, found, why = "", value, cause
    seen = {id(value)}  # a method may use its own class
    for _ in range(DEEPEST):
        for step, part in _parts(found):
            if id(part) in seen:
                continue
            deeper = _why_not(part)
            if deeper is not None:
                seen.add(id(part))
                path, found, why = path + step, part, deeper
                if step == f"{_USES}get_ipython":
                    return path, found, TypeError(_NOTEBOOKS_OWN)
                break
        else:
            return path, found, why
    return "", value, cause  # the depth itself is the reason, or the path is too long to be useful


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The objects that a value is pickled with, each with its path from the value."""
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
        for name in _globals_of(value.__code__):
            if name in value.__globals__:
                yield f"{_USES}{name}", value.__globals__[name]
    elif isinstance(value, type):
        for name, item in list(vars(value).items())[:MOST_LOOKED_INTO]:
            if name not in _MADE_ANEW:
                yield f".{name}", getattr(item, "function", getattr(item, "__func__", item))
        for base in value.__bases__:
            yield f", its base {base.__name__}", base
    elif not isinstance(value, type) and _pickles_its_attributes(type(cast(object, value))):
        for name, item in list(getattr(value, "__dict__", {}).items())[:MOST_LOOKED_INTO]:
            yield f".{name}", item


def _globals_of(code: CodeType) -> Iterator[str]:
    """The globals that code may use, including those of nested functions."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_of(inner)


def _pickles_its_attributes(kind: type[Any]) -> bool:
    return (
        kind.__reduce__ is object.__reduce__
        and kind.__reduce_ex__ is object.__reduce_ex__
        and getattr(kind, "__getstate__", None) is getattr(object, "__getstate__", None)
    )


def _type_of(value: object) -> str:
    return type(value).__qualname__
