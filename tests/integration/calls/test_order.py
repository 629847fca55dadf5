"""Messages of one caller to one actor arrive in the order sent, whatever way they are sent."""

from __future__ import annotations

import os
import random
import signal
import threading
from typing import Any

import pytest

from monarch.actor import ProcMesh
from tests.integration.callers import Ring
from tests.integration.sample_actors import AsyncRecorder, Recorder, Teller

MESSAGES = 3000


@pytest.mark.parametrize("cls", [Recorder, AsyncRecorder])
def test_calls_broadcasts_and_slices_of_one_caller_arrive_in_the_order_sent(
    four: ProcMesh, cls: type[Any]
) -> None:
    recorder = four.spawn("recorder", cls)
    draw = random.Random(11)
    expected: list[list[int]] = [[], [], [], []]
    answers: list[Any] = []
    for number in range(MESSAGES):
        start = draw.randrange(4)
        stop = draw.randrange(start + 1, 5)
        part = recorder if draw.random() < 0.3 else recorder.slice(gpus=slice(start, stop))
        ranks = range(4) if part is recorder else range(start, stop)
        endpoint = part.note_too if cls is Recorder and draw.random() < 0.5 else part.note
        how = draw.randrange(4)
        if how == 0:
            endpoint.broadcast(number)
        elif how == 1:
            answers.append(endpoint.call(number))
        elif how == 2:
            answers += endpoint.stream(number)
        else:
            rank = draw.choice(ranks)
            answers.append(recorder.slice(gpus=rank).note.call_one(number))
            ranks = range(rank, rank + 1)
        for rank in ranks:
            expected[rank].append(number)
    assert recorder.take.call().get().values() == expected
    assert all(answer.exception() is None for answer in answers)


def test_large_and_small_messages_keep_their_order(four: ProcMesh) -> None:
    recorder = four.spawn("recorder", Recorder)
    sizes = [10 if number % 3 else 100_000 + number for number in range(120)]
    for size in sizes:
        recorder.note.broadcast(b"x" * size)
    for seen in recorder.take.call().get().values():
        assert [len(item) for item in seen] == sizes


def test_messages_sent_before_the_process_exists_come_first(spawn_procs: Any) -> None:
    recorder = spawn_procs({"gpus": 2}).spawn("recorder", Recorder)
    for number in range(500):
        recorder.note.broadcast(number)
    assert recorder.take.call().get().values() == [list(range(500))] * 2


def test_each_of_several_threads_keeps_its_order(four: ProcMesh) -> None:
    recorder = four.spawn("recorder", Recorder)

    def send(thread: int) -> None:
        for number in range(300):
            recorder.note.broadcast((thread, number))

    threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seen in recorder.take.call().get().values():
        assert len(seen) == 1200
        for thread_number in range(4):
            assert [n for t, n in seen if t == thread_number] == list(range(300))


def test_messages_that_overtake_the_making_of_their_actor_are_kept_in_order(
    spawn_procs: Any,
) -> None:
    # Rank 0 is up and is given a mesh whose actors on new procs are still to be made.
    ring = spawn_procs().spawn("ring", Ring)
    ring.who.call_one().get()
    for _ in range(5):
        recorder = spawn_procs({"gpus": 4}).spawn("recorder", Recorder)
        ring.broadcast_many.call_one(recorder, 50).get(timeout=60)
        assert recorder.take.call().get().values() == [[(0, n) for n in range(50)]] * 4


def test_each_of_several_sending_actors_keeps_its_order(four: ProcMesh) -> None:
    recorder = four.spawn("recorder", Recorder)
    ring = four.spawn("ring", Ring)
    ring.broadcast_many.call(recorder, 200).get()
    for seen in recorder.take.call().get().values():
        assert len(seen) == 800
        for sender in range(4):
            assert [n for s, n in seen if s == sender] == list(range(200))


def test_a_rank_that_is_stopped_keeps_no_other_waiting_and_misses_nothing(
    spawn_procs: Any,
) -> None:
    procs = spawn_procs({"gpus": 5})
    recorder = procs.spawn("recorder", Recorder)
    pid = procs.spawn("teller", Teller).slice(gpus=2).pid.call_one().get()
    sent = [(number, bytes(1_000)) for number in range(3_000)]  # more than its socket takes
    os.kill(pid, signal.SIGSTOP)
    try:
        for item in sent:
            recorder.note.broadcast(item)
        for rank in (0, 1, 3, 4):
            assert recorder.slice(gpus=rank).take.call_one().get(timeout=60) == sent
    finally:
        os.kill(pid, signal.SIGCONT)
    assert recorder.slice(gpus=2).take.call_one().get(timeout=60) == sent
