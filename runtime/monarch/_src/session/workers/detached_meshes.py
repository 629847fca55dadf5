"""The meshes that a worker host keeps for a session after its client has gone.

Runs in: the host agent of a worker, on its one thread. `session.workers.state.tenancy` decides
which client has the host, and `session.workers.worker_part` drives that; this module serves the
next client.
Owns: the set of kept meshes, the failures in them (`host.failures_seen`), the clients that wait
until everything that is not kept has ended, and the deadline after which the meshes end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from monarch._src.host.failures_seen import FailureLog
from monarch._src.host.state.host import Host
from monarch._src.net.node import Node
from monarch._src.session.client_announcement import ClientAnnouncer
from monarch._src.session.workers.state.tenancy import Tenancy, Tenant
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.ids import parse_proc_node
from monarch._src.wire.messages import (
    ActorFailed,
    ClientIs,
    ForgetActors,
    Heard,
    KeepSite,
    Kept,
    Message,
    SiteTaken,
    SpawnProcs,
)

NOWHERE = "ipc://"  # the address of a client for procs of other hosts, which cannot dial it


class DetachedMeshes:
    """The kept meshes of a worker host."""

    def __init__(self, node: Node, host: Host, tenancy: Tenancy) -> None:
        self._node = node
        self._host = host
        self._tenancy = tenancy
        self._failures = FailureLog()
        self._announcer = ClientAnnouncer(node, host)
        self.meshes: set[int] = set()  # exactly the kept meshes that still exist
        self._limit_s = 0.0
        self._until: float | None = None  # when they end for want of a client; None: never
        self._number = 0  # the number of the current client, or of the last one
        self._left = ""  # why there is no client
        self._detaching: dict[str, int] = {}  # clients that detach, and wait: node -> request
        self.handlers: dict[type, Callable[[str, Any, Any], None]] = {
            KeepSite: self._on_keep,
            ForgetActors: self._on_forget,
            Heard: self._on_heard,
            ActorFailed: self._on_actor_failed,
            **self._announcer.handlers,
        }

    # --- called by the agent ----------------------------------------------------------------------

    def spawned(self, spec: SpawnProcs) -> None:
        """The client has spawned a mesh."""
        if spec.keep and spec.owner == self._tenancy.holder and self._tenancy.name:
            self.meshes.add(spec.mesh)
        self.proc_comes(*(proc.node for proc in self._host.meshes[spec.mesh].procs))

    def proc_comes(self, *nodes: str) -> None:
        """Tell starting procs who the client is: they may know of one that has gone since."""
        if self._left or self._number:
            self._node.forward(nodes, self._client_is(), NO_PAYLOAD)

    def proc_ended(self, mesh: int, rank: int) -> None:
        """Record the end of a proc, which no client has acknowledged yet."""
        self._failures.proc_ended(mesh, rank)

    def mesh_freed(self, mesh: int) -> None:
        """Every proc of that mesh has ended."""
        self.meshes.discard(mesh)
        self._failures.forget_mesh(mesh)

    def reset(self) -> None:
        """Forget the session, of which nothing is left; the next client has another one."""
        self.meshes.clear()
        self._failures.clear()
        self._detaching.clear()
        self._until, self._number, self._left = None, 0, ""

    def reason_to_end(self, now: float) -> str:
        """The reason to end the kept meshes without a request; empty if there is none."""
        if not self.meshes:
            return "all of its kept meshes have ended"
        if self._until is not None and now >= self._until:
            return f"no client has attached to its kept meshes within {self._limit_s:g} s"
        return ""

    def next_deadline(self) -> float | None:
        """When `reason_to_end` changes, or `looked` has something to do; None: never."""
        deadlines = (self._until, self._announcer.next_deadline())
        return min((found for found in deadlines if found is not None), default=None)

    def looked(self) -> None:
        """Answer a client that waits until all procs know it."""
        self._announcer.looked()

    # --- clients ----------------------------------------------------------------------------------

    def on_client(self, tenant: Tenant) -> None:
        """A client got the host, which was free."""
        self._number, self._left = tenant.number, ""

    def on_client_left(self, why: str) -> None:
        """The client has gone. Begins the time after which kept meshes end."""
        self._left = why
        self._until = time.monotonic() + self._limit_s if self._limit_s else None
        self.tell_procs()

    def add_detach(self, node: str, request: int) -> None:
        """That client waits until everything that is not kept has ended."""
        self._detaching[node] = request

    def finished_detaches(self) -> list[tuple[str, int]]:
        """The clients for which that has happened, each with the number of its request."""
        found: list[tuple[str, int]] = []
        for node, request in list(self._detaching.items()):
            tied = (mesh for mesh in self._host.meshes.values() if mesh.spec.owner == node)
            if all(mesh.uid in self.meshes for mesh in tied):
                del self._detaching[node]
                found.append((node, request))
        return found

    def messages_for(self, tenant: Tenant, lost: Sequence[str]) -> list[Message]:
        """A client of the session got the host and owns its meshes. Returns messages for it."""
        self.on_client(tenant)
        self._until = None
        kept: list[int] = []
        news: list[Message] = []
        for uid in sorted(self.meshes):
            mesh = self._host.meshes[uid]
            if mesh.stopping:  # the last client has stopped it
                continue
            kept.append(uid)
            news += self._failures.ends(uid, self._host.inherited(uid, tenant.node, NOWHERE))
        failures = self._failures.all_failures()
        taken = SiteTaken(tenant.request, kept, failures, list(lost))
        return [taken, *news, *self._failures.news()]

    def tell_procs(self) -> None:
        """Announce the current client to the procs."""
        self._announcer.tell(self._client_is())

    def _client_is(self) -> ClientIs:
        tenant = self._tenancy.tenant
        if self._left or tenant is None:
            return ClientIs("", "", self._number, self._left)
        why = f"{tenant.words} now holds the session"
        return ClientIs(tenant.node, NOWHERE, self._number, why)

    # --- messages ---------------------------------------------------------------------------------

    def _on_keep(self, peer: str, message: KeepSite, _payload: Payload) -> None:
        if not self._tenancy.keep_asked(peer, message.token, message.name):
            self._node.send(peer, Kept(message.request, "this client no longer has that host"))
            return
        self._limit_s = message.limit_s
        for uid in message.meshes:
            mesh = self._host.meshes.get(uid)
            if mesh is not None and mesh.spec.owner == peer and not mesh.stopping:
                self.meshes.add(uid)
        self._node.send(peer, Kept(message.request))

    def _on_forget(self, peer: str, message: ForgetActors, _payload: Payload) -> None:
        if peer == self._tenancy.holder:
            self._failures.forget_actors(message.actor)

    def _on_heard(self, peer: str, message: Heard, _payload: Payload) -> None:
        if peer == self._tenancy.holder and (
            message.mesh in self._host.meshes or self._failures.knows(message.actor)
        ):
            self._failures.acknowledge(message)

    def _on_actor_failed(self, peer: str, message: ActorFailed, _payload: Payload) -> None:
        place = parse_proc_node(peer)
        if place is None or place[0] not in self.meshes:
            return  # the mesh is not kept, and the proc reports to the client itself
        if message.actor:
            self._failures.actor_failed(place[0], message)
        elif message.mesh in self.meshes:
            self._failures.passed_on(message)
        else:
            return
        holder = self._tenancy.holder
        if holder and message.told != holder:
            # That proc did not know the current client yet.
            self._node.send(holder, message)
