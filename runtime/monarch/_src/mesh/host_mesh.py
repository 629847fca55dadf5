"""HostMesh: hosts on which processes are spawned, either this host or attached workers.

Runs in: the client and procs. Both send their requests to the agents of the hosts.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from monarch._src.actor.checked_names import name_text
from monarch._src.actor.context import origin_now
from monarch._src.actor.future import Future
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.runtime import Runtime, runtime, runtime_or_none
from monarch._src.config import AUTO, for_new_procs, preload_names, settings
from monarch._src.errors import MeshStoppedError, SupervisionError
from monarch._src.failures.report import RankFailure
from monarch._src.host.exec_proc import inherited_python
from monarch._src.mesh.client import (
    KEPT_AND_RESTARTED,
    allow_cleanup,
    current_session,
    keeps_new_meshes,
    on_remote_mesh,
    session_for_client,
    shutdown_context,
)
from monarch._src.mesh.client_imports import client_imports, libraries
from monarch._src.mesh.constructor_payload import extra_payloads
from monarch._src.mesh.proc_mesh import (
    OwnedProcs,
    ProcMesh,
    owned_meshes,
    pending_proc_count,
    proc_bootstrapped,
    proc_ready,
    proc_restarting,
    remember,
)
from monarch._src.mesh.procs import Procs
from monarch._src.mesh.restart_policy import Restart, restart_policy
from monarch._src.mesh.spawn_options import (
    BootstrapCommand,
    BootstrapFunction,
    PerRank,
    bootstrap_payload,
    checked_dims,
    clients_path,
    commands_for,
    env_for,
    is_this_python,
    proc_bind_for,
    requests_by_site,
    working_directory,
)
from monarch._src.net.local.leader import SHUT_DOWN
from monarch._src.net.local.waitable import RuntimeEnded
from monarch._src.shape import Extent, MeshTrait, NDSlice, Region
from monarch._src.system.process import free_descriptors, raise_fd_limit
from monarch._src.wire.ids import host_of_site, parse_proc_node
from monarch._src.wire.messages import Bootstrap, Shutdown, SpawnProcs, StopMesh

T = TypeVar("T")
NAMED_HOSTS = 3
SPARE_FDS = 16


class Handle:
    """The right to stop the procs spawned through a mesh of hosts, which its slices share.

    Two handles of the same workers spawn side by side, and `stop` on one leaves the procs of the
    other running. A mesh that was received from another process has no handle: it is a reference.
    """


OF_THIS_HOST = Handle()  # every `this_host()` of a client has the same handle
OF_ALL = Handle()  # of meshes of an attached session: every handle may stop those too


class Attachment:
    """A request to attach to workers. Their sites are known once every worker has answered.

    `begin` attaches to the workers on a thread of its own, and returns their sites in order.
    """

    def __init__(self, run: Runtime, begin: Callable[[], Sequence[str]]) -> None:
        self._run = run
        self._sites: tuple[str, ...] = ()
        self.initialized: Future[bool] = run.new_future()
        threading.Thread(
            target=self._attach, args=(begin,), name="attaches-to-workers", daemon=True
        ).start()

    def _attach(self, begin: Callable[[], Sequence[str]]) -> None:
        try:
            self._sites = tuple(begin())
        except BaseException as error:
            self.initialized.fail(error)
        else:
            self.initialized.settle(lambda: True)

    def sites(self) -> tuple[str, ...]:
        """The sites of the workers, in order. Blocks; raises the error if attaching has failed."""
        if not self._run.node.wait(self.initialized):
            raise RuntimeEnded(SHUT_DOWN)
        self.initialized.result()
        return self._sites

    @property
    def has_failed(self) -> bool:
        """Whether attaching has failed. Blocks until that is known."""
        try:
            self.sites()
        except Exception:
            return True
        return False


class HostMesh(MeshTrait):
    """A mesh of hosts. `this_host()` has no dims: procs spawned on it have those of `per_host`."""

    def __init__(
        self,
        region: Region,
        python: str = "",
        sites: tuple[str, ...] | Attachment = (),
        name: str = "",
        handle: Handle | None = None,
    ) -> None:
        """Args:
        sites: the sites of all hosts of the mesh that this is, or is a slice of; empty: the
            client's own host.
        handle: None makes the mesh a reference.
        """
        self._region = region
        self._python = python
        self._site_source = sites
        self._name = name
        self._handle = handle

    def _new_with_region(self, region: Region) -> HostMesh:
        return HostMesh(region, self._python, self._site_source, self._name, self._handle)

    @property
    def _sites(self) -> tuple[str, ...]:
        """The sites of all hosts of the whole mesh; blocks until workers have answered."""
        source = self._site_source
        return source.sites() if isinstance(source, Attachment) else source

    @property
    def name(self) -> str:
        """The name given when the mesh was made; empty if there was none."""
        return self._name

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts, in the order of ranks. Blocks until workers have answered."""
        here = (runtime().host,)
        return tuple(host_of_site(site) for site in self._own_sites()) if self._sites else here

    @property
    def initialized(self) -> Future[bool]:
        """Done, with True, when each of these hosts has answered.

        Fails with the error of the first host that did not: HostUnreachableError, SessionError,
        ValueError.
        """
        if isinstance(self._site_source, Attachment):
            return self._site_source.initialized
        return Future[bool].of(True)

    @property
    def region(self) -> Region:
        """The ranks of this mesh within the hosts that were attached together."""
        return self._region

    def _own_sites(self) -> tuple[str, ...]:
        """The sites of the hosts of this slice."""
        return tuple(self._sites[rank] for rank in self._region.ranks()) if self._sites else ()

    def with_python_executable(self, python_executable: str | os.PathLike[str]) -> HostMesh:
        """The same hosts, whose procs run under another Python interpreter.

        Args:
            python_executable: the path of an interpreter that has the same version of
                monarch-jupyter.
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
        dims = checked_dims(per_host or {})
        extent = self._with_hosts(dims)
        current_settings = settings()
        modules = current_settings.preload if preload is None else preload_names("preload", preload)
        policy = restart_policy(restart)
        if policy is not None and keeps_new_meshes():
            raise ValueError(KEPT_AND_RESTARTED.format(name or "procs"))
        name = "procs" if name is None else name_text("a proc mesh", name)
        region = Region.of_extent(extent)
        function = None if bootstrap is None else bootstrap_payload(bootstrap)
        run = _own_runtime()
        sites = self._own_sites()
        elsewhere = any(site != run.site for site in sites)
        affinity, numactl = proc_bind_for(proc_bind, dims, elsewhere=elsewhere)
        # These have an entry for each process of one host; ranks go host by host.
        affinity, numactl = affinity * max(1, len(sites)), numactl * max(1, len(sites))
        environments = _environments(
            for_new_procs(), env_for(env, extent, elsewhere=elsewhere), elsewhere
        )
        # An explicit command overrides the interpreter that this proc merely inherited.
        gives_way = bootstrap_command is not None and self._python == inherited_python()
        python = "" if gives_way else self._python
        commands = commands_for(
            bootstrap_command, python, environments, numactl, extent, elsewhere=elsewhere
        )
        if not elsewhere:
            _make_room_for(len(region))
        _check_attached(run, sites)
        ref = ProcsRef(
            run.uids(), name or "procs", tuple(region.labels), tuple(region.extent.sizes),
            run.directory, run.name, _host_text(sites, run.host), (),
            policy.while_restarting if policy is not None else "", sites,
        )  # fmt: skip
        procs = Procs(ref, region, owned=True, cleanup_s=current_settings.cleanup_s)
        allow_cleanup(procs.cleanup_s)
        procs.initialized = run.new_future()
        procs.bootstrapped = None if function is None else set()
        mesh = ProcMesh(run, procs, region, self)
        begin = Bootstrap() if function is None else Bootstrap(extra_payloads(mesh), origin_now())
        path = clients_path(all(c is None or is_this_python(c.program) for c in commands))
        spec = SpawnProcs(
            mesh=ref.uid,
            name=ref.name,
            labels=list(ref.labels),
            sizes=list(ref.sizes),
            owner=run.name,
            owner_address=run.node.address,
            env=environments,
            cwd=working_directory(),
            path=path,
            preload=[] if modules == AUTO else list(modules),
            startup_s=current_settings.startup_s,
            cleanup_s=current_settings.cleanup_s,
            commands=[None if c is None else c.command for c in commands],
            affinity=affinity,
            bootstrap=function is not None,
            restart=None if policy is None else policy.rule(),
            while_restarting=ref.restarts,
            keep=keeps_new_meshes(),
            sites=list(sites),
            devices=elsewhere and tuple(dims.labels) == ("gpus",),
            imports=client_imports(path, _changed_here(elsewhere)) if modules == AUTO else None,
        )
        procs.kept = spec.keep
        procs.imports = libraries(spec.preload or (spec.imports.needed if spec.imports else []))
        run.hooks.on_proc_ready, run.terminations.on_bootstrapped = proc_ready, proc_bootstrapped
        run.terminations.on_restarting = proc_restarting
        run.known.learn(ref)
        for rank in region.ranks():
            run.node.expect(ref.node(rank), ref.site(rank))
        run.ownership.own(ref.uid, OwnedProcs(mesh))
        remember(mesh)
        if spec.keep and sites:
            on_remote_mesh(mesh)
        for place, part in requests_by_site(spec):
            if run.routes.tell_agent_at(place, part):
                continue
            if place != run.site:
                why = "it was lost before it was asked for processes"
                run.terminations.on_site_lost(place, why, expected=False)
                continue
            raise SupervisionError(failures=[_no_agent(ref)])
        if procs.stopped is not None:  # the owner ended in the meantime, and stopped the mesh
            for place in ref.places:
                run.routes.tell_agent_at(place, StopMesh(ref.uid, procs.stopped, procs.cleanup_s))
        if function is not None:
            if policy is not None:
                run.routes.replay_on_restart(ref, region, begin, function)
            for rank in region.ranks():
                run.node.send(ref.node(rank), begin, function)
        return mesh

    def _with_hosts(self, dims: Extent) -> Extent:
        """The dims of these hosts, then those of the processes on each."""
        own = self._region.extent
        if both := [label for label in own.labels if label in dims.labels]:
            raise ValueError(
                f"{both[0]!r} is a dim of the hosts already; give the processes another dim"
            )
        return Extent((*own.labels, *dims.labels), (*own.sizes, *dims.sizes))

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
            places = sites.intersection(mesh._procs.ref.places)  # pyright: ignore[reportPrivateUsage]
            if places and self._may_stop(mesh):
                mesh.stop("its host mesh was stopped")
            else:
                in_use |= places
        session = current_session()
        given_back = [] if session is None or session.sites is None else session.sites.let_go(
            [site for site in self._sites if site not in in_use]
        )  # fmt: skip
        return _when_all_done(run, [*run.terminations.all_stopping(), *given_back])

    def shutdown(self) -> Future[None]:
        """End everything that this client started on these hosts, and their agents. Idempotent.

        For workers, their programs end too, and the future is done when they have. For this host,
        everything has ended when this returns, and the future is already done.

        Raises:
            RuntimeError: this is a reference, received from another process.
            ValueError: this is a slice of workers.
        """
        if self._handle is None:
            raise RuntimeError(
                "these hosts cannot be shut down through a reference: only the program that "
                "attached to them may do that; stop() here ends the processes that this process "
                "has spawned there"
            )
        if self._has_failed():
            return Future[None].of(None)
        if not self._sites:
            return shutdown_context(reason="the host mesh was shut down")
        self._check_whole("shut down")
        run, session = runtime(), current_session()
        if session is None or session.sites is None:
            return Future[None].of(None)
        message = Shutdown("its client has shut the host mesh down")
        tell = partial(run.routes.tell_agent_at, message=message)
        return _when_all_done(run, session.sites.end(self._sites, tell))

    def _has_failed(self) -> bool:
        """Whether attaching to these workers has failed."""
        return isinstance(self._site_source, Attachment) and self._site_source.has_failed

    def _may_stop(self, mesh: ProcMesh) -> bool:
        """Whether `stop` on this mesh ends the processes of that mesh."""
        hosts = mesh.host_mesh
        theirs = None if hosts is None else hosts._handle
        return self._handle in (theirs, OF_ALL) or theirs is OF_ALL

    def _check_whole(self, what: str) -> None:
        if self._sites and len(self._region) != len(self._sites):
            raise ValueError(
                f"this is a slice of {len(self._sites)} workers, which belong together: {what} "
                "the whole mesh that attach_to_workers returned"
            )

    async def __aenter__(self) -> HostMesh:
        return self

    async def __aexit__(self, *_: object) -> None:
        """`shutdown`, as in Monarch. To leave workers running, call `stop` and use no block."""
        await self.shutdown()

    def __eq__(self, other: object) -> bool:
        """Whether both are the same hosts, with the same dims and the same Python."""
        if not isinstance(other, HostMesh):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Extent, str, tuple[str, ...]]:
        # `this_host()` on a worker equals the slice that holds that worker.
        return self._region.extent, self._python, self._own_sites()

    def __reduce__(self) -> tuple[Any, ...]:
        return HostMesh, (self._region, self._python, self._sites, self._name)

    def __repr__(self) -> str:
        if isinstance(self._site_source, Attachment) and not self._site_source.initialized.done:
            return f"<HostMesh {self._region.extent} attaching>"
        if self._has_failed():
            return f"<HostMesh {self._region.extent} not attached>"
        run = runtime_or_none()
        here = _host_text(self._own_sites(), run.host if run else "this host")
        return f"<HostMesh {self._region.extent} {here}>"


def _environments(
    settings_here: Mapping[str, str], asked: Sequence[Mapping[str, str]], elsewhere: bool
) -> list[dict[str, str | None]]:
    """Changes to the agents' environment: one dict for all ranks, one for each, or none."""
    first = {**_changed_here(elsewhere), **settings_here}
    return [{**first, **added} for added in asked or ([{}] if first else [])]


