"""Sessions: keep one by name, attach to it from another process, reap it; import libraries ahead.

from monarch.session import attach, keep

keep("training")               # in one process: its meshes outlive it
session = attach("training")   # in another: the same meshes, with the state of their actors
session["trainers"].step.call(0).get()
"""

from __future__ import annotations

import monarch.actor
from monarch._src.errors import SessionError
from monarch._src.mesh.client_imports import import_ahead
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
    "import_ahead",
    "inspect",
    "keep",
    "reap",
    "sessions",
]

# A program that attaches to a session is a client: it gets failures and the output of ranks.
monarch.actor._prepare()  # pyright: ignore[reportPrivateUsage]
