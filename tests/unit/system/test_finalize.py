"""What is to be done last is done last, whatever refers to what."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable

import pytest

from monarch._src.system import shared_memory
from monarch._src.system.last_reference import on_last_reference_dropped


class Holder:
    """One of a cycle; `look` is called by its finalizer."""

    def __init__(self, token: object, look: Callable[[], None]) -> None:
        self.token = token
        self.look = look
        self.other: Holder | None = None

    def __del__(self) -> None:
        self.look()


def test_it_is_done_once_when_the_last_reference_goes() -> None:
    done: list[int] = []
    first = second = on_last_reference_dropped(lambda: done.append(1))
    del first
    gc.collect()
    assert done == []
    del second
    assert done == [1]


def test_tokens_that_look_alike_are_not_confused() -> None:
    done: list[int] = []
    tokens = [
        on_last_reference_dropped(lambda number=number: done.append(number)) for number in range(5)
    ]
    for at in (2, 0, 3):
        tokens[at] = None
    assert done == [2, 0, 3]
    del tokens
    assert sorted(done) == [0, 1, 2, 3, 4]


def test_in_a_cycle_it_comes_after_every_finalizer() -> None:
    story: list[str] = []
    token = on_last_reference_dropped(lambda: story.append("last"))
    pair = [Holder(token, lambda: story.append("finalizer")) for _ in range(2)]
    pair[0].other, pair[1].other = pair[1], pair[0]
    del token, pair
    assert story == []
    gc.collect()
    assert story == ["finalizer", "finalizer", "last"]


PROGRAM = """
import gc
from monarch._src.system import shared_memory
from monarch._src.payload.sender import Mapped

class Looker:
    def __init__(self, mapped):
        self.mapped, self.view, self.me = mapped, mapped.over(), self

    def __del__(self):
        assert bytes(self.view[:8]) == bytes(8)

fd = shared_memory.sealed_file("test", 1 << 20)
Looker(Mapped(shared_memory.map_shared(fd, 1 << 20, writable=True), 1 << 20))
gc.collect()
print("seen")
"""


@pytest.mark.skipif(not shared_memory.PRESENT, reason="needs memfd, which is Linux")
def test_memory_is_mapped_as_long_as_a_finalizer_can_look_at_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "seen\n", "")
