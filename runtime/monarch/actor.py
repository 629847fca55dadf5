"""Actors, meshes and calls: the public API. See `docs/` and the tutorials in `notebooks/`.

Each name is loaded on first access, so a module that only defines actors does not pay for the
import of the runtime, which takes most of the time.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch import config
    from monarch._src.actor.as_completed import as_completed
    from monarch._src.actor.background import returns_future
    from monarch._src.actor.call.call import Endpoint
    from monarch._src.actor.call.send import Accumulator, as_endpoint, send
    from monarch._src.actor.context import ActorId, ActorInstance, Context, CreatorInstance
    from monarch._src.actor.current import context, current_actor_name, current_rank, current_size
    from monarch._src.actor.endpoint import Actor, concurrent_endpoint, endpoint
    from monarch._src.actor.future import Future
    from monarch._src.actor.identity import ProcId, Uid
    from monarch._src.actor.ports import Channel, Port, PortReceiver
    from monarch._src.actor.work import WorkFuture
    from monarch._src.debug.controller import debug_controller
    from monarch._src.errors import (
        ActorError,
        BootstrapError,
        CallCancelled,
        DeadlockError,
        ItemError,
        ItemLostError,
        MeshStoppedError,
        RestartedError,
        SupervisionError,
    )
    from monarch._src.failures.report import (
        Behind,
        Death,
        Frame,
        MeshFailure,
        OutOfMemory,
        RankFailure,
        Undeliverable,
    )
    from monarch._src.mesh.actor_mesh import ActorMesh
    from monarch._src.mesh.channel_transport import ChannelTransport, enable_transport
    from monarch._src.mesh.client import shutdown_context
    from monarch._src.mesh.controllers import get_or_spawn_controller
    from monarch._src.mesh.meshes import HostMesh, ProcMesh, this_host, this_proc
    from monarch._src.mesh.spawn_options import BootstrapCommand, default_bootstrap_cmd
    from monarch._src.session.workers.api import (
        attach,
        attach_to_workers,
        run_worker_loop_forever,
        run_worker_loop_until_shutdown,
        start_worker_loop_forever,
    )
    from monarch._src.shape import Extent, NDSlice, Point, Region, Shape, ValueMesh
    from monarch._src.telemetry.meter import get_meter
    from monarch._src.telemetry.spans import span, traced

# The modules below monarch._src that define each name. Names of the second can start a session.
_LIGHT = {
    "actor.endpoint": "Actor concurrent_endpoint endpoint",
    "actor.identity": "ProcId Uid",
    "errors": "ActorError BootstrapError CallCancelled DeadlockError ItemError ItemLostError "
    "MeshStoppedError RestartedError SupervisionError",
    "failures.report": "Behind Death Frame MeshFailure OutOfMemory RankFailure Undeliverable",
    "shape": "Extent NDSlice Point Region Shape ValueMesh",
    "telemetry.meter": "get_meter",
    "telemetry.spans": "span traced",
}
_RUNTIME = {
    "actor.as_completed": "as_completed",
    "actor.background": "returns_future",
    "actor.call.call": "Endpoint",
    "actor.context": "ActorId ActorInstance Context CreatorInstance",
    "actor.future": "Future",
    "actor.current": "context current_actor_name current_rank current_size",
    "actor.ports": "Channel Port PortReceiver",
    "actor.work": "WorkFuture",
    "actor.call.send": "Accumulator as_endpoint send",
    "debug.controller": "debug_controller",
    "mesh.actor_mesh": "ActorMesh",
    "mesh.controllers": "get_or_spawn_controller",
    "mesh.meshes": "HostMesh ProcMesh this_host this_proc",
    "mesh.spawn_options": "BootstrapCommand default_bootstrap_cmd",
    "mesh.client": "shutdown_context",
    "mesh.channel_transport": "ChannelTransport enable_transport",
    "session.workers.api": "attach attach_to_workers run_worker_loop_forever "
    "run_worker_loop_until_shutdown start_worker_loop_forever",
}
_WHERE = {
    name: f"monarch._src.{module}"
    for module, names in (*_LIGHT.items(), *_RUNTIME.items())
    for name in names.split()
}
_prepared = False


# Names that programs for Monarch reach by private paths (`_src.monarch_paths`).
_ALIASES = {
    "_EndpointProperty": "EndpointMethod",
    "_Selection": "Selection",
    "_context": "context_variable",
}
_WHERE["_EndpointProperty"] = "monarch._src.actor.endpoint"
_WHERE["_Selection"] = "monarch._src.actor.call.send"
_WHERE["_context"] = "monarch._src.actor.current"


def __getattr__(name: str) -> Any:
    if name == "config":
        return import_module("monarch.config")
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'monarch.actor' has no attribute {name!r}")
    if module.removeprefix("monarch._src.") in _RUNTIME:
        _prepare()
    value = globals()[name] = getattr(import_module(module), _ALIASES.get(name, name))
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _prepare() -> None:
    global _prepared
    if not _prepared:
        _prepared = True
        this = sys.modules[__name__]
        from monarch._src.programs.client import prepare

        prepare(lambda: this.unhandled_fault_hook)


def unhandled_fault_hook(failure: MeshFailure) -> None:
    """Called in the client for each failure that no supervisor handled.

    Assign a function of one argument to replace it. The default writes the cause to stderr,
    interrupts the main thread and ends the program with status 1.
    """
    from monarch._src.mesh.fault_hook import end_program

    end_program(failure)


__all__ = [
    "Accumulator",
    "Actor",
    "ActorError",
    "ActorId",
    "ActorInstance",
    "ActorMesh",
    "Behind",
    "BootstrapCommand",
    "BootstrapError",
    "CallCancelled",
    "Channel",
    "ChannelTransport",
    "Context",
    "CreatorInstance",
    "DeadlockError",
    "Death",
    "Endpoint",
    "Extent",
    "Frame",
    "Future",
    "HostMesh",
    "ItemError",
    "ItemLostError",
    "MeshFailure",
    "MeshStoppedError",
    "NDSlice",
    "OutOfMemory",
    "Point",
    "Port",
    "PortReceiver",
    "ProcId",
    "ProcMesh",
    "RankFailure",
    "Region",
    "RestartedError",
    "Shape",
    "SupervisionError",
    "Uid",
    "Undeliverable",
    "ValueMesh",
    "WorkFuture",
    "as_completed",
    "as_endpoint",
    "attach",
    "attach_to_workers",
    "concurrent_endpoint",
    "config",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "debug_controller",
    "default_bootstrap_cmd",
    "enable_transport",
    "endpoint",
    "get_meter",
    "get_or_spawn_controller",
    "returns_future",
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "send",
    "shutdown_context",
    "span",
    "start_worker_loop_forever",
    "this_host",
    "this_proc",
    "traced",
    "unhandled_fault_hook",
]
