"""Reduce classes for pickle, and make them again without running code of the user. No I/O.

Runs in: any process, any thread; `reduce_class` in the sender, the other functions in the receiver.

A class of a cell or script travels whole, with its attributes, in each message that refers to it.
It gets an identity when it is first pickled, as other named objects do that travel by value. A
process makes it once, from the first message with it, and from then on the class is its own: later
messages change nothing in it, so assignments of that process are kept. The process where the class
statement ran knows it from the start. Only a message that defines (a spawn, an update) brings a
changed definition, by the rules of `pickling.definitions`.

Only weak references to identified objects are kept, if the object allows them. cloudpickle has a
table of identities of its own. Where its release allows, ours are entered there as well, so that
objects that the user pickles with cloudpickle are the same, too.

Making a class runs no code of the user: no `__init_subclass__`, no `__set_name__`, no `__new__`,
`__init__` or `__prepare__` of a metaclass, no constructor of an enum member. All of these ran with
the class statement, and their effects on the class travel with it.

cloudpickle's own reduction is not used: it assigns the attributes anew with each message, runs
those hooks, and loses `__slots__` and other effects of the class statement.
"""

from __future__ import annotations

import abc
import enum
import importlib
import sys
import uuid
import weakref
from collections.abc import Callable, Mapping
from types import (
    BuiltinFunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    WrapperDescriptorType,
)
from typing import Any, TypeAlias, cast

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
import cloudpickle.cloudpickle as by_value  # pyright: ignore[reportMissingTypeStubs]

from monarch._src.pickling import main_names
from monarch._src.pickling.annotations import neighbours
from monarch._src.pickling.definitions import DEFINITION, Definition, redefine

Reduced: TypeAlias = "tuple[Any, ...]"
_MEMBERS = "__monarch_members__"  # of an enum that is being made
_CATCH = "__monarch_catch__"
_MAINS = ("__main__", "__mp_main__")
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8  # flags of types made at run time, and of types in C
_registered = cast(
    "Callable[[], set[str]]",
    cloudpickle.list_registry_pickle_by_value,  # pyright: ignore[reportUnknownMemberType]
)
_abc_dump = cast(Any, abc)._get_dump
# Attributes that the constructor makes, or that are computed on first use.
_MADE_ANEW = frozenset({
    "__annotate_func__", "__annotations_cache__", "__dict__", "__module__", "__qualname__",
    "__slotnames__", "__slots__", "__weakref__", "_abc_cache", "_abc_impl", "_abc_negative_cache",
    "_abc_negative_cache_version", "_abc_registry", _MEMBERS, DEFINITION,
})  # fmt: skip


class Known:
    """One object of this process.

    identity: names it in all processes. filled: whether it is complete; False while its attributes
    are being set.
    """

    __slots__ = ("filled", "identity", "of")

    def __init__(self, thing: Any, identity: str, *, filled: bool) -> None:
        self.identity = identity
        self.filled = filled
        key = id(thing)

        def on_gone(_: object) -> None:
            if _by_thing.get(key) is self:
                del _by_thing[key]
            if _by_identity.get(identity) is self:
                del _by_identity[identity]

        try:
            self.of: Callable[[], Any] = weakref.ref(thing, on_gone)
        except TypeError:  # a type without weak references; there are few such objects
            self.of = lambda: thing


_by_thing: dict[int, Known] = {}
_by_identity: dict[str, Known] = {}
_identity_there = cast(
    "Callable[[Any], str] | None", getattr(by_value, "_get_or_create_tracker_id", None)
)
_track_there = cast(
    "Callable[[str, Any], Any] | None", getattr(by_value, "_lookup_class_or_track", None)
)


def known(thing: Any) -> Known:
    """The entry of an object; gives it an identity if it has none."""
    found = _by_thing.get(id(thing))
    if found is not None:
        if found.of() is thing:
            return found
        _by_thing.pop(id(thing), None)  # an object without weak references has gone
    tracked = isinstance(thing, type) and _identity_there is not None
    identity = cast(Any, _identity_there)(thing) if tracked else uuid.uuid4().hex
    made = _by_thing.setdefault(id(thing), Known(thing, identity, filled=True))
    return _by_identity.setdefault(made.identity, made)


def find(identity: str) -> Any | None:
    """The object of that identity, if this process has it."""
    found = _by_identity.get(identity)
    return None if found is None else found.of()


def settle(identity: str, thing: Any, *, filled: bool) -> Any:
    """Give an object that identity. Returns the object that has it, if another thread was faster.

    Atomic without a lock, because `dict.setdefault` is.
    """
    made = Known(thing, identity, filled=filled)
    there = _by_identity.setdefault(identity, made)
    found = there.of()
    if found is None:  # that object has gone meanwhile
        _by_identity[identity] = there = made
        found = thing
    if there is made:
        _by_thing[id(thing)] = made
        if isinstance(thing, type) and _track_there is not None:
            _track_there(identity, thing)
    return found


# --- in the sender --------------------------------------------------------------------------------


