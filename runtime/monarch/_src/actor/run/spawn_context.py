"""What a front end sends along with what it spawns: taken where that lives, and sent on from there.

Runs in: a proc, on the thread of the actor, or that of the bootstrap function, which it comes with.
Invariants: what came last goes along with all that is spawned from this process on others, so what
actors spawn in their turn has it too. What cannot be used here is told, and fails nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from monarch._src.actor.errors.remote import unship
from monarch._src.wire.frames import Payload

log = logging.getLogger("monarch.actor")
_came: tuple[bytes, ...] = ()


def apply_spawn_extras(along: Sequence[bytes], who: str) -> None:
    """Unpickle it, for what that does here; `who`: what it has come with."""
    global _came
    if not along:
        return
    _came = tuple(along)
    try:
        for pickled in along:
            unship(Payload(pickled))
    except Exception:
        log.warning("what came along with %s is of no use here", who, exc_info=True)


def received_extras() -> tuple[bytes, ...]:
    """What is to go along with what is spawned here; nothing in a client."""
    return _came
