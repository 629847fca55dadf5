"""Traffic: numbered messages over every adverb, and actors that miss none and take none twice.

Runs in: `Checker` in ranks; `Traffic` wherever somebody sends, the client or an actor. A message to
rank r says how many of its sender's messages r must have had before, so r sees at once a message
that was lost, doubled or overtaken. Which rank `choose` draws nobody knows before the answer comes,
so such messages say the same without being counted, and have numbers of their own that must grow.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from monarch.actor import Actor, Channel, Future, ValueMesh, context, endpoint, send

PATIENCE_S = 120.0
SIZES = (*[0] * 60, 40, 400, 5_000, 40_000, 150_000)  # of padding, in bytes

Answer = tuple[int, int]  # the rank that answers, and the number that its message had


def blocks_here() -> int:
    """How many blocks of memory Python holds in this process, garbage left out."""
    gc.collect()
    return sys.getallocatedblocks()


@dataclass
class FromOne:
    """What a checker knows of one sender."""

    counted: int = 0
    chosen: int = 0
    last_chosen: int = -1


class _Ledger:
    """The books of one checker."""

    def __init__(self) -> None:
        self.rank = context().actor_instance.rank.rank
        self.senders: dict[str, FromOne] = {}
        self.wrong: list[str] = []

    def enter(self, sender: str, numbers: tuple[int, ...], chosen: int | None) -> Answer:
        of_sender = self.senders.setdefault(sender, FromOne())
        number = numbers[self.rank]
        if number != of_sender.counted:
            self._complain(f"message {number} of {sender} came after {of_sender.counted} others")
        if chosen is None:
            of_sender.counted += 1
            return self.rank, number
        if chosen <= of_sender.last_chosen:
            self._complain(f"chosen message {chosen} of {sender} after {of_sender.last_chosen}")
        of_sender.last_chosen = chosen
        of_sender.chosen += 1
        return self.rank, number

    def _complain(self, text: str) -> None:
        if len(self.wrong) < 20:
            self.wrong.append(f"rank {self.rank}: {text}")

    def report(self) -> tuple[dict[str, tuple[int, int]], list[str]]:
        return {s: (one.counted, one.chosen) for s, one in self.senders.items()}, self.wrong


class Checker(Actor):
    """Takes numbered messages."""

    def __init__(self) -> None:
        self.ledger = _Ledger()

    @endpoint
    def take(
        self, sender: str, numbers: Any, chosen: int | None = None, pad: bytes = b""
    ) -> Answer:
        return self.ledger.enter(sender, numbers, chosen)

    @endpoint
    def take_too(self, sender: str, numbers: Any, chosen: int | None, pad: bytes) -> Answer:
        return self.ledger.enter(sender, numbers, chosen)

    @endpoint
    def blocks(self) -> int:
        return blocks_here()

    @endpoint
    def arrived(self) -> None:
        """Answered when all that the same sender sent before has been taken."""

    @endpoint
    def report(self) -> tuple[dict[str, tuple[int, int]], list[str]]:
        return self.ledger.report()


class AsyncChecker(Actor):
    """The same on an event loop; each await would let the next message in, if it were let."""

    def __init__(self) -> None:
        self.ledger = _Ledger()

    @endpoint
    async def take(
        self, sender: str, numbers: Any, chosen: int | None = None, pad: bytes = b""
    ) -> Answer:
        await asyncio.sleep(0)
        return self.ledger.enter(sender, numbers, chosen)

    @endpoint
    async def take_too(self, sender: str, numbers: Any, chosen: int | None, pad: bytes) -> Answer:
        answer = self.ledger.enter(sender, numbers, chosen)
        await asyncio.sleep(0)
        return answer

    @endpoint
    async def arrived(self) -> None:
        """Answered when all that the same sender sent before has been taken."""

    @endpoint
    async def report(self) -> tuple[dict[str, tuple[int, int]], list[str]]:
        return self.ledger.report()


@dataclass
class Sent:
    """The model: how many messages of one sender each rank must have had."""

    sender: str
    counted: list[int]
    chosen: Counter[int] = field(default_factory=Counter[int])

    @property
    def total(self) -> int:
        return sum(self.counted) + sum(self.chosen.values())


class Traffic:
    """One sender: draws messages, keeps the model, checks every answer against it.

    No more is in flight than one burst: `burst` sends, `settled` or `settled_async` waits.
    """

    def __init__(self, sender: str, checkers: Any, seed: int, *, large: bool = False) -> None:
        self.sent = Sent(sender, [0] * len(checkers))
        self._draw = random.Random(f"{seed} {sender}")
        self._checkers = checkers
        self._ranks = ValueMesh(checkers.extent, range(len(checkers)))
        self._sizes = SIZES if large else (0,)
        self._next_chosen = 0
        self._port, self._receiver = Channel[Answer].open()
        self._port_numbers: dict[int, deque[int]] = {}  # that it must still bring, by rank
        self._waiting: list[tuple[Future[Any], Callable[[Any], None]]] = []
        self._ways = [
            self._call, self._call_one, self._choose, self._stream, self._broadcast,
            self._broadcast, self._send_to_port, self._send_without_port, self._send_to_any,
        ]  # fmt: skip

    # --- sending --------------------------------------------------------------------------------

    def burst(self, messages: int) -> None:
        """Send that many, wait for none."""
        for _ in range(messages):
            self._draw.choice(self._ways)()

    def _part(self) -> tuple[Any, list[int]]:
        """Some slice of the checkers, and its ranks."""
        if self._draw.random() < 0.25:
            return self._checkers, self._ranks.values()
        selection: dict[str, Any] = {}
        for dim, size in self._checkers.sizes.items():
            way = self._draw.random()
            start = self._draw.randrange(size)
            if way < 0.4:
                stop = self._draw.randrange(start + 1, size + 1)
                selection[dim] = slice(start, stop, self._draw.choice((1, 1, 1, 2)))
            elif way < 0.7:
                selection[dim] = start
        return self._checkers.slice(**selection), self._ranks.slice(**selection).values()

    def _one(self) -> tuple[Any, int]:
        at = {dim: self._draw.randrange(size) for dim, size in self._checkers.sizes.items()}
        return self._checkers.slice(**at), self._ranks.item(**at)

    def _endpoint(self, part: Any) -> Any:
        return part.take if self._draw.random() < 0.5 else part.take_too

    def _arguments(self, ranks: list[int], chosen: int | None = None) -> tuple[Any, ...]:
        """What to send to these ranks, which the model now counts."""
        numbers = tuple(self.sent.counted)
        if chosen is None:
            for rank in ranks:
                self.sent.counted[rank] += 1
        return self.sent.sender, numbers, chosen, bytes(self._draw.choice(self._sizes))

    def _expected(self, ranks: list[int], numbers: tuple[int, ...]) -> list[Answer]:
        return [(rank, numbers[rank]) for rank in ranks]

    def _call(self) -> None:
        part, ranks = self._part()
        arguments = self._arguments(ranks)
        expected = self._expected(ranks, arguments[1])
        answer = self._endpoint(part).call(*arguments)
        self._waiting.append((answer, lambda found: _same(found.values(), expected)))

    def _call_one(self) -> None:
        part, rank = self._one()
        arguments = self._arguments([rank])
        (expected,) = self._expected([rank], arguments[1])
        answer = self._endpoint(part).call_one(*arguments)
        self._waiting.append((answer, lambda found: _same(found, expected)))

    def _choose(self) -> None:
        part, ranks = self._part()
        arguments = self._choose_arguments()
        allowed = self._expected(ranks, arguments[1])

        def check(found: Answer) -> None:
            assert found in allowed, f"{found} is none of {allowed}"
            self.sent.chosen[found[0]] += 1

        self._waiting.append((self._endpoint(part).choose(*arguments), check))

    def _stream(self) -> None:
        part, ranks = self._part()
        arguments = self._arguments(ranks)
        left = Counter(self._expected(ranks, arguments[1]))

        def check(found: Answer) -> None:
            assert left[found] == 1, f"{found} is none of {left}"
            left[found] -= 1

        self._waiting += [(answer, check) for answer in self._endpoint(part).stream(*arguments)]

    def _broadcast(self) -> None:
        part, ranks = self._part()
        self._endpoint(part).broadcast(*self._arguments(ranks))

    def _send_without_port(self) -> None:
        part, ranks = self._part()
        send(self._endpoint(part), self._arguments(ranks), {})

    def _send_to_port(self) -> None:
        part, ranks = self._part()
        arguments = self._arguments(ranks)
        for rank, number in self._expected(ranks, arguments[1]):
            self._port_numbers.setdefault(rank, deque()).append(number)
        send(self._endpoint(part), arguments, {}, self._port)
        for _ in ranks:
            self._waiting.append((self._receiver.recv(), self._check_from_port))

    def _check_from_port(self, found: Answer) -> None:
        rank, number = found
        expected = self._port_numbers[rank].popleft()
        assert number == expected, f"rank {rank} told the port {number} before {expected}"

    def _send_to_any(self) -> None:
        part, ranks = self._part()
        port, receiver = Channel[Answer].open(once=True)
        arguments = self._choose_arguments()
        allowed = self._expected(ranks, arguments[1])

        def check(found: Answer) -> None:
            assert found in allowed, f"{found} is none of {allowed}"
            self.sent.chosen[found[0]] += 1

        send(self._endpoint(part), arguments, {}, port, selection="choose")
        self._waiting.append((receiver.recv(), check))

    def _choose_arguments(self) -> tuple[Any, ...]:
        self._next_chosen += 1
        return self._arguments([], self._next_chosen)

    # --- answers --------------------------------------------------------------------------------

    def settled(self) -> None:
        """Wait for every answer of the burst, and check it."""
        for answer, check in self._taken():
            check(answer.get(timeout=PATIENCE_S))

    async def settled_async(self) -> None:
        """The same in an async actor."""
        for answer, check in self._taken():
            check(await asyncio.wait_for(answer.as_asyncio(), PATIENCE_S))

    def finished(self) -> Sent:
        """Wait until every rank has taken what nobody answers, too; what was sent in all."""
        self._checkers.arrived.call().get(timeout=PATIENCE_S)
        return self.sent

    async def finished_async(self) -> Sent:
        """The same in an async actor."""
        await asyncio.wait_for(self._checkers.arrived.call().as_asyncio(), PATIENCE_S)
        return self.sent

    def _taken(self) -> Iterator[tuple[Future[Any], Callable[[Any], None]]]:
        waiting, self._waiting = self._waiting, []
        return iter(waiting)


def _same(found: object, expected: object) -> None:
    assert found == expected, f"{found} came where {expected} was expected"


class Driver(Actor):
    """A sender that is an actor."""

    def __init__(self, seed: int, *, large: bool = False) -> None:
        self.seed = seed
        self.large = large
        self.traffic: Traffic | None = None

    @endpoint
    def drive(self, checkers: Any, bursts: int, messages: int) -> Sent:
        traffic = self.traffic = self.traffic or _traffic_of_this_actor(self, checkers)
        for _ in range(bursts):
            traffic.burst(messages)
            traffic.settled()
        return traffic.finished()


class AsyncDriver(Actor):
    """The same on an event loop."""

    def __init__(self, seed: int, *, large: bool = False) -> None:
        self.seed = seed
        self.large = large
        self.traffic: Traffic | None = None

    @endpoint
    async def drive(self, checkers: Any, bursts: int, messages: int) -> Sent:
        traffic = self.traffic = self.traffic or _traffic_of_this_actor(self, checkers)
        for _ in range(bursts):
            traffic.burst(messages)
            await traffic.settled_async()
        return await traffic.finished_async()


def _traffic_of_this_actor(driver: Any, checkers: Any) -> Traffic:
    return Traffic(
        str(context().actor_instance.actor_id), checkers, driver.seed, large=driver.large
    )


def check_books(checkers: Any, sent: Collection[Sent]) -> None:
    """That every checker has had, of every sender, what the sender's model says; and no other."""
    wrong: list[str] = []
    for rank, (counts, complaints) in enumerate(checkers.report.call().get(PATIENCE_S).values()):
        wrong += complaints
        expected = {one.sender: (one.counted[rank], one.chosen[rank]) for one in sent}
        for sender in sorted(counts.keys() | expected.keys()):
            had, due = counts.get(sender, (0, 0)), expected.get(sender, (0, 0))
            if had != due:
                wrong.append(f"rank {rank} had {had} of {sender}, which had sent {due}")
    assert not wrong, "\n".join(wrong)
