"""The sessions of this user on this machine, found by their directories and the process table.

No process is asked, so agents may be stopped or gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

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
