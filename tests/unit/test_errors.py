"""Errors as values: what they carry, how they travel, which is which."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from monarch._src.errors import BlockedLoopError, death_error, portable
from monarch._src.failures.report import for_mesh
from monarch.actor import (
    ActorError,
    DeadlockError,
    MeshStoppedError,
    RestartedError,
    SupervisionError,
)
from tests.rank_failures import died, failed


@pytest.mark.parametrize("error", [ActorError(), SupervisionError()])
def test_an_error_without_failures_still_says_something(error: Exception) -> None:
    assert str(error).startswith("a ")
    assert ActorError(message="told elsewhere").message == "told elsewhere"


def test_an_error_learns_of_ranks_that_fail_after_it_was_raised() -> None:
    failures = [failed(0, frames=())]
    error = ActorError(ZeroDivisionError("division by zero"), failures=failures)
    assert error.failures == (failures[0],)
    failures.append(failed(1, frames=()))
    assert len(error.failures) == 2
    assert str(error).endswith("and on 1 more rank: gpus=1")
    assert error.message == str(error)


@pytest.mark.parametrize(
    "error",
    [
        ActorError(ValueError("it"), failures=[failed(0), failed(1)]),
        ActorError(message="told elsewhere"),
        SupervisionError(failures=[died()]),
        SupervisionError("told elsewhere"),
        MeshStoppedError("the mesh has been stopped"),
        DeadlockError(["A", "B"]),
        BlockedLoopError("would never end"),
    ],
)
def test_errors_travel(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert getattr(again, "failures", None) == getattr(error, "failures", None)
    assert repr(getattr(again, "exception", None)) == repr(getattr(error, "exception", None))


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("I stay here")


class Unrebuildable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)


class FailsToRebuild(Exception):
    def __setstate__(self, state: object) -> None:
        raise ValueError("not here")

    def __reduce__(self) -> Any:
        return type(self), (), {"a": 1}


@pytest.mark.parametrize("exception", [Unpicklable(), Unrebuildable(1, 2), FailsToRebuild()])
def test_an_error_travels_without_an_exception_that_cannot(exception: Exception) -> None:
    error = ActorError(exception, failures=[failed()])
    again = pickle.loads(pickle.dumps(error))
    assert again.exception is None
    assert str(again) == str(error)


def test_an_error_among_results_says_who_failed_of_what() -> None:
    results = [ActorError(ValueError("x"), failures=[failed(), failed(1)]), death_error([died()])]
    assert repr(results) == (
        "[ActorError('Trainer.step on workers[gpus=1] raised ZeroDivisionError: division by zero'),"
        " SupervisionError('workers[gpus=3] (pid 4003) died while it ran Trainer.step: "
        "killed by SIGKILL')]"
    )


def test_what_can_travel_is_told_from_what_cannot() -> None:
    fine = ValueError("fine")
    assert portable(fine) is fine
    assert portable(None) is None
    assert portable(Unpicklable()) is None
    assert portable(Unrebuildable(1, 2)) is None


def test_the_errors_are_those_that_their_tree_shows() -> None:
    for error in (SupervisionError, MeshStoppedError, DeadlockError, BlockedLoopError):
        assert issubclass(error, RuntimeError)
    assert issubclass(ActorError, Exception)
    assert not issubclass(ActorError, RuntimeError)
    assert SupervisionError().exception is None
    assert issubclass(RestartedError, SupervisionError)
    assert issubclass(MeshStoppedError, SupervisionError)
    for error in (ActorError, SupervisionError, RestartedError, MeshStoppedError, DeadlockError):
        assert error.__module__ == "monarch.actor", "where users import it from"


def test_a_failure_can_be_told_of_another_mesh_on_the_same_process() -> None:
    told = for_mesh(died(3), "slice", 0, {"gpus": 0})
    assert told.where == "slice[gpus=0]"
    assert (told.pid, told.death, told.message) == (4003, died(3).death, "killed by SIGKILL")


def test_failures_are_data_first() -> None:
    failure = failed()
    assert (failure.mesh_name, failure.rank, failure.point) == ("workers", 3, {"gpus": 3})
    with pytest.raises(AttributeError):
        failure.rank = 4  # type: ignore[misc]
