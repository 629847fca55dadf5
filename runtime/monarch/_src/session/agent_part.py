"""The host agent's side of a session: watches the client, and gives the session to the next one.

Runs in: the host agent, on its one thread. `session.state.lease` makes the decisions.
Owns: the watch on the client's process, the file `kept`, and the records that the next client
needs: the actor meshes of kept meshes, with their classes as the client pickled them. An agent
unpickles nothing, and it answers while every rank computes or is dead; a rank could not.
Invariants: the agent obeys only the current client in matters of the client; it reports each
failure until a client has acknowledged it, and never after that.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._src.host.failures_seen import FailureLog
from monarch._src.host.owner import AgentServices, ClientProcess
from monarch._src.host.state.death_notices import Notices
from monarch._src.host.state.host import Host
from monarch._src.net.node import Node
from monarch._src.net.peers import VERSIONS
from monarch._src.net.session_directory import address_of
from monarch._src.session import records
from monarch._src.session.client_announcement import ClientAnnouncer
from monarch._src.session.records import AwayRecord, HolderRecord, KeptRecord, WorkerRecord
from monarch._src.session.state.lease import (
    Action,
    EndSession,
    Evict,
    Grant,
    Holder,
    Lease,
    Refuse,
    ReleaseClient,
    WriteRecord,
)
from monarch._src.system import process_table
from monarch._src.system.process_table import began_of
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.ids import host_of_site
from monarch._src.wire.messages import (
    PROTOCOL,
    ActorFailed,
    Attach,
    Attached,
    ClientIs,
    Detach,
    ForgetActors,
    Heard,
    Keep,
    Kept,
    KeptActors,
    KeptAway,
    KeptMesh,
    Message,
    SpawnProcs,
    TakenOver,
)

if TYPE_CHECKING:
    from monarch._src.session.release import Releaser

log = logging.getLogger("monarch.agent")
LAST_MESSAGES_S = 1.0  # how long the last messages to a client may take to leave


class SessionHolder:
    """Drives one `Lease` with messages and timers, as an `Owner` of the agent."""

    def __init__(
        self,
        directory: Path,
        client: str,
        client_pid: int,
        node: Node,
        host: Host,
        driver: AgentServices,
    ) -> None:
        self._directory = directory
        self._node = node
        self._host = host
        self._driver = driver
        said = process_table.command_of(client_pid)[: records.LONGEST_PROGRAM]
        self.lease = Lease(
            Holder(
                client, address_of(directory, client), client_pid, began_of(client_pid),
                said, os.uname().nodename, time.time(),
            )
        )  # fmt: skip
        self._client_process = ClientProcess(driver, self._on_client_ended)
        self._record_fd: int | None = None
        self._actors: dict[int, tuple[KeptActors, Payload]] = {}
        self._failures = FailureLog()  # failures in kept meshes
        self._announcer = ClientAnnouncer(node, host)
        # The part of the session that is on workers, as the client reported it, and when.
        self._remote_part = KeptAway("", [], [], [])
        self._remote_part_since = time.monotonic()
        self._releaser: Releaser | None = None
        self._detaching: dict[str, int] = {}  # clients that detach, and wait: node -> request
        self._former_clients: dict[str, float] = {}  # former clients: node -> when to drop it
        self._attaching: Attach | None = None
        self._ended_clients: Notices[str] = Notices()  # clients whose processes have ended
        # Requests that wait for the end of those.
        self._delayed_attaches: list[tuple[str, Attach]] = []
        self.handlers: dict[type, Callable[[str, Any, Any], None]] = {
            Keep: self._on_keep,
            KeptAway: self._on_away,
            KeptActors: self._on_actors,
            ForgetActors: self._on_forget,
            Attach: self._on_attach,
            Detach: self._on_detach,
            Heard: self._on_heard,
            ActorFailed: self._on_actor_failed,
            **self._announcer.handlers,
        }
        self._watch_client()

    # --- called by the agent ------------------------------------------------------------------

    @property
    def client(self) -> str:
        """The node that holds the session, or the last that did: the owner of clients' meshes."""
        return self.lease.holder.node

    @property
    def client_now(self) -> str:
        """The node that holds the session; empty while no client does."""
        return self.lease.client

    @property
    def client_number(self) -> int:
        """How many clients held the session before this one."""
        return self.lease.number

    def begin(self) -> None:
        """Connect to the client that has started the session."""
        self._node.link(self.client, self.lease.holder.address)
        self._node.gateway, self._node.gateway_pipe = self.client, self.lease.holder.address

    @property
    def needs_polling(self) -> bool:
        """Whether the agent has to poll for the end of the client, which no descriptor reports."""
        return not self._client_process.is_watched and bool(self.lease.client)

    def poll_client(self) -> None:
        """Check whether the client has ended."""
        if self.needs_polling and not self._ended_clients and not self._holder_lives():
            self._on_client_ended()

    @property
    def needs_timer(self) -> bool:
        """Whether messages of a client that has ended may still be on their way."""
        return bool(self._ended_clients)

    @property
    def is_pending(self) -> bool:
        """False: all messages of clients arrive by the agent's own socket."""
        return False

    def report_ends(self) -> bool:
        """Drop a client that has ended, once all its messages have been read.

        Returns True to poll the socket once more. Failures that the client acknowledged just before
        its end are not reported to the next one.
        """
        if not self._ended_clients:
            return False
        for client in self._ended_clients.due():
            if client == self.lease.client:
                self._do(self.lease.client_lost(time.time()))
            self._drop(client)
            later, self._delayed_attaches = self._delayed_attaches, []
            for peer, message in later:
                self._on_attach(peer, message, NO_PAYLOAD)
        return self._ended_clients.poll(self._node.has_received_all)

    @property
    def serves_at(self) -> tuple[str, list[str]]:
        """Empty: other hosts do not dial this one."""
        return "", []

    @property
    def is_awaited(self) -> bool:
        """Whether a client that detaches waits until everything that is not kept has ended."""
        return bool(self._detaching)

    def next_deadline(self) -> float | None:
        """When `after_poll` has something to do, or None."""
        known = self._announcer.next_deadline()
        return min(
            [*self._former_clients.values(), *([] if known is None else [known])], default=None
        )

    def obeys(self, peer: str) -> bool:
        """Whether to accept messages of that node: not of former clients."""
        return peer not in self._former_clients

    def mesh_spawned(self, spec: SpawnProcs) -> None:
        """A mesh is being spawned."""
        if spec.keep and spec.owner == self.lease.client and self.lease.name:
            now = time.time()
            self._do(self.lease.keep_asked(spec.owner, self.lease.name, [spec.mesh], now))
        self.proc_starting(*(proc.node for proc in self._host.meshes[spec.mesh].procs))

    def proc_starting(self, *nodes: str) -> None:
        """Procs are being started; they may know a client that has ended since, or ends now."""
        lease = self.lease
        if not lease.client and not lease.ending:
            self._node.forward(nodes, ClientIs("", "", lease.number, lease.left), NO_PAYLOAD)
        elif lease.number:
            holder = lease.holder
            why = f"{holder.words} now holds the session"
            message = ClientIs(holder.node, holder.address, lease.number, why)
            self._node.forward(nodes, message, NO_PAYLOAD)

    def proc_ended(self, mesh: int, rank: int) -> None:
        """Record the end of a proc, which no client has acknowledged yet."""
        self._failures.proc_ended(mesh, rank)

    def mesh_freed(self, mesh: int) -> None:
        """Every proc of that mesh has ended."""
        self._failures.forget_mesh(mesh)
        for actor in [uid for uid, (kept, _) in self._actors.items() if kept.mesh == mesh]:
            self._forget(actor)
        self._do(self.lease.mesh_gone(mesh, time.time()))

    def after_poll(self) -> None:
        """Answer clients that let go, once nothing is left of what was tied to them.

        Also answers clients that wait until all procs know them.
        """
        self._announcer.looked()
        if self._former_clients:
            now = time.monotonic()
            for node in [node for node, when in self._former_clients.items() if when <= now]:
                self._drop(node)
        for node, request in list(self._detaching.items()):
            tied = (m for m in self._host.meshes.values() if m.spec.owner == node)
            if all(mesh.uid in self.lease.meshes for mesh in tied):
                del self._detaching[node]
                self._node.send(node, Kept(request))
                self._retire(node)

    def told_to_end(self, why: str) -> None:
        """A signal, or the client, ends the session."""
        self._do(self.lease.told_to_end(why, time.time()))

    def note(self, what: str, peer: str, **facts: str) -> None:
        """Does nothing: the directory restricts access to the user, so there is no audit."""

    def close(self) -> None:
        """Release all resources, and wait until workers have ended the session's meshes."""
        self._client_process.unwatch()
        if self._releaser is not None:
            self._releaser.wait()
        if self._record_fd is not None:
            os.close(self._record_fd)
            self._record_fd = None

    # --- messages -----------------------------------------------------------------------------

    def _on_keep(self, peer: str, message: Keep, _payload: Payload) -> None:
        known = (self._host.meshes.get(uid) for uid in message.meshes)
        mine = [m.uid for m in known if m is not None and m.spec.owner == peer and not m.stopping]
        mine += [mesh.mesh for mesh in self._remote_part.meshes if mesh.mesh in message.meshes]
        actions = self.lease.keep_asked(peer, message.name, mine, time.time())
        refusal = next((a.why for a in actions if isinstance(a, Refuse)), "")
        if not refusal:
            try:
                self._write_record()
            except OSError as error:
                refusal = f"its record cannot be written: {error}"
                self.lease.meshes.difference_update(mine)  # no client could find them
        self._node.send(peer, Kept(message.request, refusal))

    def _on_actors(self, peer: str, message: KeptActors, payload: Payload) -> None:
        away = any(message.mesh == mesh.mesh for mesh in self._remote_part.meshes)
        if peer == self.lease.client and (away or message.mesh in self._host.meshes):
            self._actors[message.actor] = (message, payload.own())

    def _on_away(self, peer: str, message: KeptAway, _payload: Payload) -> None:
        """The client has changed the part of the session that is on workers."""
        if peer != self.lease.client:
            return
        now, gone = time.time(), {mesh.mesh for mesh in self._remote_part.meshes}
        meshes = [mesh.mesh for mesh in message.meshes]
        for mesh in gone.difference(meshes):
            self.mesh_freed(mesh)
        self._remote_part, self._remote_part_since = message, time.monotonic()
        if self.lease.name:
            self._do(self.lease.keep_asked(peer, self.lease.name, meshes, now))

    def _on_forget(self, peer: str, message: ForgetActors, _payload: Payload) -> None:
        if peer == self.lease.client:
            self._forget(message.actor)

    def _forget(self, actor: int) -> None:
        self._actors.pop(actor, None)
        self._failures.forget_actors(actor)

    def _on_actor_failed(self, _peer: str, message: ActorFailed, _payload: Payload) -> None:
        if message.actor in self._actors:
            self._failures.actor_failed(self._actors[message.actor][0].mesh, message)
        elif not message.actor and message.mesh in self.lease.meshes:
            self._failures.passed_on(message)
        else:
            return
        if self.lease.client and message.told != self.lease.client:
            # That proc did not know the current client yet.
            self._node.send(self.lease.client, message)

    def _on_heard(self, peer: str, message: Heard, _payload: Payload) -> None:
        if peer == self.lease.client and (
            message.mesh in self._host.meshes or message.actor in self._actors
        ):
            self._failures.acknowledge(message)

    def _on_attach(self, peer: str, message: Attach, _payload: Payload) -> None:
        now = time.time()
        lives = self._holder_lives()
        if self.lease.client and not lives:  # its end comes first
            if not self._ended_clients:
                self._on_client_ended()
            self._delayed_attaches.append((peer, message))
            return
        client = Holder(
            peer, address_of(self._directory, peer), message.pid, message.began, message.program,
            message.host, now,
        )  # fmt: skip
        self._attaching = message
        self._do(self.lease.attach_asked(client, now, take=message.take, holder_lives=lives))

    def _on_detach(self, peer: str, message: Detach, _payload: Payload) -> None:
        if peer != self.lease.client:
            self._node.send(peer, Kept(message.request))
        else:
            self._detaching[peer] = message.request
            self._do(self.lease.detached(peer, time.time()))

    # --- the client ---------------------------------------------------------------------------

    def _holder_lives(self) -> bool:
        holder = self.lease.holder
        # A process keeps its parent only while that lives, and this check is cheap everywhere.
        return os.getppid() == holder.pid or process_table.lives(
            process_table.Entry(holder.pid, 0, 0, "", holder.began)
        )

    def _watch_client(self) -> None:
        # The pid may belong to another process by now, so the watch checks the holder.
        self._client_process.watch(self.lease.holder.pid, self._holder_lives)

    def _on_client_ended(self) -> None:
        self._client_process.unwatch()
        self._ended_clients.add(self.client, self.client, time.monotonic())

    def _retire(self, client: str) -> None:
        """Drop a former client later: the last messages to it may still be on their way."""
        self._driver.drop_client(client)
        self._former_clients[client] = time.monotonic() + LAST_MESSAGES_S

    def _drop(self, client: str) -> None:
        """Neither read nor send any more messages of that client."""
        self._detaching.pop(client, None)
        self._former_clients.pop(client, None)
        self._node.drop(client)
        (self._directory / client).unlink(missing_ok=True)

    # --- actions ------------------------------------------------------------------------------

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case EndSession(why):
                    self._client_process.unwatch()
                    if self._write_remote_part():
                        from monarch._src.session.release import Releaser  # and with it subprocess

                        self._releaser = Releaser(self._directory)
                    (self._directory / records.KEPT).unlink(missing_ok=True)
                    self._driver.end(why)
                case ReleaseClient(node, why):
                    self._release_client(node, why)
                    self._announcer.tell(ClientIs("", "", self.lease.number, why))
                case Evict(node, why):
                    self._node.send(node, TakenOver(why))
                    self._retire(node)
                    self._release_client(node, why)
                case Grant(holder):
                    self._grant(holder)
                case Refuse(node, why):
                    assert self._attaching is not None
                    self._node.send(node, Kept(self._attaching.request, why))
                    self._retire(node)
                case WriteRecord():
                    try:
                        self._write_record()
                    except OSError as error:  # the directory was removed, or the disk is full
                        log.warning("the record of this session cannot be written: %s", error)

    def _release_client(self, node: str, why: str) -> None:
        self._client_process.unwatch()
        self._driver.drop_client(node)
        now = time.monotonic()
        self._driver.do(self._host.node_lost(node, now, why, self.lease.meshes))
        for far in self._node.remote_nodes():  # that client was the way there
            self._driver.do(self._host.node_lost(far, now, why))
            self._node.drop(far)

    def _grant(self, holder: Holder) -> None:
        assert self._attaching is not None
        self._node.gateway, self._node.gateway_pipe = holder.node, holder.address
        self._node.send_limits.reset()
        self._watch_client()
        now = time.monotonic()
        news: list[Message] = []
        waited = now - self._remote_part_since
        meshes = [
            msgspec.structs.replace(mesh, age_s=mesh.age_s + waited)
            for mesh in self._remote_part.meshes
        ]
        for uid in self.lease.meshes:
            mesh = self._host.meshes.get(uid)
            # Meshes on workers are in the list already; one that is stopping is about to end.
            if mesh is None or mesh.stopping:
                continue
            spec = mesh.spec
            meshes.append(
                KeptMesh(
                    uid, spec.name, spec.labels, spec.sizes, spec.cleanup_s, now - mesh.asked_at
                )
            )
            ended = self._host.inherited(uid, holder.node, holder.address)
            news += self._failures.ends(uid, ended)
        for actor, (kept, payload) in self._actors.items():
            failures = self._failures.failures(actor, kept.failures)
            message = msgspec.structs.replace(kept, failures=failures)
            self._node.send(holder.node, message, payload)
        news += self._failures.news()
        lease, away = self.lease, self._remote_part
        meshes.sort(key=lambda mesh: -mesh.age_s)
        self._node.send(
            holder.node,
            Attached(
                self._attaching.request, lease.name, lease.number, meshes, away.token,
                away.workers, away.keys, away.gateway,
            ),
        )  # fmt: skip
        for message in news:
            self._node.send(holder.node, message)
        number = self.lease.number
        why = f"{holder.words} now holds the session"
        self._announcer.tell(ClientIs(holder.node, holder.address, number, why))

    def _write_record(self) -> None:
        lease = self.lease
        if lease.ending:
            return
        holder = lease.holder
        away = {mesh.mesh: mesh.name for mesh in self._remote_part.meshes}
        names = [
            self._host.meshes[uid].spec.name if uid in self._host.meshes else away[uid]
            for uid in sorted(lease.meshes)
        ]
        kept = KeptRecord(
            lease.name, lease.kept_since, os.getuid(), records.user_name(os.getuid()),
            os.uname().nodename, os.getpid(),
            began_of(os.getpid()), {**VERSIONS, "protocol": str(PROTOCOL)}, names,
            HolderRecord(
                holder.node, holder.pid, holder.began, holder.program, holder.host, holder.since
            ) if lease.client else None,
            lease.left, [host_of_site(one.site) for one in self._remote_part.workers],
        )  # fmt: skip
        self._write_remote_part()
        fd = records.write_kept(self._directory, kept)
        if self._record_fd is not None:
            os.close(self._record_fd)
        self._record_fd = fd

    def _write_remote_part(self) -> bool:
        """Record the part on workers, for ending it if no client holds it; whether there is any."""
        away, lease = self._remote_part, self.lease
        workers = [WorkerRecord(one.site, one.address) for one in away.workers if lease.name]
        said = AwayRecord(away.token, lease.number, away.keys, workers, away.gateway)
        records.write_away(self._directory, said if workers else None)
        return bool(workers)
