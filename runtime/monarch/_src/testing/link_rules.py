"""Set the faults that procs inject on their links. Runs in: the client, any thread."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import msgspec

from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.runtime import Runtime
from monarch._src.actor.state.calls import PendingCall
from monarch._src.failures.report import RankFailure
from monarch._src.net.local.waitable import Waitable
from monarch._src.shape import NDSlice, Region
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import LinkRule, SetLinks

numbers = itertools.count(1)


class Told(PendingCall):
    """A pending change of link faults on procs of a mesh; `refused` gives reasons by rank.

    A rank that dies meanwhile counts as done: it has no links any more.
    """

    __slots__ = ("all_in", "lost_messages", "refused")

    def __init__(self, ref: ProcsRef, ranks: Sequence[int]) -> None:
        region = Region(("at",), NDSlice(offset=0, sizes=(ref.extent.nelements,), strides=(1,)))
        super().__init__(ref.uid, None, region)
        self.owed = sum(1 << rank for rank in ranks)
        self.refused: dict[int, str] = {}
        self.lost_messages = 0
        self.all_in = Waitable()

    def on_answer(self, position: int, payload: Payload) -> None:
        why, lost = msgspec.msgpack.decode(payload.body, type=tuple[str, int])
        self.lost_messages += lost
        if why:
            self.refused[position] = why
        self._look()

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        self.refused[position] = f"it refused (status {status})"
        self._look()

    def on_lost(self, position: int, failure: RankFailure) -> None:
        self._look()

    def _look(self) -> None:
        if not self.owed:
            self.all_in.finish()


def tell(
    run: Runtime,
    ref: ProcsRef,
    ranks: Sequence[int],
    add: Sequence[LinkRule],
    lift: Sequence[int],
    timeout_s: float,
) -> Told:
    """Begin and lift faults on these procs; return when all live ones have done so.

    Raises:
        TimeoutError: a proc did not answer, for example because code in it holds the GIL.
    """
    told = Told(ref, ranks)
    if not ranks:
        return told
    number = run.calls.open(told)
    deadline = time.monotonic() + timeout_s
    try:
        for rank in ranks:
            message = SetLinks(number, rank, list(add), list(lift))
            if not run.node.send(run.routes.route_to(ref, rank), message):
                failure = run.known.dead(ref.uid).get(rank)
                if failure is not None:
                    with run.answering:
                        run.calls.on_rank_lost(number, rank, failure)
        if not run.node.wait(told.all_in, max(0.0, deadline - time.monotonic())):
            silent = ", ".join(str(rank) for rank in told.owing())
            raise TimeoutError(
                f"{ref.name}: no answer of rank {silent} in {timeout_s:g} s; does it hold the GIL?"
            )
    finally:
        run.calls.drop(number)
    return told
