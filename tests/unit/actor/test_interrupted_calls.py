"""Ctrl-C while a call is being sent: every rank gets it, and then the interrupt is raised."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from monarch._src.actor.runtime import runtime
from monarch._src.net.local.pipe import Pipe
from monarch.actor import Actor, ProcMesh, endpoint


class Counter(Actor):
    def __init__(self) -> None:
        self.count = 0

    @endpoint
    def add(self) -> int:
        self.count += 1
        return self.count


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("adverb", ["broadcast", "call"])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_interrupt_between_two_ranks_keeps_none_from_the_call(
    adverb: str, rank: int, procs: ProcMesh, interruptible: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = procs.spawn("counters", Counter)
    assert counters.add.call().get().values() == [1, 1]
    sent, send = 0, Pipe.send

    def interrupted_send(*arguments: Any) -> bool:
        nonlocal sent
        if sent == rank:
            os.kill(os.getpid(), signal.SIGINT)
        sent += 1
        return send(*arguments)

    monkeypatch.setattr(Pipe, "send", interrupted_send)
    with pytest.raises(KeyboardInterrupt):
        getattr(counters.add, adverb)()
    assert counters.add.call().get().values() == [3, 3]
    assert len(runtime().calls) == 0, "nobody is left to wait for the first call's answers"
