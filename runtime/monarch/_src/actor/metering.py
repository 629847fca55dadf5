"""Asks procs for what they have counted of endpoints, and says which did not tell, and why.

Runs in: any process, on the thread that asks. Procs answer on the thread that receives, without
user code, so a proc that computes answers all the same; one that holds the global interpreter lock
cannot, and one that is dead cannot.
"""

from __future__ import annotations

import time
from collections.abc import Container, Sequence

import msgspec

from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.runtime import Runtime
from monarch._src.core.calls import PendingCall
from monarch._src.errors import RankFailure
from monarch._src.net.baton import Waitable
from monarch._src.shape import Region
from monarch._src.wire.figures import Figures, packed, unpacked
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import OK, ReadMetrics


class Asked(PendingCall):
    """The question to some procs of one mesh, and their answers by rank there.

    `failures`: why a rank will never answer. `ready`: the ranks that are up, if that is known here.
    """

    __slots__ = ("_payloads", "all_in", "failures", "ready", "ref")

    def __init__(self, ref: ProcsRef, region: Region, ready: Container[int] | None = None) -> None:
        super().__init__(ref.uid, None, region)
        self.ref = ref
        self.ready = ready
        self.failures: dict[int, str] = {}
        self.all_in = Waitable()
        self._payloads: dict[int, Payload] = {}

    def answered(self, position: int, payload: Payload) -> None:
        self._payloads[self.region.global_rank(position)] = payload
        self._look()

    def raised(self, position: int, status: int, payload: Payload) -> None:
        self._fail(position, f"it refused the question (status {status})")

    def lost(self, position: int, failure: RankFailure) -> None:
        self._fail(position, failure.message)

    def _fail(self, position: int, why: str) -> None:
        self.failures[self.region.global_rank(position)] = why
        self._look()

    def _look(self) -> None:
        if not self.owed:
            self.all_in.finish()

    def send(self, run: Runtime) -> None:
        """Ask. A rank that is not up has counted nothing, and is not asked."""
        ref, number = self.ref, run.calls.open(self)
        dead = run.known.dead(ref.uid)
        for position, rank in enumerate(self.region.ranks()):
            failure = dead.get(rank)
            if failure is None and self.ready is not None and rank not in self.ready:
                with run.answering:
                    run.calls.answer(number, position, OK, _NOTHING)
                continue
            if failure is None:
                if run.node.send(run.routes.reach(ref, rank), ReadMetrics(number, position)):
                    continue
                # It was lost on the way; if that is not known yet, the notice of it follows.
                failure = run.known.dead(ref.uid).get(rank)
            if failure is not None:
                with run.answering:
                    run.calls.lost(number, position, failure)

    def figures(self) -> dict[int, list[Figures]]:
        """What the ranks that have answered have counted."""
        found: dict[int, list[Figures]] = {}
        for rank, payload in sorted(self._payloads.items()):
            try:
                found[rank] = unpacked(payload)
            except msgspec.MsgspecError as error:
                self.failures[rank] = f"its answer could not be understood: {error}"
        return found


_NOTHING = packed([])


def ask_for_metrics(run: Runtime, questions: Sequence[Asked], timeout_s: float) -> None:
    """Put these questions, and wait until all are answered or the time is up.

    Raises:
        BlockedLoopError: called from a message handler, which must not wait.
    """
    deadline = time.monotonic() + timeout_s
    try:
        for question in questions:
            question.send(run)
        for question in questions:
            run.node.wait(question.all_in, max(0.0, deadline - time.monotonic()))
    finally:
        for question in questions:  # an answer that comes later has no use
            run.calls.drop(question.number)
