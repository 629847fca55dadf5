"""Messages over every adverb by the hundred thousand: none lost, doubled or overtaken, memory flat.

`MONARCH_STRESS_MESSAGES` says how many; `make stress` sends ten million.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import pytest

from monarch.actor import ProcMesh, context
from tests.integration.traffic import Checker, Driver, Sent, Traffic, blocks_here, check_books

pytestmark = pytest.mark.slow

MESSAGES = int(os.environ.get("MONARCH_STRESS_MESSAGES", "300_000"))
# Growth from the end of the warm-up, 120,000 messages, to the last one. Of 300,000 each process
# sends or takes 20,000 and more in between. Blocks are objects of Python, and there must be none of
# every tenth message; resident memory is that of libraries too, and creeps until every arena of
# the allocator is as full as it gets.
WARM_UP = 120_000
MOST_BLOCKS = 2_000
MOST_MIB = 8.0


@dataclass
class Memory:
    """What every process takes: the client, its agent, the zygote, and the ranks."""

    blocks: list[int]
    resident: dict[int, float]

    @staticmethod
    def now(checkers: Checker) -> Memory:
        blocks = [blocks_here(), *checkers.blocks.call().get().values()]
        client = psutil.Process()
        processes = [client, *client.children(recursive=True)]
        return Memory(blocks, {p.pid: p.memory_info().rss / (1 << 20) for p in processes})


@pytest.mark.parametrize(
    ("dims", "messages", "burst", "bursts"),
    [
        pytest.param({"hosts": 2, "gpus": 4}, MESSAGES, 100, 20, id="8 ranks"),
        # Casts to most of them go by way of their host.
        pytest.param({"hosts": 6, "gpus": 8}, MESSAGES // 3, 20, 5, id="48 ranks"),
    ],
)
def test_of_all_messages_none_is_lost_doubled_or_overtaken_and_memory_stays_flat(
    spawn_procs: Callable[..., ProcMesh],
    dims: dict[str, int],
    messages: int,
    burst: int,
    bursts: int,
) -> None:
    """`burst` messages of each sender are in flight at most; a round has as many `bursts`."""
    procs = spawn_procs(dims, name="stress")
    checkers, drivers = procs.spawn("checkers", Checker), procs.spawn("drivers", Driver, 8)
    mine = Traffic(str(context().actor_instance.actor_id), checkers, 8)

    def run_until(most: float) -> bytes:
        # Packed: thousands of numbers, most of which cost a block only once they are large.
        while True:
            answer = drivers.drive.call(checkers, bursts, burst)
            for _ in range(bursts):
                mine.burst(burst)
                mine.settled()
            sent = answer.get(timeout=600).values()
            if mine.sent.total + sum(one.total for one in sent) >= most:
                return pickle.dumps(sent)

    run_until(WARM_UP * messages / MESSAGES)
    before = Memory.now(checkers)
    packed = run_until(messages)
    after = Memory.now(checkers)

    sent: list[Sent] = pickle.loads(packed)
    check_books(checkers, [mine.finished(), *sent])
    blocks = [new - old for old, new in zip(before.blocks, after.blocks, strict=True)]
    resident = {pid: round(size - before.resident[pid], 2) for pid, size in after.resident.items()}
    total = mine.sent.total + sum(one.total for one in sent)
    print(f"{total} messages; grown by {blocks} blocks, {resident} MiB")
    assert max(blocks) < MOST_BLOCKS, blocks
    assert max(resident.values()) < MOST_MIB, resident
