"""Messages drawn at random, from many senders at once, against a model of what each rank must see.

A message of one sender overtakes no other of that sender to the same rank, whatever endpoints,
adverbs, slices and sizes they have, and whether they go to the rank itself or, as part of a cast to
a large mesh, by way of its host. Run again what has failed with MONARCH_ORDER_SEED.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from monarch._src.actor.deliver.routes import CAST_FROM
from monarch.actor import ProcMesh
from tests.integration.traffic import (
    AsyncChecker,
    AsyncDriver,
    Checker,
    Driver,
    Sent,
    Traffic,
    check_books,
)

pytestmark = pytest.mark.slow

Spawn = Callable[..., ProcMesh]
ROUNDS = int(os.environ.get("MONARCH_ORDER_ROUNDS", "1"))
# Casts to the second go by way of the host, those to small parts of it do not.
MESHES = [{"hosts": 2, "gpus": 4}, {"hosts": 6, "gpus": 6}]


@pytest.fixture
def seed() -> int:
    """Another one each time; pytest shows what was printed when a test fails."""
    drawn = int(os.environ.get("MONARCH_ORDER_SEED", random.randrange(1 << 32)))
    print(f"run this again with MONARCH_ORDER_SEED={drawn}")
    return drawn


class ClientThread(threading.Thread):
    """A sender in the client: what one thread sends stays in order."""

    def __init__(self, name: str, checkers: Any, seed: int, bursts: int, messages: int) -> None:
        super().__init__(name=name)
        self.traffic = Traffic(name, checkers, seed, large=True)
        self._bursts, self._messages = bursts, messages
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(self._bursts):
                self.traffic.burst(self._messages)
                self.traffic.settled()
            self.traffic.finished()
        except BaseException as error:
            self._error = error

    def result(self) -> Sent:
        """What it sent, or raise what it raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self.traffic.sent


@pytest.mark.parametrize("kind", [Checker, AsyncChecker])
@pytest.mark.parametrize("dims", MESHES, ids=lambda dims: f"{dims['hosts'] * dims['gpus']} ranks")
def test_no_message_overtakes_another_of_its_sender_on_any_route(
    spawn_procs: Spawn, seed: int, dims: dict[str, int], kind: type[Any]
) -> None:
    draw = random.Random(seed)
    assert 8 < CAST_FROM < 36, "one mesh is below it, the other above"
    procs, elsewhere = spawn_procs(dims, name="taking"), spawn_procs({"gpus": 2}, name="elsewhere")
    checkers = procs.spawn("checkers", kind)
    # They begin at once, while processes still come up.
    groups: list[Any] = [
        procs.spawn("beside", Driver, seed, large=True),
        procs.slice(hosts=1).spawn("async beside", AsyncDriver, seed, large=True),
        elsewhere.spawn("far", Driver, seed, large=True),
        elsewhere.spawn("async far", AsyncDriver, seed, large=True),
    ]
    sent: dict[str, Sent] = {}
    for part in range(ROUNDS):
        bursts, messages = draw.choice([(1, 60), (3, 20), (12, 5), (20, 3)])
        answers = [group.drive.call(checkers, bursts, messages) for group in groups]
        threads = [
            ClientThread(f"thread {n} of the client, part {part}", checkers, seed, bursts, messages)
            for n in range(2)
        ]
        for thread in threads:
            thread.start()
        done = [thread.result() for thread in threads]
        for answer in answers:
            done += answer.get(timeout=300).values()
        sent.update({one.sender: one for one in done})  # an actor counts on from part to part
    check_books(checkers, sent.values())
