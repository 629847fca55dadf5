"""How a HostMesh has its hosts: the right to stop procs there, and workers that still attach.

Runs in: the client; `Attachment` on a thread of its own as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from monarch._src.actor.future import Future
from monarch._src.actor.runtime import Runtime
from monarch._src.net.local.leader import SHUT_DOWN
from monarch._src.net.local.waitable import RuntimeEnded


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
