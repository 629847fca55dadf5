"""Reloads edited modules in the kernel and on every rank before each cell.

Runs in: the kernel's main thread. On ranks an actor reloads; it is spawned beside the
actors of a mesh, never as the first one, whose thread receives signals.
Invariants: a version of a file that fails to load is reported once. A rank that does not answer
delays a cell by at most `PATIENCE` seconds, once; it gets no request before it has answered.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from monarch import frontend, observe
from monarch.actor import Actor, ActorError, ActorMesh, Future, ProcMesh, SupervisionError
from monarch.frontend import (
    ModuleReloader,
    RankReloader,
    Reload,
    Stamp,
    name_ranks,
    source_file,
)
from monarch_jupyter.errors import one_line

ACTOR_NAME = "reloader"
PATIENCE = 2.0
"""Seconds that a cell waits for all ranks together."""
SYNC_PATIENCE = 30.0
"""Seconds that a cell waits until hosts have the edited files of a workspace."""

Point = Mapping[str, int]
Known = tuple[dict[str, Stamp], float]
"""Versions of the loaded files, and the time of the check in seconds since 1970."""


@dataclass
class _Ranks:
    """The ranks of one mesh: the actors that reload on them, and open requests."""

    parts: list[ActorMesh]
    pending: list[tuple[ActorMesh, Future[Any]]] = field(default_factory=list[Any])


class Autoreload:
    """Reloads edited modules everywhere at each `reload_edited`; `say` reports errors."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._local = ModuleReloader()
        self._local.mark_loaded()
        self._ranks: dict[str, _Ranks] = {}
        self._reported: set[object] = set()

    def reload_edited(
        self, names: MutableMapping[str, object] | None = None, *, here: bool = True
    ) -> list[Reload]:
        """Reload modules edited since the last call; return those of this process.

        `names`: variables that may refer to functions or classes of a module. Without `here`,
        another reloader, such as IPython's, reloads in this process.
        """
        known = (self._local.stamps, self._local.since)
        found: list[Reload] = []
        if here:
            found = self._local.reload_edited(
                [cast("dict[str, Any]", names)] if names is not None else []
            )
        else:
            self._local.mark_loaded()
        problems: dict[tuple[str, str], list[str]] = {}
        for one in found:
            if one.error is not None:
                problems[one.module, one.error] = ["here"]
        self._send_edited()
        deadline = time.monotonic() + PATIENCE
        meshes = observe.meshes()
        self._drop_ended(meshes)
        asked = [mesh for mesh in meshes if self._request_reload(mesh, known)]
        for mesh in asked:
            self._collect(mesh, problems, deadline)
        for (module, error), places in problems.items():
            where = " and on ".join(places) if places[0] == "here" else f"on {' and '.join(places)}"
            self._say(
                f"monarch: {module} can't be reloaded {where}: {error}; the old code stays in use"
            )
        self._update_actors(deadline)
        return found

    def _send_edited(self) -> None:
        """Send edited files to the hosts that have copies of them."""
        for sent in frontend.edited_workspaces():
            try:
                sent.get(SYNC_PATIENCE)
            except (OSError, ValueError, RuntimeError, ActorError, SupervisionError) as error:
                self._report_once(("sync", str(error)), f"edited files are not sent: {error}")

    def close(self) -> None:
        """Stop the actors on ranks. An error means that they have ended already."""
        for ranks in self._ranks.values():
            for part in ranks.parts:
                try:
                    part.stop("autoreload is off")
                except (RuntimeError, ValueError, SupervisionError):
                    continue  # its mesh, or the actor mesh it is part of, has stopped
        self._ranks.clear()

    def _drop_ended(self, meshes: Sequence[ProcMesh]) -> None:
        live = {mesh.uid for mesh in meshes}
        for uid in [uid for uid in self._ranks if uid not in live]:
            del self._ranks[uid]

    def _request_reload(self, mesh: ProcMesh, known: Known) -> bool:
        """Request a reload on a mesh; return whether an answer will come."""
        ranks = self._ranks.get(mesh.uid)
        if ranks is None:
            if not mesh.actor_names:
                return False
            parts = adopted.pop(mesh.uid, None) or self._spawn(mesh, known)
            ranks = self._ranks[mesh.uid] = _Ranks(parts)
        if not ranks.pending:
            ranks.pending = [(part, part.reload_edited.call()) for part in ranks.parts]
        return True

    def _spawn(self, mesh: ProcMesh, known: Known) -> list[ActorMesh]:
        try:
            whole = mesh.spawn(ACTOR_NAME, RankReloader, *known)
        except SupervisionError:
            places = [mesh.slice(**point) for point in _living_points(mesh)]
            spawned = [one.spawn(ACTOR_NAME, RankReloader, *known) for one in places]
            return [cast("ActorMesh", one) for one in spawned]
        return [cast("ActorMesh", whole)]

    def _collect(
        self, mesh: ProcMesh, problems: dict[tuple[str, str], list[str]], deadline: float
    ) -> None:
        ranks = self._ranks[mesh.uid]
        failed: dict[tuple[str, str], list[Point]] = {}
        late: list[tuple[ActorMesh, Future[Any]]] = []
        while ranks.pending:
            part, future = ranks.pending.pop()
            try:
                answers = future.get(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                late.append((part, future))
                continue
            except SupervisionError:
                # A rank has died; the others get requests one by one from now on.
                ranks.parts.remove(part)
                if len(part) > 1:
                    split = [part.slice(**point) for point in _living_points(mesh)]
                    ranks.parts += split
                    ranks.pending += [(one, one.reload_edited.call()) for one in split]
                continue
            for point, found in answers.items():
                for one in cast("list[Reload]", found):
                    if one.error is not None:
                        failed.setdefault((one.module, one.error), []).append(point)
        ranks.pending = late
        for what, points in failed.items():
            named = name_ranks(points)
            problems.setdefault(what, []).append(f"{mesh.name}[{named}]" if named else mesh.name)
        if late:
            text = f"{mesh.name} is busy; it reloads edited modules when it is free"
            self._report_once((mesh.uid, "late", id(late[0][1])), text)

    def _update_actors(self, deadline: float) -> None:
        """Give live actors of a reloaded class the new class."""
        for mesh in frontend.actor_meshes():
            old = frontend.actor_class_of(mesh)
            new = _current_class(old)
            if new is old or (mesh.uid, id(new)) in self._reported:
                continue
            try:
                frontend.update_actors(mesh, new, timeout=max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                text = f"{mesh.name} is busy; its actors run the new {new.__name__} when it is not"
                self._report_once((mesh.uid, "busy", id(new)), text)
            except (ActorError, SupervisionError, ValueError, TypeError) as error:
                self._reported.add((mesh.uid, id(new)))
                self._report_once(
                    (mesh.uid, str(error)), f"{mesh.name} keeps the old {new.__name__}: {error}"
                )

    def _report_once(self, what: object, text: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            self._say(f"monarch: {one_line(text)}")


# By uid of a mesh: the reloading actors that another kernel spawned.
adopted: dict[str, list[ActorMesh]] = {}


def adopt(mesh: ActorMesh) -> bool:
    """Use the reloading actors of another kernel; return whether `mesh` is such."""
    target = frontend.call_target_of(mesh)
    if target.name != ACTOR_NAME or target.class_name != RankReloader.__monarch_label__:
        return False
    adopted.setdefault(f"{target.procs.uid:x}", []).append(mesh)
    return True


def _rows(mesh: ProcMesh) -> Sequence[observe.RankRow]:
    return next((seen.rows for seen in observe.snapshot() if seen.uid == mesh.uid), ())


def _living_points(mesh: ProcMesh) -> list[dict[str, int]]:
    return [row.point for row in _rows(mesh) if row.state != "failed"]


def _current_class(cls: type[Actor]) -> type[Actor]:
    """The class that its module has under its name now, or `cls` if that was not reloaded."""
    module: Any = sys.modules.get(cls.__module__)
    if source_file(module) is None or cls.__module__ == "__main__":
        return cls
    found = module
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Actor) else cls
