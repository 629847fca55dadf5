"""Whether a rank that has died is restarted, and when. No I/O, no clock.

As in Erlang/OTP, a rank may be restarted `most` times within any `within_s` seconds; the death
after that is final. Each rank has its own count, since one bad argument to a large mesh may kill
every rank at the same moment. The first restart is immediate, the next one in the window waits
`first_s`, and each further wait is `factor` times longer, up to `longest_s`. A random part of each
wait, up to `jitter`, is left out, so that ranks that died together do not come back together. The
random number is drawn from the seed: the same rule, rank and count give the same wait.

A rule whose `most` is 0 restarts no rank; `Mesh.set_restart_rule` puts another in its place.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from monarch._src.failures.report import Death
from monarch._src.wire.messages import RestartRule


class Again(msgspec.Struct, frozen=True):
    """Restart the rank at that time; `number` counts all its restarts."""

    at: float
    number: int


class Final(msgspec.Struct, frozen=True):
    """Do not restart. `earlier`: the deaths whose restarts used up the limit, oldest first."""

    earlier: tuple[Death, ...]


Verdict: TypeAlias = "Again | Final"


class Restarts:
    """The restarts of one rank. `recent` has exactly those within the window of the last death."""

    def __init__(self, rule: RestartRule, rank: int) -> None:
        self.rule = rule
        self.rank = rank
        self.count = 0
        self.recent: list[tuple[float, Death]] = []

    def died(self, death: Death, now: float) -> Verdict:
        """An incarnation has ended. `now`: seconds, no less than at the last death."""
        rule = self.rule
        self.recent = [(at, why) for at, why in self.recent if now - at < rule.within_s]
        if len(self.recent) >= rule.most:
            return Final(tuple(why for _, why in self.recent))
        wait = delay(rule, self.rank, self.count, len(self.recent))
        self.count += 1
        self.recent.append((now, death))
        return Again(now + wait, self.count)

    def requested(self) -> None:
        """The rank is restarted by request; earlier deaths do not count towards the limit."""
        self.count += 1
        self.recent.clear()

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        times = [at for at, _ in self.recent]
        assert times == sorted(times)
        assert len(times) <= min(self.count, self.rule.most)
        assert not times or times[-1] - times[0] < self.rule.within_s


def delay(rule: RestartRule, rank: int, number: int, recent: int) -> float:
    """Seconds to wait before a restart after `recent` recent ones; `number` counts all of them."""
    if not recent:
        return 0.0
    try:
        wait = min(rule.longest_s, rule.first_s * rule.factor ** (recent - 1))
    except OverflowError:
        wait = rule.longest_s
    import random  # every fork pays for a loaded `random`

    chance = random.Random(f"{rule.seed} {rank} {number}").random()
    return wait * (1 - rule.jitter * chance)
