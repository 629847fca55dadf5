"""Calling: the adverbs, `send`, `Accumulator` and `as_endpoint`, beyond tests/integration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    Future,
    MeshStoppedError,
    Port,
    ProcMesh,
    SupervisionError,
    ValueMesh,
    as_endpoint,
    current_rank,
    endpoint,
    send,
)
from tests.integration.gates import GateKeeper
from tests.integration.sample_actors import Echo, Recorder
from tests.notebook.kernel import running_kernel

Spawn = Callable[..., ProcMesh]


class Adding(Actor):
    """Endpoints, and methods that are none."""

    @endpoint
    def plus_rank(self, number: int, *, times: int = 1) -> int:
        return times * (number + current_rank().rank)

    def twice(self, number: int) -> int:
        return 2 * number

    async def thrice(self, number: int) -> int:
        return 3 * number

    def by_port(self, port: Port[int], number: int) -> None:
        port.send(4 * number)


class AsyncAdding(Actor):
    """The other way round."""

    @endpoint
    async def plus_rank(self, number: int) -> int:
        return number + current_rank().rank

    def twice(self, number: int) -> int:
        return 2 * number

    async def by_port(self, port: Port[int], number: int) -> None:
        port.send(4 * number)


@pytest.fixture
def adding(four: ProcMesh) -> Adding:
    return four.spawn("adding", Adding)


# --- adverbs --------------------------------------------------------------------------------------


def test_each_adverb_returns_what_it_says(adding: Adding) -> None:
    called = adding.plus_rank.call(1)
    assert isinstance(called, Future)
    assert isinstance(called.get(), ValueMesh)
    assert isinstance(adding.plus_rank.choose(1), Future)
    assert isinstance(adding.slice(gpus=0).plus_rank.call_one(1), Future)
    streamed = adding.plus_rank.stream(1)
    assert isinstance(streamed, Iterator)
    assert all(isinstance(future, Future) for future in streamed)
    assert adding.plus_rank.broadcast(1) is None


def test_a_call_returns_before_anybody_has_answered(four: ProcMesh, gate: GateKeeper) -> None:
    echo = four.spawn("echo", Echo)
    futures = [echo.pass_gate.call(gate.gate, 1), echo.pass_gate.choose(gate.gate, 2)]
    futures += echo.pass_gate.stream(gate.gate, 3)
    echo.pass_gate.broadcast(gate.gate)
    assert not any(future.done for future in futures)
    gate.open(4 + 1 + 4 + 4)
    assert [future.get() for future in futures[1:]] == [2, 3, 3, 3, 3]
    # The broadcast is behind them, and nobody hears of its end: the gate stays until it is through.
    assert echo.rank.call().get().values() == [0, 1, 2, 3]


def test_every_adverb_works_on_a_mesh_without_dims(four: ProcMesh) -> None:
    one = four.spawn("adding", Adding).slice(gpus=2)
    assert one.plus_rank.call(5).get().item() == 5
    assert one.plus_rank.call_one(5).get() == 5
    assert one.plus_rank.choose(5).get() == 5
    assert [future.get() for future in one.plus_rank.stream(5)] == [5]
    one.plus_rank.broadcast(5)


def test_a_mesh_without_dims_and_one_of_a_single_rank_are_both_one(four: ProcMesh) -> None:
    adding = four.spawn("adding", Adding)
    assert adding.slice(gpus=slice(3, 4)).plus_rank.call_one(1).get() == 1
    assert adding.slice(gpus=slice(3, 4)).plus_rank.call(1).get().sizes == {"gpus": 1}


# --- send -----------------------------------------------------------------------------------------


def test_send_without_a_port_reaches_every_rank_and_answers_nobody(four: ProcMesh) -> None:
    recorder = four.spawn("recorder", Recorder)
    assert send(recorder.note, ("first",), {}) is None
    send(recorder.slice(gpus=slice(1, 3)).note, (), {"item": "second"})
    assert recorder.take.call().get().values() == [
        ["first"], ["first", "second"], ["first", "second"], ["first"],
    ]  # fmt: skip


def test_send_to_any_without_a_port_reaches_exactly_one(four: ProcMesh) -> None:
    recorder = four.spawn("recorder", Recorder)
    for number in range(40):
        send(recorder.note, (number,), {}, selection="choose")
    taken = recorder.take.call().get().values()
    assert sorted(item for items in taken for item in items) == list(range(40))
    assert all(items == sorted(items) for items in taken)


def test_send_gives_arguments_by_position_and_by_name(adding: Adding) -> None:
    port, receiver = Channel[int].open()
    send(adding.slice(gpus=1).plus_rank, (10,), {"times": 3}, port)
    assert receiver.recv().get(timeout=60) == 30


def test_an_exception_in_an_endpoint_that_was_sent_to_comes_out_of_the_port(
    adding: Adding,
) -> None:
    port, receiver = Channel[int].open()
    send(adding.slice(gpus=1).plus_rank, ("text",), {}, port)
    with pytest.raises(ActorError, match=r"Adding.plus_rank on workers\[gpus=1\] raised TypeError"):
        receiver.recv().get(timeout=60)
    send(adding.slice(gpus=1).plus_rank, (1,), {}, port)
    assert receiver.recv().get(timeout=60) == 1


# --- Accumulator ----------------------------------------------------------------------------------


def test_an_accumulator_takes_the_arguments_of_the_endpoint_and_begins_with_the_identity(
    adding: Adding,
) -> None:
    listed = Accumulator(adding.plus_rank, [], lambda so_far, each: [*so_far, each])
    assert sorted(listed.accumulate(1, times=2).get()) == [2, 4, 6, 8]
    assert sorted(listed.accumulate(0).get()) == [0, 1, 2, 3], "the identity is as it was"
    one = Accumulator(
        adding.slice(gpus=3).plus_rank, tuple[int, ...](), lambda so_far, each: (*so_far, each)
    )
    assert one.accumulate(7).get() == (7,)


def test_an_accumulator_folds_in_the_order_in_which_answers_came(
    four: ProcMesh, gate: GateKeeper
) -> None:
    echo = four.spawn("echo", Echo)
    held = echo.slice(gpus=0).pass_gate.call_one(gate.gate)
    gate.wait_entered()
    order = Accumulator(
        echo.rank, tuple[int, ...](), lambda so_far, rank: (*so_far, rank)
    ).accumulate()
    assert echo.slice(gpus=slice(1, 4)).rank.call().get().values() == [0, 1, 2]
    gate.open()
    assert order.get()[-1] == 0
    held.get()


def test_what_combine_raises_is_raised_to_who_looks(adding: Adding) -> None:
    folded = Accumulator(adding.plus_rank, 0, lambda so_far, each: so_far // (each - each))
    with pytest.raises(ZeroDivisionError):
        folded.accumulate(1).get()


# --- as_endpoint ----------------------------------------------------------------------------------


def test_as_endpoint_answers_through_a_port_if_it_is_told_so(four: ProcMesh) -> None:
    for kind in (Adding, AsyncAdding):
        mesh: Any = four.spawn("adding", kind)
        by_port = as_endpoint(mesh.by_port, explicit_response_port=True)
        assert by_port.call(2).get().values() == [8] * 4


def test_as_endpoint_has_every_adverb(adding: Adding) -> None:
    twice = as_endpoint(adding.twice)
    assert twice.choose(4).get() == 8
    assert [future.get() for future in twice.stream(4)] == [8] * 4
    twice.broadcast(4)
    assert as_endpoint(adding.slice(gpus=0).twice).call_one(4).get() == 8
    with pytest.raises(TypeError, match=r"Adding.twice.*missing"):
        twice.call()


def test_as_endpoint_leaves_an_endpoint_as_it_is(adding: Adding) -> None:
    assert as_endpoint(adding.plus_rank) is adding.plus_rank


def test_as_endpoint_calls_a_plain_method_of_an_async_actor(four: ProcMesh) -> None:
    not_sync: Any = four.spawn("async", AsyncAdding)
    twice = as_endpoint(not_sync.twice)
    assert twice.call(4).get().values() == [8] * 4
    assert twice.call(number=5).get().values() == [10] * 4
    with pytest.raises(ActorError, match="unsupported operand"):
        twice.call(None).get()
    assert not_sync.plus_rank.call(0).get().values() == [0, 1, 2, 3]


def test_as_endpoint_refuses_an_async_method_of_a_sync_actor(four: ProcMesh) -> None:
    sync, not_sync = four.spawn("adding", Adding), four.spawn("async", AsyncAdding)
    with pytest.raises(TypeError, match=r"Adding.thrice is `async def`, but the endpoints.*plain"):
        as_endpoint(sync.thrice)
    assert sync.plus_rank.call(0).get().values() == [0, 1, 2, 3]
    assert not_sync.plus_rank.call(0).get().values() == [0, 1, 2, 3]


# --- errors at the call ---------------------------------------------------------------------------


def ways_to_send(mesh: Any) -> dict[str, Callable[..., Any]]:
    """Every way to send to `plus_rank`, taking its arguments."""
    one = mesh.slice(gpus=0)
    return {
        "call": mesh.plus_rank.call,
        "call_one": one.plus_rank.call_one,
        "choose": mesh.plus_rank.choose,
        "stream": mesh.plus_rank.stream,
        "broadcast": mesh.plus_rank.broadcast,
        "send": lambda *args, **kwargs: send(mesh.plus_rank, args, kwargs),
        "accumulate": Accumulator(mesh.plus_rank, 0, max).accumulate,
    }


WAYS = ["call", "call_one", "choose", "stream", "broadcast", "send", "accumulate"]


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_sent_is_raised_at_the_call_whatever_the_adverb(
    adding: Adding, way: str
) -> None:
    call = ways_to_send(adding)[way]
    with pytest.raises(TypeError, match=r"Adding.plus_rank.*missing a required argument: 'number'"):
        call()
    with pytest.raises(TypeError, match=r"too many positional arguments"):
        call(1, 2)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'tims'"):
        call(1, tims=3)
    with pytest.raises(TypeError, match=r"argument 'times' of type lock cannot be sent"):
        call(1, times=threading.Lock())
    assert adding.plus_rank.call(0).get().values() == [0, 1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_mesh_is_refused_at_the_call_whatever_the_adverb(
    four: ProcMesh, way: str
) -> None:
    adding = four.spawn("adding", Adding)
    call = ways_to_send(adding)[way]
    adding.stop().get(timeout=60)
    with pytest.raises(MeshStoppedError, match=r"'adding'.*has been stopped"):
        call(1)


def test_who_asks_whether_what_it_calls_is_there_need_not_ask_whether_it_was_stopped(
    four: ProcMesh,
) -> None:
    adding = four.spawn("adding", Adding)
    adding.stop().get(timeout=60)
    with pytest.raises(SupervisionError, match="has been stopped") as caught:
        adding.plus_rank.call(1).get(timeout=60)
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.failures == (), "nothing has failed"


def test_what_cannot_be_pickled_is_named_with_the_cell_in_a_notebook(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    with running_kernel(tmp_path) as kernel:
        kernel.ok(
            "import threading\n"
            "from monarch.actor import Actor, endpoint, this_host\n"
            "class Echo(Actor):\n"
            "    @endpoint\n"
            "    def same(self, value): return value\n"
            "echo = this_host().spawn_procs({'gpus': 2}).spawn('echo', Echo)"
        )
        shown = kernel.run("number = 1\necho.same.call(threading.Lock())")
        assert shown.error_name == "TypeError"
        assert "Echo.same: argument 'value' of type lock cannot be sent" in shown.traceback
        number = kernel.value("len(In) - 2")  # that of the cell before
        assert f"Cell In[{number}], line 2" in shown.traceback
        assert kernel.value("echo.same.call(1).get().values()") == "[1, 1]"


class Free(Actor):
    """Takes arguments of any name, `self` too."""

    @endpoint
    def names(self, /, **names: Any) -> dict[str, Any]:
        return names


def test_arguments_may_have_any_name(four: ProcMesh) -> None:
    free = four.slice(gpus=0).spawn("free", Free)
    names = {"self": 1, "args": 2, "kwargs": 3}
    assert free.names.call(**names).get(timeout=60).values() == [names]
    assert free.names.call_one(**names).get(timeout=60) == names
    assert free.names.choose(**names).get(timeout=60) == names
    assert [f.get(timeout=60) for f in free.names.stream(**names)] == [names]
    free.names.broadcast(**names)
    folded = Accumulator(free.names, {}, lambda _, given: given).accumulate(**names)
    assert folded.get(timeout=60) == names
