"""Pickled extras that a front end attaches to each spawn, and that procs pass on.

Runs in: a proc, on the thread of the actor or of the bootstrap function that carries the extras.
Invariants: every spawn from this process carries the extras that it received last, so the actors
that an actor spawns have them too. Extras that cannot be unpickled are logged and fail no spawn.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from monarch._src.actor.serialize import unpack_value
from monarch._src.wire.frames import Payload

log = logging.getLogger("monarch.actor")
_extras: tuple[bytes, ...] = ()


def apply_spawn_extras(extras: Sequence[bytes], target: str) -> None:
    """Unpickle the extras for their side effects; `target` names what was spawned with them."""
    global _extras
    if not extras:
        return
    _extras = tuple(extras)
    try:
        for pickled in extras:
            unpack_value(Payload(pickled))
    except Exception:
        log.warning("an extra that was sent with %s cannot be used here", target, exc_info=True)


def received_extras() -> tuple[bytes, ...]:
    """The extras to attach to each spawn from this process; empty in a client."""
    return _extras
