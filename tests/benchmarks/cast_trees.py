"""A cast over a thousand and ten thousand hosts, on paper: how long it takes, what it costs.

    python -m tests.benchmarks.cast_trees [--hosts 64 1000 10000] [--send 40] [--hop 50]

A simulation of events in which the hosts run `host.state.cast_tree` itself, so what is sent is what
would be. Only the times are supposed, in microseconds: the CPU that one message takes of who sends
it and of who receives it, each of them one thread, and how long it is on its way. A host's own
ranks answer `--work` after it has had the cast. `call` is from the cast until the sender has all
answers.
"""

from __future__ import annotations

import argparse
import heapq
from dataclasses import dataclass, field
from typing import Any

from monarch._src.host.state.cast_tree import Done, TreeRelays, TreeSender, cut

ROOT = "root"
KEY = (ROOT, 1, 1)
FANOUTS = [2, 4, 8, 16, 32, 64, 128, 256]


@dataclass
class Costs:
    send: float
    receive: float
    hop: float
    work: float


@dataclass
class Simulation:
    """One cast over so many hosts."""

    hosts: int
    fanout: int
    costs: Costs
    free_at: dict[str, float] = field(default_factory=dict[str, float])
    busy: dict[str, float] = field(default_factory=dict[str, float])
    reached: float = 0.0
    queue: list[tuple[float, int, str, Any]] = field(
        default_factory=list[tuple[float, int, str, Any]]
    )
    count: int = 0

    def use(self, who: str, now: float, cost: float) -> float:
        """That node's thread does something, when it comes to it; the time of its end."""
        self.free_at[who] = end = max(now, self.free_at.get(who, 0.0)) + cost
        self.busy[who] = self.busy.get(who, 0.0) + cost
        return end

    def send(self, who: str, to: str, what: Any, now: float) -> None:
        left = self.use(who, now, self.costs.send)
        self.at(left + self.costs.hop, to, what)

    def at(self, time: float, who: str, what: Any) -> None:
        self.count += 1
        heapq.heappush(self.queue, (time, self.count, who, what))

    def run(self) -> float:
        """The time at which the sender has all answers."""
        forest: TreeSender[None] = TreeSender(self.fanout)
        boughs = [TreeRelays() for _ in range(self.hosts)]
        for head in forest.cast(1, tuple(range(self.hosts)), None, 1):
            self.send(ROOT, str(head.site), (ROOT, head.stretch), 0.0)
        while True:
            time, _, who, what = heapq.heappop(self.queue)
            if what is None:  # the ranks there have answered
                done = boughs[int(who)].own_done(KEY, [(int(who), 1, 0, b"x")], time)
                self.tell(who, done, time)
                continue
            time = self.use(who, time, self.costs.receive)
            if isinstance(what, tuple):
                up, stretch = what
                children = cut(stretch.rest, self.fanout)
                below = {part.first: str(part.first) for part in children}
                boughs[int(who)].taken(KEY, up, stretch.first, 1, below, owes=True)
                self.reached = max(self.reached, time)
                self.at(time + self.costs.work, who, None)
                for part in children:
                    self.send(who, str(part.first), (who, part), time)
            elif who == ROOT:
                forest.done(1, what.place)
                if not forest.standing():
                    return time
            else:
                found = boughs[int(who)].child_done(KEY, what.place, 1, what.answers, (), time)
                self.tell(who, found, time)

    def tell(self, who: str, found: list[Done], now: float) -> None:
        for done in found:
            self.send(who, done.to, done, now)


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="*", default=[64, 1000, 10_000])
    parser.add_argument("--send", type=float, default=40.0)
    parser.add_argument("--receive", type=float, default=40.0)
    parser.add_argument("--hop", type=float, default=50.0)
    parser.add_argument("--work", type=float, default=200.0)
    given = parser.parse_args()
    costs = Costs(given.send, given.receive, given.hop, given.work)
    print("  hosts fan-out   all have it   call ms   sender's CPU ms   busiest host ms")
    for hosts in given.hosts:
        for fanout in [*(f for f in FANOUTS if f < hosts), hosts]:
            simulation = Simulation(hosts, fanout, costs)
            ended = simulation.run()
            busiest = max((t for who, t in simulation.busy.items() if who != ROOT), default=0.0)
            name = "star" if fanout == hosts else str(fanout)
            print(
                f"{hosts:7} {name:>7} {simulation.reached / 1e3:13.2f} {ended / 1e3:9.2f} "
                f"{simulation.busy[ROOT] / 1e3:17.2f} {busiest / 1e3:17.2f}"
            )


if __name__ == "__main__":
    main()
