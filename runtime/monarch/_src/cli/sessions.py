"""The sessions of this user on this machine, as their directories and the process table tell.

Nobody is asked: this works with agents that are stopped or gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from monarch._src.net import directory as directories
from monarch._src.proc import record, table
from monarch._src.proc.record import Record

# live: agent and client are there. orphan: the client is gone. starting: no agent has taken the
# directory (yet). gone: the agent has ended, or was killed, and the directory is what is left.
State = Literal["live", "orphan", "starting", "gone"]
STARTING_S = 60.0


class Session(msgspec.Struct, frozen=True):
    """One session directory and who it says it belongs to."""

    directory: Path
    state: State
    record: Record | None
    age_s: float

    @property
    def name(self) -> str:
        """What tells it from others, and what `monarch kill` takes."""
        return name_of(self.directory)

    @property
    def agent(self) -> table.Entry | None:
        """The process of its host agent, if it lives."""
        if self.record is None or self.state not in ("live", "orphan"):
            return None
        found = table.entry(self.record.agent_pid)
        return found if found is not None and found.began == self.record.agent_began else None

    @property
    def is_left_behind(self) -> bool:
        """Whether nobody will ever need it again: ending it takes nothing from anybody."""
        if self.state == "starting":
            return self.age_s > STARTING_S
        return self.state in ("orphan", "gone")


def name_of(directory: Path) -> str:
    """The name of the session of that directory."""
    return directory.name.removeprefix(directories.PREFIX)


def places(bases: Sequence[str] | None) -> list[Path]:
    """Where to look: the directories that were named, or all in which sessions may be."""
    return directories.search_path() if bases is None else [Path(base) for base in bases]


def find_sessions(bases: Sequence[str] | None) -> list[Session]:
    """The sessions of this user, oldest first."""
    found = [look_at(path) for path in directories.find(places(bases)) if is_ours(path)]
    return [session for session in found if session is not None]


def is_ours(directory: Path) -> bool:
    """Whether it is a private directory of this user; what it holds is trusted only then."""
    try:
        directories.check_private(directory)
    except OSError:
        return False
    return True


def look_at(directory: Path) -> Session | None:
    """That session as it is now; None if there is none (any more)."""
    try:
        made_at = os.stat(directory).st_ctime
    except OSError:
        return None
    # In this order: an agent that begins meanwhile is seen as starting, not as gone.
    held = directories.is_held(directory)
    said = record.read(directory)
    if held is None or (held and said is None):
        state = "starting"
    elif not held:
        state = "gone"
    else:
        state = "live" if said is not None and _client_lives(said) else "orphan"
    began = made_at if said is None else said.started
    return Session(directory, state, said, max(0.0, time.time() - began))


def _client_lives(said: Record) -> bool:
    if not said.client_began:  # it had ended before its agent looked
        return False
    return table.lives(table.Entry(said.client_pid, 0, 0, "", said.client_began))