def travels_by_value(cls: type[Any]) -> bool:
    """Whether other processes cannot import the class."""
    return is_of_a_statement(cls) and not is_importable(cls, cls.__qualname__)


def is_of_a_statement(cls: type[Any]) -> bool:
    """Whether the class was made by a class statement or its equivalent, not by code in C."""
    return cls.__flags__ & (_HEAP | _IMMUTABLE) == _HEAP


def is_importable(thing: Any, name: str) -> bool:
    """Whether a module other than `__main__` has this very object under that name."""
    module_name = _module_of(thing, name)
    module = None if module_name == "__main__" else sys.modules.get(module_name)
    if module is None or _attribute(module, name) is not thing:
        return False
    registered = _registered()
    if not registered:
        return True
    parts = module_name.split(".")
    return not any(".".join(parts[:end]) in registered for end in range(1, len(parts) + 1))


def _module_of(thing: Any, name: str) -> str:
    """The `__module__` of an object, or a module that contains it; otherwise `__main__`.

    From Python 3.14 on, `pickle.whichmodule` also looks the object up, and raises an error if the
    module has no such name.
    """
    own: str | None = getattr(thing, "__module__", None)
    if own is not None:
        return own
    for module_name, module in sys.modules.copy().items():
        if module_name not in _MAINS and _attribute(module, name) is thing:
            return module_name
    return "__main__"


def _attribute(module: Any, name: str) -> Any:
    """The attribute of a module with that dotted name; None if it has none."""
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def reduce_class(cls: type[Any], *, defines: bool) -> Reduced:
    """The reduction of a class that travels by value.

    defines: whether a process that knows the class takes over a changed definition.

    Raises:
        TypeError: only its own class statement can make it.
    """
    own = vars(cls)
    if hasattr(cls, "__struct_fields__") and _in_c(type(cls), "__new__") is not _NEW:
        raise TypeError(
            f"cannot pickle the class {cls.__qualname__!r}, which {type(cls).__qualname__} makes "
            "from the text of its fields alone; put it into a module that the other process can "
            "import, or use a dataclass"
        )
    attributes = {
        name: value
        for name, value in own.items()
        if name not in _MADE_ANEW and not _is_made_by_the_constructor(cls, value)
    }
    at_first: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    if "__slots__" in own:
        at_first["__slots__"] = _slots_of(cls)
    if isinstance(own.get("__dict__"), property):
        at_first["__dict__"] = own["__dict__"]
    if sys.version_info >= (3, 14):  # annotations are evaluated lazily
        attributes["__annotations__"] = _annotations_of(cls)
    registered: list[Any] | None = None
    if isinstance(cls, abc.ABCMeta):
        registered = [found for ref in _abc_dump(cls)[0] if (found := ref()) is not None]
    members: dict[str, dict[str, Any]] | None = None
    if isinstance(cls, enum.EnumMeta):
        by_name: Mapping[str, Any] = cast(Any, cls)._member_map_
        members = {name: vars(member) for name, member in by_name.items() if name == member._name_}
        values: dict[Any, Any] = attributes.get("_value2member_map_", {})
        named = {id(member) for member in by_name.values()}  # without combinations of flags
        attributes["_value2member_map_"] = {v: m for v, m in values.items() if id(m) in named}
    kind = None if type(cls) is _kind_of(cls.__bases__) else type(cls)
    made: tuple[Any, ...] = (kind, known(cls).identity, cls.__name__, cls.__bases__, at_first)
    names = neighbours(cls)
    if main_names.has(cls):
        names[cls.__name__] = cls
    state: tuple[Any, ...] = (attributes, registered, members, names)
    return make_class, made, state, None, None, define_class if defines else fill_class


def reduce_member(member: Any) -> Reduced | None:
    """The reduction of a member of such an enum; None if it has no name of its own."""
    cls = cast(Any, type(member))
    if cls._member_map_.get(member._name_) is not member:
        return None
    base = cls._member_type_
    new_arguments = getattr(base, "__getnewargs__", None)
    return make_member, (cls, member._name_, base, new_arguments(member) if new_arguments else ())


def _kind_of(bases: tuple[type[Any], ...]) -> type[Any]:
    """The default metaclass for these bases; a metaclass in C may have no importable name."""
    found: type[Any] = type
    for base in bases:
        if issubclass(type(base), found):
            found = type(base)
    return found


def _is_made_by_the_constructor(cls: type[Any], value: Any) -> bool:
    if isinstance(value, (MemberDescriptorType, GetSetDescriptorType)):
        return value.__objclass__ is cls
    kind = cast("type[Any]", type(value))  # of a field of a structure, of `ctypes` since 3.14
    return kind.__name__ == "CField" and kind.__module__ in ("_ctypes", "ctypes")


def _slots_of(cls: type[Any]) -> Any:
    given = vars(cls)["__slots__"]
    if isinstance(given, (str, tuple, list, dict, set, frozenset)):
        return cast(Any, given)
    made: list[str] = [n for n, v in vars(cls).items() if isinstance(v, MemberDescriptorType)]
    return tuple(made)  # the original was an iterator, which is exhausted


