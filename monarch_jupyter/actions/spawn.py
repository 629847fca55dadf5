"""Make a mesh of processes, on this machine or on the hosts of a job, or spawn one again."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, MutableMapping, Sequence

from monarch import frontend, observe
from monarch.actor import ProcMesh, this_host
from monarch_jupyter.errors import CommandError
from monarch_jupyter.meshes.job_hosts import hosts_of
from monarch_jupyter.meshes.kept_sessions import keep_mesh, session_name
from monarch_jupyter.meshes.registry import as_spawned, find_mesh
from monarch_jupyter.meshes.spawn_requests import (
    SpawnRequest,
    check_dims,
    check_name,
    remember_request,
    request_of,
    split_job,
)
from monarch_jupyter.rendering.units import count

_GROUP_LABEL = "the process group"


def spawn(
    name: str,
    dims: Mapping[str, int] | None = None,
    *,
    preload: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    keep: bool = False,
    job: str = "",
    restart: bool = False,
) -> ProcMesh:
    """Make a mesh of processes on this machine and wait until all of them run.

    `dims` are the sizes by dim, `{"gpus": 8}` for eight ranks (none: one rank without dims),
    `preload` names modules to import before the processes are forked (none: as the setting
    `preload` says), `env` holds what to set in
    their environment. With `keep` the mesh outlives the kernel, and `attach(name)` attaches to
    it again. `job` places it on the hosts of a job: the job's name, or the path of its record, and
    `:mesh` if the job has several; `hosts` in `dims` is the number of hosts, by default all. With
    `restart` a rank that dies is started again, with its actors.

    Raises:
        CommandError: the name is taken, a dim is invalid, a module to preload does not exist, or a
            host would get too many processes.
        SupervisionError: a process didn't start; the mesh is stopped again.
    """
    check_name(name)
    request = SpawnRequest(
        name, check_dims(name, dims or {}), tuple(preload), dict(env or {}), keep,
        *split_job(job), restart,
    )  # fmt: skip
    check_free(name, {})
    return spawn_request(request)


def spawn_request(request: SpawnRequest) -> ProcMesh:
    """Make the mesh of a request, and wait until all of its processes run; raises as `spawn`."""
    if request.keep and request.restart:
        raise CommandError(
            f"{request.name}: a mesh is either kept or restarted, since this kernel holds what "
            "restarts need; leave out --keep or --restart"
        )
    for module in request.preload:
        _check_module(module)
    session = session_name(request.name) if request.keep else ""
    dims = dict(request.dims)
    hosts = this_host()
    if request.job:
        hosts = hosts_of(request.job, request.hosts, dims.pop("hosts", None))
    try:
        mesh = hosts.spawn_procs(
            dims or None,
            name=request.name,
            env=request.env or None,
            preload=request.preload or None,
            restart="on-failure" if request.restart else None,
        )
    except ValueError as error:  # more processes than a host may have
        raise CommandError(str(error)) from None
    try:
        mesh.initialized.get()
        if request.keep:
            keep_mesh(session, mesh)
    except BaseException:
        # Also after an interrupt: no variable refers to this mesh, so nothing could stop it later.
        mesh.stop("it didn't come up").get()
        raise
    remember_request(mesh, request)
    return mesh


def check_free(name: str, namespace: Mapping[str, object]) -> None:
    """Check that a name can be given to a new mesh.

    Raises:
        CommandError: there is a mesh of this name, or a variable that a mesh would overwrite.
    """
    if any(mesh.name == name for mesh in observe.meshes()):
        raise CommandError(
            f"{name} is already a mesh; `%monarch stop {name}` ends it, or choose another name"
        )
    value = namespace.get(name)
    if value is not None and not isinstance(value, ProcMesh):
        raise CommandError(
            f"{name} is already a variable ({type(value).__name__}), which spawn would overwrite; "
            f"`del {name}`, or choose another name"
        )


def _check_module(module: str) -> None:
    top = module.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        raise CommandError(
            f"--preload {module}: no module {top} is installed; pip install it first"
        )


def restart(mesh: ProcMesh, namespace: MutableMapping[str, object]) -> str:
    """End a mesh and spawn it again; return one line about the result.

    Variables of the notebook that hold the whole mesh hold the new one. Its actors are gone, since
    the kernel has neither their classes nor their arguments.

    Raises:
        CommandError: the mesh was not spawned by `%monarch spawn` or the side panel; it goes on.
        SupervisionError: a new process didn't start.
    """
    request = request_of(mesh)
    if request is None:
        raise CommandError(
            f"{mesh.name} was spawned by code, whose options this kernel does not know; stop it, "
            "and run that cell again"
        )
    if request.keep:
        raise CommandError(
            f"{mesh.name} is kept, under a name that stays taken until it has ended: "
            f"`%monarch stop {mesh.name}`, then spawn it again"
        )
    lost = _lost_with(mesh)
    names = [name for name, value in list(namespace.items()) if _is_whole(value, mesh)]
    mesh.stop("restarted from the notebook").get()
    new = spawn_request(request)
    for name in dict.fromkeys([*names, request.name]):
        namespace[name] = new
    return f"restarted {request.name}: {count(len(new), 'new process', 'new processes')}{lost}"


def _lost_with(mesh: ProcMesh) -> str:
    """What the user has to make again after the end of a mesh; actors of the runtime come back."""
    targets = [frontend.call_target_of(one) for one in frontend.actor_meshes()]
    known = {one.name: one.class_name for one in targets if one.procs.uid == int(mesh.uid, 16)}
    names = mesh.actor_names
    actors = [name for name in names if not frontend.is_label(known.get(name, ""))]
    lost = f"; spawn its actors again: {', '.join(actors)}" if actors else ""
    if _GROUP_LABEL in known.values():
        lost += f"; make its process group again: {mesh.name}.init_process_group()"
    return lost


def _is_whole(value: object, mesh: ProcMesh) -> bool:
    return isinstance(value, ProcMesh) and value.uid == mesh.uid and len(value) == len(mesh)


def restart_named(name: str, namespace: MutableMapping[str, object]) -> str:
    """As `restart`, of the mesh of that name, whichever slice of it a variable holds.

    Raises:
        CommandError: there is no such mesh; as `restart` otherwise.
    """
    return restart(as_spawned(find_mesh(name, namespace)), namespace)
