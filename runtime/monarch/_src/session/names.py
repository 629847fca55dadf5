"""Names of kept sessions: validity, uniqueness, lookup.

Runs in: a client. Owns nothing: records in the session directories hold the names.
Invariants: while `names_locked` is held, no other client of this user on this machine gives a name.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from monarch._src.errors import SessionError
from monarch._src.net import session_directory as directories
from monarch._src.session import directories as sessions
from monarch._src.session.directories import Session as Found

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_LOCK_S, _LOOK_S = 5.0, 0.01


def check_name(name: str) -> None:
    """Raise TypeError or ValueError if that cannot name a session."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"the name of a session is text, not {name!r}")
    if not _NAME.match(name):
        raise ValueError(
            f"{name!r} cannot name a session; use letters, digits, _, . and -, as in 'training'"
        )


def check_free(name: str, directory: Path) -> None:
    """Raise SessionError if another session than that directory's is kept under that name."""
    for other in sessions.find_sessions(None):
        if other.kept is None or other.kept.name != name or other.directory == directory:
            continue
        raise SessionError(
            f"{name!r} is the name of a session that you keep already ({_who_holds(other)}): "
            f"`monarch kill {name}` ends it, or choose another name"
        )


def _who_holds(found: Found) -> str:
    holder = found.client
    if holder is None or found.state != "live":
        return "no client is attached to it"
    return f"held by process {holder.pid} on {holder.host}"


@contextmanager
def names_locked() -> Generator[None]:
    """Hold a lock for giving names. It is on the existing directories, so it leaves no file."""
    deadline = time.monotonic() + _LOCK_S
    with ExitStack() as opened:
        for path in sorted(directories.search_path()):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                continue
            opened.callback(os.close, fd)
            while not _locked(fd):
                if time.monotonic() > deadline:
                    raise SessionError(
                        f"another process holds a lock on {path}, under which sessions get names"
                    )
                threading.Event().wait(_LOOK_S)
        yield


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def find(name: str | None) -> Found:
    """The kept session of that name, or with a mesh of it; None: the only one without a client."""
    kept = [one for one in sessions.find_sessions(None) if one.kept is not None]
    names = ", ".join(one.kept.name for one in kept if one.kept is not None)
    there = f"; there is {names}" if names else "; keep(name) keeps one"
    if name is None:
        free = [one for one in kept if one.state == "detached"]
        if len(free) == 1:
            return free[0]
        if free:
            raise SessionError(f"several kept sessions have no client: {names}; name one")
        raise SessionError(f"there is no kept session without a client{there}")
    found = [one for one in kept if one.kept is not None and one.kept.name == name] or [
        one for one in kept if one.kept is not None and name in one.kept.meshes
    ]
    if not found:
        raise SessionError(f"there is no kept session {name!r} on this machine{there}")
    if len(found) > 1:
        which = ", ".join(one.kept.name for one in found if one.kept is not None)
        raise SessionError(f"several kept sessions have a mesh {name!r}: {which}; name the session")
    return found[0]
