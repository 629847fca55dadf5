"""Private paths of Monarch that public programs import, and the public objects that they find.

Programs for Monarch import some names from `monarch._rust_bindings` and `monarch._src`. The table
below says which object of our public modules each of them is; a finder on `sys.meta_path` serves
it, so no module has to exist, or to be somewhere, for the sake of those programs. Nothing of our
private layout stands in the table: it may change without it.

A clash: where a module of ours has the path of one of Monarch's, it is imported as ever, and what
it defines comes first. Only names that it lacks are looked up in the table. So a name of ours that
means something else hides that of Monarch; there is none now, and a test looks for one.

A name that has no honest equivalent is absent. Importing it is an `ImportError` that says what to
use; asking a module for it otherwise is an `AttributeError`, as `hasattr` and pickle expect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, FrameType, ModuleType
from typing import Any

_RUST = "monarch._rust_bindings"
_HYPERACTOR = "monarch._rust_bindings.monarch_hyperactor"
_ACTOR = "monarch._src.actor"
_JOB = "monarch._src.job"

# Per path its names: those of `monarch.actor`, unless `NAME=MODULE:PATH` says another object.
_TABLE = {
    "monarch": """
        Extent Future NDSlice Selection=monarch.actor:_Selection Shape
        Simulator=monarch.simulator:Simulator
        set_meta=monarch.simulator:set_meta clear_runtime_config=monarch.config:clear_runtime_config
        configure=monarch.config:configure configured=monarch.config:configured
        get_global_config=monarch.config:get_global_config
        get_runtime_config=monarch.config:get_runtime_config
    """,
    f"{_HYPERACTOR}.buffers": """
        Buffer=monarch.buffers:Buffer FrozenBuffer=monarch.buffers:FrozenBuffer
    """,
    f"{_HYPERACTOR}.channel": "ChannelTransport",
    f"{_HYPERACTOR}.config": """
        configure=monarch.config:configure clear_runtime_config=monarch.config:clear_runtime_config
        get_global_config=monarch.config:get_global_config
        get_runtime_config=monarch.config:get_runtime_config
    """,
    f"{_HYPERACTOR}.host_mesh": "BootstrapCommand HostMesh",
    f"{_HYPERACTOR}.mailbox": "UndeliverableMessageEnvelope=monarch.actor:Undeliverable",
    f"{_HYPERACTOR}.proc": "ActorAddr=monarch.actor:ActorId ActorId ProcId",
    f"{_HYPERACTOR}.pytokio": "",
    f"{_HYPERACTOR}.shape": "Extent Point Region Shape Slice=monarch.actor:NDSlice",
    f"{_HYPERACTOR}.supervision": "MeshFailure SupervisionError",
    f"{_ACTOR}.actor_mesh": """
        Accumulator Actor ActorError ActorMesh Channel Context Endpoint Point Port PortReceiver
        ValueMesh as_endpoint context current_actor_name current_rank current_size enable_transport
        send shutdown_context configure=monarch.config:configure _context
        _set_context=monarch.actor:_context.set
    """,
    f"{_ACTOR}.bootstrap": """
        attach attach_to_workers run_worker_loop_forever run_worker_loop_until_shutdown
        start_worker_loop_forever
    """,
    f"{_ACTOR}.context": """
        ActorInstance Context CreatorInstance Instance=monarch.actor:ActorInstance context
    """,
    f"{_ACTOR}.endpoint": """
        Actor Endpoint EndpointProperty=monarch.actor:_EndpointProperty Extent
        Selection=monarch.actor:_Selection concurrent_endpoint endpoint
    """,
    f"{_ACTOR}.future": "Future",
    f"{_ACTOR}.host_mesh": "BootstrapCommand HostMesh default_bootstrap_cmd this_host this_proc",
    f"{_ACTOR}.mock": """
        patch_actor=monarch.testing:patch_actor
        patch_tensor_engine=monarch.testing:patch_tensor_engine
    """,
    f"{_ACTOR}.proc_mesh": "HostMesh ProcMesh get_or_spawn_controller",
    f"{_ACTOR}.shape": "Extent NDSlice Point Shape",
    f"{_ACTOR}.supervision": "MeshFailure SupervisionError unhandled_fault_hook",
    # A handler that forwards log records to Monarch's history. The history here has all records.
    f"{_ACTOR}.telemetry": "TracingForwarder=logging:NullHandler",
    f"{_JOB}.job": """
        DEFAULT_JOB_PATH=monarch.job:DEFAULT_JOB_PATH JobState=monarch.job:JobState
        JobTrait=monarch.job:JobTrait LocalJob=monarch.job:LocalJob SSHJob=monarch.job:SSHJob
        MeshAdminConfig=monarch.job:MeshAdminConfig
        exec_command=monarch.job:exec_command job_load=monarch.job:job_load
        TelemetryConfig=monarch.job:TelemetryConfig
        job_loads=monarch.job:job_loads load_current_job=monarch.job:load_current_job
        set_current_job=monarch.job:set_current_job
    """,
    f"{_JOB}.port_forward": "PortForwarder=monarch.job:PortForwarder",
    f"{_JOB}.shell": "shell=monarch.job:shell",
    f"{_JOB}.process": "ProcessJob=monarch.job:ProcessJob",
    f"{_JOB}.slurm": "SlurmJob=monarch.job:SlurmJob",
    "monarch.common._coalescing": """
        coalescing=monarch.tensors:coalescing compile=monarch.tensors:compile
    """,
    "monarch.common.device_mesh": """
        RemoteProcessGroup=monarch.tensors:RemoteProcessGroup
        get_active_mesh=monarch.tensors:get_active_mesh no_mesh=monarch.tensors:no_mesh
        slice_mesh=monarch.tensors:slice_mesh to_mesh=monarch.tensors:to_mesh
    """,
    "monarch.common.future": "Future",
    "monarch.common.opaque_ref": "OpaqueRef=monarch.tensors:OpaqueRef",
    "monarch.opaque_object": """
        OpaqueObject=monarch.tensors:OpaqueObject opaque_method=monarch.tensors:opaque_method
    """,
    "monarch.common.remote": """
        call_on_shard_and_fetch=monarch.tensors:call_on_shard_and_fetch
        remote=monarch.tensors:remote
    """,
    "monarch.common.stream": """
        Stream=monarch.tensors:Stream get_active_stream=monarch.tensors:get_active_stream
    """,
    "monarch.common.tensor": "Tensor=monarch.tensors:Tensor",
    "monarch.distributed_telemetry.engine": "QueryEngine=monarch.observe:QueryEngine",
    "monarch.distributed_telemetry.profiler": "profile=monarch.observe:profile_at",
    "monarch.fetch": """
        call_on_shard_and_fetch=monarch.tensors:call_on_shard_and_fetch
        fetch_shard=monarch.tensors:fetch_shard inspect=monarch.tensors:inspect
        show=monarch.tensors:show
    """,
    "monarch.gradient_generator": """
        grad_function=monarch.tensors:grad_function grad_generator=monarch.tensors:grad_generator
    """,
    "monarch.mesh_controller": "RemoteException=monarch.tensors:RemoteException",
    "monarch.simulator.config": "set_meta=monarch.simulator:set_meta",
    "monarch.simulator.interface": "Simulator=monarch.simulator:Simulator",
    "monarch.timer.execution_timer": """
        ExecutionTimer=monarch.timer:ExecutionTimer
        execution_timer_start=monarch.timer:execution_timer_start
        execution_timer_stop=monarch.timer:execution_timer_stop
        get_execution_timer_average_ms=monarch.timer:get_execution_timer_average_ms
        get_execution_timer_summary=monarch.timer:get_execution_timer_summary
        get_latest_timer_measurement=monarch.timer:get_latest_timer_measurement
        get_time_perfcounter=monarch.timer:get_time_perfcounter
    """,
    "monarch.timer.remote_execution_timer": """
        execution_timer_start=monarch.timer:execution_timer_start
        execution_timer_stop=monarch.timer:execution_timer_stop
        get_execution_timer_average_ms=monarch.timer:get_execution_timer_average_ms
        get_time_perfcounter=monarch.timer:get_time_perfcounter
    """,
}

# Programs of Monarch that commands of its users execute by `python -m`, and what runs instead.
_PROGRAMS = {f"{_ACTOR}.bootstrap_main": "monarch._src.programs.executed_proc"}

# Replacements of names that are absent: objects of Monarch's Rust, or of its own inside.
_INSTEAD = {
    "ActorFuture": "use monarch.actor.Future",
    "BatchJob": "SlurmJob(...).apply(client_script) runs the client in the allocation",
    "BindSpec": "monarch.actor.enable_transport takes 'ipc', 'tcp' or an address",
    "LoginJob": "use monarch.job.SSHJob",
    "Mailbox": "use monarch.actor.Channel.open()",
    "OncePortRef": "use monarch.actor.Channel.open(once=True)",
    "PortId": "use monarch.actor.Port",
    "PortRef": "use monarch.actor.Port",
    "PythonTask": "write an `async def`; @monarch.actor.returns_future makes it a Future",
    "Shared": "use monarch.actor.Future",
    "bootstrap_host": "use monarch.actor.this_host()",
    "create_local_host_mesh": "use monarch.actor.this_host()",
    "fake_in_process_host": "use monarch.actor.this_host()",
    "function_resolvers": "monarch.remote takes functions, which travel by value",
    "get_active_proc_meshes": "use monarch.observe.meshes()",
    "mast_reserve": "use a job of monarch.job",
    "proc_mesh": "use monarch.actor.this_host().spawn_procs(...)",
    "world_mesh": "use monarch.actor.this_host().spawn_procs(...)",
}
_ELSE = "nothing of this package stands for it; monarch.actor, .config, .job, .rdma are public"

_Exec = Callable[[ModuleType], None]


def _parsed(text: str) -> dict[str, str]:
    entries = (entry.partition("=") for entry in text.split())
    return {name: target or f"monarch.actor:{name}" for name, _, target in entries}


def _with_parents(paths: Sequence[str]) -> set[str]:
    parts = [path.split(".") for path in paths]
    return {".".join(one[:depth]) for one in parts for depth in range(2, len(one))}


_PARENTS = _with_parents(list(_TABLE))


def served() -> dict[str, dict[str, str]]:
    """The whole table: per path its names, and which object each is, as `MODULE:PATH`."""
    return {path: _parsed(text) for path, text in _TABLE.items()}


class _Finder:
    """An `importlib.abc.MetaPathFinder`, but for the 4 ms that it takes to import that."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """How to load a module of the table, or a package above one; None for all others."""
        if fullname in _PROGRAMS:
            loader: Any = self
            return ModuleSpec(fullname, loader, origin=_PROGRAMS[fullname])
        if fullname in _TABLE or fullname in _PARENTS:
            own = PathFinder.find_spec(fullname, path, target)
            if own is None:
                loader = self
                package = fullname in _PARENTS
                return ModuleSpec(fullname, loader, origin=__name__, is_package=package)
            if fullname in _TABLE:
                _extend(own)
            return own
        if fullname.startswith(f"{_RUST}."):
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: that is a private path of Monarch; {_ELSE}",
                name=fullname,
            )
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Python makes it."""

    def get_code(self, fullname: str) -> CodeType | None:
        """The program that `python -m` of that path runs, for `runpy`; None if it is no program."""
        program = _PROGRAMS.get(fullname)
        if program is None:
            return None
        return compile(f"from {program} import main; main()", program, "exec")

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module that is not ours."""
        module.__doc__ = f"A private path of Monarch: see `{__name__}`."
        _add_names(module, _ELSE)


def _extend(spec: ModuleSpec) -> None:
    """Have a module of ours look in the table too, once it is loaded as ever."""
    loader: Any = spec.loader
    execute: _Exec = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        _add_names(module)

    loader.exec_module = exec_module


def _add_names(module: ModuleType, otherwise: str = "") -> None:
    """Have names of the table looked up when they are first asked for.

    `otherwise`: what to say of one that is in neither table.
    """
    path = module.__name__
    names = _parsed(_TABLE.get(path, ""))
    own: Callable[[str], Any] | None = vars(module).get("__getattr__")

    def find(name: str) -> Any:
        if own is not None:
            try:
                return own(name)
            except AttributeError:
                pass
        where = names.get(name)
        if where is not None:
            value = vars(module)[name] = _object(where)
            return value
        hint = "" if name.startswith("__") else _INSTEAD.get(name, otherwise)
        if hint and _imports_from(sys._getframe(1)):  # pyright: ignore[reportPrivateUsage]
            raise ImportError(f"cannot import name {name!r} from {path!r}: {hint}", name=path)
        said = f"module {path!r} has no attribute {name!r}"
        raise AttributeError(f"{said}: {hint}" if hint else said, name=name, obj=module)

    vars(module)["__getattr__"] = find


def _object(where: str) -> Any:
    module, _, path = where.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _imports_from(frame: FrameType) -> bool:
    """Whether that frame is at `from ... import name`; Python says no more than the name itself."""
    if frame.f_globals.get("__name__") == "importlib._bootstrap":  # about to look for a module
        return False
    from opcode import opmap  # for programs that fail

    return frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]


_finder = _Finder()


def install() -> None:
    """Serve the table, also the names of the package `monarch` itself. Idempotent."""
    if _finder not in sys.meta_path:
        _add_names(sys.modules["monarch"])
        sys.meta_path.insert(0, _finder)  # pyright: ignore[reportArgumentType]