def _changed_here(elsewhere: bool) -> dict[str, str | None]:
    """The changes of a client to the environment of its host's agent."""
    session = None if elsewhere else current_session()
    return {} if session is None else session.changed_environment()


def _when_all_done(run: Runtime, futures: Sequence[Future[None]]) -> Future[None]:
    done: Future[None] = run.new_future()

    def settle_if_done() -> None:
        if all(future.done for future in futures):
            done.settle(lambda: None)

    for future in futures:
        future.on_done(settle_if_done)
    settle_if_done()
    return done


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
    run = _own_runtime()
    ref = run.proc_ref or run.client_ref
    assert ref is not None
    return _one_proc(ref, run.name)


def proc_of(ref: ProcsRef | None, node: str) -> ProcMesh:
    """The process of that node, as a mesh of one; without a reference, the calling process."""
    return this_proc() if ref is None else _one_proc(ref, node)


def _one_proc(ref: ProcsRef, node: str) -> ProcMesh:
    run = runtime()
    place = parse_proc_node(node)
    region = Region((), NDSlice(offset=0 if place is None else place[1], sizes=(), strides=()))
    return ProcMesh(run, Procs(ref, Region.of_extent(ref.extent), owned=False), region)


def _check_attached(run: Runtime, sites: Sequence[str]) -> None:
    """Raise MeshStoppedError if this client no longer has one of these hosts."""
    session = current_session()
    if run.proc_ref is not None or not sites:
        return
    held = session.sites if session is not None else None
    if held is None or not all(held.is_held(site) for site in sites):
        gone = [site for site in sites if held is None or not held.is_held(site)]
        names = ", ".join(host_of_site(site) for site in gone)
        raise MeshStoppedError(
            f"this process no longer has these hosts: {names} (released, shut down or lost); "
            "attach to them again by attach_to_workers"
        )


def _no_agent(ref: ProcsRef) -> RankFailure:
    return RankFailure(
        ref.name, 0, {}, "", None, ref.host_of(0), None, "host lost", "",
        "the host agent has ended; the next this_host() starts a new one",
    )  # fmt: skip


def _host_text(sites: Sequence[str], here: str) -> str:
    names = [host_of_site(site) for site in sites] or [here]
    return ", ".join(names) if len(names) <= NAMED_HOSTS else f"{len(names)} hosts"


def _own_runtime() -> Runtime:
    """The runtime of this process. A client starts a session first if it has none."""
    session_for_client()
    return runtime()


def _make_room_for(count: int) -> None:
    # Each process connects to this one, and each connection takes a descriptor.
    needed = count + pending_proc_count() + SPARE_FDS
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
