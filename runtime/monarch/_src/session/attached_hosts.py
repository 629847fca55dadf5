"""The worker hosts that this client has: takes them, hears of their loss, lets them go.

Runs in: a client. Owns its gateway, from the first host on. Asking is done on the thread that
attaches, what links tell is handled on the one that receives.
Invariants: a worker is a host of this client from its SiteIs until it is lost or let go; what was
asked for in vain is given back before the error is raised.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from monarch._src.actor.future import Future
from monarch._src.actor.refs import agent_of
from monarch._src.actor.runtime import Runtime
from monarch._src.config import settings
from monarch._src.errors import HostUnreachableError, SessionError
from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.gateway import ENDS, Gateway
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_types import Notice, PeerNamed
from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.net.session_directory import address_of
from monarch._src.net.state.addresses import Address, Scope, parse_address
from monarch._src.net.state.link_actions import LinkDown, LinkUp, PeerRefused
from monarch._src.payload.host_fetcher import Fetcher
from monarch._src.session.gateway_route import GatewayAddress, GatewayRoute, reached
from monarch._src.session.records import LONGEST_PROGRAM
from monarch._src.system import process_table
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import AGENT, host_of_site
from monarch._src.wire.messages import (
    HoldSite,
    KeptWorker,
    LetSiteGo,
    PayloadPart,
    SiteFree,
    SiteIs,
    SiteLost,
    SitesAre,
    SitesKnown,
)

log = logging.getLogger("monarch.session")
PATIENCE_PART = 3  # a worker that is about to begin is waited for: this part of liveness


@dataclass
class _Asked:
    """A worker that is asked for. `link`: what its link is called until it has said its name."""

    number: int
    said: Address
    link: str
    future: Future[SiteIs]
    dialled: Address | None = None
    way: Address | None = None  # what leads there on this host, through the gateway
    site: str = ""
    token: str = ""  # of the kept session of which it is to have something
    refused: bool = False  # the two cannot work together, whoever has it


@dataclass
class _Held:
    """A worker that this client has.

    leaving: done when nothing of ours is left there. introduced: by number of the request, what is
    done when it knows the other hosts that there were then.
    """

    site: str
    dialled: Address
    told: list[str]
    through: bool = False  # it is reached through the gateway
    again: bool = False  # it came with a session, and whoever asks for it here is given it
    leaving: Future[None] | None = None
    lost: str = ""
    introduced: dict[int, Future[None]] = field(default_factory=dict[int, Future[None]])


class AttachedHosts:
    """See the module's text."""

    def __init__(
        self,
        run: Runtime,
        keys: Keys | None,
        paths: Sequence[str],
        via: GatewayAddress | None = None,
    ) -> None:
        """Args:
        paths: where these keys are, as `attach_to_workers` was told: ca, private_key.
        via: the gateway through which all other workers are reached, if there is one.
        """
        self._run = run
        self.key_paths = list(paths)
        self.given_back: set[str] = set()  # sites that were this client's until it let go of them
        self.when_given_back: Callable[[], None] = lambda: None  # on the thread that receives
        self.job = None if keys is None else keys.allowed.job
        self.public = "" if keys is None else keys.public
        self._numbers = itertools.count(1)
        self._asked: dict[str, _Asked] = {}  # by link
        self._held: dict[str, _Held] = {}  # by site
        self._closed = False
        self._attaching = 0  # how many threads ask for workers
        self._lock = GuardedLock()  # of the three; what is under it does not block
        self._one_by_one = threading.Lock()  # held while workers are asked to be this client's
        self._liveness_s = settings().liveness
        self._way = (
            None if via is None else GatewayRoute(run, via, self.key_paths, self._liveness_s)
        )
        node = run.node
        self._gateway = Gateway(
            node, run.name, keys, Audit(None), self._liveness_s, self._told,
            unknown=self._link_here,
        )  # fmt: skip
        links, baton = self._gateway.links, node.baton
        run.handle(SiteIs, self._on_site)
        run.handle(SiteFree, self._on_free)
        fetcher = self._fetcher = Fetcher(node, self._gateway, run.payloads.payload_sender)
        run.handle(PayloadPart, fetcher.on_part)
        run.payloads.on_gone.append(self._node_gone)
        run.handle(SitesKnown, self._on_known)
        run.closers.append(self.close)
        baton.look_often_s = self._gateway.prompt().ping_s / 2
        baton.watch(links.fileno(), links.work)

    def close(self) -> None:
        """Leave all of them. Idempotent."""
        if self._closed:
            return
        self._closed = True
        baton = self._run.node.baton
        baton.unwatch(self._gateway.links.fileno())
        baton.look_often_s = None
        self._gateway.close("its client has ended")
        if self._way is not None:
            self._way.close()

    def _node_gone(self, node: str) -> None:
        site = self._run.node.site_of(node)
        if site:
            self._fetcher.ended(site, AGENT if node == agent_of(site, "") else node)
        else:
            self._fetcher.forgotten(node)
            self._gateway.forgotten(node)

    def _link_here(self, node: str) -> None:
        """Something of another host is for a process of this one, which we had no need of yet."""
        self._run.node.link(node, address_of(self._run.directory, node))

    # --- taking -----------------------------------------------------------------------------------

    @property
    def is_used(self) -> bool:
        """Whether this client has workers, or asks for some."""
        return bool(self._attaching or self.held())

    def begin(self) -> None:
        """`attach` is about to be called, on another thread."""
        with self._lock:
            self._attaching += 1

    def attach(self, workers: Sequence[Address], patience_s: float) -> list[str]:
        """Have these workers; their sites, in that order. Blocks until each has answered.

        After `begin`. Several threads may ask at once. `patience_s`: how long one that starts late
        is waited for.

        Raises:
            HostUnreachableError: one cannot be reached, or does not let this process in.
            SessionError: one belongs to another client. ValueError: one was given twice, or is a
                host of this client already.
        """
        asked = [self._new(address) for address in workers]
        try:
            self._reach_all(asked, time.monotonic() + patience_s)
            with self._one_by_one:
                return self._attach(asked)
        finally:
            with self._lock:
                self._attaching -= 1

    def _attach(self, asked: Sequence[_Asked]) -> list[str]:
        try:
            if self._closed:
                raise SessionError("the session of this process has ended meanwhile")
            came = self._came_with_the_session(asked)
            new = [one for one in asked if one.number not in came]
            self._check_each_once(new)
            for one in new:
                self._dial(one)
            sites = [came.get(one.number) or self._answer(one) for one in asked]
            for site in came.values():
                self._held[site].again = False
        except BaseException:
            self._give_back(asked)
            raise
        for known in self._introduce():
            self._run.node.wait(known, self._liveness_s)
        return sites

    def take_up(self, workers: Sequence[KeptWorker], token: str) -> dict[str, str]:
        """Have the workers of a kept session again; by site, why some of them are not to be had.

        Raises:
            HostUnreachableError: the two cannot work together, or none of them can be reached.
        """
        asked = {one.site: self._new(parse_address(one.address), token) for one in workers}
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
            self._give_back(list(asked.values()))
            raise
        for known in self._introduce():
            self._run.node.wait(known, self._liveness_s)
        for other in self.held():
            for site, why in lost.items():
                self._run.routes.tell_agent_at(other, SiteLost(site, why))
        return lost

    def _new(self, said: Address, token: str = "") -> _Asked:
        number = next(self._numbers)
        return _Asked(number, said, f"?{number}", self._run.new_future(), token=token)

    def _reach_all(self, asked: Sequence[_Asked], until: float) -> None:
        problems = self._reach(asked, until, wait=True)
        if len(problems) > 1:
            # A gateway that is not there is told once, whoever is behind it.
            text = "\n".join(dict.fromkeys(str(problems[one]) for one in sorted(problems)))
            raise HostUnreachableError(text)
        for error in problems.values():
            raise error

    def _reach(self, asked: Sequence[_Asked], until: float, *, wait: bool) -> dict[int, Exception]:
        """Find an address of each; why there is none, by number. `wait`: for those that begin."""
        problems: dict[int, Exception] = {}
        until = until or time.monotonic() + self._liveness_s / PATIENCE_PART

        def reach(one: _Asked) -> None:
            try:
                if way is None or way.via.is_at(one.said):
                    one.dialled = reached(one.said, until, wait=wait, given_up=given_up)
                else:
                    one.dialled, one.way = way.reach(one.said, until, wait=wait, given_up=given_up)
            except Exception as error:
                problems[one.number] = error

        def given_up() -> bool:
            return self._closed

        way = self._way
        if way is not None and not all(way.via.is_at(one.said) for one in asked):
            try:
                with self._one_by_one:
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

    def _by_way(self, through: bool) -> str:
        """What is to be said of the gateway where a host is lost that is reached through it."""
        return self._way.words if through and self._way is not None else ""

    def _check_each_once(self, asked: Sequence[_Asked]) -> None:
        known = {one.dialled: f"it is {one.site}" for one in self._held.values() if not one.lost}
        for one in asked:
            assert one.dialled is not None
            if one.dialled in known:
                raise ValueError(
                    f"{one.said} is a host of this process already ({known[one.dialled]}); each "
                    "worker is one host of one mesh"
                )
            known[one.dialled] = f"it was given as {one.said} too"

    def _came_with_the_session(self, asked: Sequence[_Asked]) -> dict[int, str]:
        """Those that this client has since it took a session up, and that nobody has asked for."""
        sites = {str(held.dialled): site for site, held in self._held.items() if held.again}
        found = ((one.number, sites.pop(str(one.dialled), "")) for one in asked)
        return {number: site for number, site in found if site}

    def _dial(self, one: _Asked) -> None:
        assert one.dialled is not None
        with self._lock:
            self._asked[one.link] = one
        bounds = self._gateway.prompt()
        shown = "" if self._way is None or one.way is None else self._way.shown(one.dialled)
        self._gateway.links.dial(
            one.link, one.way or one.dialled, bounds=bounds, anybody=True, shown=shown
        )

    def _answer(self, one: _Asked) -> str:
        # Links are given up in time, and a worker that is cleared for us takes its own.
        if not self._run.node.wait(one.future, 3 * self._liveness_s):
            raise HostUnreachableError(f"the worker at {one.said} does not answer")
        return one.future.result().site

    def _give_back(self, asked: Sequence[_Asked]) -> None:
        with self._lock:
            for one in asked:
                self._asked.pop(one.link, None)
                self._held.pop(one.site, None)
        for one in asked:
            if one.dialled is not None:
                self._gateway.links.hang_up(one.site or one.link, "its client has given it up")
            if one.site:
                self._forget_nodes(one.site)

    def _introduce(self) -> list[Future[None]]:
        """Tell each host where it can dial the others; done when it lets them in, or is lost."""
        held = [one for one in list(self._held.values()) if not one.lost]
        waits: list[Future[None]] = []
        for one in held:
            others = [
                (other.site, _for_another(other, one))
                for other in held
                if other is not one
            ]  # fmt: skip
            request: int = next(self._numbers)
            known: Future[None] = self._run.new_future()
            one.introduced[request] = known
            if self._run.routes.tell_agent_at(one.site, SitesAre(others, request)):
                waits.append(known)
        return waits

    # --- on the thread that receives --------------------------------------------------------------

    def _told(self, link: str, notice: Notice) -> None:
        if isinstance(notice, PeerNamed):
            with self._lock:
                one = self._asked.pop(notice.dialled_as, None)
                if one is not None:
                    self._asked[link] = one
                    one.link = one.site = link
        elif isinstance(notice, LinkUp):
            one = self._asked.get(link)
            if one is not None and not notice.again:
                self._gateway.say(link, self._question(one))
        elif isinstance(notice, LinkDown):
            log.info("no connection to %s; waiting for it to come back", link)
        elif isinstance(notice, ENDS):
            self._ended(link, notice.why, refused=isinstance(notice, PeerRefused))

    def _question(self, one: _Asked) -> HoldSite:
        pid = os.getpid()
        program = process_table.command_of(pid)[:LONGEST_PROGRAM]
        client = self._run.client_ref
        return HoldSite(
            one.number, pid, program, self._run.host, self._liveness_s,
            0 if client is None else client.uid, one.token,
        )  # fmt: skip

    def _on_site(self, _peer: str, message: SiteIs, _payload: Payload) -> None:
        with self._lock:
            one = self._asked.pop(message.site, None)
        if one is None or one.number != message.request or one.dialled is None:
            return
        if message.refusal:
            why = f"the worker at {one.said} ({message.site}) is not to be had: {message.refusal}"
            one.future.fail(SessionError(why))
            return
        run, agent = self._run, agent_of(message.site, "")
        self._held[message.site] = _Held(
            message.site, one.dialled, message.addresses, through=one.way is not None,
            again=bool(one.token),
        )  # fmt: skip
        run.node.drop(agent)  # it may have been another client's, and ours before that
        run.node.link_far(agent, message.site)
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
            self._gateway.links.hang_up(held.site, "its client has let go of it")
            self._gone(held, "this process has let go of it", let_go=True)

    def _ended(self, link: str, why: str, *, refused: bool) -> None:
        with self._lock:
            one = self._asked.pop(link, None)
        if one is not None:
            one.refused = refused
            by_way = self._by_way(one.way is not None)
            one.future.fail(HostUnreachableError(f"the worker at {one.said}: {why}{by_way}"))
        held = self._held.get(link)
        if held is not None:
            by_way = self._by_way(held.through)
            lost = f"the host {host_of_site(held.site)} is lost: {why}{by_way}"
            self._gone(held, lost, let_go=held.leaving is not None)

    def _gone(self, held: _Held, why: str, *, let_go: bool, out_of_reach: bool = False) -> None:
        if held.lost:
            return
        held.lost = why
        self._run.on_site_lost(held.site, why, let_go=let_go, out_of_reach=out_of_reach)
        self._forget_nodes(held.site)
        self._fetcher.ended(held.site)
        with self._lock:
            self._held.pop(held.site, None)
            if let_go and not out_of_reach:
                self.given_back.add(held.site)
        for awaited in (held.leaving, *held.introduced.values()):
            if awaited is not None:
                awaited.settle(lambda: None)
        if held.site in self.given_back:
            self.when_given_back()
        for other in [] if let_go else self.held():  # what is lost for us is so for all of us
            self._run.routes.tell_agent_at(other, SiteLost(held.site, why))

    def _forget_nodes(self, site: str) -> None:
        self._run.node.forget(agent_of(site, ""))

    # --- letting go -------------------------------------------------------------------------------

    @property
    def sent(self) -> int:
        """How many messages went to other hosts so far."""
        return self._gateway.links.sent

    def out_of_reach(self, why: str) -> None:
        """What is there goes on, and is not this client's any more. On the thread that receives."""
        for held in list(self._held.values()):
            self._gone(held, why, let_go=True, out_of_reach=True)

    def leaves(self, site: str) -> None:
        """This client goes, and what is kept there does not: the end of that link is no loss."""
        held = self._held.get(site)
        if held is not None and held.leaving is None:
            held.leaving = self._run.new_future()

    def address_of(self, site: str) -> str:
        """Where this client has dialled that host; empty if it has it not."""
        held = self._held.get(site)
        return "" if held is None else str(held.dialled)

    @property
    def via(self) -> GatewayAddress | None:
        """The gateway through which workers are reached, if there is one."""
        return None if self._way is None else self._way.via

    def try_gateway(self) -> None:
        """Return when there is a link to the gateway. HostUnreachableError: there is none."""
        assert self._way is not None
        self._way.begin()
        self._way.try_link()

    def is_held(self, site: str) -> bool:
        """Whether that host is this client's."""
        held = self._held.get(site)
        return held is not None and not held.lost and held.leaving is None

    def held(self) -> list[str]:
        """The hosts that this client has."""
        return [site for site in list(self._held) if self.is_held(site)]

    def let_go(self, sites: Sequence[str]) -> list[Future[None]]:
        """Give these hosts back; each future is done when nothing of this client is left there."""
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
        """Have these workers end: `tell` says so to each; done when they have."""
        found: list[Future[None]] = []
        for site in sites:
            held = self._held.get(site)
            if held is not None:
                held.leaving = held.leaving or self._run.new_future()
                tell(site)
                found.append(held.leaving)
        return found


def _for_another(one: _Held, other: _Held) -> list[str]:
    """Where one host may be dialled by another: where this client has, if that means the same."""
    near = one.dialled.scope is Scope.LOOPBACK  # of this host, or of the gateway's
    if near and (other.dialled.scope is not Scope.LOOPBACK or one.through != other.through):
        return list(one.told)
    first = str(one.dialled)
    return [first, *(told for told in one.told if told != first)]
