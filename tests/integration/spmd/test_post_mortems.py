"""Post-mortem pauses in a process group: of the rank that fails, not of its peers.

The time-outs of these groups are half an hour, so a collective that ends was ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import ActorError, Future, ProcMesh, SupervisionError
from monarch.config import configured
from monarch.debug import WaitingRanks, post_mortem, resume, waiting
from monarch.observe import call_of
from tests.conftest import Faults
from tests.integration.debugging import news
from tests.integration.gates import GateKeeper
from tests.integration.spmd.conftest import Trainers
from tests.integration.spmd.trainers import AsyncTrainer, Trainer

PATIENCE_S = 60


@pytest.fixture
def group(trainers: Trainers) -> Iterator[ProcMesh]:
    """Three ranks of a process group, whose failures pause."""
    procs = trainers(gpus=3)
    procs.init_process_group()
    post_mortem()
    yield procs
    post_mortem(False)
    resume()


def begin(actors: Any, how: str, gate: GateKeeper) -> Future[Any]:
    """A call in which rank 1 goes while the others sum."""
    call = actors.add_unless.call(1, how, gate.gate)
    gate.wait_entered(3)
    gate.open()
    return call


def paused_at_end(call: Future[Any]) -> WaitingRanks:
    """The ranks that are paused when all ranks have answered, or that hold up the answer."""
    while True:
        here = waiting()
        found = call_of(call)
        if len(here) or found is None or not found.owing:
            return here


def test_the_peers_of_a_rank_that_raises_or_dies_pause_only_if_a_setting_lets_them(
    group: ProcMesh, gate: GateKeeper, faults: Faults
) -> None:
    actors = group.spawn("trainers", Trainer)
    on_loops = group.spawn("on_loops", AsyncTrainer)
    with news() as until:
        call = begin(actors, "raises", gate)
        (one,) = until(1)
        assert (one.rank, one.why) == (1, "ValueError: a bad batch")
        resume()
        with pytest.raises(ActorError, match="a bad batch"):
            call.get(timeout=PATIENCE_S)
        assert not paused_at_end(call)

        group.init_process_group()
        with configured(post_mortem_bystanders=True):
            post_mortem()
        call = begin(actors, "raises", gate)
        assert [one.rank for one in until(1)] == [1]
        resume()
        found = until(2)
        assert [one.rank for one in found] == [0, 2]
        assert {one.why.partition(":")[0] for one in found} == {"RuntimeError"}
        resume()
        with pytest.raises(ActorError, match="a bad batch"):
            call.get(timeout=PATIENCE_S)

        group.init_process_group()
        post_mortem()
        call = on_loops.add_unless.call(1)
        assert [one.rank for one in until(1)] == [1]
        resume()
        with pytest.raises(ActorError, match="a bad batch"):
            call.get(timeout=PATIENCE_S)
        assert not paused_at_end(call)

        group.init_process_group()
        call = begin(actors, "killed", gate)
        with pytest.raises(SupervisionError, match="killed by SIGKILL"):
            call.get(timeout=PATIENCE_S)
        assert not paused_at_end(call)
