"""The host agent as a program: what it loads, its zygote, its end.

Runs in: a process that was executed for it, on its only thread, before and after the `Agent`.
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

from monarch._src.host.spawn_spec import ENTRY
from monarch._src.host.zygote import Zygote, seqpacket_pair
from monarch._src.net import session_directory as sessions
from monarch._src.net.local.interrupt import disable_interrupts
from monarch._src.session import records
from monarch._src.system.process import die_with_parent, raise_fd_limit

if TYPE_CHECKING:
    from monarch._src.host.agent import Agent
    from monarch._src.host.owner import AgentServices
    from monarch._src.host.state.host import Host
    from monarch._src.net.node import Node
    from monarch._src.session.agent_part import SessionHolder

# What the agent and its procs need: loaded once, and not by each. What only one of them needs it
# loads behind the fork, beside the other.
BEFORE_FORK = ("monarch._src.net.node",)
# What many procs load as they unpickle their first actor: 10 ms of CPU in each.
SPARE_TIME = (
    "monarch._src.actor.run.async_loop",
    "monarch._src.mesh.host_mesh",
    "monarch._src.observe.client_setup",
    "monarch._src.actor.current",
    "monarch._src.rdma.buffer",
    "monarch._src.payload.receiver",
    "monarch._src.payload.cleanup_thread",
    "monarch.actor",
)


def main() -> None:
    """`python -c ... DIRECTORY CLIENT_NODE CLIENT_PID`: serve the session of that client."""
    directory, client, client_pid = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

    def agent(zygote: socket.socket) -> Agent:
        from monarch._src.host.agent import Agent
        from monarch._src.session.agent_part import SessionHolder

        def keeping(node: Node, host: Host, driver: AgentServices) -> SessionHolder:
            return SessionHolder(directory, client, client_pid, node, host, driver)

        return Agent(directory, zygote, keeping)

    raise SystemExit(serve(directory, records.of_this_agent(client, client_pid), agent))


def serve(
    directory: Path,
    said: bytes,
    make: Callable[[socket.socket], Agent],
    own: Sequence[int] = (),
) -> int:
    """Be the agent of that session directory until its end; the status to exit with.

    `said` is the record that stands in its lock; `make` is given the socket to the zygote, which
    has been forked by then and so knows nothing of what that loads; nor has it the
    descriptors that are the agent's `own`. Collections of garbage may be off until here.
    """
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_quietly)
    raise_fd_limit()
    lock = sessions.hold(directory, said)
    for name in BEFORE_FORK:
        importlib.import_module(name)
    ours, theirs = seqpacket_pair()
    lifeline_r, lifeline_w = os.pipe()
    agent_pid = os.getpid()
    zygote_pid = os.fork()
    if zygote_pid == 0:
        os.close(lock)
        os.close(lifeline_w)
        for fd in own:
            os.close(fd)
        ours.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent(agent_pid)
        Zygote(theirs, lifeline_r, ENTRY, SPARE_TIME).run()
    theirs.close()
    os.close(lifeline_r)
    try:
        agent = make(ours)
        # Without a collection, now or in imports: those leave little, and it costs 5 ms.
        gc.freeze()
        gc.enable()
        signal.signal(signal.SIGTERM, agent.terminate)
        disable_interrupts()  # what our handlers of signals do may be done at any time
        agent.run()
        return agent.status
    finally:
        os.kill(zygote_pid, signal.SIGKILL)  # a child of ours until it is waited for
        os.waitpid(zygote_pid, 0)
        if not (directory / sessions.AWAY).exists():
            sessions.remove(directory)


def _end_quietly(_signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)
