"""Which way messages go to the procs of a mesh, and answers to who has called.

Runs in: any process, on the thread that calls or answers; `actor.deliver.inbound` is the other end.
A few ranks are sent to one by one, directly. Many get one *cast*, which the host agent passes on,
and whose answers it sends back merged: then a call costs its sender the same whatever their number.
`net.state.message_order` keeps both routes in one order. Over more hosts than `cast_fanout` it goes
by a tree of their agents (`host.state.cast_tree`).

To other hosts a message goes through their agents anyway; several ranks of one get it as a cast, of
whatever size, so that it crosses between hosts once. On one host a cast takes one more hop. At 16
ranks that makes a call 40 % slower, at 64 10 %, at 256 nothing, while its sender pays 1/2, 1/5 and
1/10 (docs/performance.md). Here the agent holds no payloads: a large one lies in a segment that is
lent to all ranks; without a segment it goes directly. On another host the agent fetches it, lends
it to the ranks there, and is who those that it passes the cast on to fetch it from.
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
from monarch._src.actor.deliver.restart_replay import ReplayedMessage, ReplayLog
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
from monarch._src.wire.frames import NO_PAYLOAD, Payload, apart_of
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
    StopActor,
    TreeDone,
    TreeStuck,
    Watch,
)
from monarch._src.wire.segment_refs import SEGMENT_FROM, Placed

CAST_FROM = 32  # ranks
GATHERED_LIMIT = 4096  # bytes of one answer


class MeshRoute(msgspec.Struct, frozen=True):
    """What goes from here to the procs of one mesh. `lock`: of the numbers, and of sending.

    `nodes`: those of all its ranks, in order, if a message to all can be the same for each.
    """

    lock: threading.Lock
    outgoing: Outgoing
    tree: TreeSender[SentCast] | None  # if it has more hosts than are sent to from here
    nodes: list[str]


LostCalls: TypeAlias = "list[tuple[int, int]]"  # number of a call, position in it


class Routes:
    """The routes of one process, and the order on them."""

    def __init__(self, node: Node, known: Known, payloads: Payloads) -> None:
        self._node = node
        self._directory = ""
        self._known = known
        self._payloads = payloads
        self.client = ""  # the node of the client, if there is one and it is known
        # By mesh. Two threads that number and send by turns would send out of order.
        self._mesh_routes: dict[int, MeshRoute] = {}
        self._cast_sender = CastSender(node, self.tell_agent_at)
        self._replay_log = ReplayLog()
        self.inbound = Inbound()

    def begin(self, rank: int, directory: str) -> None:
        """This process has that rank, or is a client (-1), and its session that directory."""
        self._directory = directory
        self.inbound.begin(rank)

    # --- nodes ------------------------------------------------------------------------------------

    def route_to(self, ref: ProcsRef, rank: int) -> str:
        """The node name of a proc, with a route to it."""
        incarnation = 0
        if ref.restarts:
            known_incarnation = self._known.incarnations(ref.uid).get(rank)
            if known_incarnation is None and ref.owner != self._node.name:
                return self._watch_rank(ref, rank)
            incarnation = known_incarnation or 0
        node = ref.node(rank, incarnation)
        if not self._node.knows(node) and rank not in self._known.dead(ref.uid):
            self._known.learn(ref)
            if ref.nodes and node != self.client:  # what lived in a client that has gone
                why = "that client has gone, and what lived in its process with it"
                self._known.mark_dead(ref.uid, rank, out_of_reach(ref, rank, why))
                return node
            if ref.owner == self._node.name:  # one of ours that was stopped, and forgotten since
                self._node.expect(node, ref.site(rank))
            else:
                self._connect(ref, rank, node)
            if not incarnation:  # who has heard of a later one is told of its end too
                self._tell_agent(ref, rank, Watch(node, ref.owner))
        return node

    def _connect(self, ref: ProcsRef, rank: int, node: str) -> None:
        self._node.reach(node, self._address(ref, rank, node))

    def _address(self, ref: ProcsRef, rank: int, node: str) -> str:
        """Where a proc listens, as it would tell it itself; on another site only that matters."""
        directory = self._directory if ref.sites else ref.directory
        return at_site(ref.site(rank), address_of(directory, node))

    def _tell_agent(self, ref: ProcsRef, rank: int, message: Message) -> bool:
        """Say something to the agent of a proc's host."""
        return self.tell_agent_at(ref.site(rank), message)

    def tell_agent_at(self, site: str, message: Message, payload: Payload = NO_PAYLOAD) -> bool:
        """Say something to the agent of a site; False if it is known to be gone."""
        agent = agent_of(site, self._node.site)
        if not self._node.knows(agent) and agent != AGENT:
            self._node.link_far(agent, site)
        return self._node.send(agent, message, payload)

    def _watch_rank(self, ref: ProcsRef, rank: int) -> str:
        """The name of whatever process has that rank: which that is, the agent is asked."""
        place = _place(ref, rank)
        if not self._node.knows(place) and rank not in self._known.dead(ref.uid):
            self._known.learn(ref)
            self._node.expect(place, ref.site(rank))
            self._tell_agent(ref, rank, Watch(ref.node(rank), ref.owner, place=True))
        return place

    def reach_node(self, node: str, address: str) -> None:
        """Have a route to a node that listens at that address; none to a client that has gone."""
        if not self._node.knows(node):
            place = parse_proc_node(node)
            if place is None and node != self.client:
                return
            if place is not None and place[1] in self._known.dead(place[0]):
                return
            self._node.reach(node, address)
            if place is not None:
                self.tell_agent_at(self._node.site_of(node), Watch(node))

    def forget(self, ref: ProcsRef) -> None:
        """A mesh has ended."""
        self._mesh_routes.pop(ref.uid, None)
        self._node.rooms.more(f"{ref.uid}")
        self._replay_log.forget(ref.uid)
        incarnations = self._known.incarnations(ref.uid)
        for rank in range(ref.extent.nelements):
            node = ref.node(rank, incarnations.get(rank, 0))
            self._node.drop(node)
            self.inbound.forget(node)
            if ref.restarts:
                self._node.drop(_place(ref, rank))

    # --- processes that take the place of others --------------------------------------------------

    def on_proc_found(
        self, ref: ProcsRef, rank: int, incarnation: int, *, lost: bool = False
    ) -> None:
        """The agent has said which process has a rank; what waited for that goes out, or is lost.

        Nothing if this process knew already.
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
        """The process of a rank is gone, another takes its place: what is sent from now on is its.

        Returns the calls that wait for the one that is gone.
        """
        route = self._mesh_route(ref)
        outgoing = route.outgoing
        old = ref.node(rank, self._known.incarnation(ref.uid, rank))
        with route.lock:  # a message goes to one or the other, numbered for that one
            self._known.set_incarnation(ref.uid, rank, incarnation)
            outgoing.renewed(rank)
            lost = calls.waiting_for(ref.uid, rank)
            if ref.owner == self._node.name:
                self._node.expect(ref.node(rank, incarnation), ref.site(rank))
            for replayed in self._replay_log.of(ref.uid):
                if rank in replayed.region:
                    self._replay(ref, rank, outgoing, replayed)
        self.drop(old)
        if ref.restarts:
            self._node.drop(_place(ref, rank))
        return lost

    def _replay(
        self, ref: ProcsRef, rank: int, outgoing: Outgoing, replayed: ReplayedMessage
    ) -> None:
        node, message = self.route_to(ref, rank), replayed.message
        if not isinstance(message, Bootstrap):
            message = msgspec.structs.replace(
                message, rank=replayed.region.position(rank), after=outgoing.direct(rank)
            )
        self._node.send(node, message, replayed.payload)

    def drop(self, node: str) -> None:
        """That node is gone for good, and another one has its place."""
        self._node.drop(node)
        self.inbound.forget(node)

    def replay_on_restart(
        self, ref: ProcsRef, region: Region, message: Bootstrap, payload: Payload
    ) -> None:
        """Every process that takes the place of another is to be sent that first."""
        with uninterrupted(), self._mesh_route(ref).lock:
            self._replay_log.add(ref.uid, ReplayedMessage(region, message, payload))

    def stop_replaying(self, ref: ProcsRef, actor: int) -> None:
        """That actor is stopped, and not made again."""
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
            if ref.extent.nelements < CAST_FROM and not ref.restarts and not ref.nodes:
                nodes = [ref.node(rank) for rank in range(ref.extent.nelements)]
            if self._node.name in nodes:  # which is sent a copy of its own
                nodes = []
            route = MeshRoute(threading.Lock(), Outgoing(), tree, nodes)
            route = self._mesh_routes.setdefault(ref.uid, route)
        return route

    def forget_client(self, ref: ProcsRef) -> None:
        """The client is another one now, or none."""
        self._mesh_routes.pop(ref.uid, None)
        self.inbound.forget(ref.owner)
        self._node.forget(ref.owner)

    # --- out --------------------------------------------------------------------------------------

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
        """Send to every rank of a region, each with its position in it as `rank`.

        Args:
            skip: positions that are known to be of no use.
            gather: have the answers to a cast merged; `each`: but sent on as they come.

        Returns:
            The positions that it could not be sent to; what was sent may still be lost on the way.
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
        if is_cast and (not ref.restarts or self._knows_incarnations(ref)):
            self._known.learn(ref)
            with uninterrupted(), lock:
                if ref.restarts:
                    self._replay_log.on_sent(ref.uid, region, message, payload)
                sent = self._cast(route, ref, region, message, payload, gather, each)
            return () if sent else range(len(region))
        with uninterrupted(), lock:
            if ref.restarts:
                self._replay_log.on_sent(ref.uid, region, message, payload)
            return self._send_directly(route, ref, region, message, payload, skip)

    def _send_directly(
        self, route: MeshRoute, ref: ProcsRef, region: Region, message: Ordered, payload: Payload,
        skip: Collection[int],
    ) -> Collection[int]:  # fmt: skip
        """One by one; returns the positions that it could not be sent to."""
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
            # There is no route to these yet, or they are dead.
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
            # To ourselves it is queued as it is, and there are more to come.
            own_copy = msgspec.structs.replace(message) if node == own else message
            if not send(node, own_copy, payload):
                missed.append(position)
        return missed

    def await_room(self, ref: ProcsRef, region: Region, *, large: bool) -> None:
        """Block while too much waits to be sent to a host that has ranks of that region.

        `large`: of large payloads too, since this is one.
        For user code, which may wait; in front of `post`, which does not.
        """
        here, places = self._node.site, ref.places
        if places == (here,):
            return
        rooms = self._node.rooms
        if len(region) == 1:  # it is sent to directly
            site = ref.site(region.ranks()[0])
            if site != here:
                rooms.wait(site, large=large)
            return
        there, routes = self._cast_sender.sites_of(ref, _where(region)), self._mesh_routes
        route = routes.get(ref.uid)
        if route is not None and route.tree is not None:
            tree = route.tree
            rooms.wait_until(
                f"{ref.uid}", lambda: tree.held < QUEUE or routes.get(ref.uid) is not route
            )
            there = tree.heads(there, self._cast_sender.own(ref))
        for at in there:
            if places[at] != here:
                rooms.wait(places[at], large=large)

    def _goes_once_a_host(
        self, route: MeshRoute, ref: ProcsRef, region: Region, payload: Payload
    ) -> bool:
        """Whether it goes to several ranks of another host, or to more hosts than are sent to.

        If it goes to ranks of this one too, which are reached without a detour, or to those where
        the client runs, only what is large.
        """
        here, sites = self._node.site, ref.sites
        if len(region) < 2 or ref.places == (here,):
            return False
        there = len(self._cast_sender.sites_of(ref, _where(region)))
        by_tree = route.tree is not None and there > route.tree.fanout
        if sites and here not in sites:
            return by_tree or len(region) > there
        is_placed = isinstance(apart_of(payload), Placed)
        if by_tree and (is_placed or payload.wire_bytes < SEGMENT_FROM):
            return True
        if not is_placed:
            return False
        counts = Counter(ref.site(rank) for rank in region.ranks())
        return any(count > 1 for site, count in counts.items() if site != here)

    def _placed(self, ref: ProcsRef, region: Region, message: Ordered, payload: Payload) -> Payload:
        """A large payload as it is to be sent; what only an actor of this process gets stays."""
        one = len(region) == 1
        far = self._node.site not in ref.places
        if one:
            rank = region.ranks()[0]
            far = ref.site(rank) != self._node.site
            if ref.node(rank, self._known.incarnation(ref.uid, rank)) == self._node.name:
                return payload
        # Who takes the place of a process gets what made its actors once more.
        again = bool(ref.restarts) and not isinstance(message, Call)
        return self._payloads.place(payload, sole=one and not again, far=far)

    def _knows_incarnations(self, ref: ProcsRef) -> bool:
        """Whether it is known which process has each rank; a cast has to say."""
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
        if ref.restarts:
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
        there = {ref.site(rank) for rank in region.ranks()}
        sent = [self.tell_agent_at(site, cast, payload) for site in ref.sites if site in there]
        return any(sent)

    # --- over a tree of hosts ---------------------------------------------------------------------

    def on_tree_done(self, peer: str, message: TreeDone) -> None:
        """A stretch of hosts is done with a cast."""
        route = self._mesh_routes.get(message.mesh)
        if route is None or route.tree is None or not is_agent(peer):
            return
        with route.lock:
            self._cast_sender.on_tree_done(route.tree, message)
        if route.tree.held < QUEUE:
            self._node.rooms.more(f"{message.mesh}")

    def on_tree_stuck(self, _peer: str, message: TreeStuck, _payload: Payload) -> None:
        """A host on the way can't pass a cast on."""
        route = self._mesh_routes.get(message.mesh)
        if route is not None and route.tree is not None:
            with route.lock:
                self._cast_sender.on_tree_stuck(route.tree, message)

    def on_site_lost(self, site: str) -> None:
        """Nothing comes from that site any more, nor is passed on by it."""
        self._cast_sender.lost.add(site)
        for mesh, route in list(self._mesh_routes.items()):
            ref = self._known.ref(mesh)
            if route.tree is not None and ref is not None and site in ref.sites:
                with route.lock:
                    self._cast_sender.on_site_lost(route.tree, ref.sites.index(site))
                self._node.rooms.more(f"{mesh}")

    # --- answers ----------------------------------------------------------------------------------

    def reply(
        self,
        peer: str,
        message: Call | StopActor,
        status: int,
        payload: Payload,
        ran_ns: int = LONG_NS,
    ) -> None:
        """Answer a message that `peer` has sent, and that took so long."""
        to, address = peer, ""
        if isinstance(message, Call) and message.reply_to:
            to, address = message.reply_to, message.reply_address
        # As in `Written.since`: most answers go before no output, and a call is 1 % of an answer.
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
    # No node is called so: whatever process has that rank, while it is not known which.
    return ref.node(rank) + "?"
