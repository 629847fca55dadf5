"""References to procs, and what a process knows of the meshes that it has met."""

from __future__ import annotations

import msgspec

from monarch._src.core.ids import proc_node
from monarch._src.errors import RankFailure
from monarch._src.shape import Extent

CLIENT_MESH = 0  # no mesh that is spawned has this uid


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

    @property
    def extent(self) -> Extent:
        """The dims of the whole mesh."""
        return Extent(self.labels, self.sizes)

    def node(self, rank: int) -> str:
        """The node name of one proc."""
        return self.nodes[rank] if self.nodes else proc_node(self.uid, rank)


def client_ref(client: str, directory: str, host: str) -> ProcsRef:
    """The client's own process, as a proc mesh without dims: where controllers live."""
    return ProcsRef(CLIENT_MESH, "client", (), (), directory, client, host, (client,))


class Known:
    """The meshes that this process has met and that have not ended; which procs of them have."""

    def __init__(self) -> None:
        self._refs: dict[int, ProcsRef] = {}
        self._dead: dict[int, dict[int, RankFailure]] = {}  # by mesh and rank

    def learn(self, ref: ProcsRef) -> None:
        """Remember where a mesh is, so that failures of it can be named."""
        self._refs.setdefault(ref.uid, ref)

    def ref(self, mesh: int) -> ProcsRef | None:
        """The mesh of that uid."""
        return self._refs.get(mesh)

    def refs(self) -> list[ProcsRef]:
        """All of them, oldest first."""
        return list(self._refs.values())

    def died(self, mesh: int, rank: int, failure: RankFailure) -> None:
        """A proc is gone."""
        self._dead.setdefault(mesh, {})[rank] = failure

    def dead(self, mesh: int) -> dict[int, RankFailure]:
        """Why procs of that mesh are gone, by rank, as far as this process has heard."""
        return self._dead.get(mesh, _NONE) if self._dead else _NONE

    def forget(self, mesh: int) -> ProcsRef | None:
        """The mesh has ended."""
        self._dead.pop(mesh, None)
        return self._refs.pop(mesh, None)


_NONE: dict[int, RankFailure] = {}
