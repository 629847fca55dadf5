"""`monarch debug --dap`: an adapter for editors, between them and the ranks of a session.

Runs in: the command line; one thread, which blocks. It speaks with one editor, on its standard
input and output or on a connection to a port that the user has named, and ends with that.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from time import monotonic

from monarch._src.cli.agent_connection import TerminalConnection, chosen
from monarch._src.debug.dap.client import Bridge, BridgedRank
from monarch._src.debug.rank_selection import Selection, parse_named
from monarch._src.errors import DebugError
from monarch._src.failures.report import at_text
from monarch._src.net.observer import ask_agents
from monarch._src.session.directories import AGENT_LIVES, Session, find_sessions, look_at
from monarch._src.shape import Extent
from monarch._src.wire.dap_codec import DapError, Message, Unpacker, packed
from monarch._src.wire.messages import Snapshotted

LOOK_S = 2.0  # between two looks whether the session is still there
ANSWER_S = 5.0
LIVE = ("busy", "idle", "paused")


def run(bases: Sequence[str] | None, which: str, name: str, port: int | None) -> int:
    """Serve one editor; 1 if there is nothing to debug."""
    try:
        live = [one for one in find_sessions(bases) if one.state in AGENT_LIVES]
        session = chosen(live, which)
        ranks = _ranks(session, parse_named(name))
        line = TerminalConnection(session)
    except DebugError as error:
        print(f"monarch debug: {error}", file=sys.stderr)
        return 1
    try:
        with _stream(port, session) as (reads, writes):
            _serve(line, ranks, reads, writes, session)
    except (DapError, DebugError, OSError) as error:
        print(f"monarch debug: {error}", file=sys.stderr)
        return 1
    finally:
        line.close()
    return 0


def _ranks(session: Session, selection: Selection) -> list[BridgedRank]:
    """What is meant, of what this session's host has."""
    (seen,) = ask_agents([session.directory], ANSWER_S)
    if not isinstance(seen, Snapshotted):
        raise DebugError(f"session {session.name} has not answered within {ANSWER_S:g} s")
    found: list[BridgedRank] = []
    for mesh in seen.meshes:
        if selection.name not in ("", mesh.name):
            continue
        extent = Extent(mesh.labels, mesh.sizes)
        sizes = dict(zip(mesh.labels, mesh.sizes, strict=True))
        for rank in mesh.ranks:
            point = dict(extent.point_of_rank(rank.rank))
            if rank.state in LIVE and selection.takes(point, sizes, rank.rank):
                found.append(BridgedRank(f"{mesh.name}{at_text(point)}", mesh.mesh, rank.rank))
    if not found:
        names = ", ".join(sorted({mesh.name for mesh in seen.meshes})) or "none"
        raise DebugError(f"no process runs there; the meshes of processes here: {names}")
    return found


@contextmanager
def _stream(port: int | None, session: Session) -> Generator[tuple[int, int]]:
    """The descriptors that an editor writes to and reads from.

    Raises:
        DebugError: the session has ended before one has come.
    """
    if port is None:
        yield sys.stdin.fileno(), sys.stdout.fileno()
        return
    with socket.create_server(("127.0.0.1", port), backlog=1) as server:
        number = server.getsockname()[1]
        print(f"waiting for an editor on port {number}", file=sys.stderr, flush=True)
        while not select.select([server], [], [], LOOK_S)[0]:
            if not _is_there(session):
                raise DebugError(f"session {session.name} has ended, and no editor has come")
        connection, _ = server.accept()
    with connection:  # nobody else can connect any more
        yield connection.fileno(), connection.fileno()


def _serve(
    line: TerminalConnection,
    ranks: Sequence[BridgedRank],
    reads: int,
    writes: int,
    session: Session,
) -> None:
    left = False

    def say(message: Message) -> None:
        nonlocal left
        data = packed(message)
        while data:
            data = data[os.write(writes, data) :]
        left = left or message.get("command") == "disconnect"

    with Bridge(line, ranks, say).open() as bridge:
        try:
            _pass_on(line, bridge, reads, session, lambda: left)
        except DebugError as error:
            bridge.lost(str(error))


def _pass_on(
    line: TerminalConnection, bridge: Bridge, reads: int, session: Session, left: Callable[[], bool]
) -> None:
    """What the editor says and what ranks say, until one of them has done.

    Raises:
        DebugError: the session has ended.
    """
    unpacker, look_at_s = Unpacker(), monotonic() + LOOK_S
    while not left() and not bridge.is_over:
        if line.wait(reads, LOOK_S):
            data = os.read(reads, 1 << 16)
            if not data:
                return
            for message in unpacker.feed(data):
                bridge.said(message)
        while line.pending():
            line.receive(0)
        if monotonic() > look_at_s:
            look_at_s = monotonic() + LOOK_S
            if not _is_there(session):
                raise DebugError(f"session {session.name} has ended")


def _is_there(session: Session) -> bool:
    seen = look_at(session.directory)
    return seen is not None and seen.state in AGENT_LIVES
