"""Items and values of a map, each parcel pickled apart from the message that carries it.

Runs in: the calling process and procs. A parcel that cannot be unpickled leaves its message
readable, so that the receiver can name the items at fault. The items of a chunk are one parcel, and
keep the objects that they share; the chunk is split if that parcel fails. Values cannot be asked
for again, so each is a parcel of its own; they share only the classes that travel by value.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, TypeAlias

from monarch._src.actor.serialize import pack_value, source_of, unpack_value
from monarch._src.pickling.pickler import ClassOf, SharedClasses
from monarch._src.wire.frames import Payload
from monarch._src.wire.segment_refs import SEGMENT_FROM

Parcel: TypeAlias = "tuple[Any, Sequence[Any]]"
"""A pickle and its large buffers. Buffers again in the message: large ones are not copied."""


def wrapped(value: object, shared: SharedClasses | None = None) -> Parcel:
    """Pickle a value. The parcel may refer to memory that still changes, until it is sent.

    Args:
        value: any value that can be sent to another process.
        shared: takes in the classes by value, which the parcel then lacks.

    Raises the exceptions of the objects' own reductions.
    """
    return _parcel_of(pack_value(value, loose=True, shared=shared))


def unwrapped(parcel: Parcel, class_of: ClassOf | None = None) -> Any:
    """Unpickle the value of a parcel. Raises whatever its objects raise."""
    return unpack_value(payload_of(parcel), class_of)


def payload_of(parcel: Parcel) -> Payload:
    """The payload that arrived in a parcel."""
    body, buffers = parcel
    return Payload(body, buffers)


def bytes_of(parcel: Parcel) -> int:
    """The size of a parcel that is to be sent."""
    body, buffers = parcel
    return sum(memoryview(part).nbytes for part in (body, *buffers))


def shared_classes() -> SharedClasses:
    """Classes that the parcels of one message share."""
    return SharedClasses(source_of)


def wrapped_classes(shared: SharedClasses) -> list[Parcel]:
    """A parcel for each class, since one may be impossible to rebuild."""
    return [_parcel_of(payload) for payload in shared.payloads]


class UnwrappedClasses:
    """The classes that the parcels of one message share, each unpickled when it is first used."""

    def __init__(self, parcels: Sequence[Parcel]) -> None:
        self._parcels = parcels
        self._found: dict[int, type[Any]] = {}

    def __call__(self, number: int) -> type[Any]:
        """The class of a number. Raises whatever unpickling it raises."""
        if number not in self._found:
            self._found[number] = unwrapped(self._parcels[number])
        return self._found[number]


def _parcel_of(payload: Payload) -> Parcel:
    body: Any = payload.body
    buffers: Any = payload.buffers
    if len(body) >= SEGMENT_FROM:
        body = pickle.PickleBuffer(body)
    return body, [pickle.PickleBuffer(buffer) for buffer in buffers]
