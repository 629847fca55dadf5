"""`monarch kill`: end sessions, in order if they can, and whatever is left of them by force.

The host agent is told by SIGTERM (and SIGCONT, in case it is stopped): actors clean up, every
process ends, the session directory goes. What is still there after the time-out is killed, with
the process groups of the procs, which hold what they have started.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from monarch._src.cli.sessions import Session, find_sessions, is_ours, look_at, name_of, places
from monarch._src.net import directory as directories
from monarch._src.proc import table
from monarch._src.proc.table import Entry

KILLED_S = 5.0  # what was killed is given this long to be gone


class Ending(msgspec.Struct):
    """A session that was told to end, and the processes that are to go with it."""

    session: Session
    agent: Entry
    family: list[Entry]


def run(
    bases: Sequence[str] | None, timeout_s: float, names: Sequence[str], *, every: bool,
    orphans: bool,
) -> int:  # fmt: skip
    """End those sessions; 0 if all of them are gone, else 1."""
    complaints: list[str] = []
    if every or orphans:
        chosen = [one for one in find_sessions(bases) if every or one.is_left_behind]
        if not chosen:
            print("no orphaned sessions" if orphans else "no sessions of yours on this machine")
    else:
        chosen = _named(names, directories.find(places(bases)), complaints)
    endings = [ending for one in chosen if (ending := _begin(one, complaints)) is not None]
    deadline = time.monotonic() + timeout_s
    for ending in endings:
        _finish(ending, deadline, timeout_s, complaints)
    for complaint in complaints:
        print(f"monarch kill: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _named(names: Sequence[str], found: list[Path], complaints: list[str]) -> list[Session]:
    chosen: dict[Path, Session] = {}
    for name in names:
        wanted = name_of(Path(name))
        matching = [path for path in found if name_of(path) == wanted] or [
            path for path in found if wanted and name_of(path).startswith(wanted)
        ]
        if len(matching) > 1:
            which = ", ".join(name_of(path) for path in matching)
            complaints.append(f"{name!r} is the beginning of several sessions: {which}")
        elif not matching:
            complaints.append(f"there is no session {name!r}; `monarch ps` lists them")
        elif not is_ours(matching[0]):
            complaints.append(
                f"session {name_of(matching[0])} is not yours: {matching[0]} belongs to user "
                f"{_owner(matching[0])}, or others can enter it"
            )
        elif (session := look_at(matching[0])) is not None:
            chosen[session.directory] = session
    return list(chosen.values())


def _owner(directory: Path) -> str:
    try:
        return str(os.lstat(directory).st_uid)
    except OSError:
        return "unknown"


def _begin(session: Session, complaints: list[str]) -> Ending | None:
    """Tell it to end. None if there is nothing to wait for."""
    agent = session.agent
    if agent is None:
        if session.state == "starting" and not session.is_left_behind:
            complaints.append(f"session {session.name} is just starting; try again in a moment")
            return None
        # Its agent may have ended between two looks, and removes the directory itself.
        if session.state != "starting" and directories.is_held(session.directory):
            complaints.append(f"session {session.name} has a host agent that cannot be found")
            return None
        directories.remove(session.directory)
        print(f"session {session.name}: its host agent is gone; removed its directory")
        return None
    ending = Ending(session, agent, _family(agent))
    try:
        os.kill(agent.pid, signal.SIGTERM)
        os.kill(agent.pid, signal.SIGCONT)
    except ProcessLookupError:
        pass
    except PermissionError:
        complaints.append(f"session {session.name}: process {agent.pid} belongs to another user")
        return None
    return ending


def _family(agent: Entry) -> list[Entry]:
    """The agent and all that goes with it: the groups that it and its procs lead."""
    everybody = table.entries()
    below = table.descendants(agent.pid, everybody)
    zygotes = {one.pid for one in below if one.parent == agent.pid}
    groups = {one.pid for one in below if one.parent in zygotes and one.group == one.pid}
    groups.add(agent.pid)
    known = {one.pid for one in below if one.pid in zygotes or one.parent in zygotes}
    return [
        one
        for one in everybody
        if (one.group in groups or one.pid in known) and one.state not in table.DEAD_STATES
    ]


def _finish(ending: Ending, deadline: float, timeout_s: float, complaints: list[str]) -> None:
    name, agent = ending.session.name, ending.agent
    left = table.wait_ended(ending.family, max(0.0, deadline - time.monotonic()))
    killed: set[Entry] = set()
    if left and table.lives(agent):  # it may have started more since
        left = list(dict.fromkeys([*left, *_family(agent)]))
    # An agent whose procs are gone ends in order; one that hangs is killed after them.
    for victims in ([one for one in left if one.group != agent.pid], left):
        alive = [one for one in victims if table.lives(one)]
        for one in alive:
            _kill(one)
        killed.update(alive)
        left = table.wait_ended(left, KILLED_S)
    if left:
        pids = ", ".join(str(one.pid) for one in left)
        complaints.append(f"session {name}: these processes could not be ended: {pids}")
        return
    if directories.is_held(ending.session.directory) is False:  # it had no time to do so itself
        directories.remove(ending.session.directory)
    forced = f", {len(killed)} of them killed after {timeout_s:g} s" if killed else ""
    print(f"session {name}: ended, {len(ending.family)} processes{forced}")


def _kill(one: Entry) -> None:
    if table.lives(one):
        with suppress(ProcessLookupError, PermissionError):
            kill = os.killpg if one.pid == one.group else os.kill
            kill(one.pid, signal.SIGKILL)
