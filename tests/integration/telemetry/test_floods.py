"""Under floods of messages, lines and log records memory stays, and answers name dropped rows."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from monarch._src.actor.state.history import HISTORY, MOST_ROWS
from monarch._src.logs.state.line_ring import MOST_LINES
from monarch.actor import Actor, ProcMesh, endpoint
from monarch.config import clear_runtime_config
from monarch.observe import on_output, record
from tests.integration.programs import running
from tests.integration.telemetry.asking import ask
from tests.workers import PATIENCE_S

pytestmark = pytest.mark.slow

HALF = 500_000
"""Messages of one half of the flood, and as many lines: 100,000 a second here."""
BURST = 1000
"""The number of casts between two calls that wait until the ranks have kept up."""
GROWTH = 20 << 20
"""Bytes that a process may have more after the second half, as allocators do; the rows and lines of
that half take more than twice as much in each process that keeps them."""
LINE = "x" * 60
log = logging.getLogger("tests.floods")


class Worker(Actor):
    """Is flooded, and floods."""

    @endpoint
    def step(self) -> None:
        pass

    @endpoint
    def keep_up(self) -> None:
        """Answers when all earlier messages have been handled."""

    @endpoint
    def cast(self, other: Any, bursts: int) -> None:
        for _ in range(bursts):
            for _ in range(BURST):
                other.step.broadcast()
            other.keep_up.call_one().get()

    @endpoint
    def write(self, lines: int) -> None:
        for first in range(0, lines, BURST):
            sys.stdout.write("".join(f"{first + at} {LINE}\n" for at in range(BURST)))
        sys.stdout.flush()

    @endpoint
    def log_records(self, count: int) -> None:
        """Log, which also writes a line for each record."""
        for number in range(count):
            log.error("record %d %s", number, LINE)


@pytest.fixture(autouse=True)
def history_of_this_test() -> Iterator[None]:
    """Clear rows that other tests have left in this process, and hide the lines of the flood."""
    HISTORY.clear()
    end = on_output(lambda lines: None)
    yield
    end()
    record(0, timeout=PATIENCE_S)
    clear_runtime_config()


@pytest.fixture
def flooded(spawn_procs: Any) -> Any:
    procs: ProcMesh = spawn_procs({"gpus": 4}, name="flooded")
    workers = procs.spawn("workers", Worker)
    workers.keep_up.call().get()
    return workers


def private_bytes() -> dict[str, int]:
    """The memory that each process of the session shares with no other."""
    pids = dict(ask("SELECT mesh || rank, pid FROM procs").rows)
    ((agent,),) = ask("SELECT agent_pid FROM hosts").rows
    return {
        name: psutil.Process(pid).memory_full_info().uss
        for name, pid in {**pids, "agent": agent, "client": os.getpid()}.items()
    }


class Sent:
    """What the flood has sent so far."""

    def __init__(self) -> None:
        self.messages = self.of_client = self.lines = 0


def flood(workers: Any, sent: Sent) -> None:
    """One half: the client and a rank cast, a rank writes, a rank logs; a query runs meanwhile."""
    bursts = HALF // 5 // BURST
    caller, writer = workers.slice(gpus=0), workers.slice(gpus=3)
    cast_to = workers.slice(gpus=slice(0, 3))
    busy = [
        writer.write.call_one(HALF),
        caller.cast.call_one(workers.slice(gpus=1), bursts),
        workers.slice(gpus=2).log_records.call_one(HALF // 10),
    ]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, "SELECT count(*) FROM messages")
        rounds = 0
        while rounds < bursts or not asked.done():
            for _ in range(BURST):
                cast_to.step.broadcast()
            cast_to.keep_up.call().get(PATIENCE_S)
            rounds += 1
        ((count,),) = asked.result().rows
        assert count <= 4 * (MOST_ROWS + 2 * BURST), "rings, and messages that have not ended"
    for one in busy:
        one.get(PATIENCE_S)
    sent.lines += HALF + HALF // 10
    sent.messages += len(busy) + bursts * (BURST + 1) + rounds * 3 * (BURST + 1)
    sent.of_client += len(busy) + rounds * (BURST + 1)


def test_memory_is_flat_and_answers_count_what_a_flood_of_messages_and_lines_has_pushed_out(
    flooded: Any,
) -> None:
    record(timeout=PATIENCE_S)
    sent = Sent()
    flood(flooded, sent)
    first = private_bytes()
    flood(flooded, sent)
    grown = {name: size - first[name] for name, size in private_bytes().items()}
    assert max(grown.values()) < GROWTH, grown
    assert sent.messages + sent.lines >= 1_800_000

    found = ask("SELECT count(*) FROM messages")
    assert found.rows[0][0] + sum(one.count for one in found.dropped) == sent.messages
    assert {one.where.split(" on ")[0] for one in found.dropped} == {
        f"flooded[gpus={rank}]" for rank in range(3)
    }
    found = ask("SELECT count(*) FROM sent_messages WHERE mesh = 'client'")
    (dropped,) = found.dropped
    assert found.rows == ((MOST_ROWS,),)
    assert dropped.count == sent.of_client - MOST_ROWS
    found = ask("SELECT count(*) FROM events WHERE target = 'tests.floods'")
    assert found.rows[0][0] + sum(one.count for one in found.dropped) >= HALF // 5

    counted = "SELECT log_lines, log_lines + log_lines_dropped >= {} FROM hosts"
    for _ in range(500):  # the agent reads the last ones beside
        if ask(counted.format(sent.lines)).rows[0][1]:
            break
    found = ask("SELECT count(*), max(number) FROM log_lines")
    (lost,) = found.dropped
    assert found.rows[0][0] <= MOST_LINES
    assert found.rows[0][0] + lost.count == found.rows[0][1] == sent.lines
    assert found.dropped_lines[0].startswith("dropped rows of log_lines: ")


STOPPED = """
import os
import select
import signal
import sys

