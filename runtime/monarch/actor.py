"""Actors, meshes and calls: the public API. See `docs/` and the tutorials in `notebooks/`."""

from monarch._src.actor.background import returns_future
from monarch._src.actor.calling import Endpoint
from monarch._src.actor.context import ActorId, ActorInstance, Context
from monarch._src.actor.context import current as _current
from monarch._src.actor.endpoint import Actor, concurrent_endpoint, endpoint
from monarch._src.actor.future import Future
from monarch._src.actor.ports import Channel, Port, PortReceiver
from monarch._src.actor.runtime import runtime as _runtime
from monarch._src.actor.sending import Accumulator, as_endpoint, send
from monarch._src.config import settings as _settings
from monarch._src.errors import (
    ActorError,
    DeadlockError,
    Death,
    Frame,
    MeshFailure,
    MeshStoppedError,
    RankFailure,
    SupervisionError,
)
from monarch._src.mesh import faults as _faults
from monarch._src.mesh import session as _session
from monarch._src.mesh.actor_mesh import ActorMesh
from monarch._src.mesh.controllers import get_or_spawn_controller
from monarch._src.mesh.host_mesh import HostMesh, this_host, this_proc
from monarch._src.mesh.observe import anybody_listens as _anybody_listens
from monarch._src.mesh.proc_mesh import ProcMesh
from monarch._src.mesh.process_options import BootstrapCommand, default_bootstrap_cmd
from monarch._src.mesh.session import shutdown_context
from monarch._src.shape import Extent, NDSlice, Point, Region, Shape, ValueMesh


def context() -> Context:
    """Who runs this code: the actor and message at hand, or the client."""
    return _current.get() or _runtime().root


def current_rank() -> Point:
    """This actor's place in the slice that the present message was sent to."""
    return context().message_rank


def current_size() -> Extent:
    """The dims and sizes of that slice."""
    return context().message_rank.extent


def current_actor_name() -> str:
    """The name and place of the actor that runs this code."""
    instance = context().actor_instance
    return f"{instance.name}{dict(instance.rank) or ''}"


def unhandled_fault_hook(failure: MeshFailure) -> None:
    """Called at the client for a failure that nobody has handled; assign your own to replace it.

    This one says the cause on stderr, interrupts the main thread, ends with status 1.
    """
    _faults.end_program(failure)


def _on_start(started: _session.Session) -> None:
    _faults.attach(started.runtime, started.actors)
    started.runtime.agent.want_output(True)


_faults.set_hook_lookup(lambda: unhandled_fault_hook)
_faults.forward_output(lambda: _settings().enable_log_forwarding and not _anybody_listens())
_session.on_start(_on_start)

__all__ = [
    "Accumulator",
    "Actor",
    "ActorError",
    "ActorId",
    "ActorInstance",
    "ActorMesh",
    "BootstrapCommand",
    "Channel",
    "Context",
    "DeadlockError",
    "Death",
    "Endpoint",
    "Extent",
    "Frame",
    "Future",
    "HostMesh",
    "MeshFailure",
    "MeshStoppedError",
    "NDSlice",
    "Point",
    "Port",
    "PortReceiver",
    "ProcMesh",
    "RankFailure",
    "Region",
    "Shape",
    "SupervisionError",
    "ValueMesh",
    "as_endpoint",
    "concurrent_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "default_bootstrap_cmd",
    "endpoint",
    "get_or_spawn_controller",
    "returns_future",
    "send",
    "shutdown_context",
    "this_host",
    "this_proc",
    "unhandled_fault_hook",
]
