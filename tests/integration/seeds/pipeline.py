"""A pipeline: stages on procs of their own, joined by ports; every stage works at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from monarch.actor import (
    Actor,
    Channel,
    Port,
    PortReceiver,
    current_rank,
    endpoint,
    returns_future,
    this_host,
)

END = None


class Stage(Actor):
    """Reads from the port it has given away, works, and sends on."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.work = work
        self.input: PortReceiver[Any] | None = None

    @endpoint
    async def open(self) -> Port[Any]:
        port, self.input = Channel[Any].open()
        return port

    @endpoint
    async def run(self, output: Port[Any]) -> int:
        done = 0
        assert self.input is not None
        while (item := await self.input.recv()) is not END:
            output.send(self.work(item))
            done += 1
        output.send(END)
        return done


class Splitter(Actor):
    """Shares the lines of a text out over its ranks; each feeds the first stage of its own lane."""

    @endpoint
    def feed(self, lines: list[str], first: list[Port[Any]]) -> int:
        lane = current_rank()["lane"]
        mine = lines[lane :: len(first)]
        for line in mine:
            first[lane].send(line)
        first[lane].send(END)
        return len(mine)


@returns_future
async def collected(receiver: PortReceiver[Any], lanes: int) -> dict[str, int]:
    """All words, when every lane has ended."""
    total: dict[str, int] = {}
    while lanes:
        counts = await receiver.recv()
        if counts is END:
            lanes -= 1
            continue
        for word, count in counts.items():
            total[word] = total.get(word, 0) + count
    return total


def words(line: str) -> list[str]:
    return line.lower().replace(",", " ").replace(".", " ").split()


def counts(found: list[str]) -> dict[str, int]:
    return {word: found.count(word) for word in found}


async def main() -> None:
    text = ["The mesh is made of procs,", "the procs are made of actors,", "and actors send."] * 40
    lanes = this_host().spawn_procs({"lane": 3}, name="lanes")
    splitter = lanes.spawn("splitter", Splitter)
    splitting = lanes.spawn("words", Stage, words)
    counting = lanes.spawn("counts", Stage, counts)

    sink, results = Channel[Any].open()
    first = (await splitting.open.call()).values()
    second = (await counting.open.call()).values()
    total = collected(results, len(lanes))
    running = [splitting.slice(lane=n).run.call_one(port) for n, port in enumerate(second)]
    running += [counting.slice(lane=n).run.call_one(sink) for n in range(len(lanes))]

    print("lines:", (await splitter.feed.call(text, first)).values())
    for word, count in sorted((await total).items()):
        print(word, count)
    print("handled:", [await stage for stage in running])


if __name__ == "__main__":
    asyncio.run(main())
