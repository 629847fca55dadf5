"""What a session says of itself in its directory, for who cannot ask its agent.

Runs in: the host agent (writes), whoever looks for sessions (reads). A `Record` stands in the lock
file from before that has its name; a `KeptRecord`, of a session that is kept, in a file beside it,
which is replaced whenever somebody attaches or leaves. Where a worker listens stands in another,
from when it does, if that is not where it was told to, as with port 0. Invariant: while the lock is
held, the agent that wrote them lives.
"""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

import msgspec

from monarch._src.net import session_directory as sessions
from monarch._src.system import process_table
from monarch._src.system.process_table import began_of
from monarch._src.wire.msgpack_text import UNREADABLE

LONGEST_PROGRAM = 400
KEPT = "kept"
LISTENING = "listening"
AWAY = sessions.AWAY


class Record(msgspec.Struct, frozen=True):
    """`client_began` and `agent_began` are those of `table.Entry`; `started` is a time of day."""

    agent_pid: int
    agent_began: str
    client: str
    client_pid: int
    client_began: str
    program: str
    started: float
    serves: str = ""  # of a worker: where it listens; it takes clients of other hosts


class ListeningRecord(msgspec.Struct, frozen=True):
    """Where a worker listens, with the port that it got."""

    serves: str


class HolderRecord(msgspec.Struct, frozen=True):
    """Who holds a kept session, and since when. `node` is its name on the wire."""

    node: str
    pid: int
    began: str
    program: str
    host: str
    since: float


class WorkerRecord(msgspec.Struct, frozen=True):
    """A worker host, and where the client of the session has dialled it."""

    site: str
    address: str


class AwayRecord(msgspec.Struct, frozen=True):
    """What of a kept session is on workers, for who has to end it there if nobody holds it.

    It stands in a file of its own, which outlives an agent that could not have it ended. `token` is
    what they know it by, `number` how many clients it had, `keys` are the paths of those with which
    workers are dialled, `gateway` the address through which, if so.
    """

    token: str
    number: int
    keys: list[str]
    workers: list[WorkerRecord]
    gateway: str = ""

    def __repr__(self) -> str:
        return f"<AwayRecord {self.workers}>"  # no token


class KeptRecord(msgspec.Struct, frozen=True):
    """A session that is kept. `versions` are what must agree with those of who attaches.

    `holder` is None while nobody is attached; `left` says why.
    """

    name: str
    since: float
    uid: int
    user: str
    host: str
    agent_pid: int
    agent_began: str
    versions: dict[str, str]
    meshes: list[str]
    holder: HolderRecord | None
    left: str
    hosts: list[str] = []  # the worker hosts that it has


def of_this_agent(client: str, client_pid: int) -> bytes:
    """What an agent that begins writes."""
    record = Record(
        os.getpid(), began_of(os.getpid()), client, client_pid, began_of(client_pid),
        process_table.command_of(client_pid)[:LONGEST_PROGRAM], time.time(),
    )  # fmt: skip
    return msgspec.json.encode(record)


def of_this_worker(serves: str) -> bytes:
    """What the agent of a worker writes: nobody has started a session yet."""
    pid = os.getpid()
    program = process_table.command_of(pid)[:LONGEST_PROGRAM]
    return msgspec.json.encode(Record(pid, began_of(pid), "", 0, "", program, time.time(), serves))


def read(directory: Path) -> Record | None:
    """What the agent of that session has written; None if there is none, or none that we know."""
    said = read_lock(directory / sessions.LOCK)
    if said is None or not said.serves:
        return said
    try:
        got = msgspec.json.decode((directory / LISTENING).read_bytes(), type=ListeningRecord)
    except (OSError, *UNREADABLE):  # it does not listen yet, or where it was told
        return said
    return msgspec.structs.replace(said, serves=got.serves)


def read_lock(path: Path) -> Record | None:
    """The same, from the file itself."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, *UNREADABLE):
        return None


def write_listening(directory: Path, serves: str) -> None:
    """Say where a worker listens, which is not what its record says.

    Raises:
        OSError: it cannot be written.
    """
    os.close(_replace(directory / LISTENING, ListeningRecord(serves)))


def write_kept(directory: Path, kept: KeptRecord) -> int:
    """Put it in place of the one before; returns a descriptor on it, for who finds no directory.

    Raises:
        OSError: it cannot be written; the one before stands.
    """
    return _replace(directory / KEPT, kept)


def _replace(path: Path, said: msgspec.Struct) -> int:
    new = path.with_name(f"{path.name}-new")
    fd = os.open(new, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, msgspec.json.encode(said))
        os.replace(new, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def write_away(directory: Path, away: AwayRecord | None) -> None:
    """The same of what is on workers; None: there is nothing (any more).

    Raises:
        OSError: it cannot be written; the one before stands.
    """
    if away is None:
        (directory / AWAY).unlink(missing_ok=True)
    else:
        os.close(_replace(directory / AWAY, away))


def read_away(directory: Path) -> AwayRecord | None:
    """What is on workers; None if nothing is."""
    try:
        return msgspec.json.decode((directory / AWAY).read_bytes(), type=AwayRecord)
    except (OSError, *UNREADABLE):
        return None


def read_kept(path: Path) -> KeptRecord | None:
    """What the agent of a kept session has written into that file; None if there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=KeptRecord)
    except (OSError, *UNREADABLE):
        return None


def user_name(uid: int) -> str:
    """The name of that user; the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