from monarch.actor import Actor, endpoint, this_host
from monarch.observe import on_output, query

CHUNK = b"".join(b"%d %s\\n" % (number, b"x" * 90) for number in range(1000))


class Writer(Actor):
    @endpoint
    def write(self, client: int, chunks: int) -> int:
        '''Stop the client, and have it go on when nothing reads our pipe.'''
        stalled = 0
        os.kill(client, signal.SIGSTOP)
        os.set_blocking(1, False)
        for _ in range(chunks):
            left = memoryview(CHUNK)
            while left:
                try:
                    left = left[os.write(1, left) :]
                except BlockingIOError:
                    if not select.select([], [1], [], 2.0)[1]:
                        stalled += 1
                        os.kill(client, signal.SIGCONT)
        os.set_blocking(1, True)
        os.kill(client, signal.SIGCONT)
        return stalled


def peak_mib(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) >> 10


received = []


if __name__ == "__main__":
    end = on_output(received.extend)
    procs = this_host().spawn_procs({"gpus": 1}, name="procs")
    writer = procs.spawn("writer", Writer)
    writer.initialized.get()
    ((agent,),) = query("SELECT agent_pid FROM hosts").rows
    before = peak_mib(agent)
    stalled = writer.write.call_one(os.getpid(), int(sys.argv[1])).get()
    # A busy rank ends a line later, which is told as it is so far, and again once it has ended.
    told = [line for line in received[:-1] if line.whole] + received[-1:]
    letters = sum(line.text.count("x") for line in told)
    print(stalled, letters, peak_mib(agent) - before, flush=True)
    end()
    procs.stop().get()
"""


def test_lines_of_a_client_that_stands_still_wait_in_their_rank_and_none_is_lost(
    tmp_path: Path,
) -> None:
    chunks = 1500
    with running(tmp_path, STOPPED, str(chunks)) as program:
        stalled, letters, grown_mib = map(int, program.line().split())
        assert program.end() == (0, "", "")
    assert stalled >= 1, "the rank has waited"
    assert letters == chunks * 1000 * 90
    assert grown_mib < 64, "all lines have 140 MiB"
