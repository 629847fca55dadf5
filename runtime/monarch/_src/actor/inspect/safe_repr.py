"""A short text of any value of a running program, made without running user code. No I/O.

Runs in: any thread, beside code that may change the value meanwhile.
Invariants: no `__repr__`, property, `__getattr__` or iteration of a user's class runs, no device is
accessed, and only a bounded part of a value is read. So this module uses `is` and methods of
builtin
types: `==`, `in`, `isinstance` and `len` may run code of the class.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, cast

from monarch._src.shape import Extent, Point

LONGEST = 240
"""The maximal number of characters of a text."""
MOST = 8
"""The maximal number of shown items of a collection, or attributes of an object."""
DEEPEST = 2  # levels of nested collections and objects
_SEARCHED = 64  # attributes of an object that are searched for public ones
_DIGITS = 256  # the maximal number of bits of an integer with shown digits
# Types whose own `repr` runs no code of the program and is short.
_PLAIN = (NoneType, bool, float, complex, type(Ellipsis), range, Extent, Point)
# Collections, with the texts before and after their items.
_COLLECTIONS: tuple[tuple[type, str, str], ...] = (
    (list, "[", "]"),
    (tuple, "(", ")"),
    (set, "{", "}"),
    (frozenset, "frozenset({", "})"),
    (deque, "deque([", "])"),
)
_qualified_name: Callable[[type], str] = type.__dict__["__qualname__"].__get__
_module: Callable[[type], object] = type.__dict__["__module__"].__get__
_bases: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_namespace: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__


def live_text(value: object) -> str:
    """The text of a value, in one line."""
    return _cut(_text(value, 0), LONGEST)


def class_text(cls: type) -> str:
    """`module.Class`; only `Class` for builtins, and for classes of `__main__`."""
    module = _module(cls)
    known = type(module) is str and module not in ("__main__", "builtins")
    return f"{module}.{_qualified_name(cls)}" if known else _qualified_name(cls)


def class_attribute(cls: type, name: str) -> object:
    """The class attribute of that name, from the class or its nearest base; None if missing."""
    for base in _bases(cls):
        if name in _namespace(base):
            return _namespace(base)[name]
    return None


def attributes_of(value: object) -> dict[str, object]:
    """The instance's own dictionary; empty if it has none."""
    found = class_attribute(type(value), "__dict__")
    # A class may define its own `__dict__` property, which must not run.
    if type(found) is GetSetDescriptorType or type(found) is MemberDescriptorType:
        return found.__get__(value)
    return {}


def items_of(attributes: dict[str, object]) -> Iterable[tuple[object, object]]:
    """The names and values, read by `dict` itself; names may be of any type."""
    return cast("Iterable[tuple[object, object]]", dict.items(attributes))  # pyright: ignore[reportUnknownMemberType]


def _text(value: object, depth: int) -> str:
    kind = type(value)
    if kind is int:
        bits = cast(int, value).bit_length()
        return repr(value) if bits <= _DIGITS else f"int of {bits:,} bits"
    if kind is str or kind is bytes:
        return _begun(cast("str | bytes", value))
    if any(kind is one for one in _PLAIN):
        return repr(value)
    for one, begin, end in _COLLECTIONS:
        if kind is one:
            return _collection(cast("list[object]", value), begin, end, depth)
    if kind is dict or kind is OrderedDict or kind is defaultdict:
        return _mapping(cast("dict[object, object]", value), depth)
    return _code(value) or _array(value) or _instance(value, depth)


def _begun(value: str | bytes) -> str:
    shown = LONGEST // 2
    if len(value) <= shown:
        return repr(value)
    unit = "characters" if type(value) is str else "bytes"
    return f"{value[:shown]!r} … ({len(value):,} {unit})"


def _collection(value: list[object], begin: str, end: str, depth: int) -> str:
    if not value and begin != "[" and begin != "(":
        return f"{type(value).__name__}()"
    items = [_text(item, depth + 1) for item in _first(value)] if depth < DEEPEST else []
    comma = "," if begin == "(" and len(value) == 1 else ""
    return f"{begin}{_joined(items, len(value))}{comma}{end}"


def _mapping(value: dict[object, object], depth: int) -> str:
    pairs = _first(value.items()) if depth < DEEPEST else []
    items = [f"{_text(key, depth + 1)}: {_text(item, depth + 1)}" for key, item in pairs]
    text = f"{{{_joined(items, len(value))}}}"
    return text if type(value) is dict else f"{type(value).__name__}({text})"


def _code(value: object) -> str:
    """The text of a function, class or module; empty for other values."""
    kind = type(value)
    if kind is FunctionType or kind is BuiltinFunctionType:
        return f"function {cast(FunctionType, value).__qualname__}"
    if kind is MethodType:
        return f"method {_function_name(cast(MethodType, value).__func__)}"
    if kind is ModuleType:
        return f"module {_text(attributes_of(value).get('__name__'), DEEPEST)}"
    if kind is partial:
        return f"partial of {_function_name(cast('partial[Any]', value).func)}"
    return f"class {class_text(cast(type, value))}" if _derives(kind, type) else ""


def _function_name(function: object) -> str:
    if type(function) is FunctionType:
        return function.__qualname__
    return _qualified_name(type(function))


def _instance(value: object, depth: int) -> str:
    name = _qualified_name(type(value))
    if depth >= DEEPEST:
        return f"{name}(…)"
    public = [
        (key, item)
        for key, item in _first(items_of(attributes_of(value)), _SEARCHED)
        if type(key) is str and not key.startswith("_")
    ]
    items = [f"{key}={_text(item, depth + 1)}" for key, item in public[:MOST]]
    return f"{name}({_joined(items, len(public))})"


def _array(value: object) -> str:
    """The text of an array of numpy's or torch's own classes; empty for other values."""
    kind = type(value)
    numpy: Any = sys.modules.get("numpy")
    if kind is _named(numpy, "ndarray"):
        array: Any = value
        summary = f"ndarray {array.dtype.name} {array.shape}"
        few = array.size <= MOST and array.dtype.kind in "biufc"
        return f"{summary} {array.tolist()!r}" if few else summary
    if _derives(kind, _named(numpy, "number")):
        return f"{numpy.generic.item(value)!r} ({_qualified_name(kind)})"
    of_torch = _named(sys.modules.get("torch"), "Tensor")
    if kind is not of_torch and kind is not _named(sys.modules.get("torch.nn"), "Parameter"):
        return ""
    tensor: Any = value
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    device = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"{_qualified_name(kind)} {dtype} {shape}{device}"


def _named(module: ModuleType | None, name: str) -> Any:
    """An attribute of a loaded module, read without the module's `__getattr__`."""
    return None if module is None else attributes_of(module).get(name)


def _derives(kind: type, base: Any) -> bool:
    return any(one is base for one in _bases(kind))


def _first(items: Iterable[Any], most: int = MOST) -> list[Any]:
    """The first items; fewer, if the collection changes during the iteration."""
    found: list[Any] = []
    try:
        found.extend(islice(items, most))
    except RuntimeError:  # the program has changed its size
        pass
    return found


def _joined(items: list[str], number: int) -> str:
    return ", ".join([*items, "…"] if number > len(items) else items)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
