"""Hosts: the part of a HostMesh that is about the hosts themselves, and not about procs.

Runs in: the client and procs; `Attachment` on a thread of its own as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from monarch._src.actor.future import Future
from monarch._src.actor.runtime import Runtime, runtime, runtime_or_none
from monarch._src.mesh.client import current_session, shutdown_context
from monarch._src.mesh.spawning import host_text, when_all_done
from monarch._src.net.local.leader import SHUT_DOWN
from monarch._src.net.local.waitable import RuntimeEnded
from monarch._src.shape import Extent, IndexedMesh, Region
from monarch._src.wire.ids import host_of_site, number_of
from monarch._src.wire.messages import HostsPlace, Shutdown


class Hosts(IndexedMesh):
    """The base of HostMesh: its hosts, whether they are there, and their end."""

    def __init__(
        self,
        region: Region,
        python: str = "",
        sites: tuple[str, ...] | Attachment = (),
        name: str = "",
        handle: Handle | None = None,
    ) -> None:
        """Args:
        sites: the sites of all hosts of the mesh that this is, or is a slice of; empty: the
            client's own host.
        handle: None makes the mesh a reference.
        """
        self._region = region
        self._python = python
        self._site_source = sites
        self._name = name
        self._handle = handle

    @property
    def _sites(self) -> tuple[str, ...]:
        """The sites of all hosts of the whole mesh; blocks until workers have answered."""
        source = self._site_source
        return source.sites() if isinstance(source, Attachment) else source

    @property
    def name(self) -> str:
        """The name given when the mesh was made; empty if there was none."""
        return self._name

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts, in the order of ranks. Blocks until workers have answered."""
        here = (runtime().host,)
        return tuple(host_of_site(site) for site in self._own_sites()) if self._sites else here

    @property
    def initialized(self) -> Future[bool]:
        """Done, with True, when each of these hosts has answered.

        Fails with the error of the first host that did not: HostUnreachableError, SessionError,
        ValueError.
        """
        if isinstance(self._site_source, Attachment):
            return self._site_source.initialized
        return Future[bool].of(True)

    @property
    def region(self) -> Region:
        """The ranks of this mesh within the hosts that were attached together."""
        return self._region

    def _own_sites(self) -> tuple[str, ...]:
        """The sites of the hosts of this slice."""
        return tuple(self._sites[rank] for rank in self._region.ranks()) if self._sites else ()

    def _place(self, run: Runtime) -> HostsPlace | None:
        """These hosts, for the agents of procs there; None: the host of the spawning process."""
        sites = self._sites
        if not sites or (run.proc_ref is not None and sites == (run.site,) and not self._name):
            return None
        ranks = self._region.ndslice
        return HostsPlace(
            number_of(f"hosts {','.join(sites)}"), self._name, len(sites),
            list(self._region.labels), ranks.offset, list(ranks.sizes), list(ranks.strides),
        )  # fmt: skip

    def _with_hosts(self, dims: Extent) -> Extent:
        """The dims of these hosts, then those of the processes on each."""
        own = self._region.extent
        if both := [label for label in own.labels if label in dims.labels]:
            raise ValueError(
                f"{both[0]!r} is a dim of the hosts already; give the processes another dim"
            )
        return Extent((*own.labels, *dims.labels), (*own.sizes, *dims.sizes))

    def shutdown(self) -> Future[None]:
        """End everything that this client started on these hosts, and their agents. Idempotent.

        For workers, their programs end too, and the future is done when they have. For this host,
        everything has ended when this returns, and the future is already done.

        Raises:
            RuntimeError: this is a reference, received from another process.
            ValueError: this is a slice of workers.
        """
        if self._handle is None:
            raise RuntimeError(
                "these hosts cannot be shut down through a reference: only the program that "
                "attached to them may do that; stop() here ends the processes that this process "
                "has spawned there"
            )
        if self._has_failed():
            return Future[None].of(None)
        if not self._sites:
            return shutdown_context(reason="the host mesh was shut down")
        self._check_whole("shut down")
        run, session = runtime(), current_session()
        if session is None or session.sites is None:
            return Future[None].of(None)
        message = Shutdown("its client has shut the host mesh down")
        tell = partial(run.routes.tell_agent_at, message=message)
        return when_all_done(run, session.sites.end(self._sites, tell))

    def _has_failed(self) -> bool:
        """Whether attaching to these workers has failed."""
        return isinstance(self._site_source, Attachment) and self._site_source.has_failed

    def _check_whole(self, what: str) -> None:
        if self._sites and len(self._region) != len(self._sites):
            raise ValueError(
                f"this is a slice of {len(self._sites)} workers, which belong together: {what} "
                "the whole mesh that attach_to_workers returned"
            )

    def __eq__(self, other: object) -> bool:
        """Whether both are the same hosts, with the same dims and the same Python."""
        if not isinstance(other, Hosts):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Extent, str, tuple[str, ...]]:
        # `this_host()` on a worker equals the slice that holds that worker.
        return self._region.extent, self._python, self._own_sites()

    def __repr__(self) -> str:
        if isinstance(self._site_source, Attachment) and not self._site_source.initialized.done:
            return f"<HostMesh {self._region.extent} attaching>"
        if self._has_failed():
            return f"<HostMesh {self._region.extent} not attached>"
        run = runtime_or_none()
        here = host_text(self._own_sites(), run.host if run else "this host")
        return f"<HostMesh {self._region.extent} {here}>"


def sites_of(hosts: Hosts) -> tuple[str, ...]:
    """The sites of the workers of a mesh of hosts; empty for the client's own host. May block."""
    return hosts._own_sites()  # pyright: ignore[reportPrivateUsage]


class Handle:
    """The right to stop the procs spawned through a mesh of hosts, which its slices share.

    Two handles of the same workers spawn side by side, and `stop` on one leaves the procs of the
    other running. A mesh that was received from another process has no handle: it is a reference.
    """


OF_THIS_HOST = Handle()  # every `this_host()` of a client has the same handle
OF_ALL = Handle()  # of meshes of an attached session: every handle may stop those too


class Attachment:
    """A request to attach to workers. Their sites are known once every worker has answered.

    `begin` attaches to the workers on a thread of its own, and returns their sites in order.
    """

    def __init__(self, run: Runtime, begin: Callable[[], Sequence[str]]) -> None:
        self._run = run
        self._sites: tuple[str, ...] = ()
        self.initialized: Future[bool] = run.new_future()
        threading.Thread(
            target=self._attach, args=(begin,), name="attaches-to-workers", daemon=True
        ).start()

    def _attach(self, begin: Callable[[], Sequence[str]]) -> None:
        try:
            self._sites = tuple(begin())
        except BaseException as error:
            self.initialized.fail(error)
        else:
            self.initialized.settle(lambda: True)

    def sites(self) -> tuple[str, ...]:
        """The sites of the workers, in order. Blocks; raises the error if attaching has failed."""
        if not self._run.node.wait(self.initialized):
            raise RuntimeEnded(SHUT_DOWN)
        self.initialized.result()
        return self._sites

    @property
    def has_failed(self) -> bool:
        """Whether attaching has failed. Blocks until that is known."""
        try:
            self.sites()
        except Exception:
            return True
        return False
