"""A call that its caller cancels ends on every rank, wherever it is; its actor goes on."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from monarch import frontend, observe
from monarch.actor import (
    Actor,
    ActorError,
    CallCancelled,
    Future,
    ProcMesh,
    SupervisionError,
    concurrent_endpoint,
    endpoint,
)
from monarch.config import configured
from monarch.observe import OpenCall
from tests.conftest import Faults
from tests.integration.gates import PATIENCE_S, Gate, GateKeeper, gate_in, write_byte

FOR_EVER_S = 600.0


class Sync(Actor):
    """Counts what it begins, and does it for ever."""

    def __init__(self) -> None:
        self.begun = 0

    @endpoint
    def how_many(self) -> int:
        return self.begun

    @endpoint
    def count(self) -> int:
        self.begun += 1
        return self.begun

    @endpoint
    def sleep(self, gate: Gate) -> None:
        self.begun += 1
        write_byte(gate.entered)
        time.sleep(FOR_EVER_S)

    @endpoint
    def spin(self, gate: Gate) -> None:
        self.begun += 1
        write_byte(gate.entered)
        while True:
            pass

    @endpoint
    def wait_for(self, other: Async, gate: Gate) -> None:
        self.begun += 1
        other.sleep.call_one(gate).get()

    @endpoint
    def tidy_up(self, gate: Gate) -> str:
        try:
            write_byte(gate.entered)
            time.sleep(FOR_EVER_S)
        except KeyboardInterrupt as error:
            return type(error).__name__
        return "was not cancelled"

    @endpoint
    def try_again(self, gate: Gate) -> None:
        write_byte(gate.entered)
        while True:
            try:
                time.sleep(FOR_EVER_S)
            except Exception:
                continue

    @endpoint
    def never_heard_of_signals(self, gate: Gate) -> None:
        """Waits in C without looking at signals: for a mutex that this thread holds itself."""
        libc = ctypes.CDLL(None)
        mutex = ctypes.create_string_buffer(128)
        libc.pthread_mutex_lock(mutex)
        while True:
            try:
                write_byte(gate.entered)
                libc.pthread_mutex_lock(mutex)
            except KeyboardInterrupt:
                continue  # it came just before the wait


class Async(Actor):
    """The same with a loop."""

    def __init__(self) -> None:
        self.begun = 0

    @endpoint
    async def how_many(self) -> int:
        return self.begun

    @endpoint
    async def sleep(self, gate: Gate) -> None:
        self.begun += 1
        write_byte(gate.entered)
        await asyncio.sleep(FOR_EVER_S)

    @endpoint
    async def gather(self, other: Async, gate: Gate) -> None:
        self.begun += 1
        await asyncio.gather(other.sleep.call_one(gate), asyncio.sleep(0))

    @endpoint
    async def gather_at(self, other: Async, gate: Gate, own: Gate) -> None:
        self.begun += 1
        called = other.sleep.call_one(gate)
        own.pass_through()
        await asyncio.gather(called, asyncio.sleep(0))

    @endpoint
    async def wait_for(self, other: Async, gate: Gate) -> str:
        return await other.overlap.call_one(gate, "kept", gate)

    @endpoint
    async def block(self, gate: Gate) -> None:
        self.begun += 1
        write_byte(gate.entered)
        time.sleep(FOR_EVER_S)  # noqa: ASYNC251

    @endpoint
    async def under_a_time_out(self) -> str:
        try:
            await asyncio.wait_for(asyncio.sleep(FOR_EVER_S), 0.001)
        except asyncio.TimeoutError:
            return "timed out"
        return "slept"

    @concurrent_endpoint
    async def overlap(self, gate: Gate, name: str, then: Gate | None = None) -> str:
        write_byte(gate.entered)
        if then is None:
            await asyncio.sleep(FOR_EVER_S)
        else:
            await asyncio.to_thread(then.pass_through)
        return name


@pytest.fixture(params=["on the main thread", "on another thread"])
def place(request: pytest.FixtureRequest, procs: ProcMesh) -> ProcMesh:
    """Procs where the next actor gets the main thread, or does not."""
    if request.param == "on another thread":
        procs.spawn("first", Sync).how_many.call().get()
    return procs


def cancel(endpoint_name: str) -> None:
    """Cancel all open calls of that endpoint."""
    found = [call for call in observe.open_calls() if call.endpoint == endpoint_name]
    assert found
    observe.cancel_calls(found)


def failed_as(future: Future[Any]) -> set[str]:
    """How a call of two ranks has failed."""
    error = future.exception(PATIENCE_S)
    assert isinstance(error, ActorError)
    return {failure.exception_type for failure in error.failures}


@pytest.mark.parametrize("what", ["sleep", "spin"])
def test_a_sync_endpoint_is_ended_and_its_actor_keeps_its_state(
    place: ProcMesh, gate: GateKeeper, what: str
) -> None:
    sync = place.spawn("sync", Sync)
    call = getattr(sync, what).call(gate.gate)
    gate.wait_entered(2)
    cancel(what)
    assert failed_as(call) == {"CallCancelled"}
    assert sync.how_many.call().get(PATIENCE_S).values() == [1, 1]


def test_so_is_an_async_endpoint(place: ProcMesh, gate: GateKeeper) -> None:
    actors = place.spawn("actors", Async)
    call = actors.sleep.call(gate.gate)
    gate.wait_entered(2)
    cancel("sleep")
    assert failed_as(call) == {"CancelledError"}
    assert actors.how_many.call().get(PATIENCE_S).values() == [1, 1]
    assert actors.under_a_time_out.call().get(PATIENCE_S).values() == ["timed out"] * 2


def test_so_is_an_async_endpoint_that_blocks_its_loop(procs: ProcMesh, gate: GateKeeper) -> None:
    actors = procs.spawn("actors", Async)
    call = actors.block.call(gate.gate)
    gate.wait_entered(2)
    cancel("block")
    assert failed_as(call) == {"CallCancelled"}
    assert actors.how_many.call().get(PATIENCE_S).values() == [1, 1]


def test_of_overlapping_calls_only_the_cancelled_one_ends(
    procs: ProcMesh, gate: GateKeeper
) -> None:
    one = procs.slice(gpus=0).spawn("actors", Async)
    ended = one.overlap.call_one(gate.gate, "ended")
    gate.wait_entered()
    number = observe.open_calls()[0].number
    kept = one.overlap.call_one(gate.gate, "kept", gate.gate)
    gate.wait_entered(2)
    observe.cancel_calls([call for call in observe.open_calls() if call.number == number])
    assert failed_as(ended) == {"CancelledError"}
    gate.open()
    assert kept.get(PATIENCE_S) == "kept"


def test_a_call_that_is_queued_never_begins(place: ProcMesh, gate: GateKeeper) -> None:
    sync = place.spawn("sync", Sync)
    running = sync.sleep.call(gate.gate)
    queued = sync.sleep.call(gate.gate)
    last = sync.how_many.call()
    gate.wait_entered(2)
    cancel("sleep")
    assert failed_as(running) == failed_as(queued) == {"CallCancelled"}
    assert last.get(PATIENCE_S).values() == [1, 1]


def test_a_call_that_waits_for_another_takes_that_with_it(
    place: ProcMesh, gate: GateKeeper
) -> None:
    inner = place.slice(gpus=0).spawn("inner", Async)
    outer = place.slice(gpus=1).spawn("outer", Sync)
    call = outer.wait_for.call_one(cast(Async, inner), gate.gate)
    gate.wait_entered()
    cancel("wait_for")
    assert failed_as(call) == {"CallCancelled"}
    assert outer.how_many.call_one().get(PATIENCE_S) == 1
    # Queued behind the inner call, which would last for ten minutes.
    assert inner.how_many.call_one().get(PATIENCE_S) == 1


def test_so_does_one_that_gathers(procs: ProcMesh, gate: GateKeeper) -> None:
    inner = procs.slice(gpus=0).spawn("inner", Async)
    outer = procs.slice(gpus=1).spawn("outer", Async)
    call = outer.gather.call_one(cast(Async, inner), gate.gate)
    gate.wait_entered()
    cancel("gather")
    assert failed_as(call) == {"CancelledError"}
    assert outer.how_many.call_one().get(PATIENCE_S) == 1
    assert inner.how_many.call_one().get(PATIENCE_S) == 1


def test_so_does_one_that_was_cancelled_just_before_it_gathered(
    procs: ProcMesh, gate: GateKeeper, tmp_path: Path
) -> None:
    procs.spawn("first", Sync).how_many.call().get()  # on the main thread, which is raised in
    inner = procs.slice(gpus=0).spawn("inner", Async)
    outer = procs.slice(gpus=1).spawn("outer", Async)
    folder = tmp_path / "own"
    folder.mkdir()
    with gate_in(folder) as own:
        call = outer.gather_at.call_one(cast(Async, inner), gate.gate, own.gate)
        gate.wait_entered()
        own.wait_entered()
        cancel("gather_at")
        observe.live_actors(procs.slice(gpus=1), PATIENCE_S)  # is answered behind that
        own.open()
        assert failed_as(call) == {"CancelledError"}
        assert outer.how_many.call_one().get(PATIENCE_S) == 1
        assert inner.how_many.call_one().get(PATIENCE_S) == 1


def test_an_overlapping_call_takes_nothing_with_it_that_another_waits_for(
    procs: ProcMesh, gate: GateKeeper
) -> None:
    one = procs.slice(gpus=0).spawn("actors", Async)
    other = procs.slice(gpus=1).spawn("other", Async)
    ended = one.overlap.call_one(gate.gate, "ended")
    gate.wait_entered()
    kept = one.wait_for.call_one(cast(Async, other), gate.gate)
    gate.wait_entered()
    observe.cancel_calls([call for call in observe.open_calls() if call.endpoint == "overlap"])
    assert failed_as(ended) == {"CancelledError"}
    gate.open()
    assert kept.get(PATIENCE_S) == "kept"


def test_an_endpoint_may_tidy_up_and_answer_all_the_same(place: ProcMesh, gate: GateKeeper) -> None:
    call = place.spawn("sync", Sync).tidy_up.call(gate.gate)
    gate.wait_entered(2)
    cancel("tidy_up")
    assert call.get(PATIENCE_S).values() == ["CallCancelled"] * 2


def test_trying_again_after_any_exception_does_not_keep_it_going(
    place: ProcMesh, gate: GateKeeper
) -> None:
    call = place.spawn("sync", Sync).try_again.call(gate.gate)
    gate.wait_entered(2)
    cancel("try_again")
    assert failed_as(call) == {"CallCancelled"}


def test_a_call_to_many_ranks_is_cancelled_on_each(
    spawn_procs: Callable[..., ProcMesh], few_are_many: None, gate: GateKeeper
) -> None:
    """Calls to many are casts, whose answers the host agent gathers."""
    sync = spawn_procs({"gpus": 8}).spawn("sync", Sync)
    sync.how_many.call().get()
    call = sync.sleep.call(gate.gate)
    gate.wait_entered(8)
    cancel("sleep")
    assert failed_as(call) == {"CallCancelled"}
    assert sync.how_many.call().get(PATIENCE_S).values() == [1] * 8


def test_one_that_is_cancelled_before_it_has_come_never_begins(
    spawn_procs: Callable[..., ProcMesh], gate: GateKeeper
) -> None:
    sync = spawn_procs({"gpus": 2}).spawn("sync", Sync)
    call = sync.sleep.call(gate.gate)  # the processes are not even up
    cancel("sleep")
    assert failed_as(call) == {"CallCancelled"}
    assert set(sync.how_many.call().get(PATIENCE_S).values()) == {0}


def test_no_other_call_is_hit_however_close_cancelling_comes_to_the_end(place: ProcMesh) -> None:
    one = place.slice(gpus=0).spawn("sync", Sync)
    outcomes: set[str] = set()
    for _ in range(200):
        since = frontend.newest_call()
        short = one.count.call_one()
        observe.cancel_calls(observe.open_calls(since))
        after = one.how_many.call_one()
        error = short.exception(PATIENCE_S)
        outcomes.add(type(error.exception if isinstance(error, ActorError) else error).__name__)
        assert isinstance(after.get(PATIENCE_S), int)
    assert outcomes <= {"NoneType", "CallCancelled"}


def test_what_cannot_be_interrupted_is_still_open_and_killing_its_mesh_ends_it(
    procs: ProcMesh, gate: GateKeeper, faults: Faults
) -> None:
    one = procs.slice(gpus=1).spawn("sync", Sync)
    call = one.never_heard_of_signals.call_one(gate.gate)
    gate.wait_entered()
    cancel("never_heard_of_signals")
    observe.interrupt_procs(procs, [1])
    (still,) = observe.open_calls()
    assert still == OpenCall(
        still.number, "workers", procs.uid, "sync", "Sync", "never_heard_of_signals", 1,
        ({"gpus": 1},),
    )  # fmt: skip
    assert procs.slice(gpus=0).spawn("other", Sync).count.call_one().get(PATIENCE_S) == 1
    procs.kill("it does not answer").get(PATIENCE_S)
    assert isinstance(call.exception(PATIENCE_S), SupervisionError)


def test_an_interrupted_rank_raises_where_it_works_and_an_idle_one_does_not_notice(
    procs: ProcMesh, gate: GateKeeper, faults: Faults
) -> None:
    sync = procs.spawn("sync", Sync)
    sync.how_many.call().get()
    call = sync.slice(gpus=1).tidy_up.call_one(gate.gate)
    gate.wait_entered()
    observe.interrupt_procs(procs)
    assert call.get(PATIENCE_S) == "KeyboardInterrupt"
    assert sync.how_many.call().get(PATIENCE_S).values() == [0, 0]


def test_a_call_is_ended_on_one_rank_alone(procs: ProcMesh, gate: GateKeeper) -> None:
    actors = procs.spawn("actors", Async)
    call = actors.sleep.call(gate.gate)
    gate.wait_entered(2)
    (asked,) = observe.cancel_on(procs, [1])
    assert (asked.endpoint, asked.owing) == ("sleep", ({"gpus": 1},))
    assert failed_as(call) == {"CancelledError"}
    assert actors.slice(gpus=1).how_many.call_one().get(PATIENCE_S) == 1
    (still,) = observe.open_calls()
    assert still.owing == ({"gpus": 0},)
    assert observe.cancel_on(procs, [1]) == []
    observe.cancel_calls([still])


def test_one_process_is_killed_and_the_others_answer(procs: ProcMesh, faults: Faults) -> None:
    sync = procs.spawn("sync", Sync)
    sync.how_many.call().get()
    assert observe.kill_procs(procs, [1]) == [1]
    assert "SIGKILL" in str(sync.slice(gpus=1).how_many.call_one().exception(PATIENCE_S))
    assert observe.kill_procs(procs, [1]) == []
    assert sync.slice(gpus=0).how_many.call_one().get(PATIENCE_S) == 0


def test_without_a_session_no_call_is_open_and_cancelling_none_is_nothing(
    run_python: Callable[..., str],
) -> None:
    program = """
