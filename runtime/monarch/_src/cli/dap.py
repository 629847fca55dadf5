"""`monarch debug --dap`: a debug adapter between one editor and the ranks of a session.

Runs in: the command line; one thread, which blocks. The editor talks to the adapter through its
standard input and output or through a TCP port. The adapter ends when the editor disconnects.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from time import monotonic

from monarch._src.debug.dap.client import Bridge, BridgedRank
from monarch._src.debug.rank_selection import Selection, parse_named
from monarch._src.debug.terminal_connection import TerminalConnection, choose_session
from monarch._src.errors import DebugError
from monarch._src.failures.report import at_text
from monarch._src.net.observer import ask_agents
from monarch._src.session.directories import AGENT_LIVES, Session, find_sessions, look_at
from monarch._src.shape import Extent
from monarch._src.wire.dap_codec import DapError, Message, Unpacker, packed
from monarch._src.wire.messages import Snapshotted

LOOK_S = 2.0  # between checks whether the session still exists
ANSWER_S = 5.0
LIVE = ("busy", "idle", "paused")


def run(bases: Sequence[str] | None, which: str, name: str, port: int | None) -> int:
    """Serve one editor; return 1 if there is no rank to debug."""
    try:
        live = [one for one in find_sessions(bases) if one.state in AGENT_LIVES]
        session = choose_session(live, which)
        ranks = _ranks(session, parse_named(name))
        connection = TerminalConnection(session)
    except DebugError as error:
        print(f"monarch debug: {error}", file=sys.stderr)
        return 1
    try:
        with _stream(port, session) as (reads, writes):
            _serve(connection, ranks, reads, writes, session)
    except (DapError, DebugError, OSError) as error:
        print(f"monarch debug: {error}", file=sys.stderr)
        return 1
    finally:
        connection.close()
    return 0


def _ranks(session: Session, selection: Selection) -> list[BridgedRank]:
    """The ranks of this host that `selection` names."""
    (seen,) = ask_agents([session.directory], ANSWER_S)
    if not isinstance(seen, Snapshotted):
        raise DebugError(f"{session.label} did not answer within {ANSWER_S:g} s")
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
        raise DebugError(f"no running process matches; meshes of processes on this host: {names}")
    return found


@contextmanager
def _stream(port: int | None, session: Session) -> Generator[tuple[int, int]]:
    """The descriptors to read from and write to the editor.

    Raises:
        DebugError: the session ended before an editor connected.
    """
    if port is None:
        yield sys.stdin.fileno(), sys.stdout.fileno()
        return
    with socket.create_server(("127.0.0.1", port), backlog=1) as server:
        number = server.getsockname()[1]
        print(f"waiting for an editor on port {number}", file=sys.stderr, flush=True)
        while not select.select([server], [], [], LOOK_S)[0]:
            if not _is_alive(session):
                raise DebugError(f"{session.label} ended before an editor connected")
        connection, _ = server.accept()
    with connection:  # the listening socket is closed: one editor only
        yield connection.fileno(), connection.fileno()


def _serve(
    connection: TerminalConnection,
    ranks: Sequence[BridgedRank],
    reads: int,
    writes: int,
    session: Session,
) -> None:
    left = False

    def send(message: Message) -> None:
        nonlocal left
        data = packed(message)
        while data:
            data = data[os.write(writes, data) :]
        left = left or message.get("command") == "disconnect"

    with Bridge(connection, ranks, send).open() as bridge:
        try:
            _relay(connection, bridge, reads, session, lambda: left)
        except DebugError as error:
            bridge.lost(str(error))


def _relay(
    connection: TerminalConnection,
    bridge: Bridge,
    reads: int,
    session: Session,
    left: Callable[[], bool],
) -> None:
    """Relay messages between editor and ranks until one side disconnects.

    Raises:
        DebugError: the session has ended.
    """
    unpacker, look_at_s = Unpacker(), monotonic() + LOOK_S
    while not left() and not bridge.is_over:
        if connection.wait(reads, LOOK_S):
            data = os.read(reads, 1 << 16)
            if not data:
                return
            for message in unpacker.feed(data):
                bridge.said(message)
        while connection.pending():
            connection.receive(0)
        if monotonic() > look_at_s:
            look_at_s = monotonic() + LOOK_S
            if not _is_alive(session):
                raise DebugError(f"{session.label} has ended")


def _is_alive(session: Session) -> bool:
    seen = look_at(session.directory)
    return seen is not None and seen.state in AGENT_LIVES
