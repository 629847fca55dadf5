"""`OpaqueRef`: an object on every rank, which stays there.

A remote function that returns `OpaqueRef(value)` leaves the value on its rank, under a number, as
it leaves tensors. The client gets an `OpaqueRef` without a value, and passes it on.

Runs in: the client, and ranks.
"""

from __future__ import annotations

from typing import Any

from monarch._src.actor.call.on_ranks import OnRanksError
from monarch._src.tensor.state.metas import Handle, Meta

OBJECT = Meta((), (), 0, None, None, 0)
"""The meta of a handle that is no tensor."""


class OpaqueRef:
    """An object on every rank of a mesh, such as a module or an optimizer. It stays there.

    On a rank it has the object as `value`. In the client it has none: pass it to remote functions
    and to endpoints of actors on the same ranks. The ranks free the object once the program has no
    reference left.
    """

    __slots__ = ("_value", "monarch_handle")

    def __init__(self, value: Any = None) -> None:
        """`value`: the object, in a remote function; None in the `propagate` of one."""
        self._value = value
        self.monarch_handle: Handle | None = None

    @property
    def value(self) -> Any:
        """The object.

        Raises:
            RuntimeError: in the client.
        """
        self._check_here()
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._check_here()
        self._value = value

    def _check_here(self) -> None:
        if self.monarch_handle is not None:
            raise RuntimeError(
                f"the object of {self!r} is on the ranks; use .value in a remote function: "
                "monarch.remote(function)(ref)"
            )

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.monarch_handle is None:
            raise TypeError(
                "an OpaqueRef stays on its rank: return it from a remote function that the client "
                "calls as f(...), or return a value of it with f.call(...)"
            )
        raise OnRanksError(
            "an OpaqueRef cannot be pickled: its object is on the ranks; pass it to a remote "
            "function, or to an endpoint of an actor on the same ranks"
        )

    def __repr__(self) -> str:
        handle = self.monarch_handle
        if handle is None:
            return f"<monarch.OpaqueRef of {type(self._value).__name__}>"
        return f"<monarch.OpaqueRef on {handle.channel.name}>"


def on_ranks(handle: Handle) -> OpaqueRef:
    """The reference of the client to the object with that handle."""
    made = OpaqueRef()
    made.monarch_handle = handle
    return made
