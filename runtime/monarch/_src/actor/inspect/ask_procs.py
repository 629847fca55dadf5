"""Queries to the procs of a mesh, which answer them on their receiving threads.

Runs in: any process, on the calling thread. A proc answers even while user code runs, unless that
code holds the global interpreter lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence

from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.runtime import Runtime
from monarch._src.actor.state.calls import PendingCall
from monarch._src.failures.report import RankFailure
from monarch._src.net.local.interrupt import uninterrupted
from monarch._src.net.local.waitable import Waitable
from monarch._src.shape import Region
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.messages import OK, Message


class ProcQuery(PendingCall):
    """A query, and its answers by rank of the proc mesh.

    `question` makes the message for a call number and a position; the Reply carries both.
    `failures`: why a rank will never answer. `ready`: the ranks that are up, if known; other ranks
    are not asked, and their answer is an empty payload.
    """

    __slots__ = ("all_in", "answers", "failures", "question", "ready", "ref")

    def __init__(
        self,
        question: Callable[[int, int], Message],
        ref: ProcsRef,
        region: Region,
        ready: Container[int] | None = None,
    ) -> None:
        super().__init__(ref.uid, None, region)
        self.question = question
        self.ref = ref
        self.ready = ready
        self.failures: dict[int, str] = {}
        self.all_in = Waitable()
        self.answers: dict[int, Payload] = {}

    def on_answer(self, position: int, payload: Payload) -> None:
        self.answers[self.region.global_rank(position)] = payload
        self._finish_if_complete()

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        self._fail(position, f"it refused the query (status {status})")

    def on_lost(self, position: int, failure: RankFailure) -> None:
        self._fail(position, failure.message)

    def _fail(self, position: int, why: str) -> None:
        self.failures[self.region.global_rank(position)] = why
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if not self.owed:
            self.all_in.finish()

    def send(self, run: Runtime) -> None:
        """Send the query to all ranks that are up."""
        ref, number = self.ref, run.calls.open(self)
        dead = run.known.dead(ref.uid)
        for position, rank in enumerate(self.region.ranks()):
            failure = dead.get(rank)
            if failure is None and self.ready is not None and rank not in self.ready:
                with uninterrupted(), run.answering:
                    run.calls.answer(number, position, OK, NO_PAYLOAD)
                continue
            if failure is None:
                if run.node.send(run.routes.route_to(ref, rank), self.question(number, position)):
                    continue
                # The message is lost; the death notice may still be on its way.
                failure = run.known.dead(ref.uid).get(rank)
            if failure is not None:
                with uninterrupted(), run.answering:
                    run.calls.on_rank_lost(number, position, failure)


def ask_procs(run: Runtime, questions: Sequence[ProcQuery], timeout_s: float) -> None:
    """Send these queries, and wait until all are answered or the time is up.

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
        for question in questions:  # later answers are dropped
            run.calls.drop(question.number)
