"""Dining philosophers: chopsticks and a waiter are actors, and whoever asks waits for its turn."""

from __future__ import annotations

import asyncio
from collections import deque

from monarch.actor import Actor, Channel, Port, current_rank, endpoint, send, this_host

SEATS = 5
MEALS = 20


class Chopstick(Actor):
    """In one hand at a time. It answers through the port of whoever asked when it is free."""

    def __init__(self) -> None:
        self.holder: int | None = None
        self.asking: deque[tuple[Port[None], int]] = deque()
        self.uses = 0

    @endpoint(explicit_response_port=True)
    async def take(self, granted: Port[None], philosopher: int) -> None:
        self.asking.append((granted, philosopher))
        self.give()

    @endpoint
    async def put_back(self, philosopher: int) -> None:
        assert self.holder == philosopher, f"{philosopher} puts back what {self.holder} holds"
        self.holder = None
        self.give()

    def give(self) -> None:
        if self.holder is None and self.asking:
            granted, self.holder = self.asking.popleft()
            self.uses += 1
            granted.send(None)

    @endpoint
    async def times_used(self) -> int:
        return self.uses


class Waiter(Actor):
    """Seats all but one, so that somebody can always eat."""

    def __init__(self, seats: int) -> None:
        self.free = seats - 1
        self.standing: deque[Port[None]] = deque()

    @endpoint(explicit_response_port=True)
    async def sit(self, seated: Port[None]) -> None:
        self.standing.append(seated)
        self.seat()

    @endpoint
    async def leave(self) -> None:
        self.free += 1
        self.seat()

    def seat(self) -> None:
        if self.free and self.standing:
            self.free -= 1
            self.standing.popleft().send(None)


class Philosopher(Actor):
    """Thinks and eats."""

    @endpoint
    async def dine(
        self, waiter: Waiter, chopsticks: Chopstick, meals: int, finished: Port[int]
    ) -> None:
        me = current_rank()["seat"]
        left = chopsticks.slice(seat=me)
        right = chopsticks.slice(seat=(me + 1) % SEATS)
        for _ in range(meals):
            await waiter.sit.call_one()
            await asyncio.gather(left.take.call_one(me), right.take.call_one(me))
            left.put_back.broadcast(me)
            right.put_back.broadcast(me)
            waiter.leave.broadcast()
        finished.send(me)


async def main() -> None:
    room = this_host().spawn_procs({"seat": SEATS}, name="room")
    chopsticks = room.spawn("chopsticks", Chopstick)
    philosophers = room.spawn("philosophers", Philosopher)
    waiter = this_host().spawn_procs(name="kitchen").spawn("waiter", Waiter, SEATS)

    finished, guests = Channel[int].open()
    send(philosophers.dine, (waiter, chopsticks, MEALS, finished), {})
    fed = [await guests.recv() for _ in range(SEATS)]
    print("fed:", sorted(fed))
    print("uses:", (await chopsticks.times_used.call()).values())


if __name__ == "__main__":
    asyncio.run(main())
