"""Carries out requests of pages: end, inspect, spawn, attach, read lines, debug paused ranks.

Runs in: the kernel. `handle` may be called from any thread, comm handlers included: it returns at
once. Each request runs on a thread of its own, so that neither a slow request nor a running cell
delays the others.
Owns: those threads, and the consoles that pages have opened.
Invariants: every request gets one answer: a result, or an error in one line.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, MutableMapping

from monarch import observe, session
from monarch.actor import ProcMesh
from monarch.debug import DebugError
from monarch.frontend import endpoint_text, name_point, name_ranks
from monarch_jupyter.actions.attach import attach, bind
from monarch_jupyter.actions.restart_ranks import restart_parts
from monarch_jupyter.actions.spawn import check_free, restart, spawn
from monarch_jupyter.actions.stacks import stacks
from monarch_jupyter.debugger.consoles import Consoles, resume
from monarch_jupyter.errors import CommandError, one_line
from monarch_jupyter.lines.log_store import shared_store
from monarch_jupyter.meshes.survivors import selection_text, slices_of
from monarch_jupyter.page.usage import USAGE
from monarch_jupyter.protocol import requests
from monarch_jupyter.protocol.answers import (
    ActorsMessage,
    actors_message,
    session_message,
    timeline_message,
)
from monarch_jupyter.protocol.lines import PAGE, LinesMessage, lines_message
from monarch_jupyter.protocol.requests import Request, parse_request
from monarch_jupyter.rendering.lines import LogPage
from monarch_jupyter.rendering.units import count

logger = logging.getLogger("monarch.jupyter.requests")

END_TIMEOUT = 5.0
BACK = "JupyterLab's debugger is on the kernel"

Reply = Callable[[str | None, object], None]
"""Receives the answer: an error in one line, or None and the result."""


class RequestHandler:
    """Serves the pages of one kernel; `namespace` is where meshes are bound."""

    def __init__(self, namespace: MutableMapping[str, object]) -> None:
        self._namespace = namespace
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()  # guarded by _lock
        self._consoles = Consoles()

    def handle(self, content: object, reply: Reply) -> None:
        """Carry out the request in `content`, and `reply`, on a thread of its own."""
        thread = threading.Thread(
            target=self._serve, args=(content, reply), name="monarch-desk", daemon=True
        )
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def close(self) -> None:
        """Close all consoles; wait up to `END_TIMEOUT` seconds for each request. Idempotent."""
        self._consoles.close()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(END_TIMEOUT)

    def _serve(self, content: object, reply: Reply) -> None:
        problem: str | None = None
        result: object = None
        try:
            result = self._do(parse_request(content))
        except CommandError as error:
            problem = str(error)
        except Exception as error:
            # The page gets the error; the kernel and the other pages go on.
            logger.debug("a page's request failed", exc_info=True)
            problem = one_line(f"{type(error).__name__}: {error}")
        try:
            reply(problem, result)
        except Exception:  # the page was closed, or the kernel ends
            logger.warning("an answer could not be sent to its page", exc_info=True)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _do(self, request: Request) -> object:
        match request:
            case requests.StopRanks():
                return end(request)
            case requests.ShowStacks(mesh, ranks):
                return stack_text(_mesh(mesh), ranks)
            case requests.InspectActors(mesh, rank):
                return inspect_actors(_mesh(mesh), rank)
            case requests.ReadUsage(mesh, after):
                return USAGE.message(mesh, after)
            case requests.ReadTimeline(mesh, after_s):
                return timeline_message(observe.timeline(_mesh(mesh), after_s), time.time())
            case requests.Restart(mesh, ranks):
                if ranks is None:
                    return restart(_mesh(mesh), self._namespace)
                return restart_some(_mesh(mesh), ranks)
            case requests.DebugInLab(mesh, ranks):
                return debug_rank_in_lab(_mesh(mesh), ranks)
            case requests.Lines():
                return lines(request)
            case requests.Spawn(name, sizes, keep):
                return self._spawn(name, sizes, keep)
            case requests.Attach(name):
                return self._attach(name)
            case requests.ListSessions():
                return {"sessions": [session_message(one) for one in session.sessions()]}
            case requests.OpenConsole(mesh, rank):
                return self._consoles.open(_mesh(mesh), rank)
            case requests.Resume(mesh, ranks):
                return resume(_mesh(mesh), ranks)
            case requests.SendCommand(console, text):
                return self._consoles.send(console, text)
            case requests.Complete(console, text):
                return self._consoles.complete(console, text)
            case requests.Standing(console):
                return self._consoles.standing(console)
            case requests.CloseConsole(console):
                return self._consoles.close_console(console)

    def _spawn(self, name: str, sizes: dict[str, int], keep: bool) -> str:
        check_free(name, self._namespace)
        mesh = spawn(name, sizes, keep=keep)
        self._namespace[name] = mesh
        return f"{name} is bound in the notebook, {count(len(mesh), 'rank')}"

    def _attach(self, name: str) -> str:
        found = attach(name)
        said = [bind(mesh, self._namespace) for mesh in (*found.proc_meshes, *found.actor_meshes)]
        return f"attached to {found.name}: {'; '.join(filter(None, said))}"


def _mesh(uid: str) -> ProcMesh:
    for mesh in observe.meshes():
        if mesh.uid == uid:
            return mesh
    raise CommandError("this mesh has ended")


def _one(mesh: ProcMesh, rank: int) -> ProcMesh:
    point = mesh.extent.point_of_rank(rank)
    return mesh.slice(**point) if point else mesh


def end(request: requests.StopRanks) -> str:
    """Stop or kill a mesh or ranks of it; return one line about the result."""
    mesh = _mesh(request.mesh)
    if request.ranks is None:
        ending = (mesh.kill if request.kill else mesh.stop)("ended from the page")
        ending.get()
        verb = "killed" if request.kill else "stopped"
        return f"{verb} {mesh.name}: {count(len(mesh), 'process has', 'processes have')} ended"
    points = [dict(mesh.extent.point_of_rank(rank)) for rank in request.ranks]
    where = name_ranks(points) or mesh.name
    if request.kill:
        if not observe.kill_procs(mesh, request.ranks):
            raise CommandError(f"{where} has no process any more")
        return f"killed the process of {where}"
    calls = observe.cancel_on(mesh, request.ranks)
    if not calls:
        raise CommandError(
            f"{where} runs no call of this kernel; kill its process to end what it runs"
        )
    first, *rest = calls
    behind = f" and {count(len(rest), 'call')} behind it" if rest else ""
    return f"asked {where} to end {endpoint_text(first.actor_class, first.endpoint)}{behind}"


def restart_some(mesh: ProcMesh, ranks: tuple[int, ...]) -> str:
    """Start these ranks again in their places; return the lines of `%monarch restart`."""
    if not ranks or not all(0 <= rank < len(mesh) for rank in ranks):
        raise CommandError(f"{mesh.name} has no such ranks: {list(ranks)}")
    if not mesh.sizes:
        return restart_parts({mesh.name: mesh})
    points = [dict(mesh.extent.point_of_rank(rank)) for rank in ranks]
    slices = slices_of(mesh.sizes, points)
    return restart_parts(
        {
            f"{mesh.name}[{selection_text(one)}]": mesh.slice(
                **{dim: slice(within.start, within.stop) for dim, within in one.items()}
            )
            for one in slices
        }
    )


def stack_text(mesh: ProcMesh, ranks: tuple[int, ...]) -> str:
    """The stacks of these ranks as text."""
    (rank,) = ranks[:1]
    return str(stacks(_one(mesh, rank), idle=True))


def inspect_actors(mesh: ProcMesh, rank: int) -> ActorsMessage:
    """The actors of one rank, with their attributes."""
    where = name_point(mesh.extent.point_of_rank(rank)) or mesh.name
    try:
        return actors_message(observe.live_actors(_one(mesh, rank)))
    except (LookupError, TimeoutError) as error:
        raise CommandError(f"{where} can't be inspected: {error}") from None


def debug_rank_in_lab(mesh: ProcMesh, ranks: tuple[int, ...] | None) -> str:
    """Have JupyterLab's debugger debug the first of these ranks, or, without any, the kernel."""
    # This imports ipykernel's debugger, which is slow to load.
    from monarch_jupyter.debugger.lab import debug_in_lab, debugged_in_lab, stop_debugging_in_lab

    if not ranks:
        stop_debugging_in_lab()
        return BACK
    before = debugged_in_lab()
    if before is not None and [(one.mesh, one.rank) for one in before.ranks] == [
        (int(mesh.uid, 16), ranks[0])
    ]:
        stop_debugging_in_lab()
        return BACK
    try:
        return debug_in_lab(_one(mesh, ranks[0]), logger.info)
    except DebugError as error:
        raise CommandError(str(error)) from None


def lines(request: requests.Lines) -> LinesMessage:
    """A page of lines as the wire has it, equal ones of several ranks together."""
    store = shared_store()
    if store is None:
        raise CommandError("lines are recorded only while the extension is loaded")
    try:
        re.compile(request.grep)
    except re.error as error:
        raise CommandError(f"{request.grep} is not a regular expression: {error}") from None

    def page(number: int | None) -> LogPage:
        return store.page(
            request.mesh,
            cell=request.cell,
            ranks=request.ranks,
            grep=request.grep or None,
            page=number,
            length=PAGE,
            whole_pages=True,
        )

    try:
        return lines_message(page(request.page))
    except KeyError:  # the mesh has written nothing yet
        return lines_message(LogPage(request.mesh or "", (), 0, 0))
    except IndexError:  # old lines were dropped meanwhile
        return lines_message(page(None))
