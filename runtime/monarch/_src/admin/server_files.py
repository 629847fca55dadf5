"""The files by which other processes of the user find an admin server, in a session's directory.

Runs in: the admin server (writes), clients of it (read). A session's directory has mode 0700.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from monarch._src.system import process_table

SOCKET = "admin.sock"
RECORD = "admin.json"


class ServerRecord(msgspec.Struct, frozen=True):
    """A server: its URL, the path of its Unix socket (empty: TCP), and its tokens.

    `pid` and `began` are those of its process, as in `process_table.Entry`.
    """

    url: str
    socket: str
    observer_token: str
    owner_token: str
    pid: int
    began: str
    audit: str = ""

    def __repr__(self) -> str:
        return f"<ServerRecord {self.url}>"  # no tokens


def dashboard_url(record: ServerRecord, *, owner: bool = False) -> str | None:
    """The address of the web page with a token; None over a Unix socket."""
    if record.socket:
        return None
    return f"{record.url}/dashboard/?token={record.owner_token if owner else record.observer_token}"


def read_record(directory: Path) -> ServerRecord | None:
    """The server of the session in that directory; None if there is none, or it was killed."""
    try:
        found = msgspec.json.decode((directory / RECORD).read_bytes(), type=ServerRecord)
    except (OSError, msgspec.DecodeError):
        return None
    return found if process_table.began_of(found.pid) == found.began else None


def write_private(path: Path, data: bytes) -> None:
    """Write a file of mode 0600, which gets its name when it is complete.

    Raises:
        OSError: it cannot be written.
    """
    nameless = path.with_name(f"{path.name}.{os.getpid()}")
    nameless.unlink(missing_ok=True)  # of a process of that pid that was killed
    fd = os.open(nameless, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
    os.replace(nameless, path)
