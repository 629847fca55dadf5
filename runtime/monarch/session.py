"""Sessions: kept beyond the end of their client, taken up by name elsewhere, found, reaped.

from monarch.session import attach, keep

keep("training")               # in one process: what it has spawned outlives it
session = attach("training")   # in another: the meshes, and their actors with their state
session["trainers"].step.call(0).get()
"""

from __future__ import annotations

import monarch.actor
from monarch._src.errors import SessionError
from monarch._src.session.keep import AttachedSession, attach, detach, keep
from monarch._src.session.listing import (
    Reaped,
    SessionInfo,
    SessionSnapshot,
    inspect,
    reap,
    sessions,
)

__all__ = [
    "AttachedSession",
    "Reaped",
    "SessionError",
    "SessionInfo",
    "SessionSnapshot",
    "attach",
    "detach",
    "inspect",
    "keep",
    "reap",
    "sessions",
]

# Whoever attaches is a client: what fails and what ranks print is told as to any other.
monarch.actor._prepare()  # pyright: ignore[reportPrivateUsage]
