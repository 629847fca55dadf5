"""Finalizers that run only when no reference to an object is left, not even from garbage.

Runs in: any process, on the thread that drops the last reference. Invariant: the finalizer of a
token does not run while any object, even garbage, refers to the token.

`__del__` does not guarantee that: in a cycle of garbage the collector calls all finalizers, in any
order, before it takes the cycle apart. If one of them unmaps memory, others may still use it. Here
the token is an object that the garbage collector does not traverse, so that its end comes with the
last object of the cycle. Instances of classes are not such objects; code objects are, and allow
weak references.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

_BLANK = compile("", "<at last>", "exec")
_to_do: dict[int, tuple[weakref.ref[Any], Callable[[], None]]] = {}


def on_last_reference_dropped(do: Callable[[], None]) -> object:
    """A token; `do` is called when no reference to it is left, also in a fork.

    `do` must not refer to an object that refers to the token, or neither ever ends.
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
