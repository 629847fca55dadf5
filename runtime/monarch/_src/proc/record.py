"""What a session says of itself in its directory, for who cannot ask its agent.

Runs in: the host agent (writes it into the lock file, before that has its name), the command line
(reads it). Invariant: while the lock is held, the agent that wrote it lives.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from monarch._src.net import directory as sessions
from monarch._src.proc import table

LONGEST_PROGRAM = 400


class Record(msgspec.Struct, frozen=True):
    """`client_began` and `agent_began` are those of `table.Entry`; `started` is a time of day."""

    agent_pid: int
    agent_began: str
    client: str
    client_pid: int
    client_began: str
    program: str
    started: float


def of_this_agent(client: str, client_pid: int) -> bytes:
    """What an agent that begins writes."""
    record = Record(
        os.getpid(), _began(os.getpid()), client, client_pid, _began(client_pid),
        table.command_of(client_pid)[:LONGEST_PROGRAM], time.time(),
    )  # fmt: skip
    return msgspec.json.encode(record)


def read(directory: Path) -> Record | None:
    """What the agent of that session has written; None if there is none, or none that we know."""
    try:
        return msgspec.json.decode((directory / sessions.LOCK).read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None


def _began(pid: int) -> str:
    found = table.entry(pid)
    return "" if found is None else found.began
