"""References to procs, and the meshes that a process knows."""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from monarch._src.failures.report import RankFailure
from monarch._src.shape import Extent, Point
from monarch._src.wire.ids import AGENT, agent_at, host_of_site, parse_proc_node, proc_node

CLIENT_MESH = 0  # spawned meshes have larger uids, and later clients the next ones


class ProcsRef(msgspec.Struct, frozen=True):
    """The addresses of a mesh's procs: enough to call them from any process of the session."""

    uid: int
    name: str
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    directory: str
    owner: str
    host: str
    nodes: tuple[str, ...] = ()  # node names, if they do not follow from the uid: the client
    restarts: str = ""  # calls to a restarting rank "wait" or "raise"; "": ranks do not restart
    # The sites of the procs: each site has an equal block of ranks, in order. Empty: the client's
    # site, to which `directory` and `host` belong.
    sites: tuple[str, ...] = ()

    @property
    def extent(self) -> Extent:
        """The dims of the whole mesh."""
        return Extent(self.labels, self.sizes)

    def node(self, rank: int, incarnation: int = 0) -> str:
        """The node name of an incarnation of a rank."""
        return self.nodes[rank] if self.nodes else proc_node(self.uid, rank, incarnation)

    def point_of(self, node: str) -> Point:
        """The point of a node in the whole mesh. ValueError if the node is not part of the mesh."""
        place = parse_proc_node(node)
        if place is None or place[0] != self.uid:
            raise ValueError(f"{node} is no process of {self.name!r}")
        return self.extent.point_of_rank(place[1])

    def site(self, rank: int) -> str:
        """The site of a rank."""
        sites = self.sites
        return sites[rank * len(sites) // math.prod(self.sizes)] if sites else ""

    def ranks_of(self, site: str) -> range:
        """The ranks on a site."""
        count = self.extent.nelements
        if not self.sites:
            return range(0 if site else count)
        if site not in self.sites:
            return range(0)
        block, at = count // len(self.sites), self.sites.index(site)
        return range(at * block, (at + 1) * block)

    def host_of(self, rank: int) -> str:
        """The host name of a rank."""
        return host_of_site(self.site(rank)) if self.sites else self.host

    @property
    def places(self) -> tuple[str, ...]:
        """The sites of all ranks."""
        return self.sites or ("",)

    def agent(self, rank: int, here: str) -> str:
        """The name, on the site `here`, of the host agent of a rank."""
        return agent_of(self.site(rank), here)


def agent_of(site: str, here: str) -> str:
    """The name, on the site `here`, of a site's host agent."""
    return AGENT if site == here else agent_at(site)


def client_ref(client: str, directory: str, host: str, number: int = 0) -> ProcsRef:
    """The client's own process as a proc mesh without dimensions, on which controllers run.

    `number`: how many clients held the session before this one. Each client is a mesh of its own,
    so that the end of one does not end the next.
    """
    uid = CLIENT_MESH + number
    return ProcsRef(uid, "client", (), (), directory, client, host, (client,))


def out_of_reach(ref: ProcsRef, rank: int, why: str) -> RankFailure:
    """The failure of a process that has left this process's session, dead or alive."""
    return RankFailure(
        ref.name, rank, dict(ref.extent.point_of_rank(rank)), "", None, ref.host_of(rank), None,
        "out of reach", "", why,
    )  # fmt: skip


class Known:
    """The live meshes that this process knows, with their dead and restarting procs."""

    def __init__(self) -> None:
        self._refs: dict[int, ProcsRef] = {}
        self._dead: dict[int, dict[int, RankFailure]] = {}  # by mesh and rank
        # By mesh, the known incarnations of ranks. Of a mesh that this process owns, a missing rank
        # is in its first incarnation; of another mesh, a missing rank has not been looked up.
        self._incarnations: dict[int, dict[int, int]] = {}
        self._down: dict[int, dict[int, RankFailure]] = {}  # the ranks that are restarting

    def learn(self, ref: ProcsRef) -> None:
        """Remember a mesh, so that its failures can be named."""
        self._refs.setdefault(ref.uid, ref)

    def ref(self, mesh: int) -> ProcsRef | None:
        """The mesh of that uid."""
        return self._refs.get(mesh)

    def refs(self) -> list[ProcsRef]:
        """All of them, oldest first."""
        return list(self._refs.values())

    def mark_dead(self, mesh: int, rank: int, failure: RankFailure) -> None:
        """A proc is gone for good."""
        self._dead.setdefault(mesh, {})[rank] = failure

    # --- meshes whose procs restart --------------------------------------------------

    def restarts(self, ref: ProcsRef) -> str:
        """`ref.restarts` now: "wait" once a rank of a mesh without a policy was restarted."""
        return ref.restarts or ("wait" if ref.uid in self._incarnations else "")

    def current(self, ref: ProcsRef) -> ProcsRef:
        """The reference to pass to other processes, which look restarted ranks up."""
        restarts = self.restarts(ref)
        return ref if restarts == ref.restarts else replace(ref, restarts=restarts)

    def incarnations(self, mesh: int) -> dict[int, int]:
        """The known incarnations, by rank."""
        return self._incarnations.get(mesh, _FIRST) if self._incarnations else _FIRST

    def incarnation(self, mesh: int, rank: int) -> int:
        """The incarnation of a rank, as far as this process knows."""
        return self.incarnations(mesh).get(rank, 0)

    def set_incarnation(self, mesh: int, rank: int, incarnation: int) -> None:
        """Set the incarnation of a rank."""
        self._incarnations.setdefault(mesh, {})[rank] = incarnation

    def mark_down(self, mesh: int, rank: int, why: RankFailure) -> None:
        """A proc is gone and restarts; it may have been dead until now."""
        dead = self._dead.get(mesh)
        if dead is not None:
            dead.pop(rank, None)
        self._down.setdefault(mesh, {})[rank] = why

    def mark_up(self, mesh: int, rank: int) -> None:
        """A proc has restarted."""
        down = self._down.get(mesh)
        if down is not None:
            down.pop(rank, None)
            if not down:
                del self._down[mesh]

    def down(self, mesh: int) -> dict[int, RankFailure]:
        """The reasons why procs of that mesh restart, by rank."""
        return self._down.get(mesh, _NONE) if self._down else _NONE

    def dead(self, mesh: int) -> dict[int, RankFailure]:
        """The failures of dead procs of that mesh, by rank, as far as this process knows."""
        return self._dead.get(mesh, _NONE) if self._dead else _NONE

    def forget(self, mesh: int) -> ProcsRef | None:
        """Forget a mesh that has ended."""
        self._dead.pop(mesh, None)
        self._incarnations.pop(mesh, None)
        self._down.pop(mesh, None)
        return self._refs.pop(mesh, None)


# Shared by all look-ups that find nothing, so that none makes a dict. Never changed.
_NONE: dict[int, RankFailure] = {}
_FIRST: dict[int, int] = {}
