"""Samples of py-spy, read and counted."""

from __future__ import annotations

import pytest

from monarch._src.observe.flame_graph.state.samples import (
    WAITS,
    of_mesh,
    parse,
    stacks_of_rank,
)
from monarch._src.wire.messages import StackFrame, ThreadStack

RUNTIME = "/site-packages/monarch/_src/actor/run/sync_loop.py"
MODULE = StackFrame("<module>", "/home/me/train.py", 1)
STEP = StackFrame("Trainer.step", "/home/me/train.py", 12)
LOAD = StackFrame("Trainer.load", "/home/me/train.py", 30)
SERVE = StackFrame("_serve", RUNTIME, 75)
WAIT = StackFrame("Router.wait", "/site-packages/monarch/_src/net/local/router.py", 236)


def on(name: str, *frames: StackFrame) -> ThreadStack:
    """The stack of a thread, the main one if the name is empty."""
    return ThreadStack(name, False, frames)


def test_a_line_has_a_thread_frames_and_a_count() -> None:
    text = (
        "thread (0x7F12): MainThread;<module> (/home/me/train.py:1);"
        "Trainer.step (/home/me/train.py:12) 34\n"
        "thread (23020): actor-data (x);f (<frozen importlib._bootstrap>:5) 1\n"
    )
    assert parse(text) == [
        (on("", MODULE, STEP), 34),
        (on("actor-data (x)", StackFrame("f", "<frozen importlib._bootstrap>", 5)), 1),
    ]


def test_a_frame_of_c_may_lack_its_line_or_its_file() -> None:
    ((stack, count),) = parse("thread (1): MainThread;at::add (libtorch.so);malloc 3")
    assert stack.frames == (StackFrame("at::add", "libtorch.so", 0), StackFrame("malloc", "", 0))
    assert count == 3


def test_a_file_name_with_spaces_and_parentheses_is_kept() -> None:
    ((stack, _),) = parse("thread (1): MainThread;f (/home/me/my (old) job.py:7) 2")
    assert stack.frames == (StackFrame("f", "/home/me/my (old) job.py", 7),)


@pytest.mark.parametrize(
    "text", ["no stack", "<module> (a.py:1) 3", "thread (1): MainThread;f (a)"]
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a stack with a count"):
        parse(text)


def test_frames_around_the_user_s_are_cut_and_equal_stacks_counted_together() -> None:
    found = stacks_of_rank(
        [(on("", SERVE, STEP), 3), (on("", SERVE, STEP, WAIT), 4), (on("", SERVE, WAIT), 5)],
        threads=False,
    )
    assert found == {(STEP,): 7, (WAITS,): 5}


def test_c_functions_are_kept_below_the_user_s_and_cut_around_them() -> None:
    start = StackFrame("0x7f9a", "libc.so.6", 0)
    add = StackFrame("at::native::add", "libtorch_cpu.so", 0)
    source = StackFrame("select_epoll_poll", "/tmp/python-build/Modules/selectmodule.c", 1598)
    found = stacks_of_rank(
        [(on("", start, SERVE, STEP, add), 3), (on("", start, SERVE, WAIT, source), 4)],
        threads=False,
    )
    assert found == {(STEP, add): 3, (WAITS,): 4}


def test_a_thread_of_an_actor_begins_with_its_name_and_one_without_user_code_is_left_out() -> None:
    sampled = [(on("", SERVE, WAIT), 9), (on("actor-data", SERVE, LOAD), 2)]
    name = StackFrame("thread actor-data", "", 0)
    assert stacks_of_rank(sampled, threads=False) == {(name, LOAD): 2}


def test_a_rank_that_only_waits_has_the_samples_of_its_main_thread() -> None:
    sampled = [(on("", SERVE, WAIT), 9), (on("actor-data", SERVE, WAIT), 9)]
    assert stacks_of_rank(sampled, threads=False) == {(WAITS,): 9}


def test_other_threads_are_counted_on_request_but_never_those_of_the_runtime() -> None:
    sampled = [(on("", STEP), 1), (on("loader", LOAD), 2), (on("monarch-io-1", LOAD), 4)]
    assert stacks_of_rank(sampled, threads=False) == {(STEP,): 1}
    name = StackFrame("thread loader", "", 0)
    assert stacks_of_rank(sampled, threads=True) == {(STEP,): 1, (name, LOAD): 2}


def test_a_mesh_has_each_frame_and_each_stack_once() -> None:
    by_rank = {1: {(STEP, LOAD): 3}, 0: {(STEP, LOAD): 2, (STEP,): 1}}
    found = of_mesh(7, "workers", ["gpus"], [3], by_rank, [(2, "ended while it was sampled")])
    assert found.frames == [STEP, LOAD]
    assert [(one.frames, one.counts) for one in found.stacks] == [
        ([0, 1], [(0, 2), (1, 3)]),
        ([0], [(0, 1)]),
    ]
    assert (found.ranks, found.unread) == ([0, 1], [(2, "ended while it was sampled")])
