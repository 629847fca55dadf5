"""Sets the log level of procs.

Runs in: any process that has a mesh, on the calling thread.
"""

from __future__ import annotations

from monarch._src.actor.future import Future
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.runtime import Runtime
from monarch._src.actor.state.calls import PendingCall
from monarch._src.failures.report import RankFailure
from monarch._src.net.local.interrupt import uninterrupted
from monarch._src.shape import Region
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import SetLogLevel


class _LevelQuery(PendingCall):
    """Settles `done` once every rank has confirmed the level or has died."""

    __slots__ = ("done",)

    def __init__(self, ref: ProcsRef, region: Region, done: Future[None]) -> None:
        super().__init__(ref.uid, None, region)
        self.done = done

    def on_answer(self, position: int, payload: Payload) -> None:
        self._settle_if_complete()

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        self._settle_if_complete()

    def on_lost(self, position: int, failure: RankFailure) -> None:
        self._settle_if_complete()

    def _settle_if_complete(self) -> None:
        if not self.owed:
            self.done.settle(lambda: None)


def set_log_level(run: Runtime, ref: ProcsRef, region: Region, level: int) -> Future[None]:
    """Set the log level of these ranks; done when all have confirmed it."""
    done: Future[None] = run.new_future()
    number = run.calls.open(_LevelQuery(ref, region, done))
    for position, rank in enumerate(region.ranks()):
        failure = run.known.dead(ref.uid).get(rank)
        if failure is None:
            if run.node.send(run.routes.route_to(ref, rank), SetLogLevel(number, position, level)):
                continue
            failure = run.known.dead(ref.uid).get(rank)
        if failure is not None:  # otherwise its death notice is on its way
            with uninterrupted(), run.answering:
                run.calls.on_rank_lost(number, position, failure)
    return done
