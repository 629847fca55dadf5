"""Large payloads travel in segments: once a host, each receiver's own, until its last view goes."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from monarch._src.actor.runtime import runtime
from monarch._src.payload.sender import NOT_MAPPED
from monarch._src.wire.segment_refs import SEGMENT_FROM
from monarch.actor import (
    ActorError,
    BootstrapCommand,
    Channel,
    ProcMesh,
    RestartedError,
    SupervisionError,
    default_bootstrap_cmd,
)
from monarch.buffers import Buffer
from monarch.observe import payload_counts as counts
from monarch.supervision import Restart
from tests.integration.gates import GateKeeper
from tests.integration.segments import (
    MEBI,
    Worker,
    descriptors,
    is_free_again,
    is_in_segment,
    numbers,
    until,
)

pytestmark = [
    pytest.mark.skipif(
        not hasattr(os, "memfd_create"), reason="segments need memfd_create, which Linux has"
    ),
    pytest.mark.slow,
]
Spawn = Callable[..., ProcMesh]
TRANSFERS = int(os.environ.get("MONARCH_TEST_TRANSFERS", "300"))
DEATHS = int(os.environ.get("MONARCH_TEST_OWNER_DEATHS", "3"))
OFTEN = Restart(at_most=100_000, back_off=0)


def kill(worker: Any) -> None:
    """Have that rank die in an endpoint, which is what its caller is told of."""
    with pytest.raises((SupervisionError, RestartedError)):
        worker.die.call_one().get()


# --- one segment, whoever gets it -----------------------------------------------------------------


def test_one_segment_serves_all_ranks(four: ProcMesh) -> None:
    workers = four.spawn("workers", Worker)
    workers.pid.call().get()
    before = counts()
    workers.keep.call(numbers()).get()
    after = counts()
    assert after.placed == before.placed + 1
    assert after.made + after.reused == before.made + before.reused + 1
    assert after.carried == before.carried
    assert list(workers.total.call().get().values()) == [int(numbers().sum())] * 4
    workers.drop.call().get()
    until(is_free_again, "the segment is free when the last view is gone")


def test_a_cast_to_many_ranks_is_one_segment_that_the_relay_never_opens(
    spawn_procs: Spawn, few_are_many: None
) -> None:
    workers = spawn_procs({"gpus": 8}).spawn("workers", Worker, numbers(seed=5))
    expected = int(numbers(seed=5).sum())
    assert list(workers.given_total.call().get().values()) == [expected] * 8
    placed = counts().placed
    assert list(workers.add.call(numbers(), 3).get().values()) == [(True, True, 3)] * 8
    assert counts().placed == placed + 1
    workers.drop.call().get()
    workers.stop().get()  # constructor arguments are kept for restarts until then
    until(is_free_again, "the segments are free when the last view is gone")


@pytest.mark.parametrize("size", [SEGMENT_FROM - 1024, SEGMENT_FROM, MEBI, 5 * MEBI + 8])
def test_what_comes_back_is_what_was_sent(four: ProcMesh, size: int) -> None:
    one = four.spawn("worker", Worker).slice(gpus=0)
    placed = counts().placed
    array = numbers(size)
    assert (one.echo.call_one(array).get() == array).all()
    assert counts().placed == placed + (size >= SEGMENT_FROM)
    data = array.tobytes()
    assert one.echo.call_one(data).get() == data
    assert one.echo.call_one({"deep": [bytearray(data)]}).get() == {"deep": [data]}


def test_a_large_pickle_without_buffers_goes_the_same_way(four: ProcMesh) -> None:
    one = four.spawn("worker", Worker).slice(gpus=0)
    placed = counts().placed
    value = {str(n): [n, "text"] for n in range(20_000)}
    assert one.echo.call_one(value).get() == value
    assert counts().placed == placed + 1


def test_the_story_of_a_failure_goes_the_same_way(four: ProcMesh) -> None:
    one = four.spawn("worker", Worker).slice(gpus=0)
    with pytest.raises(ActorError, match="a long story"):
        one.fail.call_one("a long story " * 10_000).get()


def test_parts_of_all_kinds_share_a_segment(four: ProcMesh) -> None:
    one = four.spawn("worker", Worker).slice(gpus=0)
    buffer = Buffer()
    buffer.write(b"f" * 100_000)
    buffer.write(b"small")
    placed = counts().placed
    value = (numbers(), buffer.freeze(), numpy.ones(3), b"b" * 70_000, "t" * 70_000)
    array, frozen, few, data, text = one.echo.call_one(value).get()
    assert (array == numbers()).all()
    assert bytes(frozen) == b"f" * 100_000 + b"small"
    assert (few == 1).all()
    assert (data, text) == (b"b" * 70_000, "t" * 70_000)
    assert counts().placed == placed + 1


def test_tensors_lie_where_they_came(four: ProcMesh) -> None:
    torch: Any = pytest.importorskip("torch")
    one = four.spawn("worker", Worker).slice(gpus=0)
    tensor = torch.arange(200_000)
    came = one.echo.call_one({"a": tensor, "b": tensor[5:]}).get()
    assert torch.equal(came["a"], tensor)
    came["a"][5] = -1
    assert came["b"][0] == -1, "what shared memory shares it there"
    assert tensor[5] == 5
    assert is_in_segment(came["a"].numpy())


# --- it is the receiver's own ---------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 4])
def test_an_array_is_written_to_without_anybody_else_seeing_it(four: ProcMesh, ranks: int) -> None:
    workers = four.spawn("workers", Worker).slice(gpus=slice(0, ranks))
    sent = numbers()
    for number in (1, 2):
        answers = workers.add.call(sent, number).get()
        assert list(answers.values()) == [(True, True, number)] * ranks
        assert (sent == numbers()).all()


def test_a_later_message_changes_nothing_that_came_earlier(four: ProcMesh) -> None:
    one = four.spawn("worker", Worker).slice(gpus=0)
    came = [one.make.call_one(MEBI, seed).get() for seed in range(20)]
    came[3] += 1_000_000
    for seed, array in enumerate(came):
        more = 1_000_000 if seed == 3 else 0
        assert (array == numbers(seed=seed) + more).all()


def test_what_is_sent_is_what_it_was_at_the_call(four: ProcMesh) -> None:
    workers = four.spawn("workers", Worker)
    scratch = numbers()
    futures: list[Any] = []
    for number in range(10):
        scratch[0] = number
        futures.append(workers.add.call(scratch, 0))
    assert [future.get().item(gpus=3)[2] for future in futures] == list(range(10))


def test_a_neighbour_and_the_actor_itself_get_their_own(four: ProcMesh) -> None:
    workers = four.spawn("workers", Worker)
    one = workers.slice(gpus=0)
    one.send_to.call_one(workers, numbers(seed=7)).get()
    one.send_to.call_one(one, numbers(seed=8)).get()
    assert workers.saw.call().get().item(gpus=0) == [7, 8]
    assert workers.saw.call().get().item(gpus=3) == [7]


def test_what_was_forked_with_an_array_sees_it_unchanged(four: ProcMesh) -> None:
    one = four.spawn("worker", Worker).slice(gpus=1)
    sent, _ = one.fork_with.call_one(numbers()).get()
    for seed in range(1, 6):  # into the same segment, if it were used again
        one.see.call_one(numbers(seed=seed)).get()
    assert one.what_the_fork_sees.call_one().get() == sent


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("faults")
def test_views_outlive_the_call_the_actor_and_its_process(spawn_procs: Spawn) -> None:
    for end in ("stop", "kill"):
        procs = spawn_procs()
        one = procs.spawn("worker", Worker)
        came = [one.make.call_one(MEBI, seed).get() for seed in range(3)]
        if end == "stop":
            procs.stop().get()
        else:
            kill(one)
        for seed, array in enumerate(came):
            array += 1
            assert (array == numbers(seed=seed) + 1).all()
        del came, array
    until(is_free_again, "nothing is left of what the dead have sent")


def test_an_answer_arrives_though_its_process_ends_after_it(spawn_procs: Spawn) -> None:
    for seed in range(5):
        procs = spawn_procs()
        future = procs.spawn("worker", Worker).make.call_one(MEBI, seed)
        procs.stop().get()
        assert (future.get() == numbers(seed=seed)).all()


@pytest.mark.usefixtures("faults")
def test_what_a_killed_receiver_had_is_freed(spawn_procs: Spawn, gate: GateKeeper) -> None:
    procs = spawn_procs({"gpus": 2})
    workers = procs.spawn("workers", Worker)
    pids = list(workers.pid.call().get().values())
    workers.keep.call(numbers()).get()
    dying, other = workers.slice(gpus=0), workers.slice(gpus=1)
    dying.wait_at.broadcast(gate.gate)
    gate.wait_entered()
    for seed in range(3):  # it will never look at these
        dying.see.broadcast(numbers(seed=seed))
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(SupervisionError):
        dying.pid.call_one().get()
    assert other.total.call_one().get() == int(numbers().sum())
    other.drop.call_one().get()
    until(is_free_again, "what both had is free")


@pytest.mark.usefixtures("faults")
def test_what_a_killed_sender_had_sent_is_taken_where_it_came(
    spawn_procs: Spawn, gate: GateKeeper
) -> None:
    workers = spawn_procs({"gpus": 2}).spawn("workers", Worker)
    sender, receiver = workers.slice(gpus=0), workers.slice(gpus=1)
    receiver.wait_at.broadcast(gate.gate)
    gate.wait_entered()
    for seed in (3, 4, 5):
        sender.send_to.call_one(receiver, numbers(seed=seed)).get()
    until(lambda: sender.counts.call_one().get().placed >= 3, "they are sent")
    kill(sender)
    gate.open()
    seen = receiver.saw.call_one().get()
    assert seen == [3, 4, 5][: len(seen)], "in order, and whole"
    until(lambda: receiver.holds.call_one().get()[:2] == (0, 0), "nothing of them is left")


def test_a_message_that_nobody_takes_gives_its_segment_back(
    spawn_procs: Spawn, gate: GateKeeper
) -> None:
    one = spawn_procs().spawn("worker", Worker)
    one.wait_at.broadcast(gate.gate)
    gate.wait_entered()
    cancelled = one.echo.call_one(numbers())
    assert cancelled.pending is not None
    runtime().cancel(cancelled.pending)
    with pytest.raises(ActorError, match="cancelled"):
        cancelled.get()
    gate.open()
    port, receiver = Channel[Any].open()
    one.send_through.call_one(port, MEBI).get()
    del receiver  # unread
    reference = pickle.loads(pickle.dumps(one))  # which does not know what its owner does
    one.stop("it is told no more").get()
    with pytest.raises(SupervisionError):
        reference.echo.call_one(numbers()).get()
    until(is_free_again, "what was refused is free")


def test_a_constructor_gets_the_same_in_each_life(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 2}, restart=OFTEN)
    workers = procs.spawn("workers", Worker, numbers(seed=9))
    one = workers.slice(gpus=0)
    for _ in range(3):
        assert one.add_to_given.call_one(100).get() == 109, "what the last life did is gone"
        kill(one)
    assert workers.slice(gpus=1).given_total.call_one().get() == int(numbers(seed=9).sum())
    assert counts().segments == 1, "it is kept for the next life"
    procs.stop().get()
    until(is_free_again, "and no longer than the mesh")


# --- where it cannot be a segment -----------------------------------------------------------------


def test_who_has_no_room_for_a_mapping_gets_the_bytes_in_order(spawn_procs: Spawn) -> None:
    one = spawn_procs().spawn("worker", Worker)
    one.tight.call_one(62 * MEBI).get()
    expected: list[int] = []
    before = counts().carried.get(NOT_MAPPED, 0)
    for number in range(3):
        one.see.broadcast(numbers(40 * MEBI, number))  # in a segment of 64 MiB
        one.see.broadcast(100 + number)
        expected += [number, 100 + number]
        assert one.saw.call_one().get() == expected
    assert counts().carried[NOT_MAPPED] == before + 3


@pytest.mark.skipif(os.getuid() != 0, reason="only root may make a PID namespace")
def test_who_is_in_another_pid_namespace_gets_the_bytes_in_order(spawn_procs: Spawn) -> None:
    python = default_bootstrap_cmd()
    unshared = ["--pid", "--fork", "--mount-proc", python.program, *python.args]
    command = BootstrapCommand("unshare", args=unshared)
    workers = spawn_procs({"gpus": 2}, bootstrap_command=command).spawn("workers", Worker)
    one = workers.slice(gpus=0)
    for number in range(3):
        one.see.broadcast(numbers(seed=number))
        one.see.broadcast(100 + number)
    assert one.saw.call_one().get() == [0, 100, 1, 101, 2, 102]
    assert (one.make.call_one(MEBI, 5).get() == numbers(seed=5)).all()
    other = workers.slice(gpus=1)  # which cannot map what the first one has either
    sends = [one.send_to.call_one(other, numbers()), other.send_to.call_one(one, numbers())]
    for sent in sends:
        sent.get()
    until(lambda: one.saw.call_one().get()[-1] == 0 and other.saw.call_one().get() == [0], "both")


def test_who_cannot_have_segments_says_so_in_a_counter(spawn_procs: Spawn) -> None:
    one = spawn_procs().spawn("worker", Worker)
    one.small_files.call_one(MEBI).get()
    assert (one.make.call_one(8 * MEBI, 4).get() == numbers(8 * MEBI, 4)).all()
    told = one.counts.call_one().get()
    assert list(told.carried.values()) == [1]
    assert "File too large" in next(iter(told.carried))
    assert told.segments == 0


# --- nothing is left ------------------------------------------------------------------------------


def test_transfers_leave_nothing(four: ProcMesh) -> None:
    """Back and forth, to one and to all."""
    workers = four.spawn("workers", Worker)
    one = workers.slice(gpus=0)
    array = numbers(SEGMENT_FROM)
    one.echo.call_one(array).get()
    until(is_free_again, "it begins empty")
    before = descriptors()
    for turn in range(TRANSFERS):
        if turn % 10:
            one.echo.call_one(array).get()
        else:
            workers.keep.call(array).get()
    workers.drop.call().get()
    until(is_free_again, "it ends empty")
    assert descriptors() == before
    until(
        lambda: all(held[:2] == (0, 0) for held in workers.holds.call().get().values()),
        "and so do the ranks",
    )


def test_deaths_leave_nothing(spawn_procs: Spawn) -> None:
    one = spawn_procs(restart=OFTEN).spawn("worker", Worker)
    one.echo.call_one(numbers()).get()
    before = descriptors()
    for seed in range(DEATHS):
        came = one.make.call_one(MEBI, seed).get()
        one.keep.call_one(came).get()
        kill(one)
        assert int(came[0]) == seed
    one.pid.call_one().get()
    del came
    until(is_free_again, "it ends empty")
    assert descriptors() <= before
