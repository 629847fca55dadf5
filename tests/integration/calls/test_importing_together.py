"""Actors of one process that import the same package at the same time, by what arrives for them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from monarch._src.pickling.pickler import dumps, may_import
from monarch._src.system import imports
from monarch._src.system.imports import turn_to_import
from tests.integration.programs import PATIENCE_S, run

PROGRAM = """
import torch
from torch.distributions import Normal
from monarch.actor import Actor, endpoint, this_host

class Mean(Actor):
    @endpoint
    def of(self, numbers):
        return torch.mean(numbers).item()

class Drawn(Actor):
    @endpoint
    def of(self, numbers):
        return Normal(numbers, 1.0).mean.mean().item()

class Layer(Actor):
    def __init__(self):
        self.layer = torch.nn.Linear(2, 1, bias=False)
    @endpoint
    def of(self, numbers):
        return float(len(self.layer(numbers)))

procs = this_host().spawn_procs()
kinds = [Mean, Drawn, Layer, Drawn, Mean, Layer]
actors = [procs.spawn(f"actor{n}", kind) for n, kind in enumerate(kinds)]
print([actor.of.call_one(torch.tensor([1.0, 3.0])).get(timeout=60) for actor in actors])
"""


def test_actors_that_are_spawned_together_import_one_after_the_other(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert run(tmp_path, PROGRAM) == (0, "[2.0, 2.0, 1.0, 2.0, 2.0, 1.0]\n", "")


def test_plain_values_need_no_turn() -> None:
    plain = (("a", 1, 2.5, None), {"key": [b"x", {"deep": (True,)}]})
    assert not may_import(dumps(plain))
    assert may_import(dumps(Path("x")))
    assert may_import(dumps("x" * 100_000)), "long ones are not searched"


def test_a_turn_is_nested_and_given_back() -> None:
    other = threading.Event()

    def take() -> None:
        with turn_to_import():
            other.set()

    thread = threading.Thread(target=take)
    with turn_to_import(), turn_to_import():
        thread.start()
        assert not other.wait(0.1)
    thread.join(PATIENCE_S)
    assert other.is_set()


def test_a_turn_that_never_ends_holds_nothing_up_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "LONGEST_WAIT_S", 0.01)
    done = threading.Event()

    def take() -> None:
        with turn_to_import():
            done.set()

    with turn_to_import():
        thread = threading.Thread(target=take)
        thread.start()
        thread.join(PATIENCE_S)
    assert done.is_set()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_does_not_wait_for_a_thread_that_it_lacks() -> None:
    holds, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with turn_to_import():
            holds.set()
            ends.wait(PATIENCE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(PATIENCE_S)
    pid = os.fork()
    if not pid:
        os._exit(0 if imports._turn.acquire(blocking=False) else 1)
    _, status = os.waitpid(pid, 0)
    ends.set()
    thread.join(PATIENCE_S)
    assert os.waitstatus_to_exitcode(status) == 0
