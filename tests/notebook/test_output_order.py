"""What ranks wrote stands in its cell before their answers are had there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.notebook.kernel import PATIENCE, Kernel

WRITER = """
import asyncio, os, sys
from monarch.actor import Actor, endpoint

class Writer(Actor):
    @endpoint
    def say(self, text): print("rank says", text)
    @endpoint
    def raw(self, text): os.write(1, f"rank says {text}\\n".encode())
    @endpoint
    def half(self, text): sys.stdout.write(f"rank says {text}")
    @endpoint
    def begin(self, gate):
        print("begun", end="", flush=True)
        open(gate).read()
        print(" and ended")

class AsyncWriter(Actor):
    @endpoint
    async def say(self, text):
        await asyncio.sleep(0)
        print("rank says", text)

writers = workers.spawn("writers", Writer)
async_writers = workers.spawn("async_writers", AsyncWriter)
"""
ORDER = "".join(f"[gpus=0..1] rank says {i}\nclient after {i}\n" for i in range(5))


@pytest.fixture
def writers(kernel: Kernel) -> Kernel:
    """A kernel with two ranks, `writers` on them."""
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok(WRITER)
    return kernel


@pytest.mark.parametrize(
    "call",
    [
        "writers.say.call(i).get()",
        "writers.raw.call(i).get()",
        "writers.half.call(i).get()",
        "async_writers.say.call(i).get()",
        "await writers.say.call(i)",
        "await async_writers.say.call(i)",
    ],
)
def test_lines_of_ranks_and_of_the_cell_stand_in_their_order(writers: Kernel, call: str) -> None:
    shown = writers.ok(f"for i in range(5):\n    {call}\n    print('client after', i)")
    assert shown.stdout == ORDER


def test_a_redirected_stream_has_all_of_it(writers: Kernel) -> None:
    shown = writers.ok(
        "import contextlib, io\n"
        "caught = io.StringIO()\n"
        "with contextlib.redirect_stdout(caught):\n"
        "    for i in range(5):\n"
        "        writers.say.call(i).get()\n"
        "        print('client after', i)\n"
    )
    assert shown.stdout == ""
    assert writers.value("caught.getvalue()") == repr(ORDER)


def test_a_captured_cell_has_all_of_it(writers: Kernel) -> None:
    shown = writers.ok(
        "%%capture caught\n"
        "for i in range(5):\n"
        "    writers.say.call(i).get()\n"
        "    print('client after', i)"
    )
    assert shown.stdout == ""
    assert writers.value("caught.stdout") == repr(ORDER)


def test_half_a_line_is_in_its_own_cell(writers: Kernel) -> None:
    one = writers.ok("writers.slice(gpus=1).half.call_one('half').get()")
    assert one.stdout == "[gpus=1] rank says half\n"
    other = writers.ok("writers.slice(gpus=1).say.call_one('whole').get()")
    assert other.stdout == "[gpus=1] rank says whole\n"


def test_what_is_flushed_is_seen_before_its_line_ends(writers: Kernel, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    # How long a line waits for its like bounds how soon it is seen; here that is for ever.
    writers.hold_output(0.01)
    try:
        texts: list[str] = []
        is_open = False
        code = f"writers.slice(gpus=0).begin.call_one({str(gate)!r}).get()"
        for message in writers.watch(code):
            content = message["content"]
            texts.append(content.get("text") or content.get("data", {}).get("text/plain", ""))
            if not is_open and "[gpus=0] begun" in texts[-1]:
                is_open = True
                gate.write_text("go on")
        assert is_open
        assert "[gpus=0] begun and ended\n" in texts
    finally:
        writers.hold_output(PATIENCE)
