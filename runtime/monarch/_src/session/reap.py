"""Ends sessions from outside, and finds processes and directories that have lost their owner.

Runs in: any process of the same user. It sends SIGTERM to a host agent (and SIGCONT, in case it is
stopped): actors clean up, every process ends, the session directory is removed. After the time-out
it kills the rest, with the process groups of the procs, which include processes that ranks started.
Invariants: touches nothing of another user; `reap` touches no session whose client lives, none that
is kept, and none that may be just starting or ending.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from monarch._src.host.exec_proc import BOOT_VARIABLE
from monarch._src.host.spawn_spec import decode_boot
from monarch._src.net import session_directory as directories
from monarch._src.session import directories as sessions
from monarch._src.session import records
from monarch._src.session.directories import Session, find_sessions
from monarch._src.session.records import KeptRecord, Record
from monarch._src.system import process_table
from monarch._src.system.main_programs import AGENT as AGENT_PROGRAM
from monarch._src.system.process import CHILD_VARIABLE
from monarch._src.system.process_table import Entry

KILLED_S = 5.0  # how long killed processes may take to end
WAIT_S = 15.0
# An agent removes its directory a moment before it ends; one that lacks it for longer is lost.
ENDING_S = 1.0
_PROC = Path("/proc")


@dataclass
class Outcome:
    """The results, a line each: `done`, and `complaints` about failures."""

    done: list[str] = field(default_factory=list[str])
    complaints: list[str] = field(default_factory=list[str])


class Ending(msgspec.Struct):
    """A session whose agent was told to end, and the processes that must end with it."""

    session: Session
    agent: Entry
    family: list[Entry]


# --- ending ---------------------------------------------------------------------------------------


def end(chosen: Sequence[Session], timeout_s: float = WAIT_S) -> Outcome:
    """End those sessions at the same time. Bounded by the time-out and the time for killing."""
    outcome = Outcome()
    endings = [ending for one in chosen if (ending := _begin(one, outcome)) is not None]
    deadline = time.monotonic() + timeout_s
    for ending in endings:
        _finish(ending, deadline, timeout_s, outcome)
    return outcome


def _begin(session: Session, outcome: Outcome) -> Ending | None:
    """Tell a session's agent to end. None if there is nothing to wait for."""
    agent = session.agent
    if agent is None:
        if session.state == "starting" and not session.is_left_behind:
            outcome.complaints.append(f"{session.label} is starting; try again in a moment")
            return None
        # Its agent may have ended since, and removed the directory itself.
        if session.state != "starting" and directories.is_held(session.directory):
            outcome.complaints.append(f"{session.label} has a host agent that cannot be found")
            return None
        if _release_workers(session, outcome):
            directories.remove(session.directory)
            outcome.done.append(f"{session.label}: its host agent is gone; removed its directory")
        return None
    ending = Ending(session, agent, _family(agent))
    if not _terminate(agent):
        outcome.complaints.append(f"{session.label}: process {agent.pid} belongs to another user")
        return None
    return ending


def _release_workers(session: Session, outcome: Outcome) -> bool:
    """Have workers end kept meshes of a session without an agent; whether all of them did."""
    if records.read_away(session.directory) is None:
        return True
    from monarch._src.session.worker_release import release  # it loads ZeroMQ

    problems = release(session.directory)
    outcome.complaints += [f"{session.label}: {problem}" for problem in problems]
    return not problems


def _terminate(one: Entry) -> bool:
    """Tell a process to end; False if it belongs to another user."""
    try:
        os.kill(one.pid, signal.SIGTERM)
        os.kill(one.pid, signal.SIGCONT)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


def _family(agent: Entry) -> list[Entry]:
    """The agent and the processes that end with it: the groups that it and its procs lead."""
    entries = process_table.entries()
    below = process_table.descendants(agent.pid, entries)
    zygotes = _zygotes(agent, below)
    groups = {one.pid for one in below if one.parent in zygotes and one.group == one.pid}
    groups.add(agent.pid)
    known = {one.pid for one in below if one.pid in zygotes or one.parent in zygotes}
    return [
        one
        for one in entries
        if (one.group in groups or one.pid in known) and one.state not in process_table.DEAD_STATES
    ]


