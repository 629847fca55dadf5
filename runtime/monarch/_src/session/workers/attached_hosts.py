"""The worker hosts of this client: attaches to them, notices their loss, releases them.

Runs in: a client. Owns its gateway, from the first host on. Requests are made on the attaching
thread; the receiving thread handles the notices of links.
Invariants: a worker is a host of this client from its SiteIs until it is lost or released; if
attaching to several fails, all of them are released before the error is raised.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from monarch._src.actor.future import Future
from monarch._src.actor.refs import agent_of
from monarch._src.actor.runtime import Runtime
from monarch._src.config import settings
from monarch._src.errors import HostUnreachableError, SessionError
from monarch._src.mesh.client import ClientSession
from monarch._src.mesh.host_links import GatewayAddress
from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.gateway import ENDS, Gateway
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_ends import Notice, PeerNamed
from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.net.session_directory import address_of
from monarch._src.net.state.addresses import Address, Scope, parse_address
from monarch._src.net.state.link_actions import LinkDown, LinkUp, PeerRefused
from monarch._src.net.streams.sockets import Opener
from monarch._src.net.tunnel.local_socket import connect_through, door_of
from monarch._src.payload.host_fetcher import Fetcher
from monarch._src.payload.hosts.client import Bulk, Terms
from monarch._src.session.records import LONGEST_PROGRAM
from monarch._src.session.workers.gateway_route import GatewayRoute, reached
from monarch._src.system import process_table
from monarch._src.wire.frames import Payload, encode
from monarch._src.wire.ids import AGENT, host_of_site
from monarch._src.wire.messages import (
    AskBulk,
    BulkAt,
    HoldSite,
    KeptWorker,
    LetSiteGo,
    Message,
    PayloadPart,
    SiteFree,
    SiteIs,
    SiteLost,
    SitesAre,
    SitesKnown,
)

log = logging.getLogger("monarch.session")
PATIENCE_PART = 3  # liveness divided by this: how long to wait for a worker that starts


@dataclass
class _AttachRequest:
    """A requested worker. `link`: the name of its link until the worker has sent its own."""

    number: int
    said: Address
    link: str
    future: Future[SiteIs]
    dialled: Address | None = None
    way: Address | None = None  # the address on this host that leads there, through the gateway
    site: str = ""
    token: str = ""  # of the kept session of which it should keep meshes
    refused: bool = False  # whether the two cannot work together at all


@dataclass
class _AttachedHost:
    """A worker that this client has.

    leaving: done when nothing of this client is left there. introduced: by number of the request,
    done when the worker knows the other hosts of that time.
    """

    site: str
    dialled: Address
    told: list[str]
    through: bool = False  # it is reached through the gateway
    again: bool = False  # it came with an attached session, and may be requested once more
    leaving: Future[None] | None = None
    lost: str = ""
    introduced: dict[int, Future[None]] = field(default_factory=dict[int, Future[None]])


class AttachedHosts:
    """All worker hosts of one client."""

    def __init__(
        self,
        run: Runtime,
        keys: Keys | None,
        paths: Sequence[str],
        via: GatewayAddress | None = None,
    ) -> None:
        """Args:
        paths: where these keys are, as `attach_to_workers` got them: ca, private_key.
        via: the gateway through which all other workers are reached, if there is one.
        """
        self._run = run
        self.key_paths = list(paths)
        self.released_sites: set[str] = set()  # the sites that this client has released
        self.on_site_released: Callable[[], None] = lambda: None  # on the receiving thread
        self.job = None if keys is None else keys.allowed.job
        self.public = "" if keys is None else keys.public
        self._numbers = itertools.count(1)
        self._requested: dict[str, _AttachRequest] = {}  # by link
        self._held: dict[str, _AttachedHost] = {}  # by site
        self._closed = False
        self._attaching = 0  # how many threads are attaching to workers
        self._lock = GuardedLock()  # of the three above; no code blocks while it is held
        self._attach_lock = threading.Lock()  # held while a thread requests workers
        self._liveness_s = settings().liveness
        self._route = (
            None if via is None else GatewayRoute(run, via, self.key_paths, self._liveness_s)
        )
        node = run.node
        self._gateway = Gateway(
            node, run.name, keys, Audit(None), self._liveness_s, self._on_link_notice,
            unknown=self._link_local,
        )  # fmt: skip
        links, baton = self._gateway.links, node.leader
        run.handle(SiteIs, self._on_site)
        run.handle(SiteFree, self._on_free)
        bulk = self._bulk = Bulk(
            Terms(
                run.host, self._gateway.has_keys, self._liveness_s, lambda: ("", []),
                node.has_process, run.payloads.served, self._gateway.post, self._tell_gateway,
                self._opener,
            )
        )  # fmt: skip
        self._gateway.on_forked = bulk.forked
        fetcher = self._fetcher = Fetcher(node, self._gateway, run.payloads.payload_sender, bulk)
        run.handle(AskBulk, self._on_ask_bulk)
        run.handle(BulkAt, lambda _peer, message, _payload: bulk.on_answer(message))
        run.handle(PayloadPart, fetcher.on_part)
        run.payloads.on_gone.append(self._on_node_gone)
        run.handle(SitesKnown, self._on_known)
        run.closers.append(self.close)
        baton.drain_interval_s = self._gateway.prompt().ping_s / 2
        baton.watch(links.fileno(), links.work)

    def close(self) -> None:
        """Disconnect from all of them. Idempotent."""
        if self._closed:
            return
        self._closed = True
        baton = self._run.node.leader
        baton.unwatch(self._gateway.links.fileno())
        baton.drain_interval_s = None
        self._bulk.close()
        self._gateway.close("its client has ended")
        if self._route is not None:
            self._route.close()

    def _on_node_gone(self, node: str) -> None:
        site = self._run.node.site_of(node)
        if site:
            self._fetcher.on_sender_ended(site, AGENT if node == agent_of(site, "") else node)
        else:
            self._fetcher.on_node_forgotten(node)
            self._gateway.forgotten(node)

    def _tell_gateway(self, site: str, message: Message) -> bool:
        """Send a message to the agent of that site; False if it is out of reach."""
        own = self._run.node
        return self._gateway.pass_on(own.name, own.site, AGENT, site, encode(message))

    def _on_ask_bulk(self, peer: str, message: AskBulk, _payload: Payload) -> None:
        site = self._run.node.site_of(peer)
        if site and peer == agent_of(site, ""):
            self._bulk.on_ask(site, message)

    def _opener(self) -> Opener | None:
        """A function that connects through the gateway; None if this process dials hosts itself."""
        door = door_of(self._run.directory)
        return None if door is None else partial(connect_through, door)

    def _link_local(self, node: str) -> None:
        """Connect to a process of this host, because a message of another host is for it."""
        self._run.node.link(node, address_of(self._run.directory, node))

    # --- attaching --------------------------------------------------------------------------------

    @property
    def is_used(self) -> bool:
        """Whether this client has workers, or is attaching to some."""
        return bool(self._attaching or self.held())

    def begin(self) -> None:
        """Announce a call of `attach` on another thread."""
        with self._lock:
            self._attaching += 1

    def attach(self, workers: Sequence[Address], patience_s: float) -> list[str]:
        """Attach to these workers; returns their sites, in order. Blocks until each has answered.

        After `begin`. Several threads may attach at once. `patience_s`: how long to wait for a
        worker that does not listen yet.

        Raises:
            HostUnreachableError: a worker cannot be reached, or does not admit this process.
            SessionError: a worker belongs to another client. ValueError: a worker was given twice,
                or is a host of this client already.
        """
        asked = [self._new_request(address) for address in workers]
        try:
            self._reach_every(asked, time.monotonic() + patience_s)
            with self._attach_lock:
                return self._attach(asked)
        finally:
            with self._lock:
                self._attaching -= 1

    def _attach(self, asked: Sequence[_AttachRequest]) -> list[str]:
        try:
            if self._closed:
                raise SessionError("the session of this process has ended meanwhile")
            inherited = self._inherited_sites(asked)
            new = [one for one in asked if one.number not in inherited]
            self._check_each_once(new)
            for one in new:
                self._dial(one)
            sites = [inherited.get(one.number) or self._answer(one) for one in asked]
            for site in inherited.values():
                self._held[site].again = False
        except BaseException:
            self._give_up(asked)
            raise
        for known in self._introduce():
            self._run.node.wait(known, self._liveness_s)
        return sites

    def attach_kept(self, workers: Sequence[KeptWorker], token: str) -> dict[str, str]:
        """Attach to the workers of a kept session. Returns why some of them failed, by site.

        Raises:
            HostUnreachableError: a worker and this process cannot work together, or no worker can
                be reached.
        """
        asked = {one.site: self._new_request(parse_address(one.address), token) for one in workers}
        problems = self._reach(list(asked.values()), 0.0, wait=False)
        lost: dict[str, str] = {}
        try:
            for one in asked.values():
                if one.number not in problems:
                    self._dial(one)
            for site, one in asked.items():
                try:
                    if one.number in problems:
                        raise problems[one.number]
                    self._answer(one)
                except (HostUnreachableError, SessionError) as error:
                    lost[site] = str(error)
                    if one.refused:
                        raise
                    if isinstance(error, HostUnreachableError):
                        problems[one.number] = error
            if len(problems) == len(asked):
                raise HostUnreachableError("\n".join(lost.values()))
        except BaseException:
            self._give_up(list(asked.values()))
            raise
        for known in self._introduce():
            self._run.node.wait(known, self._liveness_s)
        for other in self.held():
            for site, why in lost.items():
                self._run.routes.tell_agent_at(other, SiteLost(site, why))
        return lost

    def _new_request(self, said: Address, token: str = "") -> _AttachRequest:
        number = next(self._numbers)
        return _AttachRequest(number, said, f"?{number}", self._run.new_future(), token=token)

    def _reach_every(self, asked: Sequence[_AttachRequest], until: float) -> None:
        problems = self._reach(asked, until, wait=True)
        if len(problems) > 1:
            # A missing gateway is reported once, not for each worker behind it.
            text = "\n".join(dict.fromkeys(str(problems[one]) for one in sorted(problems)))
            raise HostUnreachableError(text)
        for error in problems.values():
            raise error

    def _reach(
        self, asked: Sequence[_AttachRequest], until: float, *, wait: bool
    ) -> dict[int, Exception]:
        """Find an address of each; returns failures by number. `wait`: for workers that start."""
        problems: dict[int, Exception] = {}
        until = until or time.monotonic() + self._liveness_s / PATIENCE_PART

        def reach(one: _AttachRequest) -> None:
            try:
                if way is None or way.via.is_at(one.said):
                    one.dialled = reached(one.said, until, wait=wait, given_up=given_up)
                else:
                    one.dialled, one.way = way.reach(one.said, until, wait=wait, given_up=given_up)
            except Exception as error:
                problems[one.number] = error

        def given_up() -> bool:
            return self._closed

        way = self._route
        if way is not None and not all(way.via.is_at(one.said) for one in asked):
            try:
                with self._attach_lock:
                    way.begin()
            except HostUnreachableError as error:
                return {one.number: error for one in asked}
        threads = [threading.Thread(target=reach, args=(one,)) for one in asked[1:]]
        for thread in threads:
            thread.start()
        reach(asked[0])
        for thread in threads:
            thread.join()
        return problems

    def _gateway_state(self, through: bool) -> str:
        """The state of the gateway, for the error about a host that is reached through it."""
        return self._route.words if through and self._route is not None else ""

    def _check_each_once(self, asked: Sequence[_AttachRequest]) -> None:
        known = {one.dialled: f"it is {one.site}" for one in self._held.values() if not one.lost}
        for one in asked:
            assert one.dialled is not None
            if one.dialled in known:
                raise ValueError(
                    f"{one.said} is a host of this process already ({known[one.dialled]}); each "
                    "worker is one host of one mesh"
                )
            known[one.dialled] = f"it was given as {one.said} too"

    def _inherited_sites(self, asked: Sequence[_AttachRequest]) -> dict[int, str]:
        """The sites of workers of an attached session that were not requested since."""
        sites = {str(held.dialled): site for site, held in self._held.items() if held.again}
        found = ((one.number, sites.pop(str(one.dialled), "")) for one in asked)
        return {number: site for number, site in found if site}

    def _dial(self, one: _AttachRequest) -> None:
        assert one.dialled is not None
        with self._lock:
            self._requested[one.link] = one
        bounds = self._gateway.prompt(tunnelled=one.way is not None)
        shown = "" if self._route is None or one.way is None else self._route.shown(one.dialled)
        self._gateway.links.dial(
            one.link, one.way or one.dialled, bounds=bounds, anybody=True, shown=shown
        )

    def _answer(self, one: _AttachRequest) -> str:
        # Failing links end by themselves in time; clearing a worker takes a time of its own.
        if not self._run.node.wait(one.future, 3 * self._liveness_s):
            raise HostUnreachableError(f"the worker at {one.said} does not answer")
        return one.future.result().site

    def _give_up(self, asked: Sequence[_AttachRequest]) -> None:
        with self._lock:
            for one in asked:
                self._requested.pop(one.link, None)
                self._held.pop(one.site, None)
        for one in asked:
            if one.dialled is not None:
                self._gateway.links.hang_up(one.site or one.link, "its client has given it up")
            if one.site:
                self._forget_nodes(one.site)

    def _introduce(self) -> list[Future[None]]:
        """Tell each host where to dial the others. Each future is done when the host knows them."""
        held = [one for one in list(self._held.values()) if not one.lost]
        waits: list[Future[None]] = []
        for one in held:
            others = [
                (other.site, _addresses_for(other, one))
                for other in held
                if other is not one
            ]  # fmt: skip
            request: int = next(self._numbers)
            known: Future[None] = self._run.new_future()
            one.introduced[request] = known
            if self._run.routes.tell_agent_at(one.site, SitesAre(others, request)):
                waits.append(known)
        return waits

    # --- on the receiving thread ------------------------------------------------------------------

    def _on_link_notice(self, link: str, notice: Notice) -> None:
        if isinstance(notice, PeerNamed):
            with self._lock:
                one = self._requested.pop(notice.dialled_as, None)
                if one is not None:
                    self._requested[link] = one
                    one.link = one.site = link
        elif isinstance(notice, LinkUp):
            one = self._requested.get(link)
            if one is not None and not notice.again:
                self._gateway.say(link, self._request(one))
        elif isinstance(notice, LinkDown):
            log.info("no connection to %s; waiting for it to come back", link)
        elif isinstance(notice, ENDS):
            self._on_link_ended(link, notice.why, refused=isinstance(notice, PeerRefused))

    def _request(self, one: _AttachRequest) -> HoldSite:
        pid = os.getpid()
        program = process_table.command_of(pid)[:LONGEST_PROGRAM]
        client = self._run.client_ref
        return HoldSite(
            one.number, pid, program, self._run.host, self._liveness_s,
            0 if client is None else client.uid, one.token,
        )  # fmt: skip

    def _on_site(self, _peer: str, message: SiteIs, _payload: Payload) -> None:
        with self._lock:
            one = self._requested.pop(message.site, None)
        if one is None or one.number != message.request or one.dialled is None:
            return
        if message.refusal:
            why = f"the worker at {one.said} ({message.site}) has refused: {message.refusal}"
            one.future.fail(SessionError(why))
            return
        run, agent = self._run, agent_of(message.site, "")
        self._held[message.site] = _AttachedHost(
            message.site, one.dialled, message.addresses, through=one.way is not None,
            again=bool(one.token),
        )  # fmt: skip
        run.node.drop(agent)  # it may have been another client's, and ours before that
        run.node.link_remote(agent, message.site)
        run.agent.on_agent_joined(agent)
        one.future.settle(lambda: message)

    def _on_known(self, _peer: str, message: SitesKnown, _payload: Payload) -> None:
        for one in list(self._held.values()):
            known = one.introduced.pop(message.request, None)
            if known is not None:
                known.settle(lambda: None)

    def _on_free(self, peer: str, _message: SiteFree, _payload: Payload) -> None:
        held = next((one for one in self._held.values() if agent_of(one.site, "") == peer), None)
        if held is not None:
            self._gateway.links.hang_up(held.site, "its client has released it")
            self._on_site_gone(held, "this process has released it", let_go=True)

    def _on_link_ended(self, link: str, why: str, *, refused: bool) -> None:
        with self._lock:
            one = self._requested.pop(link, None)
        if one is not None:
            one.refused = refused
            gateway_state = self._gateway_state(one.way is not None)
            one.future.fail(HostUnreachableError(f"the worker at {one.said}: {why}{gateway_state}"))
        held = self._held.get(link)
        if held is not None:
            gateway_state = self._gateway_state(held.through)
            lost = f"the host {host_of_site(held.site)} is lost: {why}{gateway_state}"
            self._on_site_gone(held, lost, let_go=held.leaving is not None)

    def _on_site_gone(
        self, held: _AttachedHost, why: str, *, let_go: bool, out_of_reach: bool = False
    ) -> None:
        if held.lost:
            return
        held.lost = why
        self._run.on_site_lost(held.site, why, let_go=let_go, out_of_reach=out_of_reach)
        self._forget_nodes(held.site)
        self._fetcher.on_sender_ended(held.site)
        with self._lock:
            self._held.pop(held.site, None)
            if let_go and not out_of_reach:
                self.released_sites.add(held.site)
        for awaited in (held.leaving, *held.introduced.values()):
            if awaited is not None:
                awaited.settle(lambda: None)
        if held.site in self.released_sites:
            self.on_site_released()
        for other in [] if let_go else self.held():  # a host lost to the client is lost to them too
            self._run.routes.tell_agent_at(other, SiteLost(held.site, why))

    def _forget_nodes(self, site: str) -> None:
        self._run.node.forget(agent_of(site, ""))

    # --- releasing --------------------------------------------------------------------------------

    @property
    def sent(self) -> int:
        """How many messages were sent to other hosts so far."""
        return self._gateway.links.sent

    def out_of_reach(self, why: str) -> None:
        """The hosts now belong to another client, and go on. On the receiving thread."""
        for held in list(self._held.values()):
            self._on_site_gone(held, why, let_go=True, out_of_reach=True)

    def leaves(self, site: str) -> None:
        """This client detaches from a host that keeps meshes: the end of that link is no loss."""
        held = self._held.get(site)
        if held is not None and held.leaving is None:
            held.leaving = self._run.new_future()

    def address_of(self, site: str) -> str:
        """The address by which this client dialled that host; empty if the host is not attached."""
        held = self._held.get(site)
        return "" if held is None else str(held.dialled)

    @property
    def via(self) -> GatewayAddress | None:
        """The gateway through which workers are reached, if there is one."""
        return None if self._route is None else self._route.via

    def try_gateway(self) -> None:
        """Return when there is a link to the gateway. HostUnreachableError if there can be none."""
        assert self._route is not None
        self._route.begin()
        self._route.try_link()

    def is_held(self, site: str) -> bool:
        """Whether that host belongs to this client."""
        held = self._held.get(site)
        return held is not None and not held.lost and held.leaving is None

    def held(self) -> list[str]:
        """The sites of this client's hosts."""
        return [site for site in list(self._held) if self.is_held(site)]

    def let_go(self, sites: Sequence[str]) -> list[Future[None]]:
        """Release these hosts; each future is done when nothing of this client is left there."""
        found: list[Future[None]] = []
        for site in sites:
            held = self._held.get(site)
            if held is None:
                continue
            if held.leaving is None:
                held.leaving = self._run.new_future()
                self._run.routes.tell_agent_at(site, LetSiteGo(next(self._numbers)))
            found.append(held.leaving)
        return found

    def end(self, sites: Sequence[str], tell: Callable[[str], object]) -> list[Future[None]]:
        """End these workers: `tell` sends the request. Each future is done when one has ended."""
        found: list[Future[None]] = []
        for site in sites:
            held = self._held.get(site)
            if held is not None:
                held.leaving = held.leaving or self._run.new_future()
                tell(site)
                found.append(held.leaving)
        return found


def hosts_of_session(session: ClientSession) -> AttachedHosts | None:
    """The worker hosts that this session holds; None before the first."""
    sites = session.sites
    assert sites is None or isinstance(sites, AttachedHosts)
    return sites


def _addresses_for(one: _AttachedHost, other: _AttachedHost) -> list[str]:
    """The addresses of one host for another: that of this client, if it means the same there."""
    near = one.dialled.scope is Scope.LOOPBACK  # of this host, or of the gateway's
    if near and (other.dialled.scope is not Scope.LOOPBACK or one.through != other.through):
        return list(one.told)
    first = str(one.dialled)
    return [first, *(told for told in one.told if told != first)]
