"""The debugger as scripts and notebooks use it.

Runs in: the client, any thread. What is typed runs on the rank, on the thread that is paused.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, TypeAlias

from monarch._src.debug.agent_connection import line_of
from monarch._src.debug.commands import Console, DebugCommands, Replies
from monarch._src.debug.dap.client import Bridge, BridgedRank, Say
from monarch._src.debug.listing import NOTHING, WaitingRank, WaitingRanks
from monarch._src.debug.rank_selection import Selection, parse_named
from monarch._src.errors import DebugError
from monarch._src.events import RankPaused, bus
from monarch._src.failures.report import at_text
from monarch._src.mesh.actor_mesh import ActorMesh
from monarch._src.mesh.client import current_session
from monarch._src.mesh.proc_mesh import ProcMesh, owned_meshes
from monarch._src.mesh.selected_procs import procs_of

Which: TypeAlias = (
    "ProcMesh | ActorMesh | str | Selection | WaitingRank | Iterable[WaitingRank] | None"
)


def waiting(which: Which = None) -> WaitingRanks:
    """What stands at a breakpoint: with function, file and line, by mesh and rank.

    Args:
        which: a mesh of procs or actors, or a slice of one; `"workers[gpus=0:4]"`, by the name of
            either; None: everything.

    Raises:
        DebugError: there is no such dim.
        TimeoutError: the host agent did not answer.
    """
    desk = _desk_or_none()
    if desk is None:
        return WaitingRanks(())
    if isinstance(which, (ProcMesh, ActorMesh)):
        return desk.waiting([procs_of(which)])
    found = desk.waiting()
    if which is None:
        return found
    chosen = {(one.mesh_uid, one.rank, one.session) for one in _chosen(which, found)}
    return found.only(lambda one: (one.mesh_uid, one.rank, one.session) in chosen)


def attach(which: Which = None, *, take: bool = False) -> Console:
    """A console of the one thread that waits there. `take`: from another console that holds it.

    Raises:
        DebugError: none waits there, or several do, or another console holds it.
    """
    found = [one for one in waiting(which) if one.state == "paused"]
    if len(found) != 1:
        raise DebugError(_not_one(which, found))
    return _desk().attach(found[0], take=take)


def cast(command: str, which: Which = None, *, timeout: float | None = None) -> Replies:
    """Give one command to all that are paused there; what each answers, equal answers folded.

    Args:
        command: as for `Console.send`.
        which: as for `waiting`.
        timeout: seconds; None waits for as long as the program runs. Who is late says so.
    """
    found = [one for one in waiting(which) if one.state == "paused"]
    return _desk().cast(found, command, timeout) if found else Replies()


def resume(which: Which = None) -> Replies:
    """Have all that is paused there go on, without the breakpoints that were set at consoles."""
    found = [one for one in waiting(which) if one.state == "paused"]
    return _desk().resume(found) if found else Replies()


def break_in(mesh: ProcMesh | ActorMesh, *, timeout: float = 5.0) -> WaitingRanks:
    """Have what runs on these ranks pause; what waits there then, or after `timeout` seconds.

    An endpoint pauses on the line that it is in, also in a `time.sleep`, a `.get()` or an `await`;
    in C code that holds the interpreter's lock, when it comes back from it. Of the actors of one
    process only the first, which has its main thread, can be stopped while it computes; the others
    where they wait.

    Raises:
        DebugError: on none of these ranks anything can be paused; it says why of each kind.
    """
    uid, ranks = procs_of(mesh)
    desk, until = _desk(), monotonic() + timeout
    paused: queue.SimpleQueue[None] = queue.SimpleQueue()

    def heard(event: RankPaused) -> None:
        if event.paused and event.uid == f"{uid:x}":
            paused.put(None)

    end = bus.subscribe(RankPaused, heard)
    try:
        before = len(waiting(mesh))
        said = desk.break_in([(uid, rank) for rank in ranks or range(len(mesh))], timeout)
        will = sum(threads for _, threads, _ in said)
        if not will:
            why = list(dict.fromkeys(problem for _, _, problem in said if problem))
            raise DebugError("; ".join(why) or "nothing runs there")
        while len(found := waiting(mesh)) < before + will:
            try:
                paused.get(timeout=max(0.0, until - monotonic()))
            except queue.Empty:
                break
    finally:
        end()
    return found


def post_mortem(on: bool = True) -> None:
    """Pause where an endpoint raises, with its frames, before its caller hears; or no more.

    For all ranks of the session, until it is off again. The exception is answered when the pause
    ends, whatever was done in it.

    Raises:
        DebugError: nothing was spawned yet.
    """
    _desk().keep_failures(on)


def open_bridge(mesh: ProcMesh | ActorMesh, say: Say) -> Bridge:
    """A session of the Debug Adapter Protocol with the ranks of that mesh, or slice of one.

    What an editor says is given to `Bridge.said`, and `say` is called with what it is to be told,
    as dictionaries, on any thread. Each rank is a thread of the session. debugpy has to be
    installed where the ranks run; it is loaded there now, and taken out when the bridge is closed.

    Raises:
        DebugError: some of these ranks have no debugger; it says why.
    """
    uid, ranks = procs_of(mesh)
    running = current_session()
    ref = None if running is None else running.runtime.known.ref(uid)
    if running is None or ref is None:
        raise DebugError("that mesh has ended, or is not of this session")
    found = [
        BridgedRank(f"{ref.name}{at_text(dict(ref.extent.point_of_rank(rank)))}", uid, rank)
        for rank in ranks
    ]
    return Bridge(line_of(running.runtime), found, say).open()


def post(what: int, rank: WaitingRank, text: str, on_answer: Callable[[Any], None]) -> None:
    """For front ends that must not wait: `on_answer` is called on the thread that receives."""
    _desk().post(what, rank, text, on_answer)


def _chosen(which: Any, found: Iterable[WaitingRank]) -> list[WaitingRank]:
    if isinstance(which, WaitingRank):
        return [which]
    if isinstance(which, (str, Selection)):
        selection = parse_named(which) if isinstance(which, str) else which
        return [one for one in found if one.is_in(selection)]
    return list(which)


def _not_one(which: object, found: list[WaitingRank]) -> str:
    asked = "" if which is None else f" on {which}"
    if not found:
        known = {mesh.name for mesh in owned_meshes()}
        there = f"; meshes are {', '.join(sorted(known))}" if known else ""
        return f"{NOTHING}{asked}{there}"
    first = ", ".join(str(one) for one in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{len(found)} wait{asked}: {first}{more}; name one, or use cast"


def _desk_or_none() -> DebugCommands | None:
    running = current_session()
    if running is None or running.lost is not None:
        return None
    return DebugCommands(line_of(running.runtime))


def _desk() -> DebugCommands:
    desk = _desk_or_none()
    if desk is None:
        raise DebugError("there is no session here: nothing was spawned, or its host is gone")
    return desk
