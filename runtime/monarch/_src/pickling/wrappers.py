"""Reduce the standard library's wrappers of functions, and its names of types. No I/O.

pickle refers to some of them by a name of `__main__`, which no other process has (`lru_cache`,
`NewType`, `ParamSpec`). It refuses others, which contain a lock or weak references
(`cached_property` before Python 3.12, `singledispatch`) or cannot be made again without their
function (`partialmethod` from Python 3.14 on). Here each is made again from its parts, with an
empty cache and a free lock. Names of types keep their identity (`pickling.class_objects`), so
that `is` and `==` still hold.
"""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import sys
import typing
import weakref
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any, TypeAlias, cast

from monarch._src.pickling import main_names
from monarch._src.pickling.class_objects import find, is_importable, known, settle

Reduced: TypeAlias = "tuple[Any, ...] | str"
_LRU: type[Any] = type(functools.lru_cache(lambda: None))
_SINGLE_DISPATCH = cast(FunctionType, cast(Any, functools).singledispatch(len)).__code__


def _vars(thing: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", vars(thing))


# --- wrapped functions ----------------------------------------------------------------------------


def _reduce_cached(cached: Any) -> Reduced | None:
    if is_importable(cached, cached.__qualname__):
        return None
    how = cached.cache_parameters()
    attributes = {n: v for n, v in _vars(cached).items() if n != "cache_parameters"}
    made_of = how["maxsize"], how["typed"], cached.__wrapped__
    state = attributes, main_names.has(cached)
    return _make_cached, made_of, state, None, None, _fill_wrapper


def _make_cached(maxsize: int | None, typed: bool, function: Callable[..., Any]) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _fill_wrapper(wrapper: Any, state: tuple[dict[str, Any], bool]) -> None:
    attributes, is_in_main = state
    _vars(wrapper).update(attributes)
    if is_in_main:
        main_names.enter(wrapper.__name__, wrapper)


def _reduce_cached_property(made: functools.cached_property[Any]) -> Reduced:
    state = {name: value for name, value in vars(made).items() if name != "lock"}
    return _make_cached_property, (type(made),), state, None, None, _fill_cached_property


def _make_cached_property(kind: type[Any]) -> Any:
    return cast(Any, kind).__new__(kind)


def _fill_cached_property(made: Any, state: dict[str, Any]) -> None:
    _vars(made).update(state)
    if sys.version_info < (3, 12):
        made.lock = cast(Any, functools.cached_property(lambda _: None)).lock.__class__()


def is_single_dispatch(function: FunctionType) -> bool:
    """Whether the function was made by `functools.singledispatch`."""
    return function.__code__ is _SINGLE_DISPATCH


def reduce_single_dispatch(function: Any) -> Reduced | None:
    """The reduction of such a function: its default, and the functions that it chooses from."""
    if is_importable(function, function.__qualname__):
        return None
    chosen = {kind: one for kind, one in function.registry.items() if kind is not object}
    own = ("register", "dispatch", "registry", "_clear_cache", "__wrapped__")
    attributes = {name: value for name, value in _vars(function).items() if name not in own}
    below = function.registry[object]
    state = chosen, (attributes, main_names.has(function))
    return _make_single_dispatch, (below,), state, None, None, _fill_single_dispatch


def _make_single_dispatch(below: Callable[..., Any]) -> Any:
    return functools.singledispatch(below)


def _fill_single_dispatch(function: Any, state: tuple[dict[type, Any], Any]) -> None:
    for kind, one in state[0].items():
        function.register(kind, one)
    _fill_wrapper(function, state[1])


def _reduce_cell(cell: CellType) -> Reduced:
    # As an object of its own, so that functions that share a variable share it there, too.
    try:
        return _make_cell, (), cell.cell_contents, None, None, _fill_cell
    except ValueError:
        return _make_cell, ()


def _make_cell() -> CellType:
    return CellType()


def _fill_cell(cell: CellType, content: Any) -> None:
    cell.cell_contents = content


def _reduce_property(made: property) -> Reduced:
    arguments = (made.fget, made.fset, made.fdel, made.__doc__)
    return type(made), arguments, getattr(made, "__dict__", None) or None


def _reduce_method(made: Any) -> Reduced:
    return cast(Any, type(made)), (made.__func__,), _vars(made) or None


def _reduce_partial_method(made: functools.partialmethod[Any]) -> Reduced:
    # From Python 3.14 on its `__new__` wants the function, which may refer to this in turn.
    reduced = made.__reduce_ex__(5)
    if reduced[:2] != (cast(Any, copyreg).__newobj__, (type(made),)):
        return reduced
    return _make_partial_method, *reduced[1:]


def _make_partial_method(kind: type[Any]) -> Any:
    return object.__new__(kind)


# --- names of types -------------------------------------------------------------------------------


def _reduce_named(thing: Any) -> Reduced | None:
    if is_importable(thing, thing.__name__):
        return None
    module, identity = thing.__module__, known(thing).identity
    kind = type(thing).__name__
    given: dict[str, Any] = {}
    if kind == "NewType":
        return _make_new_type, (identity, module, thing.__qualname__, thing.__supertype__)
    if kind == "TypeVar":
        given["bound"] = thing.__bound__
    if kind in ("TypeVar", "ParamSpec"):
        given["covariant"] = thing.__covariant__
        given["contravariant"] = thing.__contravariant__
        if getattr(thing, "__infer_variance__", False):
            given["infer_variance"] = True
    if kind == "TypeAliasType":
        given["type_params"] = thing.__type_params__
        return _make_named, (
            type(thing),
            identity,
            module,
            (thing.__name__, thing.__value__),
            given,
        )
    if getattr(thing, "has_default", lambda: False)():
        given["default"] = thing.__default__
    constraints = thing.__constraints__ if kind == "TypeVar" else ()
    return _make_named, (type(thing), identity, module, (thing.__name__, *constraints), given)


def _make_named(
    kind: Callable[..., Any],
    identity: str,
    module: str,
    arguments: tuple[Any, ...],
    given: dict[str, Any],
) -> Any:
    found = find(identity)
    if found is not None:
        return found
    made = kind(*arguments, **given)
    try:
        made.__module__ = module
    except AttributeError:
        pass  # a type alias: its `__module__` is that of the calling function
    return _entered(settle(identity, made, filled=True), module, arguments[0])


def _make_new_type(identity: str, module: str, qualname: str, supertype: Any) -> Any:
    found = find(identity)
    if found is not None:
        return found
    made: Any = cast(Any, typing.NewType)(qualname, supertype)
    made.__module__ = module
    return _entered(settle(identity, made, filled=True), module, qualname)


def _entered(thing: Any, module: str, name: str) -> Any:
    if module == main_names.MAIN and "." not in name:
        main_names.enter(name, thing)
    return thing


# --- weak references ------------------------------------------------------------------------------


def _reduce_reference(reference: weakref.ref[Any]) -> Reduced:
    target = reference()
    if target is None:
        return _dead, ()
    callback = reference.__callback__
    return type(reference), (target,) if callback is None else (target, callback)


def _refuse(thing: Any) -> Reduced:
    raise TypeError(f"cannot pickle {type(thing).__name__!r} object")


class _Nothing:
    __slots__ = ("__weakref__",)


def _dead() -> weakref.ref[Any]:
    return weakref.ref(_Nothing())


def _reduce_weak_method(method: weakref.WeakMethod[Any]) -> Reduced:
    target = method()
    return (_dead, ()) if target is None else (weakref.WeakMethod, (target,))


def _reduce_weak_table(table: Any) -> Reduced:
    return cast(Any, type(table)), (), None, None, iter(list(table.items()))


# --- the table ------------------------------------------------------------------------------------


def _reduce_sentinel(sentinel: Any) -> Reduced | None:
    name = next((n for n, v in vars(dataclasses).items() if v is sentinel), None)
    return None if name is None else (getattr, (dataclasses, name))


_SENTINELS = ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY")
_NAMED = ("NewType", "TypeVar", "ParamSpec", "TypeVarTuple", "TypeAliasType")
REDUCERS: dict[type[Any], Callable[[Any], Reduced | None]] = {
    _LRU: _reduce_cached,
    CellType: _reduce_cell,
    functools.cached_property: _reduce_cached_property,
    weakref.ref: _reduce_reference,
    weakref.WeakMethod: _reduce_weak_method,
    weakref.ProxyType: _refuse,
    weakref.CallableProxyType: _refuse,
    weakref.finalize: _refuse,  # it would arrive as one that has already run
    weakref.WeakKeyDictionary: _reduce_weak_table,
    weakref.WeakValueDictionary: _reduce_weak_table,
    **{
        cast("type[Any]", getattr(typing, name)): _reduce_named
        for name in _NAMED
        if isinstance(getattr(typing, name, None), type)
    },
    **{
        type(getattr(dataclasses, name)): _reduce_sentinel
        for name in _SENTINELS
        if hasattr(dataclasses, name)
    },
}
"""By exact class. If a reducer returns None, pickle uses the name, which others can import."""

INHERITED: tuple[tuple[type[Any], Callable[[Any], Reduced | None]], ...] = (
    (functools.cached_property, _reduce_cached_property),
    (functools.partialmethod, _reduce_partial_method),
    (property, _reduce_property),
    (staticmethod, _reduce_method),
    (classmethod, _reduce_method),
)
"""The same for classes derived from these."""
