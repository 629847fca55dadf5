"""The part of a kept session that is on worker hosts, at its client.

Runs in: a client that keeps its session or has attached to one; requests on the thread that keeps,
attaches or detaches, messages of workers on the receiving thread.
Owns: the token by which workers know the session. The client's own host agent stores which mesh is
on which host, for the next client (`session.agent_part`); each worker records the failures of its
own part (`session.workers.detached_meshes`).
Invariants: the agent knows of a worker before that keeps anything, so every kept mesh can be found;
a worker knows that a mesh is to be kept before it is spawned.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from monarch._src.actor.future import Future
from monarch._src.actor.refs import agent_of
from monarch._src.config import settings
from monarch._src.errors import SessionError
from monarch._src.failures.report import RankFailure
from monarch._src.mesh.client import ClientSession
from monarch._src.mesh.host_links import GatewayAddress
from monarch._src.mesh.meshes import ProcMesh, owned_meshes, shared_procs
from monarch._src.net.hosts import keys
from monarch._src.net.state.access import TRUST_ALL, Role
from monarch._src.net.state.addresses import parse_address
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import AGENT, host_of_site
from monarch._src.wire.messages import (
    Attached,
    Detach,
    Heard,
    KeepSite,
    KeptAway,
    KeptMesh,
    KeptWorker,
    Message,
    SiteLost,
    SiteTaken,
)

if TYPE_CHECKING:
    from monarch._src.session.workers.attached_hosts import AttachedHosts


class RemoteKeepClient(Protocol):
    """Sends requests to host agents. Implemented in `session.keep`."""

    def ask(self, question: Callable[[int], Message], agent: str = AGENT) -> Future[Any]:
        """A future of the answer; it fails with SessionError if the agent refuses."""
        ...


class RemoteKeep:
    """The kept meshes of one session that are on workers."""

    def __init__(
        self,
        session: ClientSession,
        kept_session: RemoteKeepClient,
        attached: Attached | None = None,
    ) -> None:
        """Args:
        attached: the agent's answer, for a session that this process attaches to.
        """
        self._session = session
        self._run = session.runtime
        self._kept_session = kept_session
        self.token = "" if attached is None else attached.token
        self._keys = [] if attached is None else attached.keys
        self._gateway = "" if attached is None else attached.gateway
        # By site: the workers that are known to have meshes of this session.
        self._workers = {} if attached is None else {one.site: one for one in attached.workers}
        self._site_reports: dict[str, Future[SiteTaken]] = {}
        self._run.handle(SiteTaken, self._on_taken)
        self._run.handle(SiteLost, self._on_lost)

    def __repr__(self) -> str:
        return f"<Away {list(self._workers)}>"  # no token

    @property
    def _sites(self) -> AttachedHosts | None:
        # A cast and no check, which would need the class: its module loads ZeroMQ.
        return cast("AttachedHosts | None", self._session.sites)

    # --- keeping ----------------------------------------------------------------------------------

    def keep(self, name: str, meshes: Sequence[ProcMesh]) -> list[Future[Any]]:
        """Have workers keep these meshes, which the agent knows. A future for each worker."""
        by_site: dict[str, list[int]] = {}
        for mesh in meshes:
            ref = shared_procs(mesh).ref
            for site in ref.sites:
                by_site.setdefault(site, []).append(ref.uid)
        limit_s, here = settings().detached_limit, self._run.site
        return [
            self._kept_session.ask(
                lambda number, uids=uids: KeepSite(number, name, self.token, limit_s, uids),
                agent_of(site, here),
            )
            for site, uids in by_site.items()
        ]

    def tell(self, also: Sequence[ProcMesh] = ()) -> None:
        """Report to the agent which meshes are on which hosts; `also`: those about to be kept."""
        sites = self._sites
        meshes = {mesh.uid: mesh for mesh in [*_kept(self._session), *also]}
        for mesh in meshes.values():
            for site in shared_procs(mesh).ref.sites:
                address = "" if sites is None else sites.address_of(site)
                if address and site not in self._workers:
                    self._workers[site] = KeptWorker(site, address)
        for site in () if sites is None else sites.released_sites:
            self._workers.pop(site, None)
        if sites is not None:
            self._keys = sites.key_paths
            self._gateway = "" if sites.via is None else str(sites.via.dialled)
            sites.on_site_released = self.tell
        self.token = self.token or secrets.token_hex(16)
        message = KeptAway(
            self.token, self._keys, list(self._workers.values()),
            [told for mesh in meshes.values() if (told := self._described(mesh)) is not None],
            self._gateway,
        )  # fmt: skip
        self._run.node.send(AGENT, message)

    def _described(self, mesh: ProcMesh) -> KeptMesh | None:
        procs = shared_procs(mesh)
        ref = procs.ref
        if not self._workers.keys() & set(ref.sites):
            return None  # it is on this host, or its hosts are gone
        return KeptMesh(
            ref.uid, ref.name, list(ref.labels), list(ref.sizes), procs.cleanup_s,
            time.monotonic() - procs.spawned_at, list(ref.sites),
        )  # fmt: skip

    def on_acknowledged(self, mesh: int, actor: int, failures: Sequence[RankFailure]) -> None:
        """Tell workers that the client has got these failures of procs, or of actors."""
        for owned in _kept(self._session):
            procs = shared_procs(owned)
            actors = procs.actors.get(actor)
            if procs.ref.uid != mesh and actors is None:
                continue
            by_site: dict[str, list[int]] = {}
            for failure in failures:
                rank = failure.rank if actors is None else actors.region.global_rank(failure.rank)
                by_site.setdefault(procs.ref.site(rank), []).append(failure.rank)
            for site, ranks in by_site.items():
                if site:
                    self._run.routes.tell_agent_at(site, Heard(mesh, actor, ranks))

    # --- attaching --------------------------------------------------------------------------------

    def attach(self) -> None:
        """Attach to the workers of the session. Those that cannot be attached are lost to it.

        Raises:
            HostUnreachableError: no worker can be reached, or one cannot work with this process.
            FileNotFoundError, PermissionError, ValueError: the keys have changed, or are gone.
            SessionError: a worker has answered, but did not report its meshes.
        """
        wanted = [one for one in self._workers.values() if not one.lost]
        if not wanted:
            return
        ca, private_key = [*self._keys, "", ""][:2]
        try:
            own = None if ca == TRUST_ALL else keys.load(ca, private_key or None, Role.OWNER)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"the keys of the hosts of this session are gone from {ca}. If their job was "
                "killed, its hosts are gone too, and `monarch kill` ends the rest of the session; "
                f"or else put the keys back ({error})"
            ) from None
        session, run = self._session, self._run
        # This imports asyncio by way of zmq.
        from monarch._src.session.workers.attached_hosts import AttachedHosts

        if self._gateway:
            gateway = parse_address(self._gateway)
            session.via = GatewayAddress(gateway, gateway)
        sites = session.sites = AttachedHosts(run, own, self._keys, session.via)
        self._site_reports = {one.site: run.new_future() for one in wanted}
        lost = sites.attach_kept(wanted, self.token)
        patience = settings().liveness
        for site in sites.held():
            if not run.node.wait(self._site_reports[site], patience):
                raise SessionError(
                    f"{host_of_site(site)} did not report its meshes of the session within "
                    f"{patience:g} s"
                )
            for other in self._site_reports[site].result().lost:
                lost.setdefault(
                    other, f"the host {host_of_site(other)} was lost to an earlier client"
                )
        for one in self._workers.values():
            if one.lost:
                lost.setdefault(
                    one.site, f"the host {host_of_site(one.site)} was lost to an earlier client"
                )
        sites.let_go([site for site in lost if sites.is_held(site)])
        for site, why in lost.items():
            known = self._workers.get(site)
            if known is not None:
                self._workers[site] = KeptWorker(known.site, known.address, lost=True)
            run.node.send(run.name, SiteLost(site, why))  # handled on the receiving thread
        self.tell()

    # --- on the receiving thread ------------------------------------------------------------------

    def _on_taken(self, peer: str, message: SiteTaken, _payload: Payload) -> None:
        site = self._run.node.site_of(peer)
        if peer != agent_of(site, self._run.site):
            return
        for mesh in _kept(self._session):
            procs = shared_procs(mesh)
            if site in procs.ref.sites and procs.ref.uid not in message.kept:
                why = "that host kept no proc of the mesh"
                self._run.terminations.on_ranks_gone(procs.ref.uid, site, why)
            for actor, failures in message.failures:
                actors = procs.actors.get(actor)
                if actors is not None:
                    region = actors.region
                    actors.failures.update({region.global_rank(f.rank): f for f in failures})
        future = self._site_reports.get(site)
        if future is not None:
            future.settle(lambda: message)

    def _on_lost(self, peer: str, message: SiteLost, _payload: Payload) -> None:
        if peer == self._run.name:
            self._run.on_site_lost(message.site, message.why)

    # --- detaching --------------------------------------------------------------------------------

    def detach(self) -> list[Future[Any]]:
        """Release workers that keep meshes. Each future is done when all else has ended on one.

        Workers that keep nothing stay attached.
        """
        sites, kept = self._sites, _kept(self._session)
        used = {site for mesh in kept for site in shared_procs(mesh).ref.sites}
        if sites is None:
            return []
        found: list[Future[Any]] = []
        for site in sites.held():
            if site in used:
                sites.leaves(site)
                found.append(self._kept_session.ask(Detach, agent_of(site, self._run.site)))
        return found


def _kept(session: ClientSession) -> list[ProcMesh]:
    """The meshes of that session that outlive its client and are on workers."""
    return [
        mesh
        for mesh in owned_meshes()
        if shared_procs(mesh).kept
        and shared_procs(mesh).ref.sites
        and mesh._runtime is session.runtime  # pyright: ignore[reportPrivateUsage]
    ]
