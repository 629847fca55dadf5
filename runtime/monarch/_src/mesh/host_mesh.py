"""HostMesh: hosts on which processes are spawned. Today: this host.

Runs in: the client and procs; both ask the host agent of their host.
"""

from __future__ import annotations

import errno
import os
import site
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from monarch._src.actor.context import current, set_proc_maker
from monarch._src.actor.future import Future
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.runtime import Runtime, runtime, runtime_or_none
from monarch._src.actor.texts import name_text
from monarch._src.config import for_new_procs, module_names, settings
from monarch._src.core.ids import AGENT, parse_proc_node
from monarch._src.errors import RankFailure, SupervisionError
from monarch._src.mesh.proc_mesh import (
    ProcMesh,
    Procs,
    owned_meshes,
    proc_bootstrapped,
    proc_ready,
    procs_to_come,
    remember,
)
from monarch._src.mesh.process_options import (
    BootstrapCommand,
    BootstrapFunction,
    PerRank,
    bootstrap_payload,
    commands_for,
    env_for,
    is_this_python,
    proc_bind_for,
)
from monarch._src.mesh.session import allow_cleanup, session_for_client, shutdown_context
from monarch._src.proc.system import free_descriptors, raise_fd_limit
from monarch._src.shape import Extent, MeshTrait, NDSlice, Region
from monarch._src.wire.messages import Bootstrap, SpawnProcs

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
        bootstrap: BootstrapFunction | None = None,
        name: str | None = None,
        proc_bind: Sequence[Mapping[str, str]] | None = None,
        bootstrap_command: PerRank[BootstrapCommand] | None = None,
        *,
        env: PerRank[Mapping[str, str]] | None = None,
        preload: Sequence[str] | None = None,
    ) -> ProcMesh:
        """Start processes; returns at once, and calls wait until they are up.

        Args:
            per_host: dims and sizes, as in `{"gpus": 8}`; one process without dims if None.
            bootstrap: a function without arguments, `def` or `async def`, that each process runs
                before any actor; `current_rank()` in it is the process's place. One that raises is
                told as a constructor's error is, and its process takes no actors.
            name: shown in errors and front ends; `procs` if None.
            proc_bind: a dict for each process of a host. `cpus` is text such as `"0-3,8"`, the only
                cpus that it may run on; `cpunodebind`, `membind` and `physcpubind` are given to
                `numactl`, which then has to be installed. `cpus` is applied last. `{}`: unbound.
            bootstrap_command: what is executed for a process, or a function of its `Point` that
                says so. It has to end in what `default_bootstrap_cmd()` runs.
            env: added to the environment of each process, or a function of its `Point` that gives
                that. What Python or the loader reads as it begins (`PYTHON...`, `LD_...`) works
                too, at the price of a start of Python; what a preloaded module has read does not.
                A mesh whose only dim is `gpus`, on a host with at least as many NVIDIA devices,
                gives each process its own by `CUDA_VISIBLE_DEVICES`, unless that is set here, in
                the command or in this process.
            preload: modules to have imported before a process exists; default is the setting.

        Raises:
            ValueError: a dim that is no identifier, or a size below 1; a `proc_bind` that this host
                cannot carry out; a program that is not there.
            TypeError: an option of the wrong type, or a `bootstrap` that cannot be pickled.
            OSError: this process has too few file descriptors left; its soft limit is raised first.
            SupervisionError: the host agent is gone.
        """
        extent = _checked_dims(per_host or {})
        modules = settings().preload if preload is None else module_names("preload", preload)
        name = "procs" if name is None else name_text("a proc mesh", name)
        region = Region.of_extent(extent)
        function = None if bootstrap is None else bootstrap_payload(bootstrap)
        affinity, numactl = proc_bind_for(proc_bind, extent)
        current_settings, set_here = settings(), for_new_procs()
        environments = env_for(env, extent)
        if set_here:
            environments = [{**set_here, **added} for added in environments or [{}]]
        commands = commands_for(bootstrap_command, self._python, environments, numactl, extent)
        run = _own_runtime()
        _make_room_for(len(region))
        ref = ProcsRef(
            run.uids(), name or "procs", tuple(region.labels), tuple(region.extent.sizes),
            run.directory, run.name, run.host,
        )  # fmt: skip
        procs = Procs(ref, region, owned=True, cleanup_s=current_settings.cleanup_s)
        allow_cleanup(procs.cleanup_s)
        procs.initialized = run.new_future()
        procs.bootstrapped = None if function is None else set()
        mesh = ProcMesh(run, procs, region, self)
        spec = SpawnProcs(
            mesh=ref.uid,
            name=ref.name,
            labels=list(ref.labels),
            sizes=list(ref.sizes),
            owner=run.name,
            owner_address=run.node.address,
            env=environments,
            cwd=_cwd(),
            path=_import_path(all(c is None or is_this_python(c.program) for c in commands)),
            preload=list(modules),
            startup_s=current_settings.startup_s,
            cleanup_s=current_settings.cleanup_s,
            commands=[None if c is None else c.command for c in commands],
            affinity=affinity,
            bootstrap=function is not None,
        )
        run.on_proc_ready, run.ends.on_bootstrapped = proc_ready, proc_bootstrapped
        run.known.learn(ref)
        for rank in region.ranks():
            run.node.expect(ref.node(rank))
        context = current.get()
        run.ends.own(ref.uid, 0 if context is None else context.actor_instance.actor_id.uid)
        remember(mesh, spec)
        if not run.node.send(AGENT, spec):
            lost = RankFailure(
                ref.name, 0, {}, "", None, run.host, None, "host lost", "",
                "the host agent has ended; the next this_host() starts a new one",
            )  # fmt: skip
            raise SupervisionError(failures=[lost])
        if function is not None:
            for rank in region.ranks():
                run.node.send(ref.node(rank), Bootstrap(), function)
        return mesh

    def stop(self) -> Future[None]:
        """End every process that this program started on these hosts; the hosts can be used again.

        Idempotent. Done when all of them are gone.
        """
        run = runtime_or_none()
        if run is None:
            return Future[None].of(None)
        for mesh in owned_meshes():
            mesh.stop("its host mesh was stopped")
        return _when_all_done(run, run.ends.stops())

    def shutdown(self) -> Future[None]:
        """End everything that this client started on these hosts, and their agents. Idempotent.

        Everything is gone when this returns; the future, like that of `stop`, is there to be
        awaited.
        """
        shutdown_context("the host mesh was shut down")
        return Future[None].of(None)

    async def __aenter__(self) -> HostMesh:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __reduce__(self) -> tuple[Any, ...]:
        return HostMesh, (self._region, self._python)

    def __repr__(self) -> str:
        run = runtime_or_none()
        return f"<HostMesh {self._region.extent} {run.host if run else 'this host'}>"