from monarch import frontend, observe
print(observe.open_calls(), observe.cancel_calls([]), frontend.newest_call())
"""
    assert run_python(program) == "[] None 0\n"


@pytest.fixture(autouse=True)
def short_grace() -> Iterator[None]:
    """What hangs on purpose is not waited for."""
    with configured(cleanup_timeout="2s"):
        yield


def test_the_exception_says_what_has_happened() -> None:
    assert str(CallCancelled()) == "the caller has cancelled the call"
    assert isinstance(CallCancelled(), KeyboardInterrupt)


def test_a_thread_of_the_users_own_sleeps_as_ever(procs: ProcMesh) -> None:
    procs.spawn("first", Sync).how_many.call().get()
    assert procs.spawn("second", Sleeper).elsewhere.call().get(PATIENCE_S).values() == [True] * 2


class Sleeper(Actor):
    """Sleeps in threads that are no actor's."""

    @endpoint
    def elsewhere(self) -> bool:
        thread = threading.Thread(target=time.sleep, args=(0.001,))
        thread.start()
        thread.join()
        time.sleep(0.001)
        with pytest.raises(ValueError, match="negative"):
            time.sleep(-1)
        return True


# --- a cancellation that crosses the beginning of its call ----------------------------------------


class HeldAtTheGate:
    """An argument whose rebuilding on the rank passes through a gate."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.gate,)


def _rebuild(gate: Gate) -> HeldAtTheGate:
    gate.pass_through()
    return HeldAtTheGate(gate)


class Begins(Actor):
    """Notes that it has begun."""

    def __init__(self) -> None:
        self.begun = 0

    @endpoint
    def run_for_ever(self, _argument: HeldAtTheGate) -> None:
        self.begun += 1
        time.sleep(FOR_EVER_S)

    @endpoint
    def how_many(self) -> int:
        return self.begun


class BeginsAsync(Actor):
    """The same with a loop."""

    def __init__(self) -> None:
        self.begun = 0

    @endpoint
    async def run_for_ever(self, _argument: HeldAtTheGate) -> None:
        self.begun += 1
        time.sleep(FOR_EVER_S)  # noqa: ASYNC251

    @endpoint
    async def how_many(self) -> int:
        return self.begun


@pytest.mark.parametrize("actor", [Begins, BeginsAsync])
def test_a_call_that_is_cancelled_while_its_arguments_are_rebuilt_does_not_begin(
    place: ProcMesh, gate: GateKeeper, actor: type[Any]
) -> None:
    others = place.spawn("others", Sync)
    others.initialized.get(PATIENCE_S)  # its class is imported before the argument is rebuilt
    begins = place.spawn("begins", actor)
    held = begins.run_for_ever.call(HeldAtTheGate(gate.gate))
    gate.wait_entered(2)
    cancel("run_for_ever")
    others.how_many.call().get(PATIENCE_S)  # messages of one process keep their order
    gate.open(2)
    assert failed_as(held) <= {"CallCancelled", "CancelledError"}
    assert begins.how_many.call().get(PATIENCE_S).values() == [0, 0]
