"""Whether a rank that has died is started again, and when. No I/O, no clock.

As in Erlang/OTP: a rank may be restarted `most` times within any `within_s` seconds; the death
after that is final. Counted for each rank by itself, since one bad argument to a large mesh may
cost every rank a life in the same moment. The first restart comes at once, the next in the window
after `first_s`, each further one `factor` times later, up to `longest_s`; of each wait up to the
part `jitter` is left out by chance, so that ranks that died together don't come back together. The
chance is drawn from the seed: the same rule, rank and number give the same wait.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from monarch._src.failures.report import Death
from monarch._src.wire.messages import RestartRule


class Again(msgspec.Struct, frozen=True):
    """Start it again at that time; it is the so-maniest restart of that rank in all."""

    at: float
    number: int


class Final(msgspec.Struct, frozen=True):
    """Don't. `earlier`: the deaths whose restarts have used up the limit, oldest first."""

    earlier: tuple[Death, ...]


Verdict: TypeAlias = "Again | Final"


class Restarts:
    """Those of one rank. `recent`: all and only those within the window of the last death."""

    def __init__(self, rule: RestartRule, rank: int) -> None:
        self.rule = rule
        self.rank = rank
        self.count = 0
        self.recent: list[tuple[float, Death]] = []

    def died(self, death: Death, now: float) -> Verdict:
        """A life of it has ended. `now`: seconds, no less than at the last death."""
        rule = self.rule
        self.recent = [(at, why) for at, why in self.recent if now - at < rule.within_s]
        if len(self.recent) >= rule.most:
            return Final(tuple(why for _, why in self.recent))
        wait = delay(rule, self.rank, self.count, len(self.recent))
        self.count += 1
        self.recent.append((now, death))
        return Again(now + wait, self.count)

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        times = [at for at, _ in self.recent]
        assert times == sorted(times)
        assert len(times) <= min(self.count, self.rule.most)
        assert not times or times[-1] - times[0] < self.rule.within_s


def delay(rule: RestartRule, rank: int, number: int, recent: int) -> float:
    """Seconds to wait before a restart that follows so many `recent` ones; `number` in all."""
    if not recent:
        return 0.0
    try:
        wait = min(rule.longest_s, rule.first_s * rule.factor ** (recent - 1))
    except OverflowError:
        wait = rule.longest_s
    import random  # what all forks of a process that has loaded it pay for

    chance = random.Random(f"{rule.seed} {rank} {number}").random()
    return wait * (1 - rule.jitter * chance)
