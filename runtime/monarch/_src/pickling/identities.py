"""Classes, and other named objects, that are the same in several processes. No I/O.

Runs in: any process, any thread. An object that travels by value gets an identity when it is first
pickled; a process that knows the identity uses its own object. Only weak references are kept, if
the object allows them.

cloudpickle has such a table of its own. Where its release allows, identities are entered there as
well, so that objects that the user pickles with cloudpickle are the same, too.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable
from typing import Any, cast

import cloudpickle.cloudpickle as by_value  # pyright: ignore[reportMissingTypeStubs]


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
