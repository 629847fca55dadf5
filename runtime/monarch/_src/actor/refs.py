"""References to procs, and what a process knows of the meshes that it has met."""

from __future__ import annotations

import math

import msgspec

from monarch._src.failures.report import RankFailure
from monarch._src.shape import Extent, Point
from monarch._src.wire.ids import AGENT, agent_at, host_of_site, parse_proc_node, proc_node

CLIENT_MESH = 0  # no mesh that is spawned has this uid, or that of a later client


class ProcsRef(msgspec.Struct, frozen=True):
    """Where the procs of one mesh are: enough to call them from any process of the session."""

    uid: int
    name: str
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    directory: str
    owner: str
    host: str
    nodes: tuple[str, ...] = ()  # where the procs are no procs of a mesh: the client itself
    restarts: str = ""  # what calls do while a proc is started again: "wait", "raise"; "": never
    # Where the procs are, a block of equal size each in the order of ranks; none: where the client
    # runs. `directory` and `host` are those of that site.
    sites: tuple[str, ...] = ()

    @property
    def extent(self) -> Extent:
        """The dims of the whole mesh."""
        return Extent(self.labels, self.sizes)

    def node(self, rank: int, incarnation: int = 0) -> str:
        """The node name of one proc, in that life of its rank."""
        return self.nodes[rank] if self.nodes else proc_node(self.uid, rank, incarnation)

    def point_of(self, node: str) -> Point:
        """The place in the whole mesh of the proc of that name. ValueError if it is none of it."""
        place = parse_proc_node(node)
        if place is None or place[0] != self.uid:
            raise ValueError(f"{node} is no process of {self.name!r}")
        return self.extent.point_of_rank(place[1])

    def site(self, rank: int) -> str:
        """The site of one proc."""
        sites = self.sites
        return sites[rank * len(sites) // math.prod(self.sizes)] if sites else ""

    def ranks_of(self, site: str) -> range:
        """The ranks that are there."""
        count = self.extent.nelements
        if not self.sites:
            return range(0 if site else count)
        if site not in self.sites:
            return range(0)
        block, at = count // len(self.sites), self.sites.index(site)
        return range(at * block, (at + 1) * block)

    def host_of(self, rank: int) -> str:
        """The name of the host of one proc."""
        return host_of_site(self.site(rank)) if self.sites else self.host

    @property
    def places(self) -> tuple[str, ...]:
        """The sites of all its procs."""
        return self.sites or ("",)

    def agent(self, rank: int, here: str) -> str:
        """What the agent of a proc's host is called on the site `here`."""
        return agent_of(self.site(rank), here)


def agent_of(site: str, here: str) -> str:
    """What the agent of a site is called on the site `here`."""
    return AGENT if site == here else agent_at(site)


def client_ref(client: str, directory: str, host: str, number: int = 0) -> ProcsRef:
    """The client's own process, as a proc mesh without dims: where controllers live.

    `number`: how many clients held the session before it. Each is a mesh of its own, so that the
    end of one is not that of the next.
    """
    uid = CLIENT_MESH + number
    return ProcsRef(uid, "client", (), (), directory, client, host, (client,))


def out_of_reach(ref: ProcsRef, rank: int, why: str) -> RankFailure:
    """What is told of a process that is no part of this one's session any more, dead or alive."""
    return RankFailure(
        ref.name, rank, dict(ref.extent.point_of_rank(rank)), "", None, ref.host_of(rank), None,
        "out of reach", "", why,
    )  # fmt: skip


class Known:
    """The meshes that this process has met and that have not ended; which procs of them have."""

    def __init__(self) -> None:
        self._refs: dict[int, ProcsRef] = {}
        self._dead: dict[int, dict[int, RankFailure]] = {}  # by mesh and rank
        # By mesh: ranks in another life than the first; of a mesh that somebody else owns, all
        # whose life was asked for and is known.
        self._incarnations: dict[int, dict[int, int]] = {}
        self._down: dict[int, dict[int, RankFailure]] = {}  # those that are being started again

    def learn(self, ref: ProcsRef) -> None:
        """Remember where a mesh is, so that failures of it can be named."""
        self._refs.setdefault(ref.uid, ref)

    def ref(self, mesh: int) -> ProcsRef | None:
        """The mesh of that uid."""
        return self._refs.get(mesh)

    def refs(self) -> list[ProcsRef]:
        """All of them, oldest first."""
        return list(self._refs.values())

    def mark_dead(self, mesh: int, rank: int, failure: RankFailure) -> None:
        """A proc is gone."""
        self._dead.setdefault(mesh, {})[rank] = failure

    # --- of meshes whose procs are started again --------------------------------------------------

    def incarnations(self, mesh: int) -> dict[int, int]:
        """In which life ranks of that mesh are."""
        return self._incarnations.get(mesh, _FIRST) if self._incarnations else _FIRST

    def incarnation(self, mesh: int, rank: int) -> int:
        """In which life that rank is, as far as this process has heard."""
        return self.incarnations(mesh).get(rank, 0)

    def set_incarnation(self, mesh: int, rank: int, incarnation: int) -> None:
        """That rank is in that life."""
        self._incarnations.setdefault(mesh, {})[rank] = incarnation

    def mark_down(self, mesh: int, rank: int, why: RankFailure) -> None:
        """A proc is gone, and is being started again."""
        self._down.setdefault(mesh, {})[rank] = why

    def mark_up(self, mesh: int, rank: int) -> None:
        """It is back."""
        down = self._down.get(mesh)
        if down is not None:
            down.pop(rank, None)
            if not down:
                del self._down[mesh]

    def down(self, mesh: int) -> dict[int, RankFailure]:
        """Why procs of that mesh are being started again, by rank."""
        return self._down.get(mesh, _NONE) if self._down else _NONE

    def dead(self, mesh: int) -> dict[int, RankFailure]:
        """Why procs of that mesh are gone, by rank, as far as this process has heard."""
        return self._dead.get(mesh, _NONE) if self._dead else _NONE

    def forget(self, mesh: int) -> ProcsRef | None:
        """The mesh has ended."""
        self._dead.pop(mesh, None)
        self._incarnations.pop(mesh, None)
        self._down.pop(mesh, None)
        return self._refs.pop(mesh, None)


_NONE: dict[int, RankFailure] = {}
_FIRST: dict[int, int] = {}