def _when_all_done(run: Runtime, futures: Sequence[Future[None]]) -> Future[None]:
    done: Future[None] = run.new_future()

    def look() -> None:
        if all(future.done for future in futures):
            done.settle(lambda: None)

    for future in futures:
        future.on_done(look)
    look()
    return done


def this_host() -> HostMesh:
    """The host this code runs on, as a mesh without dims."""
    return HostMesh(Region.of_extent(Extent((), ())))


def this_proc() -> ProcMesh:
    """The process that asks, as a mesh of one without dims: actors spawned on it live next door."""
    run = _own_runtime()
    ref = run.proc_ref or run.client_ref
    assert ref is not None
    return _one_proc(ref, run.name)


def _one_proc(ref: ProcsRef, node: str) -> ProcMesh:
    run = runtime()
    place = parse_proc_node(node)
    region = Region((), NDSlice(offset=0 if place is None else place[1], sizes=(), strides=()))
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


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"  # the client's own directory is gone


def _import_path(same_python: bool) -> list[str]:
    """Where this process imports from, so that procs find the same modules."""
    here = _cwd()
    path = [os.path.abspath(os.path.join(here, p)) for p in sys.path]
    if not same_python:
        # Another interpreter has a library of its own; a command may end in another.
        owned = {os.path.dirname(os.__file__), *site.getsitepackages()}
        zipped = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
        path = [
            p
            for p in path
            if os.path.basename(p) != zipped
            and not any(p == o or p.startswith(o + os.sep) for o in owned)
        ]
    return list(dict.fromkeys(path))


set_proc_maker(lambda ref, node: this_proc() if ref is None else _one_proc(ref, node))
