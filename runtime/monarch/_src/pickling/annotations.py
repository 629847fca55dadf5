"""The objects that text annotations of a class or function name. No I/O.

`typing.get_type_hints` evaluates annotations in the namespace of their module: on a rank, in its
`__main__`. So the classes, modules and types that a text names travel too. Objects that cannot be
sent are left out: an annotation never prevents sending.
"""

from __future__ import annotations

import importlib
import re
import sys
import typing
import weakref
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import GenericAlias, ModuleType
from typing import Any, cast

_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_OF_TYPING = (GenericAlias, type(typing.Optional[int]), type(typing.List[int]), typing.TypeVar)  # noqa: UP006, UP045
_ANNOTATIONS = "__annotations__"

# Whether a class or function that travels by value can be sent; set by `pickling.pickler`.
can_be_sent: Callable[[Any], bool] = lambda _: False  # noqa: E731
_asked: dict[int, tuple[Any, bool]] = {}


@lru_cache(maxsize=4096)
def _identifiers(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_IDENTIFIER.findall(text)))


def neighbours(thing: Any) -> dict[str, Any]:
    """By name, the objects that text annotations of a thing of `__main__` refer to."""
    if thing.__module__ != "__main__":
        return {}
    found: dict[str, Any] = {}
    names: Mapping[str, Any] = vars(sys.modules["__main__"])
    outer = thing.__qualname__.partition(".")[0]
    if isinstance(thing, type) and outer != thing.__qualname__ and _is_type(names.get(outer)):
        found[outer] = names[outer]  # the class itself is an attribute of it
    noted = _noted_of(thing)
    texts = [text for text in noted.values() if type(text) is str] if noted else ()
    if not isinstance(thing, type):
        names = thing.__globals__
    for text in texts:
        for name in _identifiers(text):
            if name in names and names[name] is not thing and _is_type(names[name]):
                found[name] = names[name]
    return found


def _noted_of(thing: Any) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        library: Any = importlib.import_module("annotationlib")
        try:
            return library.get_annotations(thing, format=library.Format.VALUE)
        except Exception:
            return {}
    found = vars(thing).get(_ANNOTATIONS) if isinstance(thing, type) else thing.__annotations__
    return cast("dict[str, Any]", found or {})


def _is_type(value: Any) -> bool:
    if isinstance(value, ModuleType):
        return value.__name__ in sys.modules and value.__name__ != "__main__"
    if isinstance(value, type):
        return value.__module__ != "__main__" or _can_be_sent(value)
    return type(value).__module__ == "typing" or isinstance(value, _OF_TYPING)


def _can_be_sent(cls: type[Any]) -> bool:
    found = _asked.get(id(cls))
    if found is None or found[0]() is not cls:
        # Meanwhile a class that refers back to this one takes it for sendable.
        _asked[id(cls)] = weakref.ref(cls), True
        _asked[id(cls)] = found = weakref.ref(cls), can_be_sent(cls)
    return found[1]
