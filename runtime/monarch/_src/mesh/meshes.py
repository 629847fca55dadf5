"""HostMesh and ProcMesh: hosts, and processes on them, one for each rank, that run actors.

A HostMesh spawns a ProcMesh, and a ProcMesh knows the hosts that it was spawned on, so both classes
are in this module.

Runs in: the client and procs. Both send their requests to the agents of the hosts. The process that
spawned a mesh of procs is its owner: it gets the failures of the mesh and may stop it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from monarch._src.actor.checked_names import check_may_end, name_text, reason_text
from monarch._src.actor.context import origin_now
from monarch._src.actor.endpoint import Actor
from monarch._src.actor.future import Future
from monarch._src.actor.parts import parts
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.runtime import Runtime, runtime, runtime_or_none
from monarch._src.actor.work import cancel_on_mesh
from monarch._src.config import for_new_procs, preload_names, settings
from monarch._src.errors import MeshStoppedError
from monarch._src.failures.report import at_text
from monarch._src.host.exec_proc import inherited_python
from monarch._src.mesh import procs as mesh_procs
from monarch._src.mesh.actor_mesh import check_in_reach
from monarch._src.mesh.actor_spawning import extra_payloads
from monarch._src.mesh.client import (
    KEPT_AND_RESTARTED,
    allow_cleanup,
    current_session,
    keeps_new_meshes,
    on_remote_mesh,
)
from monarch._src.mesh.client_imports import libraries
from monarch._src.mesh.hosts import OF_ALL, OF_THIS_HOST, Handle, Hosts
from monarch._src.mesh.map.methods import SpawnsMaps
from monarch._src.mesh.namespace.methods import HasNamespace
from monarch._src.mesh.output_methods import ChoosesOutput
from monarch._src.mesh.process_group_methods import HasProcessGroups
from monarch._src.mesh.procs import (
    OwnedProcs,
    Procs,
    forget,
    proc_back,
    proc_bootstrapped,
    proc_ready,
    proc_restarting,
    remember,
)
from monarch._src.mesh.rank_restarts import RestartsRanks
from monarch._src.mesh.restart_policy import Restart, restart_policy
from monarch._src.mesh.spawn_options import (
    BootstrapCommand,
    BootstrapFunction,
    PerRank,
    bootstrap_payload,
    checked_dims,
    commands_for,
    env_for,
    proc_bind_for,
)
from monarch._src.mesh.spawning import (
    SpawnArguments,
    SpawnPlan,
    check_attached,
    environments,
    make_room_for,
    own_runtime,
    send,
    when_all_done,
)
from monarch._src.mesh.tensor_methods import HasTensors
from monarch._src.mesh.workspaces import Workspace, WorkspaceSync
from monarch._src.shape import Extent, IndexedMesh, NDSlice, Region
from monarch._src.wire.ids import parse_proc_node
from monarch._src.wire.messages import (
    Bootstrap,
    SpawnProcs,
    StopMesh,
    StopProc,
)

A = TypeVar("A", bound=Actor)


class HostMesh(Hosts):
    """A mesh of hosts. `this_host()` has no dims: procs spawned on it have those of `per_host`."""

    def _new_with_region(self, region: Region) -> HostMesh:
        return HostMesh(region, self._python, self._site_source, self._name, self._handle)

    @property
    def stream_logs(self) -> bool:
        """Whether the client shows the output of procs on these hosts. Always True.

        `ProcMesh.logging_option` changes it for one mesh.
        """
        return True

    def with_python_executable(self, python_executable: str | os.PathLike[str]) -> HostMesh:
        """The same hosts, whose procs run under another Python interpreter.

        Args:
            python_executable: the path of an interpreter that has the same version of
                monarch-jupyter. A `bootstrap_command` of `spawn_procs` takes its place.
        """
        python = os.fspath(python_executable)
        return HostMesh(self._region, python, self._site_source, self._name, self._handle)

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: BootstrapFunction | None = None,
        name: str | None = None,
        proc_bind: Sequence[Mapping[str, str]] | None = None,
        bootstrap_command: PerRank[BootstrapCommand] | None = None,
        *,
        env: PerRank[Mapping[str, str]] | None = None,
        preload: Sequence[str] | Literal["auto"] | None = None,
        restart: Restart | Literal["on-failure"] | None = None,
    ) -> ProcMesh:
        """Start processes. Returns at once; calls to their actors wait until the processes are up.

        The new mesh has the dims of these hosts, then those of `per_host`. Options about programs,
        cpus and directories apply on each host. If another host cannot satisfy one, that process
        ends, and its failure says why.

        Args:
            per_host: dims and sizes, as in `{"gpus": 8}`; one process without dims if None.
            bootstrap: a function without arguments, `def` or `async def`, that each process runs
                before any actor; `current_rank()` gives the rank of the process. An error in it is
                reported as an error in a constructor is, and that process accepts no actors.
            name: shown in errors and front ends; `procs` if None.
            proc_bind: a dict for each process of a host. `cpus` is text such as `"0-3,8"`, the only
                cpus that the process may run on; `cpunodebind`, `membind` and `physcpubind` are
                given to `numactl`, which must be installed. `cpus` is applied last. `{}`: unbound.
            bootstrap_command: the command to execute for a process, or a function from its `Point`
                to a command. It must end by running `default_bootstrap_cmd()`.
            env: variables to add to the environment of each process, or a function from its `Point`
                to those. A process inherits the environment that the client has now; on a worker,
                the worker's; when an actor spawns, the one that the client's session started with.
                Variables that Python or the loader reads at startup (`PYTHON...`, `LD_...`) take
                effect, at the price of starting a Python; a variable that a module named in
                `preload` has already read does not.
                A mesh whose only dim is `gpus`, on a host with at least as many NVIDIA devices,
                gives each process its own device by `CUDA_VISIBLE_DEVICES`, unless that variable is
                set here, in the command or in this process.
            preload: modules to import before the processes are forked, once for all of them.
                "auto": what this process has imported of large libraries, such as torch, unless
                an option or `env` would make a difference to them. None: the setting `preload`,
                which is "auto" unless it is set. `()`: none.
            restart: restart a process that dies, or whose actor dies: in its place, with the same
                bootstrap function and the same constructors and arguments. `"on-failure"` means
                `Restart()` of `monarch.supervision`, which says how often, and how calls behave in
                the meantime. None: no restarts; each death is reported to the owner.

        Raises:
            ValueError: a dim that is no identifier, or a size below 1; a `proc_bind` that this host
                cannot satisfy; a program that does not exist.
            TypeError: an option of the wrong type, or a `bootstrap` that cannot be pickled.
            OSError: this process has too few file descriptors left, even after its soft limit was
                raised.
            SupervisionError: the host agent has ended.
            RuntimeError: the caller is an actor that is ending.
            MeshStoppedError: these hosts no longer belong to this client.
        """
        asked = self._validate(per_host, bootstrap, name, preload, restart)
        plan = self._plan(asked, proc_bind, bootstrap_command, env)
        mesh, spec, begin = self._register(plan)
        send(plan, shared_procs(mesh), spec, begin)
        return mesh

    def sync_workspace(
        self,
        workspace: Workspace | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        conda: bool = False,
        auto_reload: bool = False,
    ) -> Future[WorkspaceSync]:
        """Copy directories of your program to these hosts, or what has changed since.

        The call begins the copy, whether or not the future is awaited.

        Processes on these hosts then import from the copies: those that start later, and those of
        this client that run already. A copy takes the place of its directory in the import path
        and as the working directory, and `WORKSPACE_DIR` names the root of all copies. A file is
        sent to a host once, and again when its contents change. Files that you remove are removed;
        what ranks have written beside them stays. Copies end with the worker.

        On the client's own host nothing is done.

        Args:
            workspace: a directory, several, or a `Workspace`, which can leave files out.
            conda: environments are not copied; only False is taken.
            auto_reload: load edited modules again on ranks that run; instances get the new code.

        Returns:
            How many files and bytes were sent, and the modules that could not be reloaded.

        Raises:
            ValueError: `conda`; a workspace that is too large, or has two files at one path.
            TypeError: no workspace.
            RuntimeError: the caller is an actor.

        The future fails with an OSError for a directory that cannot be read, an ActorError for a
        host that cannot place the files, and a SupervisionError for a host that is lost. No copy
        changes before all hosts have all contents.
        """
        if conda:
            raise ValueError(
                "conda=True: environments are not copied to hosts. Install the packages there, by "
                "conda-pack for instance, and give only directories of your program"
            )
        return parts().sync_workspace(self, workspace, auto_reload)

    def _validate(
        self, per_host: Mapping[str, int] | None, bootstrap: BootstrapFunction | None,
        name: str | None, preload: Sequence[str] | str | None,
        restart: Restart | Literal["on-failure"] | None,
    ) -> SpawnArguments:  # fmt: skip
        """Check the arguments that need no session. Starts and changes nothing.

        Raises the exceptions of `spawn_procs`.
        """
        dims = checked_dims(per_host or {})
        region = Region.of_extent(self._with_hosts(dims))
        current_settings = settings()
        modules = current_settings.preload if preload is None else preload_names("preload", preload)
        policy = restart_policy(restart)
        if policy is not None and keeps_new_meshes():
            raise ValueError(KEPT_AND_RESTARTED.format(name or "procs"))
        name = "procs" if name is None else name_text("a proc mesh", name)
        function = None if bootstrap is None else bootstrap_payload(bootstrap)
        return SpawnArguments(
            name or "procs", dims, region, function, policy, modules, current_settings
        )

    def _plan(
        self, asked: SpawnArguments, proc_bind: Sequence[Mapping[str, str]] | None,
        bootstrap_command: PerRank[BootstrapCommand] | None, env: PerRank[Mapping[str, str]] | None,
    ) -> SpawnPlan:  # fmt: skip
        """The options of each process on these hosts. Starts a session if there is none.

        Raises the exceptions of `spawn_procs` for options that these hosts cannot satisfy.
        """
        dims, extent = asked.dims, asked.region.extent
        run = own_runtime()
        sites = self._own_sites()
        elsewhere = any(site != run.site for site in sites)
        affinity, numactl = proc_bind_for(proc_bind, dims, elsewhere=elsewhere)
        # These have an entry for each process of one host; ranks go host by host.
        affinity, numactl = affinity * max(1, len(sites)), numactl * max(1, len(sites))
        changes = environments(
            for_new_procs(), env_for(env, extent, elsewhere=elsewhere), elsewhere
        )
        commands = commands_for(
            bootstrap_command, self._python, changes, numactl, extent, elsewhere=elsewhere
        )
        if not elsewhere:
            make_room_for(len(asked.region))
        check_attached(run, sites)
        own_devices = elsewhere and tuple(dims.labels) == ("gpus",)
        return SpawnPlan(
            asked, run, sites, elsewhere, own_devices, affinity, changes, commands,
            self._place(run),
        )  # fmt: skip

    def _register(self, plan: SpawnPlan) -> tuple[ProcMesh, SpawnProcs, Bootstrap]:
        """Make the mesh of a plan, and own it; returns the mesh and the messages for its hosts."""
        ref = plan.new_ref()
        spec = plan.request_for(ref, keep=keeps_new_meshes())
        mesh = self._new_mesh(plan, ref, spec)
        # The extras are pickled before the mesh is registered, so an error leaves nothing behind.
        begin = (
            Bootstrap()
            if plan.asked.function is None
            else Bootstrap(extra_payloads(mesh), origin_now())
        )
        _own(plan.run, mesh, shared_procs(mesh))
        return mesh, spec, begin

    def _new_mesh(self, plan: SpawnPlan, ref: ProcsRef, spec: SpawnProcs) -> ProcMesh:
        """The mesh of a plan, which no process knows yet."""
        procs = Procs(ref, plan.asked.region, owned=True, cleanup_s=plan.asked.settings.cleanup_s)
        allow_cleanup(procs.cleanup_s)
        procs.initialized = plan.run.new_future()
        procs.bootstrapped = None if plan.asked.function is None else set()
        procs.kept = spec.keep
        procs.imports = libraries(spec.preload or (spec.imports.needed if spec.imports else []))
        return ProcMesh(plan.run, procs, plan.asked.region, self)

    def stop(self) -> Future[None]:
        """End every process that was spawned through this mesh or a slice of it. Idempotent.

        Processes spawned through another handle of the same workers (a second `job.state()`) go on.
        The host can be used again. Workers without other processes are released: another client, or
        this one, can attach to them by `attach_to_workers`. The future is done when all processes
        have ended. On a reference (a mesh received from another process), the processes that this
        process has spawned on these hosts end.

        Raises:
            ValueError: this is a slice of workers; release the whole mesh, or stop meshes of procs.
        """
        run = runtime_or_none()
        if run is None or self._has_failed():
            return Future[None].of(None)
        self._check_whole("stop")
        sites = set(self._sites or ("",))
        in_use: set[str] = set()
        for mesh in owned_meshes():
            places = sites.intersection(shared_procs(mesh).ref.places)
            if places and self._may_stop(mesh):
                mesh.stop("its host mesh was stopped")
            else:
                in_use |= places
        session = current_session()
        given_back = [] if session is None or session.sites is None else session.sites.let_go(
            [site for site in self._sites if site not in in_use]
        )  # fmt: skip
        return when_all_done(run, [*run.terminations.all_stopping(), *given_back])

    def _may_stop(self, mesh: ProcMesh) -> bool:
        """Whether `stop` on this mesh ends the processes of that mesh."""
        hosts = mesh.host_mesh
        theirs = None if hosts is None else hosts._handle
        return self._handle in (theirs, OF_ALL) or theirs is OF_ALL

    async def __aenter__(self) -> HostMesh:
        return self

    async def __aexit__(self, *_: object) -> None:
        """`shutdown`, as in Monarch. To leave workers running, call `stop` and use no block."""
        await self.shutdown()

    def __reduce__(self) -> tuple[Any, ...]:
        return HostMesh, (self._region, self._python, self._sites, self._name)


class ProcMesh(
    SpawnsMaps, HasNamespace, ChoosesOutput, HasProcessGroups, HasTensors,
    RestartsRanks, IndexedMesh,
):  # fmt: skip
    """A mesh of processes, on which actors are spawned. `HostMesh.spawn_procs` makes it."""

    def __init__(
        self, runtime: Runtime, procs: Procs, region: Region, host_mesh: HostMesh | None = None
    ) -> None:
        self._runtime = runtime
        self._procs = procs
        self._region = region
        self._host_mesh = host_mesh

    @property
    def name(self) -> str:
        """The name given at spawn; `procs` if none was given."""
        return self._procs.ref.name

    @property
    def host(self) -> str:
        """The name of its host, or of its hosts."""
        return self._procs.ref.host

    @property
    def uid(self) -> str:
        """The identifier of this mesh in logs and front ends, in hexadecimal."""
        return f"{self._procs.ref.uid:x}"

    @property
    def host_mesh(self) -> HostMesh | None:
        """The hosts it was spawned on; None for a reference received from another process."""
        return self._host_mesh

    @property
    def is_slice(self) -> bool:
        """Whether this mesh has only some of the ranks that were spawned together."""
        return len(self._region) != len(self._procs.region)

    @property
    def stopped(self) -> bool:
        """Whether `stop` has been called."""
        return self._procs.stopped is not None

    @property
    def initialized(self) -> Future[bool]:
        """Done, with True, when every process is up and its bootstrap function has returned.

        Fails with the error of a process that could not start, or whose bootstrap function raised.

        Raises:
            ValueError: this is a reference: only the owner knows when its procs are up.
            MeshStoppedError: the mesh was stopped.
        """
        self._check_usable()
        future = self._procs.initialized
        if future is None:
            raise ValueError("only the owner of a mesh knows when its procs are up")
        return future

    @property
    def actor_names(self) -> tuple[str, ...]:
        """The names of the actor meshes that this process has spawned on this mesh."""
        live = [a.name for a in list(self._procs.actors.values()) if a.stopped is None]
        return tuple(dict.fromkeys(live))

    def _new_with_region(self, region: Region) -> ProcMesh:
        return ProcMesh(self._runtime, self._procs, region, self._host_mesh)

    def _check_usable(self) -> None:
        stopped = self._procs.stopped
        if stopped is not None:
            raise MeshStoppedError(
                f"the proc mesh {self.name!r} has been stopped: {stopped}; spawn a new one"
            )

    def _where(self) -> list[dict[str, int]]:
        extent = self._procs.ref.extent
        return [dict(extent.point_of_rank(rank)) for rank in self._region.ranks()]

    def stop(self, reason: str | None = None) -> Future[None]:
        """End its processes: they finish the messages they have, and actors clean up. Idempotent.

        The future is done when every pid is gone. Processes that exceed the time for clean-up are
        killed.

        Raises:
            ValueError: this is a slice, or a reference that another process owns.
            TypeError: the reason is not text.
            SupervisionError: this process no longer holds the session of the mesh.
        """
        procs = self._procs
        check_may_end("stop", self.name, owned=procs.owned, whole=not self.is_slice)
        reason = reason_text(reason, "stopped by client")
        check_in_reach(self._runtime.known.dead(procs.ref.uid))
        return self._stop(reason, procs.cleanup_s)

    def kill(self, reason: str | None = None) -> Future[None]:
        """End its processes at once, without clean-up of actors. Idempotent.

        The call may follow `stop`, when that takes too long. It raises as `stop` does.
        """
        procs = self._procs
        check_may_end("kill", self.name, owned=procs.owned, whole=not self.is_slice)
        return self._stop(reason_text(reason, "killed by client"), 0.0)

    def _stop(self, reason: str, grace: float) -> Future[None]:
        procs, run = self._procs, self._runtime
        uid = procs.ref.uid
        with procs.lock:
            if procs.stop_future is not None:
                if not grace and not procs.stop_future.done:
                    for site in procs.ref.places:
                        run.routes.tell_agent_at(site, StopMesh(procs.ref.uid, reason, grace))
                return procs.stop_future
            procs.stopped = reason
            future = procs.stop_future = run.terminations.stopping(uid)
        cancel_on_mesh(uid)
        run.ownership.on_mesh_stopping(uid)
        for actors in list(procs.actors.values()):
            actors.stopped = actors.stopped or f"its procs were stopped ({reason})"
        dead = run.known.dead(uid)
        run.routes.post(procs.ref, procs.region, StopProc(reason, grace), skip=dead)
        for site in procs.ref.places:
            if not run.routes.tell_agent_at(site, StopMesh(uid, reason, grace)):
                run.terminations.on_site_emptied(uid, site)  # no agent, no procs
        forget(procs)
        if procs.kept and procs.ref.sites:
            mesh_procs.on_kept_mesh_stopped()
        return future

    def __enter__(self) -> ProcMesh:
        return self

    def __exit__(self, *_: object) -> None:
        if self._procs.stopped is None:
            self.stop().get()

    async def __aenter__(self) -> ProcMesh:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._procs.stopped is None:
            await self.stop()

    def __reduce__(self) -> tuple[Any, ...]:
        ref = self._runtime.known.current(self._procs.ref)
        return _reference, (ref, self._procs.region, self._region)

    def __repr__(self) -> str:
        at = at_text(self._region.sizes)
        state = ", stopped" if self.stopped else ""
        return f"<ProcMesh {self.name!r}{at} on {self._procs.ref.host}{state}>"


def this_host() -> HostMesh:
    """The host this code runs on, as a mesh without dims.

    In a process spawned through `with_python_executable`, the mesh uses that interpreter too.
    """
    run = runtime_or_none()
    sites = (run.site,) if run is not None and run.site else ()
    is_client = run is None or run.proc_ref is None
    handle = OF_THIS_HOST if is_client else None
    return HostMesh(Region.of_extent(Extent((), ())), inherited_python(), sites, handle=handle)


def another_handle(hosts: HostMesh) -> HostMesh:
    """The same workers with a handle of their own. This host has a single handle."""
    if not hosts._sites:  # pyright: ignore[reportPrivateUsage]
        return hosts
    return HostMesh(
        hosts._region,  # pyright: ignore[reportPrivateUsage]
        hosts._python,  # pyright: ignore[reportPrivateUsage]
        hosts._site_source,  # pyright: ignore[reportPrivateUsage]
        hosts.name,
        Handle(),
    )


def hosts_of(sites: Sequence[str]) -> HostMesh:
    """The workers that this process attached to with a session."""
    extent = Extent(("hosts",), (len(sites),))
    return HostMesh(Region.of_extent(extent), sites=tuple(sites), handle=OF_ALL)


def this_proc() -> ProcMesh:
    """The calling process, as a mesh of one without dims: actors spawned on it live here."""
    run = own_runtime()
    ref = run.proc_ref or run.client_ref
    assert ref is not None
    return _one_proc(ref, run.name)


def proc_of(ref: ProcsRef | None, node: str) -> ProcMesh:
    """The process of that node, as a mesh of one; without a reference, the calling process."""
    return this_proc() if ref is None else _one_proc(ref, node)


def mesh_of(ref: ProcsRef | None) -> ProcMesh:
    """The whole mesh of a reference; without one, the calling process as a mesh of one."""
    if ref is None:
        return this_proc()
    region = Region.of_extent(ref.extent)
    return _reference(ref, region, region)


def _one_proc(ref: ProcsRef, node: str) -> ProcMesh:
    run = runtime()
    place = parse_proc_node(node)
    region = Region((), NDSlice(offset=0 if place is None else place[1], sizes=(), strides=()))
    return ProcMesh(run, Procs(ref, Region.of_extent(ref.extent), owned=False), region)


def _reference(ref: ProcsRef, base: Region, region: Region) -> ProcMesh:
    return ProcMesh(runtime(), Procs(ref, base, owned=False), region)


def _own(run: Runtime, mesh: ProcMesh, procs: Procs) -> None:
    """Make a mesh that is about to be requested known to this process, its owner.

    This comes before the request: the agent's answers, and failures, may arrive at any moment.
    """
    ref = procs.ref
    run.hooks.on_proc_ready, run.terminations.on_bootstrapped = proc_ready, proc_bootstrapped
    run.terminations.on_restarting, run.terminations.on_back = proc_restarting, proc_back
    run.known.learn(ref)
    for rank in procs.region.ranks():
        run.node.expect(ref.node(rank), ref.site(rank))
    owned = OwnedProcs(mesh, procs, run, mesh._stop)  # pyright: ignore[reportPrivateUsage]
    run.ownership.own(ref.uid, owned)
    remember(owned)
    if procs.kept and ref.sites:
        on_remote_mesh(mesh)


def shared_procs(mesh: ProcMesh) -> Procs:
    """The state of a mesh in this process, which it shares with its slices."""
    return mesh._procs  # pyright: ignore[reportPrivateUsage]


def owned_meshes() -> list[ProcMesh]:
    """The proc meshes this process has spawned and not stopped, oldest first."""
    return [owned.mesh for owned in mesh_procs.owned_procs()]


def record_actors_of(mesh: ProcMesh) -> None:
    """Have the host agent record the actors of a mesh, those of now and those to come."""
    procs = shared_procs(mesh)
    procs.kept = True
    for actors in list(procs.actors.values()):
        if actors.stopped is None and not actors.recorded:
            actors.record(mesh._runtime)  # pyright: ignore[reportPrivateUsage]
