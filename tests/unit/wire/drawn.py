"""Anything that a message may hold, drawn from its type.

`MONARCH_EXAMPLES` says how many are drawn of each kind of message.
"""

from __future__ import annotations

import dataclasses
import os
import types
import typing
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

EXAMPLES = int(os.environ.get("MONARCH_EXAMPLES", "15"))
# Short and few: a failure holds failures, which hold frames.
MOST = 2
PLAIN_TEXT = st.text(max_size=6)
ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=6)
LEAVES: dict[Any, SearchStrategy[Any]] = {
    bytes: st.binary(max_size=6),
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    type(None): st.none(),
}


@cache
def of_type(hint: Any, text: SearchStrategy[str] = PLAIN_TEXT) -> SearchStrategy[Any]:
    """Values of a type that a message may hold, or messages of it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is str:
        return text
    if hint in LEAVES:
        return LEAVES[hint]
    if origin is typing.Literal:
        return st.sampled_from(inner)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([of_type(kind, text) for kind in inner])
    if origin is list:
        return st.lists(of_type(inner[0], text), max_size=MOST)
    if origin is dict:
        return st.dictionaries(of_type(inner[0], text), of_type(inner[1], text), max_size=MOST)
    if origin is tuple and inner[1:] == (...,):
        return st.lists(of_type(inner[0], text), max_size=MOST).map(tuple)
    if origin is tuple:
        return st.tuples(*(of_type(kind, text) for kind in inner))
    if dataclasses.is_dataclass(hint) or issubclass(hint, msgspec.Struct):
        return st.deferred(lambda: _records(hint, text))  # one may hold others of its kind
    raise NotImplementedError(f"a message holds a {hint}")


def _records(cls: Any, text: SearchStrategy[str]) -> SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    names = cls.__struct_fields__ if issubclass(cls, msgspec.Struct) else list(hints)
    return st.builds(cls, **{name: of_type(hints[name], text) for name in names})