def _zygotes(agent: Entry, below: Sequence[Entry]) -> set[int]:
    """The first zygote, a child of the agent, and those that were forked from a zygote.

    They stay in the agent's group, which procs leave.
    """
    found = {one.pid for one in below if one.parent == agent.pid}
    while more := {
        one.pid
        for one in below
        if one.parent in found and one.group == agent.group and one.pid not in found
    }:
        found |= more
    return found


def _finish(ending: Ending, deadline: float, timeout_s: float, outcome: Outcome) -> None:
    name = ending.session.label
    left, killed = _wait_and_kill(ending.agent, ending.family, deadline)
    if left:
        pids = ", ".join(str(one.pid) for one in left)
        outcome.complaints.append(f"{name}: these processes could not be ended: {pids}")
        return
    if directories.is_held(ending.session.directory) is False:  # the agent had no time to remove it
        if not _release_workers(ending.session, outcome):
            return
        directories.remove(ending.session.directory)
    forced = f", {killed} of them killed after {timeout_s:g} s" if killed else ""
    outcome.done.append(f"{name}: ended, {len(ending.family)} processes{forced}")


def _wait_and_kill(
    agent: Entry, family: Sequence[Entry], deadline: float
) -> tuple[list[Entry], int]:
    """Wait for processes, kill the rest. Returns those that remain, and how many were killed."""
    left = process_table.wait_ended(family, max(0.0, deadline - time.monotonic()))
    killed: set[Entry] = set()
    if left and process_table.lives(agent):  # it may have started more since
        left = list(dict.fromkeys([*left, *_family(agent)]))
    # An agent ends in order once its procs are gone; one that hangs is killed after them.
    for victims in ([one for one in left if one.group != agent.pid], left):
        alive = [one for one in victims if process_table.lives(one)]
        for one in alive:
            _kill(one)
        killed.update(alive)
        left = process_table.wait_ended(left, KILLED_S)
    return left, len(killed)


def _kill(one: Entry) -> None:
    if process_table.lives(one):
        with suppress(ProcessLookupError, PermissionError):
            kill = os.killpg if one.pid == one.group else os.kill
            kill(one.pid, signal.SIGKILL)


# --- reaping --------------------------------------------------------------------------------------


def reap(
    bases: Sequence[str] | None = None, timeout_s: float = WAIT_S, *, dry_run: bool = False
) -> Outcome:
    """End everything that has no owner: sessions, directories, processes.

    Searches `bases` for directories (None: wherever sessions may be), and finds processes of
    sessions that had theirs there. `dry_run`: only report.
    """
    left = [one for one in find_sessions(bases) if one.is_left_behind]
    strays = _strays(bases)
    if dry_run:
        would = [f"{one.label}: would be ended, it is {_why(one)}" for one in left]
        would += [f"process {one.pid}: would be ended, {why}" for one, why in strays]
        return Outcome(would)
    outcome = end(left, timeout_s)
    told = [(one, why) for one, why in strays if _terminate(one)]
    deadline = time.monotonic() + timeout_s
    for one, why in told:
        remaining, killed = _wait_and_kill(one, _family(one), deadline)
        if remaining:
            outcome.complaints.append(f"process {one.pid} could not be ended ({why})")
        else:
            outcome.done.append(f"process {one.pid}: {'killed' if killed else 'ended'}, {why}")
    return outcome


def _why(session: Session) -> str:
    match session.state:
        case "orphan":
            return "an orphan, its client is gone"
        case "gone":
            return "a directory whose host agent is gone"
        case _:
            return "a directory that no host agent has ever taken"


