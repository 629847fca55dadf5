"""The side of a worker's agent that manages its client: listens, accepts a client, lets it leave.

Runs in: the host agent of a worker, on its one thread. `session.workers.state.tenancy` makes the
decisions.
Owns: the gateway of this host; the descriptor that reports the end of the program that started the
worker; a watch on the process of a client on the same host.
Invariants: the agent obeys one client at a time, and the other hosts of that client; others may
request the host, and nothing else. All that one client had has ended before the next one gets the
host, except kept meshes, which the next client of the same session gets
(`session.workers.detached_meshes`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch._src.host.owner import AgentServices, ClientProcess
from monarch._src.host.state.host import Host
from monarch._src.host.workspace_paths import end_force
from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.gateway import ENDS, Gateway
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_ends import Notice, bounds_of
from monarch._src.net.interfaces import interface_addresses, resolve
from monarch._src.net.node import Node
from monarch._src.net.state.access import Role
from monarch._src.net.state.addresses import Address, Listening, candidates, parse_address
from monarch._src.net.state.link_actions import LinkDown, LinkUp
from monarch._src.net.tunnel.state.tunnel import TunnelMessage
from monarch._src.payload.host_fetcher import Fetcher, Segments
from monarch._src.payload.host_server import send_piece
from monarch._src.payload.hosts.client import Bulk, Terms
from monarch._src.session import records
from monarch._src.session.state.lease import EndSession
from monarch._src.session.workers.detached_meshes import DetachedMeshes
from monarch._src.session.workers.state.tenancy import (
    Action,
    Clear,
    Drop,
    Evict,
    Grant,
    Refuse,
    ReleaseClient,
    Resume,
    Tenancy,
    TenancyState,
    Tenant,
)
from monarch._src.session.workers.tunnels import FarTunnels
from monarch._src.system import process_table
from monarch._src.wire.frames import NO_PAYLOAD, Payload, encode
from monarch._src.wire.ids import (
    AGENT,
    agent_at,
    host_of_site,
    is_agent,
    is_tunnel,
    parse_proc_node,
)
from monarch._src.wire.messages import (
    AnyMessage,
    AskBulk,
    AskPart,
    AskPayload,
    BulkAt,
    Cast,
    Detach,
    HoldSite,
    Kept,
    LetSiteGo,
    Message,
    PayloadPart,
    PayloadTaken,
    SiteFree,
    SiteIs,
    SiteLost,
    SitesAre,
    SitesKnown,
    Snapshot,
    SpawnProcs,
    Watch,
)

log = logging.getLogger("monarch.agent")


@dataclass(frozen=True)
class Serving:
    """How a worker listens. `lifeline`: a descriptor that closes with the starting program."""

    listening: Listening
    keys: Keys | None
    trusts_all: bool
    audit: Audit
    liveness_s: float
    lifeline: int | None


class WorkerHost:
    """Drives one `Tenancy` with messages, links and timers, as an `Owner` of the agent."""

    def __init__(
        self, serving: Serving, directory: Path, node: Node, host: Host, driver: AgentServices
    ) -> None:
        """Raises as `Links.listen`."""
        self._serving = serving
        self._directory = directory
        self._node = node
        self._host = host
        self._driver = driver
        self._tenancy = Tenancy()
        detached = self._detached = DetachedMeshes(node, host, self._tenancy)
        self._lost_sites: set[str] = set()  # hosts of the session that its client has lost
        self._sites: set[str] = set()  # the other hosts of the tenant
        self._client_process = ClientProcess(driver, self._on_client_ended)
        gateway = self._gateway = Gateway(
            node, node.site, serving.keys, serving.audit, serving.liveness_s, self._on_link_notice,
            admits=self._admits, stranger=self._on_stranger, unknown=self._expect,
            tunnel=self._on_tunnel, observed=self._on_snapshot,
        )  # fmt: skip
        try:
            bind = gateway.links.listen(serving.listening, trusts_all=serving.trusts_all)
            self.listening = serving.listening.at(bind)  # with the actual port
            if self.listening != serving.listening:
                records.write_listening(directory, str(self.listening))
        except BaseException:
            gateway.close("it cannot listen")
            raise
        segments = self._segments = Segments(self._receivers_of)
        bulk = self._bulk = Bulk(
            Terms(
                host_of_site(node.site), gateway.has_keys, serving.liveness_s,
                lambda: self.serves_at, node.has_process, segments.served, gateway.post,
                self._tell_gateway,
            )
        )  # fmt: skip
        gateway.on_forked = bulk.forked
        fetcher = self._fetcher = Fetcher(node, gateway, segments.to_lend, bulk, self._watch_sender)
        node.on_forget = self._on_node_forgotten
        driver.watch_quietly(gateway.links.fileno(), gateway.links.work)
        self._tunnels = FarTunnels(gateway, driver, self.note)
        if serving.lifeline is not None:
            driver.watch(serving.lifeline, self._on_starter_ended)
        self.handlers: dict[type, Callable[[str, Any, Any], None]] = {
            LetSiteGo: self._on_let_go,
            Detach: self._on_detach,
            **detached.handlers,
            SitesAre: self._on_sites,
            SiteLost: self._on_site_lost,
            PayloadPart: fetcher.on_part,
            AskPayload: fetcher.on_ask,
            AskPart: self._on_ask_part,
            PayloadTaken: lambda _peer, message, _payload: segments.taken(message),
            AskBulk: self._on_ask_bulk,
            BulkAt: lambda _peer, message, _payload: bulk.on_answer(message),
        }

    def advertised_addresses(self) -> list[Address]:
        """The addresses by which other hosts may dial this one; ValueError if there are none."""
        bind = self.listening.bind
        resolved = resolve(bind) if bind.transport == "tcp" else []
        return candidates(self.listening, interface_addresses(), resolved=resolved)

    def _advertised(self) -> list[str]:
        try:
            return [str(address) for address in self.advertised_addresses()]
        except ValueError:
            return [str(self.listening.bind)]  # the client and others on this host can reach it

    # --- called by the agent ----------------------------------------------------------------------

    @property
    def client(self) -> str:
        """The node that has this host, or had it last."""
        tenant = self._tenancy.tenant
        return "" if tenant is None else tenant.node

    @property
    def client_now(self) -> str:
        """The node that has this host; empty while no client does."""
        return self._tenancy.holder

    @property
    def client_number(self) -> int:
        """How many clients the session had before the last one that had this host."""
        tenant = self._tenancy.tenant
        return 0 if tenant is None else tenant.number

    @property
    def serves_at(self) -> tuple[str, list[str]]:
        """The interface and addresses of this host, for services with ports of their own."""
        bind = self._serving.listening.bind
        if bind.transport != "tcp":
            return "", []
        dialled = map(parse_address, self._advertised())
        return bind.host, [address.host for address in dialled]

    is_awaited = False
    needs_polling = False
    needs_timer = False

    @property
    def is_pending(self) -> bool:
        """Whether a link has messages that no descriptor reports."""
        return self._gateway.is_pending

    def begin(self) -> None:
        """Does nothing, since there is no client yet."""

    def poll_client(self) -> None:
        """Does nothing: links report the end of the client."""

    def report_ends(self) -> bool:
        """False: a link reports its end after all its messages."""
        return False

    def next_deadline(self) -> float | None:
        """The next deadline of links, kept meshes or tunnels."""
        others = (self._detached.next_deadline(), self._tunnels.next_deadline())
        links = self._gateway.links.next_deadline()
        return min([links, *(found for found in others if found is not None)])

    def obeys(self, peer: str) -> bool:
        """Whether to accept messages of that node, on any route."""
        return peer not in self._gateway.former

    def after_poll(self) -> None:
        """Let the next client have the host once everything of the last one has ended."""
        self._detached.looked()
        self._tunnels.looked()
        for node, request in self._detached.finished_detaches():
            self._gateway.say(node, Kept(request))
        if self._tenancy.state is TenancyState.DETACHED:
            why = self._detached.reason_to_end(time.monotonic())
            if why:
                self._do(self._tenancy.given_up(why))
        if self._tenancy.state is TenancyState.CLEARING and not self._host.meshes:
            self._do(self._tenancy.cleared())

    def mesh_spawned(self, spec: SpawnProcs) -> None:
        """A mesh is being spawned."""
        self._detached.spawned(spec)

    def proc_starting(self, *nodes: str) -> None:
        """Procs are being started."""
        self._detached.proc_comes(*nodes)

    def proc_ended(self, mesh: int, rank: int) -> None:
        """A proc has ended; the host tells the watchers."""
        self._detached.proc_ended(mesh, rank)

    def mesh_freed(self, mesh: int) -> None:
        """Every proc of that mesh has ended; `looked` is called next."""
        self._detached.mesh_freed(mesh)

    def told_to_end(self, why: str) -> None:
        """A signal, the client, or the end of the starting program ends the worker."""
        self._do(self._tenancy.told_to_end(why))

    def note(self, what: str, peer: str, **facts: str) -> None:
        """Record the action of an operator in the audit."""
        self._serving.audit.note(what, node=peer, **facts)

    def close(self) -> None:
        """Close all links and release all resources."""
        self._client_process.unwatch()
        self._tunnels.close()
        self._bulk.close()
        self._gateway.close("the worker has ended")
        self._segments.close()
        self._serving.audit.close()

    # --- access control ---------------------------------------------------------------------------

    def _admits(self, link: str) -> bool:
        """Whether messages of that link are accepted: the client's, or another of its hosts'."""
        tenancy = self._tenancy
        if link == self.client:
            return tenancy.state in (TenancyState.HELD, TenancyState.CLEARING)
        return link in self._sites

    def _on_stranger(self, link: str, message: AnyMessage) -> None:
        """A node that does not hold this host has sent a message to this agent."""
        self._driver.wake_parts()
        if not isinstance(message, HoldSite):
            why = f"a {type(message).__name__} of a node that does not have this host"
            self.note("refused", link, why=why)
            return
        client = Tenant(
            link, message.request, message.pid, message.program, message.host, message.liveness_s,
            message.number, message.token,
        )  # fmt: skip
        role = self._gateway.role_of(link)
        if role not in (None, Role.OWNER):
            why = f"its key is that of {role.value}, and only owners may hold hosts" if role else ""
            self._do([Refuse(client, why)])
            return
        holder = self._tenancy.holder
        if holder and not self._gateway.reaches(holder):
            self._do(self._tenancy.out_of_reach(holder))
        self._do(self._tenancy.asked(client))

    def _on_snapshot(self, link: str, message: Snapshot) -> None:
        self._gateway.say(link, self._driver.snapshot(message))

    def _on_tunnel(self, link: str, message: TunnelMessage, payload: Payload) -> None:
        self._driver.wake_parts()
        self._tunnels.on_message(link, message, payload)

    def _expect(self, node: str) -> None:
        """A message for an unknown proc: hold it, since the proc may be about to be spawned."""
        place = parse_proc_node(node)
        host = self._host
        if place is not None and place[0] not in host.meshes and not host.was_freed(place[0]):
            self._node.expect(node)

    # --- large payloads ---------------------------------------------------------------------------

    def _receivers_of(self, node: str, message: Message) -> Sequence[str]:
        return self._driver.receivers(message) if isinstance(message, Cast) else (node,)

    def _on_ask_part(self, peer: str, message: AskPart, _payload: Payload) -> None:
        send_piece(self._node, self._segments.to_lend().served, peer, message)

    def _tell_gateway(self, site: str, message: Message) -> bool:
        """Send a message to the gateway of that site; False if it is out of reach."""
        own, to = self._node, AGENT if site else self._gateway.client
        return self._gateway.pass_on(own.name, own.site, to, site, encode(message))

    def _on_ask_bulk(self, peer: str, message: AskBulk, _payload: Payload) -> None:
        site = self._node.site_of(peer)
        if peer in (agent_at(site), self._gateway.client) and site != self._node.site:
            self._bulk.on_ask(site, message)

    def _watch_sender(self, site: str, sender: str) -> None:
        if parse_proc_node(sender) is not None:  # other nodes end with their link
            self._node.link_remote(agent_at(site), site)
            self._node.send(agent_at(site), Watch(sender))

    def _on_node_forgotten(self, node: str) -> None:
        self._segments.on_node_gone(node)
        self._fetcher.on_node_forgotten(node)
        self._gateway.forgotten(node)
        site = self._node.site_of(node)
        if site != self._node.site:
            self._fetcher.on_sender_ended(site, AGENT if node == agent_at(site) else node)

    # --- notices of links -------------------------------------------------------------------------

    def _on_link_notice(self, peer: str, notice: Notice) -> None:
        self._driver.wake_parts()
        if is_tunnel(peer):
            self._tunnels.on_notice(peer, notice)
        elif isinstance(notice, ENDS):
            if peer in self._sites:
                host = host_of_site(peer)
                self._site_lost(peer, f"the host {host} is lost to this one: {notice.why}")
            self._do(self._tenancy.lost(peer, f"its client is lost: {notice.why}"))
        elif isinstance(notice, LinkUp):
            self._do(self._tenancy.reached(peer))
        elif isinstance(notice, LinkDown):
            self._do(self._tenancy.out_of_reach(peer))

    def _site_lost(self, site: str, why: str) -> None:
        """Fail everything here that waits for processes of that host."""
        self._fetcher.on_sender_ended(site)
        procs = [proc.node for mesh in self._host.meshes.values() for proc in mesh.procs]
        self._node.forward(procs, SiteLost(site, why), NO_PAYLOAD)
        now = time.monotonic()
        for node in self._node.remote_nodes(site):
            self._driver.do(self._host.node_lost(node, now, f"its host is lost: {why}"))
            self._node.drop(node)
        self._driver.site_lost(site)

    def _on_starter_ended(self) -> None:
        assert self._serving.lifeline is not None
        self._driver.unwatch(self._serving.lifeline)
        os.close(self._serving.lifeline)
        self.told_to_end("the program that started this worker has ended")

    def _watch_client(self, tenant: Tenant) -> None:
        def is_it() -> bool:  # if it runs in a container, its pid may mean another process here
            said = process_table.command_of(tenant.pid)[: records.LONGEST_PROGRAM]
            return bool(said) and said == tenant.program

        if tenant.host == os.uname().nodename:
            self._client_process.watch(tenant.pid, is_it)

    def _on_client_ended(self) -> None:
        tenant = self._tenancy.tenant
        assert tenant is not None
        why = f"{tenant.words} has ended"
        self._gateway.links.work()
        self._gateway.drain()  # handle its last messages first
        self._gateway.links.hang_up(tenant.node, why)
        self._do(self._tenancy.lost(tenant.node, why))

    # --- messages ---------------------------------------------------------------------------------

    def _on_let_go(self, peer: str, message: LetSiteGo, _payload: Payload) -> None:
        self._do(self._tenancy.released(peer, message.request))

    def _on_detach(self, peer: str, message: Detach, _payload: Payload) -> None:
        self._do(self._tenancy.detached(peer, message.request))

    def _on_sites(self, peer: str, message: SitesAre, _payload: Payload) -> None:
        if peer != self._tenancy.holder:
            return
        for site, told in message.sites:
            if site != self._node.site and site not in self._sites | self._lost_sites:
                self._sites.add(site)
                self._gateway.dialable[site] = [parse_address(text) for text in told]
        self._node.send(peer, SitesKnown(message.request))

    def _on_site_lost(self, peer: str, message: SiteLost, _payload: Payload) -> None:
        """The client has lost one of its hosts."""
        if peer == self._tenancy.holder and message.site in self._sites:
            self._sites.discard(message.site)
            self._lost_sites.add(message.site)
            self._gateway.dialable.pop(message.site, None)
            self._gateway.links.hang_up(message.site, "its client has lost it")
            self._site_lost(message.site, message.why)

    # --- actions ----------------------------------------------------------------------------------

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Grant(tenant):
                    self._grant(tenant)
                case Refuse(tenant, why):
                    self.note("refused", tenant.node, why=why, host=tenant.host)
                    self._gateway.say(
                        tenant.node, SiteIs(tenant.request, self._node.site, "", "", [], why)
                    )
                case Resume(tenant):
                    self._grant(tenant)
                    self._resume(tenant)
                case ReleaseClient(tenant, why, request):
                    self._release_client(tenant, why)
                    if request:
                        self._detached.add_detach(tenant.node, request)
                case Evict(tenant, why):
                    self._release_client(tenant, why)
                    self._gateway.links.hang_up(tenant.node, why)
                case Clear(tenant, why):
                    self.note("left", tenant.node, why=why)
                    self._clear(tenant, why)
                case Drop(tenant, request):
                    self._drop_tenant(tenant, request)
                case EndSession(why):
                    tenant = self._tenancy.tenant
                    if tenant is not None:
                        self._clear(tenant, why)
                    self._driver.end(why)

    def _grant(self, tenant: Tenant) -> None:
        gateway, site = self._gateway, self._node.site
        gateway.client = tenant.node
        self._detached.on_client(tenant)
        self._watch_client(tenant)
        gateway.links.bound(tenant.node, bounds_of(tenant.liveness_s))
        self.note("attach", tenant.node, host=tenant.host, program=tenant.program)
        told = self._advertised()
        gateway.say(
            tenant.node,
            SiteIs(tenant.request, site, host_of_site(site), str(self._directory), told),
        )

    def _resume(self, tenant: Tenant) -> None:
        """Give the kept part of the session to the client that holds the host now."""
        self._node.link_remote(tenant.node, "")
        for message in self._detached.messages_for(tenant, sorted(self._lost_sites)):
            self._node.send(tenant.node, message)
        self._detached.tell_procs()

    def _release_client(self, tenant: Tenant, why: str) -> None:
        """End everything of that client that is not kept.

        Processes on the client's host are out of reach from here on: the next client relays only
        messages sent after it attached, and the state of earlier calls is unknown.
        """
        self.note("left", tenant.node, why=why, kept=self._tenancy.name)
        self._client_process.unwatch()
        self._driver.drop_client(tenant.node)
        now = time.monotonic()
        gone = {tenant.node, *self._node.remote_nodes("")}
        for node in gone:
            self._driver.do(self._host.node_lost(node, now, why, self._detached.meshes))
            self._node.drop(node)
        self._fetcher.on_sender_ended("")
        self._bulk.restart_server()
        self._driver.site_lost("")
        self._gateway.part_with(node for node in gone if not is_agent(node))
        self._detached.on_client_left(why)

    def _clear(self, tenant: Tenant, why: str) -> None:
        self._driver.drop_client(tenant.node)
        now = time.monotonic()
        owners = {mesh.spec.owner for mesh in self._host.meshes.values()}
        for owner in {tenant.node, *owners}:
            if self._host.proc(owner) is None:  # meshes owned by procs end with those
                self._driver.do(self._host.node_lost(owner, now, why))

    def _drop_tenant(self, tenant: Tenant, request: int) -> None:
        self._client_process.unwatch()
        end_force(self._directory)
        if request:
            self._gateway.say(tenant.node, SiteFree(request))
        gateway = self._gateway
        for site in self._sites:
            gateway.links.hang_up(site, "its client has let go of this host")
            self._fetcher.on_sender_ended(site)
        self._fetcher.on_sender_ended("")
        self._bulk.restart_server()
        self._sites.clear()
        self._lost_sites.clear()
        self._detached.reset()
        gateway.dialable.clear()
        gateway.client = ""
        gateway.former.clear()
        for node in self._node.remote_nodes():
            self._node.drop(node)
        for node in self._node.unconnected():
            self._node.drop(node)
        self._host.cleared()
