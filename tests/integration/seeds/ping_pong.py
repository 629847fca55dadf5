"""Ping pong: two actors that know each other keep a ball in the air."""

from __future__ import annotations

import asyncio

from monarch.actor import Actor, Channel, Port, concurrent_endpoint, endpoint, this_host


class Player(Actor):
    """Returns the ball until the rally is over, then tells the referee."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.returned = 0
        self.opponent: Player | None = None
        self.referee: Port[tuple[str, int]] | None = None

    @endpoint
    async def meet(self, opponent: Player, referee: Port[tuple[str, int]]) -> None:
        self.opponent = opponent
        self.referee = referee

    @endpoint
    async def hit(self, hits_left: int) -> None:
        self.returned += 1
        assert self.opponent is not None
        assert self.referee is not None
        if hits_left:
            self.opponent.hit.broadcast(hits_left - 1)
        else:
            self.referee.send((self.name, self.returned))

    @concurrent_endpoint
    async def volley(self, hits_left: int) -> list[str]:
        """Each hit is a call within the call before."""
        if not hits_left:
            return [self.name]
        assert self.opponent is not None
        return [self.name, *await self.opponent.volley.call_one(hits_left - 1)]


async def main() -> None:
    left = this_host().spawn_procs(name="left").spawn("ping", Player, "ping")
    right = this_host().spawn_procs(name="right").spawn("pong", Player, "pong")
    referee, decisions = Channel[tuple[str, int]].open()
    await left.meet.call_one(right, referee)
    await right.meet.call_one(left, referee)

    left.hit.broadcast(1_000)
    name, returned = await decisions.recv()
    print(f"{name} hit the last of 1001 balls, {returned} of them its own")

    print(" ".join(await right.volley.call_one(5)))


if __name__ == "__main__":
    asyncio.run(main())
