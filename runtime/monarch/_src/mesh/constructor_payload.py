"""The pickled form of a spawn: the class, its arguments, and values that accompany every actor.

Runs in: any process that spawns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from monarch._src.actor.call.pickling_errors import unpicklable
from monarch._src.actor.endpoint import Actor
from monarch._src.actor.run.spawn_context import received_extras
from monarch._src.actor.serialize import pack_value
from monarch._src.mesh.mock_registry import mock_payloads
from monarch._src.wire.frames import Payload

_extra_source: Callable[[Any], object] | None = None


def accompany_actors(source: Callable[[Any], object] | None) -> None:
    """Send an extra value along with every actor that this program spawns on processes.

    `source` is called at each spawn with the ProcMesh that is spawned on. The value it returns, if
    not None, is unpickled in each process, on the actor's own thread, before the constructor runs;
    it is useful if unpickling has an effect there. The same holds for bootstrap functions. A proc
    passes the values it has received on to all that it spawns. None: no extra values are sent.
    """
    global _extra_source
    _extra_source = source


def extra_payloads(mesh: Any) -> list[bytes]:
    """The extra values for a spawn, each pickled by itself: actors can begin without them."""
    if _extra_source is None:
        return [*received_extras(), *mock_payloads()]
    found = _extra_source(mesh)
    own = [] if found is None else [bytes(pack_value(found).body)]
    return [*own, *mock_payloads()]


def constructor_payload(
    cls: type[Actor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    along: Sequence[bytes] = (),
) -> Payload:
    """A class and the arguments of its constructor, pickled; TypeError if the arguments do not fit.

    `along`: pickled values that are unpickled before the constructor runs.
    """
    try:
        signature = inspect.signature(cls)
    except ValueError:
        signature = None  # some extension types have none; the constructor checks its arguments
    else:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{cls.__name__}{signature}: {error}") from None
    try:
        return pack_value((cls, args, kwargs, *along), own=2, defines=True)
    except Exception as error:
        told, cause = unpicklable(cls.__name__, signature, args, kwargs, error, cls)
        raise told from cause
