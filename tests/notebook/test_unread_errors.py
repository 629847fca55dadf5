"""A failed call whose future is dropped unread is reported once, in the cell that called."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.notebook.kernel import PATIENCE, Kernel

ACTOR = """
import threading
from monarch.actor import Actor, endpoint, context

class Fragile(Actor):
    @endpoint
    def fail(self, ranks):
        if context().message_rank.rank in ranks:
            raise ValueError("the loss is not a number")

    @endpoint
    def fine(self):
        return "fine"

fragile = workers.spawn("fragile", Fragile)
"""
DROPPED = (
    "Nothing has read this error: the future of the call was dropped without .get() or await\n"
)
# An actor answers in order, so that the failures have arrived with this answer.
ANSWERED = "fragile.fine.call().get();"


@pytest.fixture
def fragile(kernel: Kernel) -> Kernel:
    kernel.ok("%monarch spawn workers gpus=4")
    kernel.ok(ACTOR)
    return kernel


def test_the_cell_that_called_says_which_call_failed(fragile: Kernel) -> None:
    shown = fragile.ok(f"fragile.fail.call([2, 1])\n{ANSWERED}")
    assert shown.stderr == (
        "monarch: Fragile.fail on workers[gpus=1] raised ValueError: the loss is not a number; and "
        f"on 1 more rank: gpus=2. {DROPPED}"
    )
    assert fragile.ok(ANSWERED).stderr == ""


def test_many_calls_that_fail_alike_are_one_line(fragile: Kernel) -> None:
    calls = "for _ in range(5):\n    fragile.slice(gpus=3).fail.call_one([0])"
    shown = fragile.ok(f"{calls}\n{ANSWERED}")
    assert shown.stderr.count("monarch: ") == 1
    assert "Fragile.fail on workers[gpus=3] raised ValueError" in shown.stderr
    assert "as 4 more calls did. Nothing has read this error" in shown.stderr


def test_a_stream_is_one_call(fragile: Kernel) -> None:
    shown = fragile.ok(f"fragile.fail.stream([0, 1, 2, 3])\n{ANSWERED}")
    assert shown.stderr.count("Nothing has read this error") == 1
    assert "more call" not in shown.stderr
    shown = fragile.ok(
        "stream = fragile.fail.stream([0, 1, 2, 3])\n"
        f"next(stream).exception()\ndel stream\n{ANSWERED}"
    )
    assert shown.stderr == ""


def test_a_stream_that_is_dropped_before_its_first_error_is_read_is_not_reported(
    fragile: Kernel,
) -> None:
    # All have failed when the stream goes away, and only then is one of its errors read.
    shown = fragile.ok(
        "stream = fragile.fail.stream([0, 1, 2, 3])\n"
        f"{ANSWERED}\n"
        f"first = next(stream)\ndel stream\nfirst.exception()\ndel first\n{ANSWERED}"
    )
    assert shown.stderr == ""
    shown = fragile.ok(
        f"stream = fragile.fail.stream([0, 2])\n{ANSWERED}\nfirst = next(stream)\ndel stream\n"
        f"del first\n{ANSWERED}"
    )
    assert shown.stderr.count("Nothing has read this error") == 1
    assert "on workers[gpus=0] raised" in shown.stderr
    assert "on 1 more rank: gpus=2" in shown.stderr


def test_a_future_that_is_dropped_in_a_later_cell_is_told_where_it_was_called(
    fragile: Kernel,
) -> None:
    calling = fragile.ok(f"future = fragile.fail.call([0])\n{ANSWERED}")
    assert calling.stderr == ""
    request = fragile.client.execute("del future")
    streams: list[tuple[str, str]] = []
    while True:
        message = fragile.client.get_iopub_msg(timeout=PATIENCE)
        of = message["parent_header"].get("msg_id")
        if message["msg_type"] == "stream":
            streams.append((of, message["content"]["text"]))
        if of == request and message["content"].get("execution_state") == "idle":
            break
    ((of, text),) = streams
    assert of == calling.messages[0]["parent_header"]["msg_id"]
    assert text.endswith(DROPPED)


@pytest.mark.parametrize(
    "read",
    [
        "future.exception()",
        "try:\n    future.get()\nexcept Exception:\n    pass",
        "try:\n    await future\nexcept Exception:\n    pass",
        "import asyncio\nawait asyncio.gather(future.as_asyncio(), return_exceptions=True)",
        "repr([future.done, future.exception()])",
    ],
)
def test_an_error_that_was_read_is_not_reported(fragile: Kernel, read: str) -> None:
    shown = fragile.ok(f"future = fragile.fail.call([1])\n{read}\ndel future\n{ANSWERED}")
    assert "Nothing has read" not in shown.stderr


def test_a_call_that_succeeded_or_was_cancelled_is_not_reported(
    fragile: Kernel, tmp_path: Path
) -> None:
    os.mkfifo(begun := tmp_path / "begun")
    assert fragile.ok(f"fragile.fail.call([])\n{ANSWERED}").stderr == ""
    shown = fragile.ok(
        "class Slow(Actor):\n"
        "    @endpoint\n    def wait(self):\n        import time\n"
        f"        open({str(begun)!r}, 'w').close()\n        time.sleep(600)\n"
        "    @endpoint\n    def fine(self):\n        pass\n"
        "slow = workers.spawn('slow', Slow)\n"
        "slow.slice(gpus=0).wait.call()\n"
        f"open({str(begun)!r}).close()\n"
        "from monarch import observe\n"
        "observe.cancel_calls(observe.open_calls())\n"
        "slow.fine.call().get();"
    )
    assert shown.stderr == ""


def test_without_the_extension_nothing_is_said(fragile: Kernel) -> None:
    fragile.ok("%unload_ext monarch_jupyter")
    shown = fragile.ok(f"fragile.fail.call([1])\n{ANSWERED}")
    fragile.ok("%load_ext monarch_jupyter")
    assert shown.stderr == ""
