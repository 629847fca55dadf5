"""Something to be done when nothing refers to an object any more, and not a moment earlier.

Runs in: any process, on whichever thread lets go last. Invariant: as long as anything refers to a
token, garbage too, what it is for stands.

A finalizer (`__del__`) does not have that: in a cycle of garbage the collector calls all of them,
in any order, before it takes anything apart. One that unmaps memory then pulls it away under others
that still look at it. Here the end of an object counts that the collector does not look into, which
comes when the last of the cycle goes. Instances of classes are no such objects; code objects are,
and can be referred to weakly.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

_BLANK = compile("", "<at last>", "exec")
_to_do: dict[int, tuple[weakref.ref[Any], Callable[[], None]]] = {}


def on_last_reference_dropped(do: Callable[[], None]) -> object:
    """A token; `do` is called when nothing refers to that any more, also in a fork.

    What `do` refers to lives as long, so that must not be what refers to the token.
    """
    token = _BLANK.replace()
    reference = weakref.ref(token, _gone)
    _to_do[id(reference)] = reference, do
    return token


def _gone(
    reference: weakref.ref[Any],
    take: Callable[[int], tuple[object, Callable[[], None]]] = _to_do.pop,
) -> None:
    take(id(reference))[1]()
