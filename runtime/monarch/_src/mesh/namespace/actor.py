"""The actor that binds values in the `__main__` of a rank, and reads them there.

Runs in: procs, for the time of one `push`, `scatter` or `pull`. Its mesh is stopped before the
method returns.
"""

from __future__ import annotations

import sys
from typing import Any

from monarch._src.actor.call.pickling_errors import unpicklable_item
from monarch._src.actor.endpoint import Actor, endpoint
from monarch._src.actor.serialize import pack_value, unpack_value
from monarch._src.pickling.main_names import MAIN
from monarch._src.wire.frames import Payload


class Namespace(Actor):
    """The names of one rank's `__main__`."""

    __monarch_main_thread__ = "shared"

    def __init__(self) -> None:
        self._received: dict[str, Any] = {}

    @endpoint
    def receive(self, values: dict[str, Any]) -> None:
        """Hold values until every rank has its own."""
        self._received = values

    @endpoint
    def receive_packed(self, values: dict[str, tuple[bytes, list[bytes | bytearray]]]) -> None:
        """As `receive`, of values that are pickled: the body, and its buffers."""
        self._received = {
            name: unpack_value(Payload(body, buffers)) for name, (body, buffers) in values.items()
        }

    @endpoint
    def bind(self) -> None:
        """Bind the values that were received."""
        vars(sys.modules[MAIN]).update(self._received)

    @endpoint
    def has(self, name: str) -> bool:
        """Whether the name is bound."""
        return name in vars(sys.modules[MAIN])

    @endpoint
    def names(self) -> list[str]:
        """The names that are bound."""
        return [name for name in vars(sys.modules[MAIN]) if not name.startswith("_")]

    @endpoint
    def value(self, name: str) -> Any:
        """The value of a name."""
        value = vars(sys.modules[MAIN])[name]
        try:
            pack_value(value, loose=True)
        except Exception as error:
            raise unpicklable_item("pull", name, value, error) from None
        return value


class Push(Namespace):
    """Binds a value on all ranks."""

    __monarch_label__ = "the push"


class Scatter(Namespace):
    """Binds to each rank its part of a value."""

    __monarch_label__ = "the scatter"


class Pull(Namespace):
    """Reads values."""

    __monarch_label__ = "the pull"
