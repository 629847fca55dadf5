"""The debugger's Python API, for scripts and notebooks.

Runs in: the client, any thread. Commands run on the rank, on its paused thread.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, TypeAlias

from monarch._src.actor.endpoint import Actor
from monarch._src.debug.agent_connection import client_connection
from monarch._src.debug.commands import Console, DebugCommands, Replies
from monarch._src.debug.dap.client import Bridge, BridgedRank, Say
from monarch._src.debug.listing import NOTHING, WaitingRank, WaitingRanks
from monarch._src.debug.rank_selection import Selection, parse_named
from monarch._src.errors import DebugError
from monarch._src.events import RankPaused, bus
from monarch._src.failures.report import at_text
from monarch._src.mesh.actor_mesh import ActorMesh
from monarch._src.mesh.client import current_session
from monarch._src.mesh.meshes import ProcMesh, owned_meshes
from monarch._src.mesh.selected_procs import procs_of

Which: TypeAlias = (
    "ProcMesh | ActorMesh | Actor | str | Selection | WaitingRank | Iterable[WaitingRank] | None"
)


def waiting(which: Which = None) -> WaitingRanks:
    """List the threads that are paused, with function, file and line, by mesh and rank.

    Args:
        which: a mesh of procs or actors, or a slice of one; its name with an optional slice, such
            as `"workers[gpus=0:4]"`; None: all ranks.

    Raises:
        DebugError: the slice names a dim that the mesh does not have.
        TimeoutError: the host agent did not answer.
    """
    commands = _commands_or_none()
    if commands is None:
        return WaitingRanks(())
    if isinstance(which, (ProcMesh, ActorMesh)):
        return commands.waiting([procs_of(which)])
    found = commands.waiting()
    if which is None:
        return found
    chosen = {(one.mesh_uid, one.rank, one.session) for one in _chosen(which, found)}
    return found.only(lambda one: (one.mesh_uid, one.rank, one.session) in chosen)


def attach(which: Which = None, *, take: bool = False) -> Console:
    """Open a console for the only paused thread of `which`.

    Args:
        which: as for `waiting`.
        take: take the thread over if another console is attached to it.

    Raises:
        DebugError: no thread is paused there, or several are, or another console is attached.
    """
    found = [one for one in waiting(which) if one.state == "paused"]
    if len(found) != 1:
        raise DebugError(_selection_problem(which, found))
    return _commands().attach(found[0], take=take)


def cast(command: str, which: Which = None, *, timeout: float | None = None) -> Replies:
    """Send one command to all paused threads of `which` and return their answers.

    Args:
        command: as for `Console.send`.
        which: as for `waiting`.
        timeout: seconds; None waits until every rank has answered. Ranks that have not answered in
            time get a `Reply` with a `problem`.
    """
    found = [one for one in waiting(which) if one.state == "paused"]
    return _commands().cast(found, command, timeout) if found else Replies()


def resume(which: Which = None) -> Replies:
    """Resume all paused threads of `which`, and clear the breakpoints set from consoles."""
    found = [one for one in waiting(which) if one.state == "paused"]
    return _commands().resume(found) if found else Replies()


def break_in(mesh: ProcMesh | ActorMesh | Actor, *, timeout: float = 5.0) -> WaitingRanks:
    """Pause running endpoints; return the paused threads, at the latest after `timeout` seconds.

    An endpoint pauses at its current line, also inside `time.sleep`, `.get()` or `await`. One in C
    code that holds the GIL pauses when that returns. Among the actors of a process, only the first,
    which runs on the main thread, can be paused while it computes; others pause where they wait.

    Raises:
        DebugError: no thread on these ranks can be paused; the text gives the reasons.
    """
    uid, ranks = procs_of(mesh)
    commands, until = _commands(), monotonic() + timeout
    paused: queue.SimpleQueue[None] = queue.SimpleQueue()

    def on_paused(event: RankPaused) -> None:
        if event.paused and event.uid == f"{uid:x}":
            paused.put(None)

    unsubscribe = bus.subscribe(RankPaused, on_paused)
    try:
        before = len(waiting(mesh))
        results = commands.break_in([(uid, rank) for rank in ranks or range(len(mesh))], timeout)
        expected = sum(threads for _, threads, _ in results)
        if not expected:
            why = list(dict.fromkeys(problem for _, _, problem in results if problem))
            raise DebugError("; ".join(why) or "no endpoint is running there")
        while len(found := waiting(mesh)) < before + expected:
            try:
                paused.get(timeout=max(0.0, until - monotonic()))
            except queue.Empty:
                break
    finally:
        unsubscribe()
    return found


def post_mortem(on: bool = True) -> None:
    """Pause endpoints where they raise, with their frames, before their callers get the exception.

    The setting applies to all ranks of the session until it is turned off (`on=False`). The
    exception is sent to the caller when the pause ends, whatever the commands were. A rank whose
    collective fails because another rank has died, or has raised, does not pause, unless the
    setting `post_mortem_bystanders` is on.

    Raises:
        DebugError: there is no session yet.
    """
    _commands().keep_failures(on)


def open_bridge(mesh: ProcMesh | ActorMesh | Actor, say: Say) -> Bridge:
    """Open a Debug Adapter Protocol session with the ranks of a mesh or of a slice.

    Pass messages of the editor to `Bridge.said`; `say` is called with messages for the editor.
    Messages are dictionaries, and `say` is called on any thread. Each rank is a thread of the
    session. debugpy must be installed where the ranks run. It is loaded there now and unloaded when
    the bridge is closed.

    Raises:
        DebugError: a rank could not load its debugger; the text says why.
    """
    uid, ranks = procs_of(mesh)
    running = current_session()
    ref = None if running is None else running.runtime.known.ref(uid)
    if running is None or ref is None:
        raise DebugError("the mesh has ended, or belongs to another session")
    found = [
        BridgedRank(f"{ref.name}{at_text(dict(ref.extent.point_of_rank(rank)))}", uid, rank)
        for rank in ranks
    ]
    return Bridge(client_connection(running.runtime), found, say).open()


def post(what: int, rank: WaitingRank, text: str, on_answer: Callable[[Any], None]) -> None:
    """Send a command without blocking; `on_answer` is called on the receiving thread."""
    _commands().post(what, rank, text, on_answer)


def _chosen(which: Any, found: Iterable[WaitingRank]) -> list[WaitingRank]:
    if isinstance(which, WaitingRank):
        return [which]
    if isinstance(which, (str, Selection)):
        selection = parse_named(which) if isinstance(which, str) else which
        return [one for one in found if one.is_in(selection)]
    return list(which)


def _selection_problem(which: object, found: list[WaitingRank]) -> str:
    place = "" if which is None else f" on {which}"
    if not found:
        known = {mesh.name for mesh in owned_meshes()}
        there = f"; meshes are {', '.join(sorted(known))}" if known else ""
        return f"{NOTHING}{place}{there}"
    first = ", ".join(str(one) for one in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{len(found)} ranks are paused{place}: {first}{more}; name one, or use cast"


def _commands_or_none() -> DebugCommands | None:
    running = current_session()
    if running is None or running.lost is not None:
        return None
    return DebugCommands(client_connection(running.runtime))


def _commands() -> DebugCommands:
    commands = _commands_or_none()
    if commands is None:
        raise DebugError("there is no session: no mesh was spawned yet, or the host agent is gone")
    return commands
