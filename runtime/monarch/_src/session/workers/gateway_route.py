"""The route of a client to its workers: direct, or through a gateway.

Runs in: a client; requests on the attaching thread, notices of the tunnel process on the receiving
thread. Owns: the process that holds the tunnel, from the first worker on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from monarch._src.actor.runtime import Runtime
from monarch._src.errors import HostUnreachableError
from monarch._src.mesh.host_links import GatewayAddress
from monarch._src.net.interfaces import first_that_answers
from monarch._src.net.state.addresses import Address
from monarch._src.net.tunnel.launcher import TunnelLauncher

T = TypeVar("T")
AGAIN_S = 0.1
NOT_YET = ("ECONNREFUSED", "ENOENT")  # errors of a worker that does not listen: tcp, ipc


class GatewayRoute:
    """A route through a gateway."""

    def __init__(
        self, run: Runtime, via: GatewayAddress, key_paths: Sequence[str], liveness_s: float
    ) -> None:
        self.via = via
        self._run = run
        self._key_paths = key_paths
        self._liveness_s = liveness_s
        self._through: TunnelLauncher | None = None

    def begin(self) -> None:
        """Start the process that holds the tunnel, if it does not run.

        Raises:
            HostUnreachableError: it does not start.
        """
        if self._through is not None and self._through.has_ended:
            self.close()
        if self._through is not None:
            return
        baton = self._run.node.leader
        through = self._through = TunnelLauncher(
            self._run.directory, self.via.dialled, self._key_paths, self._liveness_s
        )

        def heard() -> None:
            if not through.read_states():
                baton.unwatch(through.fd)

        baton.watch(through.fd, heard)

    def try_link(self) -> None:
        """Return when there is a link to the gateway.

        Raises:
            HostUnreachableError: there can be none; the text has the reason.
        """
        assert self._through is not None
        self._through.greet(3 * self._liveness_s)

    def reach(
        self,
        said: Address,
        until: float,
        *,
        wait: bool,
        given_up: Callable[[], bool] = lambda: False,
    ) -> tuple[Address, Address]:
        """Check that a worker accepts connections. Returns its address, and the local one there.

        `wait`: retry while the worker does not listen yet.

        Raises:
            HostUnreachableError: the worker does not accept connections.
        """
        through = self._through
        assert through is not None
        return waited(
            lambda: through.reach(said, 3 * self._liveness_s), until, wait=wait, given_up=given_up
        )

    @property
    def words(self) -> str:
        """The state of the gateway, for the error about a host that is reached through it."""
        trouble = "" if self._through is None else self._through.trouble
        state = f"to which there is no connection: {trouble}" if trouble else "which is there"
        return f" (it is reached through the gateway {self.via.said}, {state})"

    def shown(self, address: Address) -> str:
        """That address and the route there, for people."""
        return f"{address} through the gateway {self.via.said}"

    def close(self) -> None:
        """End the process. Idempotent."""
        if self._through is not None:
            self._run.node.leader.unwatch(self._through.fd)
            self._through.close()
            self._through = None


def waited(
    reach: Callable[[], T],
    until: float,
    *,
    wait: bool,
    given_up: Callable[[], bool] = lambda: False,
) -> T:
    """Call `reach`. If `wait`, retry while the worker does not listen yet, until it is too late."""
    while True:
        try:
            return reach()
        except HostUnreachableError as error:
            said = str(error)
            late = time.monotonic() >= until or given_up()
            if not wait or late or not any(one in said for one in NOT_YET):
                raise
        time.sleep(AGAIN_S)  # no event announces that a port of another host begins to listen


def reached(
    said: Address, until: float, *, wait: bool, given_up: Callable[[], bool] = lambda: False
) -> Address:
    """Check that a worker accepts direct connections. Returns its resolved address.

    `wait`: retry while the worker does not listen yet.

    Raises:
        HostUnreachableError: the worker does not accept connections.
    """

    def dialled() -> Address:
        left = max(1.0, until - time.monotonic())
        return first_that_answers(f"the worker {said}", [said], left)

    return waited(dialled, until, wait=wait, given_up=given_up)
