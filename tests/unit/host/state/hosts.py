"""A host agent's state machine in the hands of a test, and what it has told whom."""

from __future__ import annotations

from monarch._src.failures.report import Death
from monarch._src.host.state.host import Action, Host, Send
from monarch._src.host.state.procs import ProcState
from monarch._src.wire.ids import proc_node
from monarch._src.wire.messages import MeshStopped, ProcEnded, SpawnProcs

STARTING, READY, STOPPING, ENDED, _RESTARTING = ProcState
STARTUP_S, CLEANUP_S = 60.0, 10.0
CRASH = Death(None, "SIGSEGV", ("last words",), "Actor.work", 3.0, "killed by SIGSEGV")
EXIT = Death(0, None, (), None, 3.0, "exited with status 0")


def spec(mesh: int, ranks: int, owner: str = "client") -> SpawnProcs:
    return SpawnProcs(
        mesh=mesh, name=f"mesh{mesh}", labels=["gpus"], sizes=[ranks], owner=owner,
        owner_address="ipc:///owner", env=[], cwd="/", path=[], preload=[],
        startup_s=STARTUP_S, cleanup_s=CLEANUP_S,
    )  # fmt: skip


def states(host: Host, mesh: int) -> list[ProcState]:
    return [proc.state for proc in host.meshes[mesh].procs]


def ends_told(actions: list[Action], to: str) -> list[ProcEnded]:
    return [
        a.message
        for a in actions
        if isinstance(a, Send) and a.to == to and isinstance(a.message, ProcEnded)
    ]


def stops_told(actions: list[Action], to: str) -> list[int]:
    return [
        a.message.mesh
        for a in actions
        if isinstance(a, Send) and a.to == to and isinstance(a.message, MeshStopped)
    ]


def up(host: Host, mesh: int, ranks: int, owner: str = "client", now: float = 0.0) -> None:
    """A mesh all of whose procs are ready; the pid of a rank is 100 * mesh + rank."""
    host.spawn_requested(spec(mesh, ranks, owner), now)
    for rank in range(ranks):
        host.forked(proc_node(mesh, rank), 100 * mesh + rank, now)
        host.hello(proc_node(mesh, rank), now)
