"""HostMesh: hosts on which processes are spawned. Today: this host.

Runs in: the client and procs; both ask the host agent of their host.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from monarch._src.actor.context import current, set_proc_maker
from monarch._src.actor.runtime import ProcsRef, Runtime, runtime, runtime_or_none
from monarch._src.config import settings
from monarch._src.core.ids import AGENT
from monarch._src.errors import RankFailure, SupervisionError
from monarch._src.mesh.proc_mesh import ProcMesh, Procs, procs_to_come, remember
from monarch._src.mesh.session import session_for_client, shutdown_context
from monarch._src.proc.system import free_descriptors, raise_fd_limit
from monarch._src.shape import Extent, MeshTrait, NDSlice, Region
from monarch._src.wire.messages import SpawnProcs

MOST_PROCS = 1 << 16
SPARE_FDS = 16


class HostMesh(MeshTrait):
    """A mesh of hosts. `this_host()` has no dims: procs on it have those of `per_host`."""

    def __init__(self, region: Region, python: str = "") -> None:
        self._region = region
        self._python = python

    def _new_with_region(self, region: Region) -> HostMesh:
        return HostMesh(region, self._python)

    def with_python_executable(self, path: str | os.PathLike[str]) -> HostMesh:
        """The same hosts, whose procs run under another Python interpreter.

        Args:
            path: an interpreter that has monarch-jupyter of the same version installed.
        """
        return HostMesh(self._region, os.fspath(path))

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        name: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
        preload: Sequence[str] | None = None,
    ) -> ProcMesh:
        """Start processes; returns at once, and calls wait until they are up.

        Args:
            per_host: dims and sizes, as in `{"gpus": 8}`; one process without dims if None.
            name: shown in errors and front ends; `procs` if None.
            env: added to the environment of each process.
            preload: modules to have imported before a process exists; default is the setting.

        Raises:
            ValueError: a dim that is no identifier, or a size below 1.
            OSError: this process has too few file descriptors left; its soft limit is raised first.
            SupervisionError: the host agent is gone.
        """
        region = Region.of_extent(_checked_dims(per_host or {}))
        run = _own_runtime()
        _make_room_for(len(region))
        current_settings = settings()
        ref = ProcsRef(
            run.uids(), name or "procs", tuple(region.labels), tuple(region.extent.sizes),
            run.directory, run.name, run.host,
        )  # fmt: skip
        procs = Procs(ref, region, owned=True)
        procs.initialized = run.new_future()
        mesh = ProcMesh(run, procs, region, self)
        spec = SpawnProcs(
            mesh=ref.uid,
            name=ref.name,
            labels=list(ref.labels),
            sizes=list(ref.sizes),
            owner=run.name,
            owner_address=run.node.address,
            env=[_checked_env(env)] if env else [],
            cwd=_cwd(),
            path=_import_path(self._python),
            preload=list(current_settings.preload if preload is None else preload),
            python=self._python,
            startup_s=current_settings.startup_s,
            cleanup_s=current_settings.cleanup_s,
        )
        run.learn(ref)
        for rank in region.ranks():
            run.node.expect(ref.node(rank))
        context = current.get()
        run.own(ref.uid, 0 if context is None else context.actor_instance.actor_id.uid)
        remember(mesh, spec)
        if not run.node.send(AGENT, spec):
            lost = RankFailure(
                ref.name, 0, {}, "", None, run.host, None, "host lost", "",
                "the host agent has ended; the next this_host() starts a new one",
            )  # fmt: skip
            raise SupervisionError(failures=[lost])
        return mesh

    def shutdown(self) -> None:
        """End everything on this host that this client started. Idempotent."""
        shutdown_context("the host mesh was shut down")

    def __reduce__(self) -> tuple[Any, ...]:
        return HostMesh, (self._region, self._python)

    def __repr__(self) -> str:
        run = runtime_or_none()
        return f"<HostMesh {self._region.extent} {run.host if run else 'this host'}>"


def this_host() -> HostMesh:
    """The host this code runs on, as a mesh without dims."""
    return HostMesh(Region.of_extent(Extent((), ())))


def this_proc() -> ProcMesh:
    """The process that asks, as a mesh of one without dims: actors spawned on it live next door."""
    run = _own_runtime()
    ref = run.proc_ref or run.client_ref
    assert ref is not None
    return _one_proc(ref)


def _one_proc(ref: ProcsRef) -> ProcMesh:
    run = runtime()
    region = Region((), NDSlice(offset=max(run.rank, 0), sizes=(), strides=()))
    return ProcMesh(run, Procs(ref, Region.of_extent(ref.extent), owned=False), region)


def _own_runtime() -> Runtime:
    """This process's runtime; in a client, one whose host agent lives."""
    session_for_client()
    return runtime()


def _make_room_for(count: int) -> None:
    # Each process connects to this one. ZeroMQ ends a process that has no descriptor for that.
    needed = count + procs_to_come() + SPARE_FDS
    if free_descriptors() < needed:
        limit = raise_fd_limit()
        free = free_descriptors()
        if free < needed:
            raise OSError(
                errno.EMFILE,
                f"out of file descriptors: {count} new processes need one each here, and "
                f"{free} are free (its limit is {limit}); raise the hard limit "
                "(`ulimit -Hn`) or spawn fewer",
            )


def _checked_dims(per_host: Mapping[str, int]) -> Extent:
    count = 1
    for dim, size in per_host.items():
        if not isinstance(dim, str) or not dim.isidentifier():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"{dim!r} is no name for a dim; use a Python identifier, such as gpus")
        if not isinstance(size, int) or isinstance(size, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{dim}={size!r}: give a whole number of processes")
        if size < 1:
            raise ValueError(f"{dim}={size}: a mesh needs at least one process in each dim")
        count *= size
    if count > MOST_PROCS:
        raise ValueError(f"{count} processes on one host; the most is {MOST_PROCS}")
    return Extent(tuple(per_host), tuple(per_host.values()))


def _checked_env(env: Mapping[str, str]) -> dict[str, str]:
    for key, value in env.items():
        if not isinstance(key, str) or not isinstance(value, str) or not key or "=" in key:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"env {key!r}={value!r}: names and values are text, names without '='")
    return dict(env)


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"  # the client's own directory is gone


def _import_path(python: str) -> list[str]:
    """Where this process imports from, so that procs find the same modules."""
    here = _cwd()
    path = [os.path.abspath(os.path.join(here, p)) for p in sys.path]
    if python and os.path.realpath(python) != os.path.realpath(sys.executable):
        # Another interpreter has a library of its own.
        owned = (sys.prefix, sys.base_prefix)
        path = [p for p in path if not p.startswith(owned)]
    return list(dict.fromkeys(path))


set_proc_maker(lambda ref: None if ref is None else _one_proc(ref))
