"""Records of a session in its directory, for processes that cannot ask its agent.

Runs in: the host agent (writes), processes that list sessions (read). The lock file holds a
`Record` before it gets its name. A `KeptRecord` is in a file beside it, replaced whenever a client
attaches or leaves. A `ListeningRecord` has the address of a worker, if it differs from the
requested one, as with port 0. Invariant: while the lock is held, the agent that wrote them lives.
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
    serves: str = ""  # the address of a worker, which accepts clients of other hosts


class ListeningRecord(msgspec.Struct, frozen=True):
    """The address at which a worker listens, with the actual port."""

    serves: str


class HolderRecord(msgspec.Struct, frozen=True):
    """The client of a kept session, and since when. `node` is its name on the wire."""

    node: str
    pid: int
    began: str
    program: str
    host: str
    since: float


class WorkerRecord(msgspec.Struct, frozen=True):
    """A worker host, and the address at which the client of the session dialled it."""

    site: str
    address: str


class AwayRecord(msgspec.Struct, frozen=True):
    """The part of a kept session that is on workers, for ending it if the session has no client.

    In a file of its own, which outlives an agent that could not have it ended. `token` identifies
    the session to workers, `number` is the number of clients it had, `keys` are the paths of the
    keys for dialling workers, `gateway` the address through which to dial, if any.
    """

    token: str
    number: int
    keys: list[str]
    workers: list[WorkerRecord]
    gateway: str = ""

    def __repr__(self) -> str:
        return f"<AwayRecord {self.workers}>"  # no token


class KeptRecord(msgspec.Struct, frozen=True):
    """A session that is kept. `versions` must agree with those of a client that attaches.

    `holder` is None while no client is attached; `left` says why.
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
    """The record of an agent that starts."""
    record = Record(
        os.getpid(), began_of(os.getpid()), client, client_pid, began_of(client_pid),
        process_table.command_of(client_pid)[:LONGEST_PROGRAM], time.time(),
    )  # fmt: skip
    return msgspec.json.encode(record)


def of_this_worker(serves: str) -> bytes:
    """The record of a worker's agent, which has no client yet."""
    pid = os.getpid()
    program = process_table.command_of(pid)[:LONGEST_PROGRAM]
    return msgspec.json.encode(Record(pid, began_of(pid), "", 0, "", program, time.time(), serves))


def read(directory: Path) -> Record | None:
    """The record in a session directory; None if there is none that this version can read."""
    said = read_lock(directory / sessions.LOCK)
    if said is None or not said.serves:
        return said
    try:
        got = msgspec.json.decode((directory / LISTENING).read_bytes(), type=ListeningRecord)
    except (OSError, *UNREADABLE):  # it does not listen yet, or at the requested address
        return said
    return msgspec.structs.replace(said, serves=got.serves)


def read_lock(path: Path) -> Record | None:
    """The record in a lock file; None if there is none that this version can read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, *UNREADABLE):
        return None


def write_listening(directory: Path, serves: str) -> None:
    """Record the address at which a worker listens, if it differs from its `Record`.

    Raises:
        OSError: the file cannot be written.
    """
    os.close(_replace(directory / LISTENING, ListeningRecord(serves)))


def write_kept(directory: Path, kept: KeptRecord) -> int:
    """Replace the record. Returns a descriptor of the file, which outlives the directory.

    Raises:
        OSError: it cannot be written; the old record stays.
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
    """Replace the record of the part on workers; None removes it.

    Raises:
        OSError: it cannot be written; the old record stays.
    """
    if away is None:
        (directory / AWAY).unlink(missing_ok=True)
    else:
        os.close(_replace(directory / AWAY, away))


def read_away(directory: Path) -> AwayRecord | None:
    """The record of the part on workers; None if there is none."""
    try:
        return msgspec.json.decode((directory / AWAY).read_bytes(), type=AwayRecord)
    except (OSError, *UNREADABLE):
        return None


def read_kept(path: Path) -> KeptRecord | None:
    """The record in the file of a kept session; None if there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=KeptRecord)
    except (OSError, *UNREADABLE):
        return None


def user_name(uid: int) -> str:
    """The name of that user; the number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
