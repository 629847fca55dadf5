"""Errors name ranks of actors on a slice of procs as output, logs and stacks do."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    DeadlockError,
    MeshFailure,
    ProcMesh,
    SupervisionError,
    current_rank,
    endpoint,
)
from tests.conftest import Faults
from tests.integration.programs import PATIENCE_S


class Fails(Actor):
    @endpoint
    def fail(self, rank: int) -> None:
        if current_rank().rank == rank:
            raise ValueError("no")

    @endpoint
    def exit(self) -> None:
        os._exit(3)

    @endpoint
    def ask(self, other: Fails, me: Fails) -> None:
        other.back.call_one(me).get()

    @endpoint
    def back(self, me: Fails) -> None:
        me.fail.call_one(1).get()


class Owner(Actor):
    """Owns actors on procs of somebody else."""

    def __init__(self, procs: ProcMesh) -> None:
        self.fails = procs.spawn("fails", Fails)
        self.told: list[tuple[str, int]] = []

    @endpoint
    def lose(self) -> list[str]:
        second = self.fails.slice(gpus=1)
        said: list[str] = []
        for call in (second.exit.call, partial(self.fails.fail.call, 5), second.exit.call):
            try:
                call().get()
            except SupervisionError as error:
                said.append(str(error).replace(str(error.failures[0].pid), "PID"))
        return said

    @endpoint
    def heard(self) -> list[tuple[str, int]]:
        return self.told

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.told += [(one.where, one.rank) for one in failure.failures]
        return True


def test_a_rank_of_a_slice_is_named_as_its_process_is(four: ProcMesh) -> None:
    with pytest.raises(ActorError, match=r"^Fails.fail on workers\[gpus=3\] raised") as caught:
        four.slice(gpus=slice(2, 4)).spawn("last", Fails).fail.call(1).get(timeout=PATIENCE_S)
    failure = caught.value.failures[0]
    assert (failure.mesh_name, failure.rank, failure.point) == ("workers", 3, {"gpus": 3})
    one = four.slice(gpus=2).spawn("one", Fails)
    with pytest.raises(ActorError, match=r"^Fails.fail on workers\[gpus=2\] raised"):
        one.fail.call_one(0).get(timeout=PATIENCE_S)


def test_dims_of_its_own_are_those_that_it_was_spawned_with(grid: ProcMesh) -> None:
    own = grid.slice(hosts=1).rename(gpus="tp").spawn("own", Fails)
    with pytest.raises(ActorError, match=r"^Fails.fail on grid\[tp=2\] raised"):
        own.fail.call(2).get(timeout=PATIENCE_S)
    with pytest.raises(ActorError, match=r"^Fails.fail on grid\[hosts=1, gpus=2\] raised"):
        grid.slice(hosts=1).spawn("same", Fails).fail.call(2).get(timeout=PATIENCE_S)


def test_a_cycle_names_the_ranks_that_wait(four: ProcMesh) -> None:
    a, b = (four.slice(gpus=at).spawn(f"asks_{at}", Fails) for at in (1, 2))
    with pytest.raises(ActorError) as caught:
        a.ask.call_one(b, a).get(timeout=PATIENCE_S)
    error: BaseException | None = caught.value
    while isinstance(error, ActorError):  # either of the two is told, and tells who waits for it
        error = error.exception
    assert isinstance(error, DeadlockError)
    assert "Fails.ask on workers[gpus=1]" in str(error)
    assert "Fails.back on workers[gpus=2]" in str(error)


def test_who_owns_actors_on_a_slice_of_others_procs_is_told_of_deaths_there(
    spawn_procs: Callable[..., ProcMesh], faults: Faults
) -> None:
    procs = spawn_procs({"gpus": 4}, name="workers")
    owner = spawn_procs({"gpus": 1}, name="owners").spawn(
        "owner", Owner, procs.slice(gpus=slice(2, 4))
    )
    died = "workers[gpus=3] (pid PID) died while it ran Fails.exit: exited with status 3"
    later = died.replace("died while", "died earlier, while")
    assert owner.lose.call_one().get(timeout=PATIENCE_S) == [died, later, later]
    assert owner.heard.call_one().get(timeout=PATIENCE_S) == [("workers[gpus=3]", 3)]
    faults.take()  # of the owner of the procs
