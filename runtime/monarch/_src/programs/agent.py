"""The main program of the host agent: modules to load, the zygote, the end.

Runs in: a process that was executed for the agent, on its only thread, before and after `Agent`.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from monarch._src.host.zygote import Zygote, seqpacket_pair
from monarch._src.net import session_directory as sessions
from monarch._src.net.local.interrupt import disable_interrupts
from monarch._src.session import records
from monarch._src.system.main_programs import PROC_ENTRY
from monarch._src.system.process import die_with_parent, raise_fd_limit
from monarch._src.wire.messages import (
    AskBridge,
    AskDebugger,
    BridgeBytes,
    BridgeSet,
    BrokeIn,
    Debugged,
    KeepSockets,
    ListPaused,
    ReadStacks,
    ReadTable,
    SampleStacks,
    SetHistory,
    TableRead,
    WaitsRead,
)

if TYPE_CHECKING:
    from monarch._src.host.agent import Agent
    from monarch._src.host.owner import AgentServices
    from monarch._src.host.parts import PartTable
    from monarch._src.host.state.host import Host
    from monarch._src.net.node import Node
    from monarch._src.session.agent_part import SessionHolder

# Modules that the agent and its procs need, loaded once before the fork. Each side loads modules of
# its own after the fork, in parallel.
BEFORE_FORK = ("monarch._src.net.node",)
# Modules that many procs load when they unpickle their first actor: 10 ms of CPU in each.
SPARE_TIME = (
    "monarch._src.actor.run.async_loop",
    "monarch._src.mesh.meshes",
    "monarch._src.programs.client",
    "monarch._src.actor.current",
    "monarch._src.rdma.buffer",
    "monarch._src.payload.receiver",
    "monarch._src.payload.cleanup_thread",
    "monarch.actor",
)

_DEBUG = "monarch._src.debug.agent_part:DebugService"
_STACKS = "monarch._src.observe.stacks.agent_part:StackService"
_TABLES = "monarch._src.telemetry.sql.agent_part:TableService"
PARTS: PartTable = {
    KeepSockets: "monarch._src.spmd.agent_part:SocketKeeper",
    ReadStacks: _STACKS,
    WaitsRead: _STACKS,
    SampleStacks: "monarch._src.observe.flame_graph.agent_part:FlameGraphService",
    ReadTable: _TABLES,
    TableRead: _TABLES,
    SetHistory: "monarch._src.telemetry.history.agent_part:HistoryService",
    Debugged: _DEBUG,
    BrokeIn: _DEBUG,
    ListPaused: _DEBUG,
    AskDebugger: _DEBUG,
    AskBridge: _DEBUG,
    BridgeBytes: _DEBUG,
    BridgeSet: _DEBUG,
}


def main() -> None:
    """`python -c ... DIRECTORY CLIENT_NODE CLIENT_PID`: serve the session of that client."""
    directory, client, client_pid = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

    def agent(zygote: socket.socket) -> Agent:
        from monarch._src.host.agent import Agent
        from monarch._src.session.agent_part import SessionHolder

        def keeping(node: Node, host: Host, driver: AgentServices) -> SessionHolder:
            return SessionHolder(directory, client, client_pid, node, host, driver)

        return Agent(directory, zygote, keeping, PARTS)

    raise SystemExit(serve(directory, records.of_this_agent(client, client_pid), agent))


def serve(
    directory: Path,
    record: bytes,
    make: Callable[[socket.socket], Agent],
    own: Sequence[int] = (),
) -> int:
    """Run the agent of that session directory until its end; returns the exit status.

    `record` is written into the lock file. `make` is called with the socket to the zygote after the
    zygote was forked, so the zygote loads none of the agent's modules; it gets none of the
    descriptors in `own` either. The caller may have turned garbage collection off.
    """
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_quietly)
    raise_fd_limit()
    lock = sessions.hold(directory, record)
    for name in BEFORE_FORK:
        importlib.import_module(name)
    agent_socket, zygote_socket = seqpacket_pair()
    lifeline_r, lifeline_w = os.pipe()
    agent_pid = os.getpid()
    zygote_pid = os.fork()
    if zygote_pid == 0:
        os.close(lock)
        os.close(lifeline_w)
        for fd in own:
            os.close(fd)
        agent_socket.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent(agent_pid)
        Zygote(zygote_socket, lifeline_r, PROC_ENTRY, SPARE_TIME).run()
    zygote_socket.close()
    os.close(lifeline_r)
    try:
        agent = make(agent_socket)
        # No collection, here or during imports: it would cost 5 ms and free little.
        gc.freeze()
        gc.enable()
        signal.signal(signal.SIGTERM, agent.terminate)
        disable_interrupts()  # signal handlers of the agent may run at any time
        agent.run()
        return agent.status
    finally:
        os.kill(zygote_pid, signal.SIGKILL)  # its pid is not reused before `waitpid`
        os.waitpid(zygote_pid, 0)
        if not (directory / sessions.AWAY).exists():
            sessions.remove(directory)


def _end_quietly(_signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)
