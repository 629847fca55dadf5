"""`%monarch spawn`: make a mesh of processes on this machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, MutableMapping, Sequence

from monarch import observe
from monarch.actor import ProcMesh, this_host
from monarch_jupyter.arguments import Option
from monarch_jupyter.commands.command import Command, Invocation
from monarch_jupyter.problems import CommandError
from monarch_jupyter.spawn_request import SpawnRequest, check_dims, check_name, parse_spawn


def spawn(
    name: str,
    dims: Mapping[str, int] | None = None,
    *,
    preload: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> ProcMesh:
    """Make a mesh of processes on this machine and wait until all of them run.

    `dims` are the sizes by dim, `{"gpus": 8}` for eight ranks (none: one rank without dims),
    `preload` names modules to import before the processes are forked, `env` holds what to set in
    their environment.

    Raises:
        CommandError: the name is taken, a dim is none, a module to preload doesn't exist.
        SupervisionError: a process didn't start; the mesh is stopped again.
    """
    check_name(name)
    request = SpawnRequest(name, check_dims(name, dims or {}), tuple(preload), dict(env or {}))
    _check_free(name, {})
    return _make(request)


def _make(request: SpawnRequest) -> ProcMesh:
    for module in request.preload:
        _check_module(module)
    mesh = this_host().spawn_procs(
        request.dims or None,
        name=request.name,
        env=request.env or None,
        preload=request.preload,
    )
    try:
        mesh.initialized.get()
    except BaseException:
        # An interrupt too: a mesh that nobody has a name for would only take up memory.
        mesh.stop("it didn't come up").get()
        raise
    return mesh


def _check_free(name: str, namespace: Mapping[str, object]) -> None:
    if any(mesh.name == name for mesh in observe.meshes()):
        raise CommandError(
            f"{name} is a mesh already; `%monarch stop {name}` ends it, or choose another name"
        )
    value = namespace.get(name)
    if value is not None and not isinstance(value, ProcMesh):
        raise CommandError(
            f"{name} is a variable already ({type(value).__name__}), which spawn would overwrite; "
            f"`del {name}`, or choose another name"
        )


def _check_module(module: str) -> None:
    top = module.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        raise CommandError(
            f"--preload {module}: no module {top} is installed; pip install it first"
        )


def _run(invocation: Invocation) -> ProcMesh:
    request = parse_spawn(invocation.arguments)
    _check_free(request.name, invocation.namespace)
    mesh = _make(request)
    invocation.namespace[request.name] = mesh
    return mesh


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    return ["gpus=", "hosts=", "--preload", "--env"] if words else []


COMMAND = Command(
    name="spawn",
    usage="spawn NAME [dim=N ...] [--preload MODULE] [--env KEY=VALUE]",
    summary="start a mesh of processes on this machine, bind it to NAME and show it",
    run=_run,
    options=(
        Option("--preload", "import it once, before the processes are forked", "MODULE", True),
        Option("--env", "set an environment variable in them", "KEY=VALUE", True),
    ),
    examples=("%monarch spawn workers gpus=8", "%monarch spawn workers gpus=4 --preload torch"),
    complete=_complete,
)
