"""`HostMesh.sync_workspace`: the directories of a program on every host, kept equal to the local.

Runs in: the client, as a coroutine. A proc on each host makes the copy; it is there only while
files are sent.
Owns: for each mesh of hosts, the workspace that it was given last.
Invariants: no host changes its copy before all hosts have all contents.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monarch._src.actor.background import deferred
from monarch._src.actor.future import Future
from monarch._src.actor.runtime import runtime
from monarch._src.errors import MeshStoppedError, SupervisionError
from monarch._src.mesh.hosts import sites_of
from monarch._src.mesh.meshes import HostMesh, ProcMesh, owned_meshes, shared_procs
from monarch._src.mesh.spawning import check_attached
from monarch._src.mesh.workspaces import PathLike, Workspace, WorkspaceSync
from monarch._src.shape import ValueMesh
from monarch._src.workspace.module_reload import Reload
from monarch._src.workspace.rank_actors import HostCopy, RankWorkspace
from monarch._src.workspace.scan import (
    FileChangedError,
    batches,
    directories,
    import_directories,
    scan,
)
from monarch._src.workspace.state.manifest import Changes, File, Manifest

NAME = "workspace"
SCANS = 3
RANKS_S = 30.0
"""How long busy ranks may take to hear of edited files, in seconds."""

log = logging.getLogger("monarch.workspace")
_given: dict[tuple[str, ...], tuple[HostMesh, Workspace, Manifest]] = {}
"""By the sites of a mesh of hosts: what it was given last."""
_on_ranks: dict[int, Any] = {}
"""By uid of a mesh of procs: its `RankWorkspace` actors."""
_under_way: set[str] = set()
"""The sites that are being given a workspace."""


def sync_workspace(
    hosts: HostMesh, workspace: Workspace | PathLike | Sequence[PathLike], *, reload: bool
) -> Future[WorkspaceSync]:
    """See `HostMesh.sync_workspace`."""
    asked = Workspace.of(workspace)
    if runtime().proc_ref is not None:
        raise RuntimeError(
            "sync_workspace is for the program that attached to the hosts, whose directories it "
            "copies; this is an actor, on a host that has such a copy"
        )
    future = deferred(_sync(hosts, asked, reload=reload))
    future.on_done(lambda: None)  # begins it
    return future


def edited_workspaces() -> list[Future[WorkspaceSync]]:
    """Give each mesh of hosts its workspace again, if files of that have changed since."""
    found: list[Future[WorkspaceSync]] = []
    for sites, (hosts, workspace, given) in list(_given.items()):
        try:
            check_attached(runtime(), sites)
            manifest, _ = scan(workspace)
        except MeshStoppedError:
            del _given[sites]
            continue
        except (OSError, ValueError) as error:
            log.warning("the workspace is not sent to %s: %s", ", ".join(hosts.hosts), error)
            continue
        if manifest != given:
            found.append(sync_workspace(hosts, workspace, reload=False))
    return found


async def _sync(hosts: HostMesh, workspace: Workspace, *, reload: bool) -> WorkspaceSync:
    sites = sites_of(hosts)
    if not sites:
        manifest, _ = scan(workspace)
        return WorkspaceSync(0, len(_files(manifest)), 0, 0, 0, 0)
    if _under_way.intersection(sites):
        raise RuntimeError("these hosts are being given a workspace already; wait for that")
    _under_way.update(sites)
    try:
        return await _give(hosts, sites, workspace, reload=reload)
    finally:
        _under_way.difference_update(sites)


async def _give(
    hosts: HostMesh, sites: Sequence[str], workspace: Workspace, *, reload: bool
) -> WorkspaceSync:
    manifest, files = scan(workspace)
    ranks = await _ranks_of(sites)
    procs = hosts.spawn_procs(name=NAME, preload=())
    try:
        copies = procs.spawn(NAME, HostCopy)
        sent: dict[str, int] = {}
        for attempt in range(SCANS):
            sent.clear()
            lacking = await copies.compare.call(manifest)
            try:
                await _send(copies, manifest, files, lacking, sent)
                break
            except FileChangedError as error:
                if attempt == SCANS - 1:
                    raise RuntimeError(
                        f"{error} changes while it is sent, {SCANS} times now; leave it out of "
                        'the workspace, by Workspace(..., exclude=["..."])'
                    ) from None
                manifest, files = scan(workspace)
        made = await copies.commit.call(
            list(directories(workspace)), import_directories(workspace, manifest)
        )
    finally:
        await procs.stop("the workspace has been copied")
    _given[tuple(sites)] = (hosts, workspace, manifest)
    problems = await _tell_ranks(ranks, reload=reload)
    changed: list[Changes] = list(made.values())
    return WorkspaceSync(
        len(sites), len(_files(manifest)), len(sent), sum(sent.values()),
        len({path for one in changed for path in (*one.make, *one.write)}),
        len({path for one in changed for path in one.remove}), tuple(problems),
    )  # fmt: skip


def _files(manifest: Manifest) -> dict[str, File]:
    return {path: entry for path, entry in manifest.items() if isinstance(entry, File)}


async def _send(
    copies: Any, manifest: Manifest, files: Mapping[str, Path],
    lacking: ValueMesh[list[str]], sent: dict[str, int],
) -> None:  # fmt: skip
    """Send each host what it lacks. Hosts that lack the same get the same messages."""
    groups: dict[tuple[str, ...], list[Any]] = {}
    for point, digests in lacking.items():
        groups.setdefault(tuple(digests), []).append(point)
    source = {entry.digest: files[path] for path, entry in _files(manifest).items()}
    for digests, points in groups.items():
        if not digests:
            continue
        whole = len(points) == len(lacking)
        targets = [copies] if whole else [copies.slice(**point) for point in points]
        sent.update(dict.fromkeys(digests, 0))
        for batch in batches(digests, source):
            for digest, piece in batch:
                sent[digest] += len(piece)
            await asyncio.gather(*(target.receive.call(batch) for target in targets))


# --- ranks that run already -----------------------------------------------------------------------


async def _ranks_of(sites: Sequence[str]) -> list[tuple[ProcMesh, Any]]:
    """The meshes on these hosts, each with actors that know which modules it has loaded."""
    found: list[tuple[ProcMesh, Any]] = []
    for mesh in owned_meshes():
        procs = shared_procs(mesh)
        if mesh.stopped or not set(procs.ref.places).intersection(sites):
            continue
        actors = _on_ranks.get(procs.ref.uid)
        if actors is None:
            try:
                actors = mesh.spawn(NAME, RankWorkspace)
                await asyncio.wait_for(actors.initialized.as_asyncio(), RANKS_S)
            except (SupervisionError, TimeoutError, asyncio.TimeoutError) as error:
                log.warning("%s does not hear of the workspace: %s", mesh.name, error)
                continue
            _on_ranks[procs.ref.uid] = actors
        found.append((mesh, actors))
    return found


async def _tell_ranks(ranks: Sequence[tuple[ProcMesh, Any]], *, reload: bool) -> list[str]:
    """Have these ranks use the copy; returns problems, a line each."""
    problems: list[str] = []
    for mesh, actors in ranks:
        try:
            answers = await asyncio.wait_for(actors.use_copy.call(reload).as_asyncio(), RANKS_S)
        except (TimeoutError, asyncio.TimeoutError):
            problems.append(f"{mesh.name} is busy; it uses the new files when it is free")
        except SupervisionError as error:
            problems.append(f"{mesh.name}: {error}")
        else:
            failed: dict[tuple[str, str], None] = {}
            reloads: list[Reload] = [one for found in answers.values() for one in found]
            failed.update({(one.module, one.error): None for one in reloads if one.error})
            problems += [
                f"{module} can't be reloaded on {mesh.name}: {error}; the old code stays in use"
                for module, error in failed
            ]
    return problems