def _annotations_of(cls: type[Any]) -> dict[str, Any]:
    library: Any = importlib.import_module("annotationlib")
    try:
        return library.get_annotations(cls, format=library.Format.VALUE)
    except Exception:  # a name that is not defined yet
        return library.get_annotations(cls, format=library.Format.STRING)


# --- in the receiver ------------------------------------------------------------------------------

_NEW, _INIT, _SET = (vars(type)[name] for name in ("__new__", "__init__", "__setattr__"))


def make_class(
    kind: type[Any] | None,
    identity: str,
    name: str,
    bases: tuple[type[Any], ...],
    at_first: dict[str, Any],
) -> type[Any]:
    """The class of that identity; if this process has none, a new one that has to be filled."""
    found = find(identity)
    if found is not None:
        return found
    made = _bare(kind or _kind_of(bases), name, bases, at_first)
    if isinstance(made, abc.ABCMeta):
        # For `isinstance`. Assigned past the metaclass, whose `__setattr__` may be the user's.
        type.__setattr__(made, "_abc_impl", vars(abc.ABCMeta("Other", (), {}))["_abc_impl"])
    return settle(identity, made, filled=False)


def fill_class(cls: type[Any], state: Any) -> None:
    """Give a class that was just made its attributes; leave any other class alone."""
    this = known(cls)
    if this.filled:
        return
    attributes, registered, members, names = state
    assign = _in_c(type(cls), "__setattr__")
    blank = cast("dict[str, Any]", vars(cls).get(_MEMBERS, {}))
    by_name = cast("dict[str, dict[str, Any]]", members or {})
    for name, value in by_name.items():
        # A member without a reference of its own in the message is found in the map of members.
        member: Any = blank[name] if name in blank else attributes["_member_map_"][name]
        cast("dict[str, Any]", vars(member)).update(value)
    for name, value in attributes.items():
        assign(cls, name, value)
    if _MEMBERS in vars(cls):
        type.__delattr__(cls, _MEMBERS)
    for subclass in registered or ():
        abc.ABCMeta.register(cls, subclass)
    assign(cls, DEFINITION, Definition(attributes))
    # From here on the class belongs to this process. Another thread may have filled it too.
    this.filled = True
    for name, value in names.items():
        main_names.enter(name, value)


def define_class(cls: type[Any], state: Any) -> None:
    """The same, but a class that is known already takes over a changed definition."""
    if known(cls).filled:
        definition = vars(cls).get(DEFINITION)
        if definition is not None:
            assign, remove = (_in_c(type(cls), name) for name in ("__setattr__", "__delattr__"))
            redefine(cls, definition, state[0], assign, remove)
        return
    fill_class(cls, state)


def make_member(cls: type[Any], name: str, base: type[Any], arguments: tuple[Any, ...]) -> Any:
    """The member of that name; an empty one while the enum is being made."""
    found = cast("Mapping[str, Any]", vars(cls).get("_member_map_", {})).get(name)
    if found is not None:
        return found
    blank: dict[str, Any] | None = vars(cls).get(_MEMBERS)
    if blank is None:
        type.__setattr__(cls, _MEMBERS, {})
        blank = vars(cls)[_MEMBERS]
        assert blank is not None
    return blank.setdefault(name, base.__new__(cls, *arguments))


class _Made(Exception):
    """Ends the constructor of a class as soon as the class exists."""


class _Catch:
    """Captures a class in the middle of `type.__new__`.

    `type.__new__` first makes the class, then calls `__set_name__` of its attributes, then
    `__init_subclass__` of its bases. An exception in the first of these calls ends it there, and
    the class is complete: CPython 3.10 to 3.14.
    """

    def __init__(self) -> None:
        self.cls: type[Any] | None = None

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.cls = owner
        raise _Made


def _bare(
    kind: type[Any], name: str, bases: tuple[type[Any], ...], at_first: dict[str, Any]
) -> type[Any]:
    """A class with these bases, for which no hook has run."""
    new, init = _in_c(kind, "__new__"), _in_c(kind, "__init__")
    if new is _NEW:
        catch = _Catch()
        try:
            new(kind, name, bases, {**at_first, _CATCH: catch})
        except (_Made, RuntimeError):  # before Python 3.12 a RuntimeError is raised from it
            if catch.cls is None:
                raise
        made = catch.cls
        assert made is not None
        catch.cls = None
        _in_c(kind, "__delattr__")(made, _CATCH)
    else:
        made = new(kind, name, bases, at_first)
    if init is not _INIT:  # in C, it sets up more than attributes
        init(made, name, bases, at_first)
    return made


def _in_c(kind: type[Any], name: str) -> Any:
    """The method of a metaclass that is written in C, past any override in Python."""
    for base in kind.__mro__:
        found = vars(base).get(name)
        if isinstance(found, (BuiltinFunctionType, WrapperDescriptorType)):
            return found
    raise TypeError(f"the metaclass {kind.__qualname__!r} has no {name}")
