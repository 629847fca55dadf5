"""The target of a call, as the calling code sees it.

Runs in: any process that calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.state.calls import CalledActors, PendingCall
from monarch._src.failures.report import RankFailure
from monarch._src.shape import Region


class Target(CalledActors, Protocol):
    """The actors of a mesh, or of a slice of one.

    `failures_in` includes the failures that were reported to the mesh's owner.
    """

    @property
    def procs(self) -> ProcsRef: ...
    @property
    def region(self) -> Region: ...
    def check_usable(self) -> None: ...
    def failures_in(self, region: Region) -> Mapping[int, RankFailure]: ...
    def describe_as_actor(self, failure: RankFailure, rank: int) -> RankFailure: ...


def target_of(pending: PendingCall) -> Target:
    """The target of an open call to an endpoint.

    The table of open calls is pure, and knows a target by the parts that it records.
    """
    return cast(Target, pending.actor_mesh)
