"""Draw a schedule of faults from a seed: the same arguments give the same plan. No I/O.

Faults form a Poisson process, as independent failures do: the times between them have an
exponential distribution with mean `every`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import msgspec

KINDS = ("kill", "stop", "slow", "partition")


class PlannedFault(msgspec.Struct, frozen=True):
    """One planned fault: `at_s` seconds after the start, on `rank`, for `for_s` seconds.

    `for_s` is 0 for a kill. `delay_s` is the delay of messages, for `slow`.
    """

    at_s: float
    kind: str
    rank: int
    for_s: float = 0.0
    delay_s: float = 0.0


def plan(
    seed: int,
    *,
    duration: float,
    every: float,
    ranks: int | Sequence[int],
    kinds: Sequence[str] | Mapping[str, float] = ("kill",),
    longest: float = 1.0,
) -> tuple[PlannedFault, ...]:
    """Plan faults for `duration` seconds, one per `every` seconds on average, in order of time.

    Args:
        ranks: the number of ranks, or the ranks that faults may hit.
        kinds: of `kill`, `stop`, `slow`, `partition`; a mapping gives each a weight.
        longest: the maximum of durations and delays in seconds; drawn evenly from a tenth of it.

    Raises:
        ValueError: an unknown kind, or a number out of range.
    """
    weights = dict(kinds) if isinstance(kinds, Mapping) else dict.fromkeys(kinds, 1.0)
    unknown = [kind for kind in weights if kind not in KINDS]
    if unknown or not weights:
        raise ValueError(f"kinds={list(weights)}: give some of {', '.join(KINDS)}")
    chosen = list(range(ranks)) if isinstance(ranks, int) else list(ranks)
    for name, value in (("duration", duration), ("every", every), ("longest", longest)):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name}={value}: give a number of seconds above 0")
    if not chosen or min(weights.values()) < 0 or sum(weights.values()) <= 0:
        raise ValueError("give at least one rank, and weights of which one is above 0")
    draw = Random(seed)
    found: list[PlannedFault] = []
    at = draw.expovariate(1 / every)
    while at < duration:
        (kind,) = draw.choices(list(weights), list(weights.values()))
        rank = draw.choice(chosen)
        lasts = draw.uniform(longest / 10, longest)
        delay = draw.uniform(longest / 10, longest)
        found.append(
            PlannedFault(
                at, kind, rank, 0.0 if kind == "kill" else lasts, delay if kind == "slow" else 0.0
            )
        )
        at += draw.expovariate(1 / every)
    return tuple(found)
