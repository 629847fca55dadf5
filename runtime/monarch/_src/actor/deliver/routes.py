"""The routes of messages to the procs of a mesh, and of answers to their callers.

Runs in: any process, on the calling or answering thread; `actor.deliver.inbound` is the other end.
A message to few ranks is sent to each directly. A message to many ranks is one *cast*, which the
host agent relays, and whose answers it merges: the cost for the sender does not grow with the
number of ranks. `net.state.message_order` keeps both routes in one order. A cast to more hosts than
`cast_fanout` goes over a tree of their agents (`host.state.cast_tree`).

Messages to another host go through its agent anyway, so a message to several ranks of another host
is a cast of any size, and crosses between the hosts once. On the own host a cast takes one more
hop: with 16 ranks a call is 40 % slower, with 64 ranks 10 %, with 256 ranks equal, while the sender
spends 1/2, 1/5 and 1/10 of the time (docs/explanation/performance.md). The own host's agent holds
no payloads: a large payload lies in a segment that all ranks map, or the message is sent directly.
The agent of another host fetches the payload, lends it to its ranks, and serves it to the hosts
that it relays to.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable
from typing import TypeAlias

import msgspec

from monarch._src.actor.deliver.cast_tree import CastSender, SentCast
from monarch._src.actor.deliver.inbound import Inbound, Ordered
from monarch._src.actor.deliver.payloads import Payloads
from monarch._src.actor.deliver.restart_replay import ReplayedMessage, ReplayLog, is_kept
from monarch._src.actor.refs import Known, ProcsRef, agent_of, out_of_reach
from monarch._src.actor.state.calls import CallTable
from monarch._src.config import settings
from monarch._src.host.state.cast_tree import TreeSender, Where
from monarch._src.logs.output_counters import LONG_NS, WRITTEN
from monarch._src.net.local.interrupt import uninterrupted
from monarch._src.net.node import Node
from monarch._src.net.session_directory import address_of, at_site
from monarch._src.net.state.flow_control import QUEUE
from monarch._src.net.state.message_order import Outgoing
from monarch._src.shape import Region
from monarch._src.wire.frames import NO_PAYLOAD, Payload, Placed, apart_of
from monarch._src.wire.ids import AGENT, is_agent, parse_proc_node
from monarch._src.wire.messages import (
    ELSEWHERE,
    OWN_RANK,
    STATUS,
    Answer,
    Bootstrap,
    Call,
    Cast,
    Message,
    Reply,
    SpawnActor,
    StopActor,
    TreeDone,
    TreeStuck,
    Watch,
)
from monarch._src.wire.segment_refs import SEGMENT_FROM

CAST_FROM = 32  # ranks
GATHERED_LIMIT = 4096  # bytes of one answer


class MeshRoute(msgspec.Struct, frozen=True):
    """The route from this process to the procs of one mesh. `lock`: guards numbering and sending.

    `nodes`: the nodes of all ranks, in order, if one message can be sent to all of them unchanged.
    """

    lock: threading.Lock
    outgoing: Outgoing
    tree: TreeSender[SentCast] | None  # if the mesh has more hosts than `cast_fanout`
    nodes: list[str]


LostCalls: TypeAlias = "list[tuple[int, int]]"  # the number of a call, a position in it


class Routes:
    """The routes of one process, and the order of messages on them."""

    def __init__(self, node: Node, known: Known, payloads: Payloads, inbound: Inbound) -> None:
        self._node = node
        self._directory = ""
        self._known = known
        self._payloads = payloads
        self.client = ""  # the node of the client, if known
        # By mesh. Threads number and send under the lock of a route, or they would send out of
        # order.
        self._mesh_routes: dict[int, MeshRoute] = {}
        self._cast_sender = CastSender(node, self.tell_agent_at)
        self._replay_log = ReplayLog()
        self.inbound = inbound

    def begin(self, rank: int, directory: str) -> None:
        """Set this process's rank (-1: a client) and the directory of its session."""
        self._directory = directory
        self.inbound.begin(rank)

    # --- nodes ------------------------------------------------------------------------------------

    def route_to(self, ref: ProcsRef, rank: int) -> str:
        """The node name of a rank; opens a route to it if there is none."""
        incarnation = 0
        if self._known.restarts(ref):
            known_incarnation = self._known.incarnations(ref.uid).get(rank)
            if known_incarnation is None and ref.owner != self._node.name:
                return self._watch_rank(ref, rank)
            incarnation = known_incarnation or 0
        node = ref.node(rank, incarnation)
        if not self._node.knows(node) and rank not in self._known.dead(ref.uid):
            self._known.learn(ref)
            if ref.nodes and node != self.client:  # an actor in the process of an earlier client
                why = "that client has gone, and the actors in its process with it"
                self._known.mark_dead(ref.uid, rank, out_of_reach(ref, rank, why))
                return node
            if ref.owner == self._node.name:  # an own proc that was stopped and forgotten
                self._node.expect(node, ref.site(rank))
            else:
                self._connect(ref, rank, node)
            self._tell_agent(ref, rank, Watch(node, ref.owner))
        return node

    def _connect(self, ref: ProcsRef, rank: int, node: str) -> None:
        self._node.link_to(node, self._address(ref, rank, node))

    def _address(self, ref: ProcsRef, rank: int, node: str) -> str:
        """The address of a proc, equal to the one it announces; remotely, only the site counts."""
        directory = self._directory if ref.sites else ref.directory
        return at_site(ref.site(rank), address_of(directory, node))

    def _tell_agent(self, ref: ProcsRef, rank: int, message: Message) -> bool:
        """Send a message to the host agent of a rank."""
        return self.tell_agent_at(ref.site(rank), message)

    def tell_agent_at(self, site: str, message: Message, payload: Payload = NO_PAYLOAD) -> bool:
        """Send a message to the agent of a site; False if the agent is known to be gone."""
        agent = agent_of(site, self._node.site)
        if not self._node.knows(agent) and agent != AGENT:
            self._node.link_remote(agent, site)
        return self._node.send(agent, message, payload)

    def _watch_rank(self, ref: ProcsRef, rank: int) -> str:
        """A placeholder name for a rank whose incarnation is unknown; asks the agent for it."""
        place = _place(ref, rank)
        if not self._node.knows(place) and rank not in self._known.dead(ref.uid):
            self._known.learn(ref)
            self._node.expect(place, ref.site(rank))
            self._tell_agent(ref, rank, Watch(ref.node(rank), ref.owner, place=True))
        return place

    def reach_node(self, node: str, address: str) -> None:
        """Open a route to a node at that address, unless it is a client that has gone."""
        if not self._node.knows(node):
            place = parse_proc_node(node)
            if place is None and node != self.client:
                return
            if place is not None and place[1] in self._known.dead(place[0]):
                return
            self._node.link_to(node, address)
            if place is not None:
                self.tell_agent_at(self._node.site_of(node), Watch(node))

    def forget(self, ref: ProcsRef) -> None:
        """Forget a mesh that has ended."""
        self._mesh_routes.pop(ref.uid, None)
        self._node.send_limits.released(f"{ref.uid}")
        self._replay_log.forget(ref.uid)
        incarnations = self._known.incarnations(ref.uid)
        for rank in range(ref.extent.nelements):
            node = ref.node(rank, incarnations.get(rank, 0))
            self._node.drop(node)
            self.inbound.forget(node)
            if self._known.restarts(ref):
                self._node.drop(_place(ref, rank))

    # --- restarts --------------------------------------------------

    def begin_restarts(self, ref: ProcsRef) -> None:
        """A rank of a mesh without a policy is about to be restarted, by request.

        From here on messages go to the known incarnations of its ranks. Those that this process has
        a route to, or knows to be dead, are in their first one. Idempotent.
        """
        known, node = self._known, self._node
        if known.restarts(ref):
            return
        route = self._mesh_route(ref)
        with uninterrupted(), route.lock:
            route.nodes.clear()
            dead = known.dead(ref.uid)
            for rank in range(ref.extent.nelements):
                if ref.owner == node.name or rank in dead or node.knows(ref.node(rank)):
                    known.set_incarnation(ref.uid, rank, 0)

    def too_large(self, ref: ProcsRef, rank: int) -> list[SpawnActor]:
        """The actors of this process on that rank whose constructor arguments were not kept."""
        return self._replay_log.too_large(ref.uid, rank)

    def on_proc_found(
        self, ref: ProcsRef, rank: int, incarnation: int, *, lost: bool = False
    ) -> None:
        """The agent has reported the incarnation of a rank: send, or drop, the waiting messages.

        The call has no effect if this process knew the incarnation already.
        """
        if rank in self._known.incarnations(ref.uid) or ref.owner == self._node.name:
            return
        place, node = _place(ref, rank), ref.node(rank, incarnation)
        with uninterrupted(), self._mesh_route(ref).lock:
            if lost:
                self._node.forget(place)
            else:
                self._node.link_as(place, node, self._address(ref, rank, node))
            self._known.set_incarnation(ref.uid, rank, incarnation)

    def proc_restarted(
        self, ref: ProcsRef, rank: int, incarnation: int, calls: CallTable
    ) -> LostCalls:
        """A rank restarts: later messages go to the new incarnation.

        Returns the calls that wait for the old one.
        """
        route = self._mesh_route(ref)
        outgoing = route.outgoing
        old = ref.node(rank, self._known.incarnation(ref.uid, rank))
        with route.lock:  # each message is numbered for the incarnation that it goes to
            self._known.set_incarnation(ref.uid, rank, incarnation)
            outgoing.renewed(rank)
            lost = calls.waiting_for(ref.uid, rank)
            if ref.owner == self._node.name:
                self._node.expect(ref.node(rank, incarnation), ref.site(rank))
            for replayed in self._replay_log.of(ref.uid):
                if rank in replayed.region:
                    self._replay(ref, rank, outgoing, replayed)
        self.drop(old)
        self._node.drop(_place(ref, rank))
        return lost

    def _replay(
        self, ref: ProcsRef, rank: int, outgoing: Outgoing, replayed: ReplayedMessage
    ) -> None:
        if replayed.payload is None:
            return
        node, message = self.route_to(ref, rank), replayed.message
        if not isinstance(message, Bootstrap):
            message = msgspec.structs.replace(
                message, rank=replayed.region.position(rank), after=outgoing.direct(rank)
            )
        self._node.send(node, message, replayed.payload)

    def drop(self, node: str) -> None:
        """Drop the routes of a node that is gone for good."""
        self._node.drop(node)
        self.inbound.forget(node)

    def replay_on_restart(
        self, ref: ProcsRef, region: Region, message: Bootstrap, payload: Payload
    ) -> None:
        """Send that message to every later incarnation of these ranks, before others."""
        with uninterrupted(), self._mesh_route(ref).lock:
            self._replay_log.add(ref.uid, ReplayedMessage(region, message, payload))

    def stop_replaying(self, ref: ProcsRef, actor: int) -> None:
        """An actor is stopped: later incarnations do not recreate it."""
        if self._replay_log.of(ref.uid):
            with uninterrupted(), self._mesh_route(ref).lock:
                self._replay_log.drop_actor(ref.uid, actor)

    def _mesh_route(self, ref: ProcsRef) -> MeshRoute:
        route = self._mesh_routes.get(ref.uid)
        if route is None:
            fanout = settings().cast_fanout if len(ref.sites) > 1 else 1
            tree: TreeSender[SentCast] | None = (
                TreeSender(fanout) if len(ref.sites) > fanout else None
            )
            nodes: list[str] = []
            plain = not self._known.restarts(ref) and not ref.nodes
            if plain and ref.extent.nelements < CAST_FROM:
                nodes = [ref.node(rank) for rank in range(ref.extent.nelements)]
            if self._node.name in nodes:  # this process needs a copy of its own
                nodes = []
            route = MeshRoute(threading.Lock(), Outgoing(), tree, nodes)
            route = self._mesh_routes.setdefault(ref.uid, route)
        return route

    def forget_client(self, ref: ProcsRef) -> None:
        """Drop the routes of a client that has gone."""
        self._mesh_routes.pop(ref.uid, None)
        self.inbound.forget(ref.owner)
        self._node.forget(ref.owner)

    # --- sending ----------------------------------------------------------------------------------

    def post(
        self,
        ref: ProcsRef,
        region: Region,
        message: Ordered,
        payload: Payload = NO_PAYLOAD,
        *,
        skip: Collection[int] = (),
        gather: bool = False,
        each: bool = False,
    ) -> Collection[int]:
        """Send to every rank of a region; the message's `rank` is the position in the region.

        Args:
            skip: positions to leave out, since their ranks are known to be dead.
            gather: have the agent merge the answers to a cast.
            each: have the agent send merged answers on as they arrive.

        Returns:
            The positions that the message could not be sent to. A sent message may still be lost.
        """
        if payload.is_large:
            payload = self._placed(ref, region, message, payload)
        route = self._mesh_routes.get(ref.uid)
        if route is None:
            route = self._mesh_route(ref)
        is_cast = self._goes_once_a_host(route, ref, region, payload) or (
            len(region) >= CAST_FROM and payload.wire_bytes < SEGMENT_FROM and not ref.nodes
        )
        lock = route.lock
        if is_cast and (not self._known.restarts(ref) or self._knows_incarnations(ref)):
            self._known.learn(ref)
            with uninterrupted(), lock:
                if not isinstance(message, Call):
                    self._note_sent(ref, region, message, payload)
                sent = self._cast(route, ref, region, message, payload, gather, each)
            return () if sent else range(len(region))
        with uninterrupted(), lock:
            if not isinstance(message, Call):
                self._note_sent(ref, region, message, payload)
            return self._send_directly(route, ref, region, message, payload, skip)

    def _note_sent(self, ref: ProcsRef, region: Region, message: Ordered, payload: Payload) -> None:
        """Keep what later incarnations of these ranks need. Under the lock of the route."""
        if not ref.nodes:  # the process of a client is not restarted
            all_sizes = bool(ref.restarts)
            self._replay_log.on_sent(ref.uid, region, message, payload, all_sizes=all_sizes)

    def _send_directly(
        self, route: MeshRoute, ref: ProcsRef, region: Region, message: Ordered, payload: Payload,
        skip: Collection[int],
    ) -> Collection[int]:  # fmt: skip
        """Send to each rank directly; returns the positions that could not be sent to."""
        nodes, outgoing, ranks = route.nodes, route.outgoing, region.ranks()
        positions: Iterable[int] = range(len(ranks))
        is_counted = False
        if (
            nodes and not skip and not payload.buffers
            and ranks == range(len(nodes)) and outgoing.direct_to_all(len(nodes))
        ):  # fmt: skip
            message.rank, message.after = OWN_RANK, 0
            without = self._node.forward(nodes, message, payload)
            if not without:
                return ()
            # These have no route yet, or are dead.
            positions, is_counted = [nodes.index(node) for node in without], True
        missed: list[int] = []
        send, own = self._node.send, self._node.name
        for position in positions:
            if position in skip:
                continue
            rank = ranks[position]
            node = self.route_to(ref, rank)
            message.rank = position
            message.after = 0 if is_counted else outgoing.direct(rank)
            # A message to this process is queued by reference, and this one changes again.
            own_copy = msgspec.structs.replace(message) if node == own else message
            if not send(node, own_copy, payload):
                missed.append(position)
        return missed

    def await_room(self, ref: ProcsRef, region: Region, *, large: bool) -> None:
        """Block while the send limit of a host with ranks of that region is exceeded.

        `large`: respect the limit for large payloads too. Called before `post`, on threads of user
        code, which may block.
        """
        here, places = self._node.site, ref.places
        if places == (here,):
            return
        rooms = self._node.send_limits
        if len(region) == 1:  # sent directly
            site = ref.site(region.ranks()[0])
            if site != here:
                rooms.wait(site, large=large)
            return
        target_sites, routes = self._cast_sender.sites_of(ref, _where(region)), self._mesh_routes
        route = routes.get(ref.uid)
        if route is not None and route.tree is not None:
            tree = route.tree
            rooms.wait_until(
                f"{ref.uid}", lambda: tree.held < QUEUE or routes.get(ref.uid) is not route
            )
            target_sites = tree.heads(target_sites, self._cast_sender.own(ref))
        for at in target_sites:
            if places[at] != here:
                rooms.wait(places[at], large=large)

    def _goes_once_a_host(
        self, route: MeshRoute, ref: ProcsRef, region: Region, payload: Payload
    ) -> bool:
        """Whether to send a cast: to several ranks of another host, or over a tree of hosts.

        If the region includes ranks of this host, which need no detour, or of the client's host,
        only large messages are cast.
        """
        here, sites = self._node.site, ref.sites
        if len(region) < 2 or ref.places == (here,):
            return False
        sites_count = len(self._cast_sender.sites_of(ref, _where(region)))
        by_tree = route.tree is not None and sites_count > route.tree.fanout
        if sites and here not in sites:
            return by_tree or len(region) > sites_count
        is_placed = isinstance(apart_of(payload), Placed)
        if by_tree and (is_placed or payload.wire_bytes < SEGMENT_FROM):
            return True
        if not is_placed:
            return False
        counts = Counter(ref.site(rank) for rank in region.ranks())
        return any(count > 1 for site, count in counts.items() if site != here)

    def _placed(self, ref: ProcsRef, region: Region, message: Ordered, payload: Payload) -> Payload:
        """Place a large payload for sending, unless only this process receives it."""
        one = len(region) == 1
        far = self._node.site not in ref.places
        if one:
            rank = region.ranks()[0]
            far = ref.site(rank) != self._node.site
            if ref.node(rank, self._known.incarnation(ref.uid, rank)) == self._node.name:
                return payload
        # A later incarnation receives the messages that spawn its actors again.
        again = isinstance(message, SpawnActor) and bool(ref.restarts or is_kept(payload))
        return self._payloads.place(payload, sole=one and not again, far=far)

    def _knows_incarnations(self, ref: ProcsRef) -> bool:
        """Whether the incarnations of all ranks are known, which a cast must name."""
        if ref.owner == self._node.name:
            return True
        return len(self._known.incarnations(ref.uid)) == ref.extent.nelements

    def _cast(
        self, route: MeshRoute, ref: ProcsRef, region: Region, message: Ordered,
        payload: Payload, gather: bool, each: bool,
    ) -> bool:  # fmt: skip
        number, fences = route.outgoing.cast(region)
        where = _where(region)
        call = message.call if gather and isinstance(message, (Call, StopActor)) else 0
        cast = Cast(
            self._node.name, self._node.address, ref.owner, ref.uid, number, where, fences, call,
            each, message,
        )  # fmt: skip
        if self._known.restarts(ref):
            incarnations = self._known.incarnations(ref.uid).items()
            cast.lives = [
                (rank, incarnation)
                for rank, incarnation in incarnations
                if incarnation and rank in region
            ]
        if route.tree is not None:
            return self._cast_sender.send(route.tree, ref, cast, payload)
        if len(ref.sites) < 2:
            return self.tell_agent_at(ref.site(0), cast, payload)
        target_sites = {ref.site(rank) for rank in region.ranks()}
        sent = [
            self.tell_agent_at(site, cast, payload) for site in ref.sites if site in target_sites
        ]
        return any(sent)

    # --- over a tree of hosts ---------------------------------------------------------------------

    def on_tree_done(self, peer: str, message: TreeDone) -> None:
        """A range of hosts has finished a cast."""
        route = self._mesh_routes.get(message.mesh)
        if route is None or route.tree is None or not is_agent(peer):
            return
        with route.lock:
            self._cast_sender.on_tree_done(route.tree, message)
        if route.tree.held < QUEUE:
            self._node.send_limits.released(f"{message.mesh}")

    def on_tree_stuck(self, _peer: str, message: TreeStuck, _payload: Payload) -> None:
        """A host of the tree cannot relay a cast."""
        route = self._mesh_routes.get(message.mesh)
        if route is not None and route.tree is not None:
            with route.lock:
                self._cast_sender.on_tree_stuck(route.tree, message)

    def on_site_lost(self, site: str) -> None:
        """A site is lost; trees go around it."""
        self._cast_sender.lost.add(site)
        for mesh, route in list(self._mesh_routes.items()):
            ref = self._known.ref(mesh)
            if route.tree is not None and ref is not None and site in ref.sites:
                with route.lock:
                    self._cast_sender.on_site_lost(route.tree, ref.sites.index(site))
                self._node.send_limits.released(f"{mesh}")

    # --- answers ----------------------------------------------------------------------------------

    def reply(
        self,
        peer: str,
        message: Call | StopActor,
        status: int,
        payload: Payload,
        ran_ns: int = LONG_NS,
    ) -> None:
        """Answer a message of `peer`, whose endpoint ran for `ran_ns`."""
        to, address = peer, ""
        if isinstance(message, Call) and message.reply_to:
            to, address = message.reply_to, message.reply_address
        # `Written.since`, inlined: most answers follow no output, and a function call costs 1 %.
        written = WRITTEN
        if not (
            ran_ns < LONG_NS
            and to in written.knowing
            and not written.held
            and written.board[written.at] == written.seen
        ):
            status |= written.look(to)
        if payload.is_large and to != self._node.name:
            far = self._node.site_of(to) != self._node.site
            payload = self._payloads.place(payload, sole=True, far=far)
        if message.relayed:
            if payload.nbytes <= GATHERED_LIMIT:
                answer = Answer(peer, message.call, message.rank, status)
                self._node.send(AGENT, answer, payload)
                return
            elsewhere = ELSEWHERE | (status & ~STATUS)
            self._node.send(AGENT, Answer(peer, message.call, message.rank, elsewhere))
        if address:
            self.reach_node(to, address)
        self._node.send(to, Reply(message.call, message.rank, status), payload)


def _where(region: Region) -> Where:
    view = region.ndslice
    return view.offset, tuple(view.sizes), tuple(view.strides)


def _place(ref: ProcsRef, rank: int) -> str:
    # Stands for the rank while its incarnation is unknown; no node has such a name.
    return ref.node(rank) + "?"
