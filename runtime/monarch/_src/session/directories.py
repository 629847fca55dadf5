"""The sessions of this user on this machine: their directories, and the names of kept ones.

No process is asked, so agents may be stopped or gone. Owns nothing: records in the session
directories hold the names.
Invariants: while `names_locked` is held, no other client of this user on this machine gives a name.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from monarch._src.errors import SessionError
from monarch._src.net import session_directory as directories
from monarch._src.session import records as record
from monarch._src.session.records import HolderRecord, KeptRecord, Record
from monarch._src.system import process_table

# live: it has an agent and a client. detached: it is kept, and has no client. orphan: it is not
# kept, and its client is gone. starting: no agent has locked the directory (yet). gone: the agent
# has ended, or was killed, and only the directory is left.
State = Literal["live", "detached", "orphan", "starting", "gone"]
AGENT_LIVES = ("live", "detached", "orphan")
STARTING_S = 60.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_LOCK_S, _LOOK_S = 5.0, 0.01


class Session(msgspec.Struct, frozen=True):
    """One session directory, and the records in it."""

    directory: Path
    state: State
    record: Record | None
    age_s: float
    kept: KeptRecord | None = None

    @property
    def name(self) -> str:
        """The identifier of the session, which `monarch kill` takes."""
        return name_of(self.directory)

    @property
    def label(self) -> str:
        """Its heading in listings: `session training (oz3p8n5h)` if kept, else `session oz3p8n5h`.

        The first is the name that its user gave, the second its identifier.
        """
        return (
            f"session {self.name}"
            if self.kept is None
            else (f"session {self.kept.name} ({self.name})")
        )

    @property
    def client(self) -> HolderRecord | None:
        """The client that holds it, alive or not; None if there is none, or it is not known."""
        if self.kept is not None:
            return self.kept.holder
        said = self.record
        if said is None or said.serves:
            return None
        return HolderRecord(
            said.client, said.client_pid, said.client_began, said.program, os.uname().nodename,
            said.started,
        )  # fmt: skip

    @property
    def agent(self) -> process_table.Entry | None:
        """The process of its host agent, if that lives."""
        if self.record is None or self.state not in AGENT_LIVES:
            return None
        found = process_table.entry(self.record.agent_pid)
        return found if found is not None and found.began == self.record.agent_began else None

    @property
    def is_left_behind(self) -> bool:
        """Whether no process needs it any more, so that it is safe to end."""
        if self.state == "starting":
            return self.age_s > STARTING_S
        return self.state in ("orphan", "gone")


def name_of(directory: Path) -> str:
    """The name of the session of that directory."""
    return directory.name.removeprefix(directories.PREFIX)


def short_name(session: Session) -> str:
    """The name that its user gave if it is kept; otherwise its identifier."""
    return session.name if session.kept is None else session.kept.name


def places(bases: Sequence[str] | None) -> list[Path]:
    """The directories to search: the given ones, or all that may hold sessions."""
    return directories.search_path() if bases is None else [Path(base) for base in bases]


def find_sessions(bases: Sequence[str] | None) -> list[Session]:
    """The sessions of this user, oldest first."""
    found = [look_at(path) for path in directories.find(places(bases)) if is_ours(path)]
    return [session for session in found if session is not None]


def is_ours(directory: Path) -> bool:
    """Whether it is a private directory of this user. Records in others are not trusted."""
    try:
        directories.check_private(directory)
    except OSError:
        return False
    return True


def user_of(directory: Path) -> str | None:
    """The owner of that directory, by name, or by number if it has none; None if it is gone."""
    try:
        uid = os.stat(directory).st_uid
    except OSError:
        return None
    return record.user_name(uid)


def look_at(directory: Path) -> Session | None:
    """The session in that directory as it is now; None if there is none."""
    try:
        made_at = os.stat(directory).st_ctime
    except OSError:
        return None
    # In this order: an agent that begins in between appears as starting, not as gone.
    held = directories.is_held(directory)
    said = record.read(directory)
    if held is None and not directories.may_start(directory):
        return None
    if held is None or (held and said is None):
        state = "starting"
    elif not held:
        state = "gone"
    else:
        state = "live"
    began = made_at if said is None else said.started
    kept = record.read_kept(directory / record.KEPT) if state == "live" else None
    found = Session(directory, state, said, max(0.0, time.time() - began), kept)
    serves = said is not None and bool(said.serves)
    if state == "live" and not serves and not lives(found.client):
        state = "orphan" if kept is None else "detached"
        found = msgspec.structs.replace(found, state=state)
    return found


def lives(client: HolderRecord | None) -> bool:
    """Whether the process of that client exists. The client must be one of this host."""
    if client is None or not client.began:  # it had ended before its agent read the process table
        return False
    return process_table.lives(process_table.Entry(client.pid, 0, 0, "", client.began))


def named(name: str, among: Sequence[Session]) -> list[Session]:
    """The sessions that `name` may mean: a kept name, or (the beginning of) a name or directory.

    A better match excludes others: a full name excludes longer names that begin with it.
    """
    wanted = name_of(Path(name))
    kept = [one for one in among if one.kept is not None and one.kept.name == name]
    return (
        kept
        or [one for one in among if one.name == wanted]
        or [one for one in among if wanted and one.name.startswith(wanted)]
    )


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
    for other in find_sessions(None):
        if other.kept is None or other.kept.name != name or other.directory == directory:
            continue
        raise SessionError(
            f"{name!r} is the name of a session that you keep already ({_who_holds(other)}): "
            f"`monarch kill {name}` ends it, or choose another name"
        )


def _who_holds(found: Session) -> str:
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


def find_kept(name: str | None) -> Session:
    """The kept session of that name, or with a mesh of it; None: the only one without a client."""
    kept = [one for one in find_sessions(None) if one.kept is not None]
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
