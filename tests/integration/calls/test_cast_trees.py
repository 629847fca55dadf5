"""Casts over hosts: one message each, and a tree where there are more than the client sends to.

The four workers are those of all tests here; the last one takes one of them away.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from monarch._src.actor.deliver import routes
from monarch._src.mesh.client import current_session
from monarch._src.net import session_directory
from monarch._src.wire.segment_refs import SEGMENT_FROM
from monarch.actor import (
    Actor,
    HostMesh,
    ProcMesh,
    SupervisionError,
    attach_to_workers,
    concurrent_endpoint,
    endpoint,
    shutdown_context,
)
from monarch.config import configured
from monarch.observe import call_of, payload_counts
from tests.conftest import Faults
from tests.workers import PATIENCE_S, TRUST_ALL, workers

pytestmark = pytest.mark.slow

HOSTS, GPUS = 4, 2


class Diary(Actor):
    """Notes what it is told, in order."""

    def __init__(self) -> None:
        self.lines: list[int] = []

    @endpoint
    def note(self, line: int) -> int:
        self.lines.append(line)
        return line

    @endpoint
    def all(self) -> list[int]:
        return self.lines

    @endpoint
    def agent(self) -> int:
        return psutil.Process().parent().ppid()  # pyright: ignore[reportOptionalMemberAccess]

    @endpoint
    def tell(self, diaries: Diary, line: int) -> int:
        return len(list(diaries.note.call(line).get().values()))

    @endpoint
    def weigh(self, data: bytes) -> int:
        return len(data)

    @endpoint
    def weighed_by(self, diaries: Diary, size: int) -> tuple[list[int], int]:
        before = payload_counts().served_bytes
        sizes = diaries.weigh.call(bytes(size)).get(timeout=PATIENCE_S)
        return list(sizes.values()), payload_counts().served_bytes - before

    @endpoint
    def fail(self) -> None:
        raise ValueError("no")


class Waiter(Actor):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    @concurrent_endpoint
    async def wait(self, _filling: bytes) -> None:
        await self.released.wait()

    @concurrent_endpoint
    async def release(self) -> None:
        self.released.set()


@pytest.fixture(scope="module")
def hosts(agent_errors: object) -> Iterator[HostMesh]:
    with configured(liveness=6, startup_timeout=PATIENCE_S), workers(HOSTS) as found:
        yield attach_to_workers(ca=TRUST_ALL, workers=[one.address for one in found])
        shutdown_context(reason="the workers are about to end")
    session_directory.sweep(session_directory.base_directory())  # of the one that was killed


def diaries_on(hosts: HostMesh, fanout: int) -> tuple[ProcMesh, Diary]:
    with configured(cast_fanout=fanout):
        procs = hosts.spawn_procs({"gpus": GPUS})
        diaries = procs.spawn("diaries", Diary)
    procs.initialized.get(timeout=PATIENCE_S)
    return procs, diaries


@pytest.mark.parametrize("fanout", [1, 2])
def test_order_holds_between_slices_casts_and_direct_messages_over_a_tree(
    hosts: HostMesh, fanout: int
) -> None:
    procs, diaries = diaries_on(hosts, fanout)
    told: dict[tuple[int, int], list[int]] = {(h, g): [] for h in range(HOSTS) for g in range(GPUS)}
    slices: list[Any] = [
        {}, {"hosts": 3}, {"hosts": slice(1, 3)}, {"hosts": 2, "gpus": 1},
        {"hosts": slice(0, 4, 2)}, {"gpus": 1}, {"hosts": 0},
    ]  # fmt: skip
    line = 0
    for turn in range(40):
        for where in slices[turn % 3 :]:
            line += 1
            some = diaries.slice(**where) if where else diaries
            some.note.broadcast(line)
            for point in told:
                there = dict(zip(("hosts", "gpus"), point, strict=True))
                if all(
                    there[dim] in range(*at.indices(HOSTS))
                    if isinstance(at, slice)
                    else there[dim] == at
                    for dim, at in where.items()
                ):
                    told[point].append(line)
    for point, lines in diaries.all.call().get(timeout=PATIENCE_S).items():
        assert lines == told[point["hosts"], point["gpus"]]
    first = diaries.slice(hosts=0, gpus=0)
    assert first.tell.call_one(diaries.slice(hosts=slice(1, HOSTS)), 0).get(timeout=PATIENCE_S) == 6
    procs.stop().get(timeout=PATIENCE_S)


def test_what_is_large_is_passed_on_by_hosts_and_leaves_its_sender_once_a_branch(
    hosts: HostMesh,
) -> None:
    procs, diaries = diaries_on(hosts, 1)
    size, everybody = 3_000_000, HOSTS * GPUS
    before = payload_counts().served_bytes
    sizes = diaries.weigh.call(bytes(size)).get(timeout=PATIENCE_S)
    assert list(sizes.values()) == [size] * everybody
    assert size <= payload_counts().served_bytes - before < size + SEGMENT_FROM
    scales = procs.spawn("scales", Diary)
    for host, sides in ((0, 1), (1, 2)):  # from within, it goes both ways along the row
        one = diaries.slice(hosts=host, gpus=0)
        sizes, served = one.weighed_by.call_one(scales, size).get(timeout=PATIENCE_S)
        assert sizes == [size] * everybody
        assert sides * size <= served < sides * (size + SEGMENT_FROM)
    procs.stop().get(timeout=PATIENCE_S)


def test_a_cast_to_64_ranks_on_4_hosts_costs_the_sender_4_messages(hosts: HostMesh) -> None:
    procs = hosts.spawn_procs({"gpus": 16})
    diaries = procs.spawn("diaries", Diary)
    assert len(list(diaries.note.call(1).get(timeout=PATIENCE_S).values())) == 64
    held = current_session()
    assert held is not None
    sites: Any = held.sites
    before = sites.sent
    diaries.note.broadcast(2)
    assert sites.sent - before == 4
    call = diaries.note.call(3)
    assert sites.sent - before == 8
    assert list(call.get(timeout=PATIENCE_S).values()) == [3] * 64
    procs.stop().get(timeout=PATIENCE_S)


def test_over_more_hosts_than_the_fanout_one_rank_each_is_reached_by_the_tree_too(
    hosts: HostMesh,
) -> None:
    with configured(cast_fanout=2):
        procs = hosts.spawn_procs()
        diaries = procs.spawn("diaries", Diary)
    procs.initialized.get(timeout=PATIENCE_S)
    held = current_session()
    assert held is not None
    sites: Any = held.sites
    before, size = sites.sent, 3_000_000
    diaries.note.broadcast(1)
    assert sites.sent - before == 2
    diaries.slice(hosts=slice(0, 2)).note.broadcast(2)
    assert sites.sent - before == 4
    served = payload_counts().served_bytes
    assert list(diaries.weigh.call(bytes(size)).get(timeout=PATIENCE_S).values()) == [size] * HOSTS
    assert 2 * size <= payload_counts().served_bytes - served < 2 * (size + SEGMENT_FROM)
    procs.stop().get(timeout=PATIENCE_S)


def test_calls_that_wait_for_a_later_message_hold_nobody_up(
    hosts: HostMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 50_000
    monkeypatch.setattr(routes, "QUEUE", 2 * size)
    with configured(cast_fanout=1):
        procs = hosts.spawn_procs()
        waiters = procs.spawn("waiters", Waiter)
    calls = [waiters.wait.call(bytes(size)) for _ in range(5)]
    for _ in range(5):
        waiters.wait.broadcast(bytes(size))
    waiters.release.broadcast()
    for call in calls:
        call.get(timeout=PATIENCE_S)
    procs.stop().get(timeout=PATIENCE_S)


def test_who_has_not_answered_is_known_though_answers_come_up_the_tree(hosts: HostMesh) -> None:
    with configured(cast_fanout=1):  # all that is answered waits for the last host
        waiters = hosts.spawn_procs({"gpus": GPUS}).spawn("waiters", Waiter)
    future = waiters.wait.call(b"")
    others = waiters.slice(hosts=slice(0, HOSTS - 1))
    others.release.call().get(timeout=PATIENCE_S)
    call = call_of(future)
    while call is not None and len(call.owing) > GPUS:
        call = call_of(future)
    assert call is not None
    assert [dict(point) for point in call.owing] == [
        {"hosts": HOSTS - 1, "gpus": n} for n in range(GPUS)
    ]
    waiters.slice(hosts=HOSTS - 1).release.call().get(timeout=PATIENCE_S)
    assert len(future.get(timeout=PATIENCE_S)) == HOSTS * GPUS


def test_a_host_that_dies_on_the_way_takes_nothing_from_those_behind_it(
    hosts: HostMesh, faults: Faults
) -> None:
    _, diaries = diaries_on(hosts, 1)
    agents = [
        pid
        for point, pid in diaries.agent.call().get(timeout=PATIENCE_S).items()
        if not point["gpus"]
    ]
    diaries.note.broadcast(1)
    os.kill(agents[0], signal.SIGSTOP)  # so that these are on the way when it dies
    for line in range(2, 200):
        diaries.note.broadcast(line)
    call = diaries.note.call(200)
    os.kill(agents[0], signal.SIGKILL)
    with pytest.raises(SupervisionError, match=r"host .* is lost|host lost"):
        call.get(timeout=PATIENCE_S)
    behind = diaries.slice(hosts=slice(1, HOSTS))
    behind.note.broadcast(202)
    for lines in behind.all.call().get(timeout=PATIENCE_S).values():
        assert lines == [*range(1, 201), 202]
    with pytest.raises(Exception, match="no"):
        behind.fail.call().get(timeout=PATIENCE_S)
    assert faults.take().failures
    behind.note.call(203).get(timeout=PATIENCE_S)
