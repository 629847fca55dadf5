"""Sync and async actors: what a class must keep to, and on which thread and loop it then runs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from monarch.actor import Actor, ProcMesh, concurrent_endpoint, endpoint
from tests.integration.gates import GateKeeper
from tests.integration.sample_actors import AsyncTidy, Echo, Meeting


class Mixed(Actor):
    @endpoint
    def one(self) -> None: ...
    @endpoint
    async def two(self) -> None: ...


class AsyncCleanup(Actor):
    @endpoint
    def one(self) -> None: ...
    async def __cleanup__(self, exception: object) -> None: ...


class AsyncSupervise(Actor):
    @endpoint
    def one(self) -> None: ...
    async def __supervise__(self, failure: object) -> bool:
        return True


class NamedSlice(Actor):
    @endpoint
    def slice(self) -> None: ...  # type: ignore[override]


class NamedStop(Actor):
    @endpoint
    def stop(self) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]


class Yields(Actor):
    @endpoint
    def one(self) -> Iterator[int]:
        yield 1


class YieldsAsync(Actor):
    @endpoint
    async def one(self) -> AsyncIterator[int]:
        yield 1


class AsyncConstructor(Actor):
    async def __init__(self) -> None: ...  # type: ignore[misc]

    @endpoint
    async def one(self) -> None: ...


class NoActor:
    @endpoint
    def one(self) -> None: ...


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (
            Mixed,
            r"Mixed mixes .*\(two\) with .*\(one\); .*:\n    @endpoint\n    async def one\(",
        ),
        (AsyncCleanup, "AsyncCleanup.__cleanup__ is `async def`, but its endpoints are plain"),
        (AsyncSupervise, "AsyncSupervise.__supervise__ is `async def`"),
        (NamedSlice, "NamedSlice.slice: a mesh of actors has its own 'slice'; rename"),
        (NamedStop, "NamedStop.stop: a mesh of actors has its own 'stop'"),
        (Yields, "Yields.one yields, and an endpoint answers once: return a list, or send each"),
        (YieldsAsync, "YieldsAsync.one yields, and an endpoint answers once"),
        (AsyncConstructor, "AsyncConstructor.__init__ is `async def`, which Python cannot await"),
        (NoActor, "NoActor is no actor: derive it from monarch.actor.Actor"),
    ],
)
def test_a_class_that_breaks_a_rule_is_refused_at_spawn(
    four: ProcMesh, cls: type[Actor], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        four.spawn("broken", cls)
    assert four.spawn("echo", Echo).rank.call().get().values() == [0, 1, 2, 3]


def test_what_is_no_class_is_refused_at_spawn(four: ProcMesh) -> None:
    with pytest.raises((TypeError, ValueError), match="Actor"):
        four.spawn("broken", Echo())  # type: ignore[arg-type]


def test_concurrent_endpoint_is_for_async_methods_only() -> None:
    with pytest.raises(ValueError, match="concurrent_endpoint needs an `async def`"):

        @concurrent_endpoint  # type: ignore[arg-type]
        def plain(self: object) -> None: ...


class Where(Actor):
    @endpoint
    def where(self) -> tuple[int, bool]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return threading.get_ident(), False
        return threading.get_ident(), True


def test_a_sync_actor_runs_without_a_loop_always_on_its_own_thread(four: ProcMesh) -> None:
    first, second = four.spawn("first", Where), four.spawn("second", Where)
    found = {mesh: [mesh.where.call().get().values() for _ in range(3)] for mesh in (first, second)}
    for rank in range(4):
        threads = [{answers[rank][0] for answers in found[mesh]} for mesh in (first, second)]
        assert all(len(of_one) == 1 for of_one in threads)
        assert threads[0] != threads[1]
    assert not any(loop for mesh in found for answers in found[mesh] for _, loop in answers)


def test_an_async_actor_has_a_loop_of_its_own_on_a_thread_of_its_own(four: ProcMesh) -> None:
    meetings = [four.spawn(name, Meeting) for name in ("first", "second")]
    found = [mesh.thread_and_loop.call().get().values() for mesh in meetings]
    assert all(running for answers in found for _, running in answers)
    assert all(one[0] != two[0] for one, two in zip(*found, strict=True))


def test_an_async_endpoint_is_awaited_to_its_end_before_the_next_begins(four: ProcMesh) -> None:
    meeting = four.spawn("meeting", Meeting)
    answers = [meeting.alone.call() for _ in range(20)]
    assert all(answer.get().values() == [1, 1, 1, 1] for answer in answers)


def test_concurrent_endpoints_begin_in_message_order_and_overlap(four: ProcMesh) -> None:
    meeting = four.slice(gpus=0).spawn("meeting", Meeting)
    answers = [meeting.meet.call_one(number, 50) for number in range(50)]
    assert all(answer.get() == list(range(50)) for answer in answers)


def test_concurrent_endpoints_are_cancelled_when_the_actor_stops(
    four: ProcMesh, tmp_path: Path, gate: GateKeeper
) -> None:
    meeting = four.slice(gpus=1).spawn("meeting", Meeting)
    path = tmp_path / "said"
    answer = meeting.wait_for_ever.call_one(str(path), gate.gate)
    gate.wait_entered()
    gate.open()
    meeting.alone.call_one().get()
    meeting.stop().get(timeout=60)
    assert answer.exception(timeout=60) is not None
    assert path.read_text() == "cancelled\n"


def test_an_async_cleanup_is_awaited(four: ProcMesh, tmp_path: Path) -> None:
    path = tmp_path / "said"
    tidy = four.slice(gpus=2).spawn("tidy", AsyncTidy, str(path))
    tidy.nothing.call_one().get()
    tidy.stop().get(timeout=60)
    assert path.read_text() == "cleaned up after None\n"


class Child(Echo):
    """Adds an endpoint and overrides one."""

    @endpoint
    def rank(self) -> int:
        return 100 + self.plain_rank()

    def plain_rank(self) -> int:
        return Echo.rank.function(self)

    @endpoint
    def both(self) -> tuple[int, int]:
        return self.rank(), self.plain_rank()  # type: ignore[operator]


def test_endpoints_are_inherited_and_overridden_and_plain_methods_inside(four: ProcMesh) -> None:
    child = four.spawn("child", Child)
    assert child.rank.call().get().values() == [100, 101, 102, 103]
    assert child.same.call("inherited").get().values() == ["inherited"] * 4
    assert child.both.call().get().values() == [(100 + rank, rank) for rank in range(4)]


def test_the_logger_of_an_actor_is_named_after_its_class() -> None:
    assert isinstance(Echo.logger, logging.Logger)
    assert Echo.logger.name.endswith("Echo")