def _strays(bases: Sequence[str] | None) -> list[tuple[Entry, str]]:
    """Agents, procs and processes started by procs, whose session is gone."""
    found = _of_no_session(bases)
    if not found:
        return []
    # Processes that were just ending have ended by now.
    process_table.wait_ended([one for one, _ in found], ENDING_S)
    pids = {one.pid for one, _ in found}
    now = [(one, why) for one, why in _of_no_session(bases) if one.pid in pids]
    pids = {one.pid for one, _ in now}
    return [(one, why) for one, why in now if one.parent not in pids]  # children follow


def _of_no_session(bases: Sequence[str] | None) -> list[tuple[Entry, str]]:
    places = None if bases is None else {os.path.realpath(base) for base in bases}
    found: list[tuple[Entry, str]] = []
    held: dict[Path, bool] = {}
    for one in process_table.entries():
        if one.state in process_table.DEAD_STATES or one.pid == os.getpid():
            continue
        directory = _directory_of(one)
        if directory is None or not directory.name.startswith(directories.PREFIX):
            continue
        if places is not None and os.path.realpath(directory.parent) not in places:
            continue
        if directory not in held:
            held[directory] = _belongs_to_session(directory)
        if held[directory]:
            continue
        if directory.exists():
            found.append((one, f"the host agent of its session in {directory} is gone"))
        elif not _serves_live_client(one, directory):
            found.append((one, f"its session directory {directory} is gone"))
    return found


def _belongs_to_session(directory: Path) -> bool:
    found = sessions.look_at(directory) if sessions.is_ours(directory) else None
    if found is None:
        return directory.exists()  # it belongs to another user
    return found.state != "gone"


def _directory_of(one: Entry) -> Path | None:
    """The directory of the session that a process is part of; None if it is part of no session.

    A process that a rank has started is part of it while it is in the rank's process group. A
    process that leads a group of its own was detached on purpose.
    """
    try:
        if os.stat(_PROC / str(one.pid)).st_uid != os.getuid():
            return None
        words = (_PROC / str(one.pid) / "cmdline").read_bytes().split(b"\0")
        # An agent; its zygote and the procs are forks of it, and look the same.
        if len(words) > 5 and words[1] == b"-c" and AGENT_PROGRAM.encode() in words[2]:
            return Path(os.fsdecode(words[3]))
        variables = (_PROC / str(one.pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    environment = {name: value for name, _, value in (one.partition(b"=") for one in variables)}
    if BOOT_VARIABLE.encode() in environment:  # a proc that was executed
        try:
            boot = decode_boot(environment[BOOT_VARIABLE.encode()].decode())
        except ValueError:
            return None
        return Path(boot.spec.directory)
    directory = environment.get(CHILD_VARIABLE.encode())
    leader = process_table.entry(one.group)
    if directory is None or (leader is not None and leader.state not in process_table.DEAD_STATES):
        return None
    return Path(os.fsdecode(directory))


def _serves_live_client(one: Entry, directory: Path) -> bool:
    """Whether a session without a directory still serves a client: its agent has its records open.

    Checks the process and its ancestors: proc, zygotes, agent.
    """
    known: Entry | None = one
    while known is not None and known.pid > 1:
        client = _client_of_agent(known.pid, directory)
        if client is not None:
            return sessions.lives(client)
        known = process_table.entry(known.parent)
    return False


def _client_of_agent(pid: int, directory: Path) -> records.HolderRecord | None:
    kept: KeptRecord | None = None
    said: Record | None = None
    try:
        for name in os.listdir(_PROC / str(pid) / "fd"):
            file = _PROC / str(pid) / "fd" / name
            with suppress(OSError):
                target = os.readlink(file)
                if target.startswith(f"{directory}/{records.KEPT}"):
                    kept = records.read_kept(file) or kept
                elif target.startswith(f"{directory}/{directories.LOCK}"):
                    said = records.read_lock(file) or said
    except OSError:
        return None
    state: sessions.State = "live"
    return Session(directory, state, said, 0.0, kept).client
