"""The ranks of one mesh that are being restarted by request, until each is up or has failed.

A rank that has failed may still have a process, which is ended then: see `expect_ends`.

Runs in: the owner of the mesh; events on the receiving thread, `expect` on the thread that waits.
Invariants: a rank is `up` only in the incarnation that was asked for or a later one, since news of
an earlier one may arrive after the request. The future is done when no expected rank is left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from monarch._src.actor.future import Future
from monarch._src.failures.report import RankFailure
from monarch._src.net.local.interrupt import GuardedLock


class ReturningRanks:
    """The ranks of one request. `bootstraps`: they are up once their bootstrap function has run."""

    def __init__(self, ranks: Collection[int], done: Future[None], *, bootstraps: bool) -> None:
        self.ranks = frozenset(ranks)
        self.done = done
        self.failures: dict[int, RankFailure] = {}
        self._bootstraps = bootstraps
        self._lives: dict[int, int] = {}  # by rank: the latest incarnation that is up
        self._bootstrapped: set[int] = set()
        self._expected: dict[int, int] | None = None
        self._dead: set[int] = set()
        self._ending: tuple[frozenset[int], Future[None]] | None = None
        self._lock = GuardedLock()

    def expect(self, lives: Mapping[int, int]) -> None:
        """The agents restart these ranks, in these incarnations."""
        with self._lock:
            self._expected = dict(lives)
        self._settle()

    def expect_ends(self, ranks: Collection[int], done: Future[None]) -> None:
        """The processes of these ranks, which are up, are being ended; `done`: all have ended."""
        with self._lock:
            self._ending = frozenset(ranks), done
        self._settle()

    def on_up(self, rank: int, life: int) -> None:
        """A rank is up in that incarnation."""
        with self._lock:
            self._lives[rank] = life
        self._settle()

    def on_bootstrapped(self, rank: int) -> None:
        """The bootstrap function of a rank has returned."""
        with self._lock:
            self._bootstrapped.add(rank)
        self._settle()

    def on_failed(self, failure: RankFailure) -> bool:
        """A rank, or an actor on it, has failed; whether it is one of these ranks."""
        if failure.rank not in self.ranks:
            return False
        with self._lock:
            self.failures.setdefault(failure.rank, failure)
            if failure.death is not None:
                self._dead.add(failure.rank)
        self._settle()
        return True

    def end(self, error: BaseException) -> None:
        """The mesh has been stopped: wait no longer."""
        self.done.fail(error)
        if self._ending is not None:
            self._ending[1].fail(error)

    def waits_for(self, rank: int, life: int) -> bool:
        """Whether that rank is neither up nor has failed."""
        up = rank in self._bootstrapped if self._bootstraps else self._lives.get(rank, 0) >= life
        return not up and rank not in self.failures

    def _settle(self) -> None:
        with self._lock:
            expected = self._expected
            left = expected is None or any(self.waits_for(*one) for one in expected.items())
            ending = self._ending
            ended = ending is not None and self._dead.issuperset(ending[0])
        if not left:
            self.done.settle(lambda: None)
        if ending is not None and ended:
            ending[1].settle(lambda: None)
