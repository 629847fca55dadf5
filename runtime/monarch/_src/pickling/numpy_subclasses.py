"""Attributes of numpy arrays of a subclass, which numpy's own reduction leaves out. No I/O.

numpy pickles an array of any class as its dtype, shape and bytes, and a masked array with mask and
fill value too. An attribute that a subclass adds would be missing at the receiver, or have the
default of its `__array_finalize__`, and a hard mask would be soft.

numpy is not imported here: a sender with an array has imported it already.
"""

from __future__ import annotations

import copyreg
import sys
from typing import Any, cast

# Attributes that numpy's own subclasses make anew. A masked array has those of its data too.
_OF_NUMPY = frozenset({
    "_basedict", "_baseclass", "_fill_value", "_getitem", "_hardmask", "_isfield", "_mask", "_mmap",
    "_optinfo", "_sharedmask",
})  # fmt: skip
_OF_MEMMAPS = frozenset({"filename", "offset", "mode"})
_MISSING = object()


def own_attributes(array: Any) -> dict[str, Any]:
    """The attributes that its class or the program has added to a numpy array, slots included."""
    kind: type[Any] = type(cast(object, array))
    found: dict[str, Any] = dict(getattr(array, "__dict__", {}))
    for name in cast(Any, copyreg)._slotnames(kind):
        value = getattr(array, name, _MISSING)
        if value is not _MISSING:
            found[name] = value
    info: dict[str, Any] = found["_optinfo"] if "_hardmask" in found else {}
    return {name: value for name, value in _without_numpys(found).items() if name not in info}


def info_of(masked: Any) -> dict[str, Any]:
    """Attributes that the program has given to a masked array and to all of its views."""
    inner = cast("dict[str, Any]", vars(masked))
    return _without_numpys(inner["_optinfo"])


def _without_numpys(attributes: dict[str, Any]) -> dict[str, Any]:
    left_out = _OF_NUMPY | _OF_MEMMAPS if "_mmap" in attributes else _OF_NUMPY
    return {name: value for name, value in attributes.items() if name not in left_out}


def reduce_array(array: Any, kind: type[Any]) -> tuple[Any, ...] | None:
    """The reduction of an array with attributes that numpy leaves out; None: use the array's own.

    A class that defines its own reduction, or `__setstate__`, is left alone.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or kind is numpy.ndarray or not issubclass(kind, numpy.ndarray):
        return None
    masked: Any = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    base = masked if masked is not None and issubclass(kind, masked) else numpy.ndarray
    if any(
        getattr(kind, name) is not getattr(base, name)
        for name in ("__reduce__", "__reduce_ex__", "__setstate__")
    ):
        return None
    kept = own_attributes(array)
    if base is masked:
        inner = cast("dict[str, Any]", vars(array))
        info = info_of(array)
        if inner["_hardmask"] or info:
            held = _without_numpys(inner["_basedict"])  # what views get at last
            kept |= {"_hardmask": inner["_hardmask"], "_optinfo": info, "_basedict": held, **info}
        if inner["_mask"] is sys.modules["numpy.ma"].nomask:
            kept["_mask"] = inner["_mask"]
    if not kept:
        return None
    make, made_of, state = array.__reduce__()
    return make, made_of, (state, kept), None, None, fill_array


def fill_array(array: Any, state: Any) -> None:
    """Give an array that was just made its elements and attributes."""
    of_numpy, kept = state
    array.__setstate__(of_numpy)
    for name, value in kept.items():
        object.__setattr__(array, name, value)
