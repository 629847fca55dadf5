"""How failures word themselves: who, where, why; the user's frames; equal stories told once."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.errors import (
    BlockedLoopError,
    at_text,
    failures_text,
    fold,
    moved,
    portable,
    ranks_text,
)
from monarch.actor import (
    ActorError,
    DeadlockError,
    Death,
    Frame,
    MeshFailure,
    MeshStoppedError,
    RankFailure,
    SupervisionError,
)

CELL = Frame("<cell 3>", 7, "step", "loss = self.loss / self.count")
HELPER = Frame("/home/me/train.py", 12, "mean", "return total / count")
OURS = Frame("/site/monarch/_src/actor/worker.py", 99, "_run_endpoint", "method(...)", user=False)


def failed(rank: int = 3, **changes: Any) -> RankFailure:
    """`Trainer.step` raised ZeroDivisionError on one of `workers`."""
    known: dict[str, Any] = {
        "mesh_name": "workers",
        "rank": rank,
        "point": {"gpus": rank},
        "actor_class": "Trainer",
        "endpoint": "step",
        "host": "here",
        "pid": 4000 + rank,
        "kind": "endpoint",
        "exception_type": "ZeroDivisionError",
        "message": "division by zero",
        "frames": (OURS, CELL, HELPER),
    }
    return RankFailure(**{**known, **changes})


def died(rank: int = 3, **changes: Any) -> RankFailure:
    """A proc was killed while it ran `Trainer.step`."""
    tail = tuple(f"line {number}" for number in range(20))
    death = Death(None, "SIGKILL", tail, "Trainer.step", 12.5, "killed by SIGKILL")
    known: dict[str, Any] = {
        "actor_class": "", "endpoint": None, "kind": "proc died", "exception_type": "",
        "message": death.reason, "frames": (), "death": death,
    }  # fmt: skip
    return failed(rank, **{**known, **changes})


# --- golden texts ---------------------------------------------------------------------------------


def test_an_endpoint_that_raised_on_one_rank() -> None:
    assert str(ActorError(failures=[failed()])) == (
        "Trainer.step on workers[gpus=3] raised ZeroDivisionError: division by zero\n"
        '  File "<cell 3>", line 7, in step\n'
        "    loss = self.loss / self.count\n"
        '  File "/home/me/train.py", line 12, in mean\n'
        "    return total / count"
    )


def test_an_endpoint_that_raised_alike_on_some_ranks() -> None:
    ranks = [3, 0, 1, 2, 6]
    assert str(ActorError(failures=[failed(rank, frames=(CELL,)) for rank in ranks])) == (
        "Trainer.step on workers[gpus=3] raised ZeroDivisionError: division by zero\n"
        '  File "<cell 3>", line 7, in step\n'
        "    loss = self.loss / self.count\n"
        "and on 4 more ranks: gpus=0..2, gpus=6"
    )


def test_an_endpoint_that_raised_alike_on_two_ranks() -> None:
    text = str(ActorError(failures=[failed(0, frames=()), failed(5, frames=())]))
    assert text.splitlines()[1:] == ["and on 1 more rank: gpus=5"]


def test_ranks_that_failed_each_in_its_own_way() -> None:
    failures = [
        failed(0, frames=()),
        failed(1, frames=(), exception_type="KeyError", message="'weights'"),
        failed(2, frames=()),
    ]
    assert str(ActorError(failures=failures)) == (
        "Trainer.step on workers[gpus=0] raised ZeroDivisionError: division by zero\n"
        "and on 1 more rank: gpus=2\n"
        "Trainer.step on workers[gpus=1] raised KeyError: 'weights'"
    )


def test_a_constructor_that_raised() -> None:
    failure = failed(kind="constructor", endpoint=None, frames=(CELL,))
    assert str(SupervisionError(failures=[failure])) == (
        "Trainer.__init__ on workers[gpus=3] raised ZeroDivisionError: division by zero\n"
        '  File "<cell 3>", line 7, in step\n'
        "    loss = self.loss / self.count"
    )


def test_what_runs_before_any_actor_and_raised() -> None:
    failure = failed(kind="constructor", actor_class="", endpoint="bootstrap", frames=())
    assert failure.what == (
        "bootstrap on workers[gpus=3] raised ZeroDivisionError: division by zero"
    )


def test_an_actor_that_died() -> None:
    failure = failed(kind="actor died", exception_type="SystemExit", message="", frames=())
    assert failure.what == "Trainer.step on workers[gpus=3] died of SystemExit"


def test_a_proc_that_died_busy_with_its_last_words() -> None:
    assert str(SupervisionError(failures=[died()])) == (
        "workers[gpus=3] (pid 4003) died while it ran Trainer.step: killed by SIGKILL\n"
        "  last lines on its stderr:\n"
        "    line 12\n    line 13\n    line 14\n    line 15\n"
        "    line 16\n    line 17\n    line 18\n    line 19"
    )


def test_a_proc_that_died_idle_without_a_word() -> None:
    death = Death(3, None, (), None, 1.0, "exited with status 3")
    failure = died(death=death, message=death.reason)
    assert str(SupervisionError(failures=[failure])) == (
        "workers[gpus=3] (pid 4003) died: exited with status 3"
    )


def test_procs_that_died_alike() -> None:
    death = Death(None, "SIGKILL", (), None, 1.0, "killed by SIGKILL")
    assert str(SupervisionError(failures=[died(rank, death=death) for rank in range(4)])) == (
        "workers[gpus=0] (pid 4000) died: killed by SIGKILL\nand on 3 more ranks: gpus=1..3"
    )


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("host lost", "the host agent of workers[gpus=3] is gone: it was killed"),
        ("never started", "workers[gpus=3] never started: it was killed"),
        ("stopped", "workers[gpus=3] was stopped: it was killed"),
    ],
)
def test_what_else_can_become_of_a_rank(kind: Any, text: str) -> None:
    assert died(kind=kind, message="it was killed", death=None).text() == text


def test_a_mesh_without_dims_has_no_place_to_name() -> None:
    assert failed(point={}, frames=()).what.startswith("Trainer.step on workers raised")


def test_a_frame_whose_source_is_unknown_is_one_line() -> None:
    failure = failed(frames=(Frame("<string>", 1, "<module>", ""),))
    assert failure.text().splitlines()[1:] == ['  File "<string>", line 1, in <module>']


def test_a_failed_mesh_says_who_it_is() -> None:
    fault = MeshFailure("workers", (failed(0, frames=()), failed(1, frames=())), object())
    assert str(fault) == (
        "workers has failed: Trainer.step on workers[gpus=0] raised ZeroDivisionError: division by "
        "zero\nand on 1 more rank: gpus=1"
    )
    assert fault == MeshFailure(fault.mesh_name, fault.failures), "whatever the mesh"


def test_actors_that_wait_for_each_other() -> None:
    assert str(DeadlockError(["A.f on m[gpus=0]", "B.g on m[gpus=1]"])).startswith(
        "A.f on m[gpus=0] waits for B.g on m[gpus=1], which waits for A.f on m[gpus=0]: none can"
    )


@pytest.mark.parametrize("error", [ActorError(), SupervisionError()])
def test_an_error_without_failures_still_says_something(error: Exception) -> None:
    assert str(error).startswith("a ")
    assert ActorError(message="told elsewhere").message == "told elsewhere"


# --- places ---------------------------------------------------------------------------------------


def test_a_place_is_written_like_a_slice() -> None:
    assert at_text({"hosts": 1, "gpus": 3}) == "[hosts=1, gpus=3]"
    assert at_text({}) == ""


def test_places_in_two_dims_are_listed_up_to_a_bound() -> None:
    failures = [failed(rank, point={"hosts": rank, "gpus": 0}) for rank in range(11)]
    assert ranks_text(failures[:2]) == "[hosts=0, gpus=0], [hosts=1, gpus=0]"
    assert ranks_text(failures).endswith("[hosts=7, gpus=0] and 3 more")


def test_places_in_meshes_of_different_dims_can_be_listed() -> None:
    assert ranks_text([failed(point={"gpus": 1}), failed(point={"hosts": 0})]) == (
        "[gpus=1], [hosts=0]"
    )
    assert ranks_text([failed(point={}), failed(point={"hosts": 0})]) == "workers, [hosts=0]"


@given(st.lists(st.integers(0, 30), min_size=1, unique=True))
def test_runs_of_places_name_every_place_and_no_other(places: list[int]) -> None:
    text = ranks_text([failed(place) for place in places])
    runs = [re.fullmatch(r"gpus=(\d+)(?:\.\.(\d+))?", run) for run in text.split(", ")]
    named = [n for run in runs if run for n in range(int(run[1]), int(run[2] or run[1]) + 1)]
    assert named == sorted(places)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", "c"])), max_size=12))
def test_folding_keeps_every_failure_once_and_stories_in_order(told: list[tuple[int, str]]) -> None:
    failures = [failed(rank, message=message) for rank, message in told]
    groups = fold(failures)
    assert sorted(f.message for group in groups for f in group) == sorted(m for _, m in told)
    assert [group[0].message for group in groups] == list(dict.fromkeys(m for _, m in told))
    for group in groups:
        assert len({f.story for f in group}) == 1


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_where_it_happened_is_no_part_of_the_story(ranks: list[int]) -> None:
    failures = [failed(rank, host=f"host{rank}", mesh_name=f"m{rank}") for rank in ranks]
    assert len(fold(failures)) == 1
    assert failures_text(failures)


# --- errors as values -----------------------------------------------------------------------------


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
    for error in (ActorError, SupervisionError, MeshStoppedError, DeadlockError):
        assert error.__module__ == "monarch.actor", "where users import it from"


def test_a_failure_can_be_told_of_another_mesh_on_the_same_process() -> None:
    told = moved(died(3), "slice", 0, {"gpus": 0})
    assert told.where == "slice[gpus=0]"
    assert (told.pid, told.death, told.message) == (4003, died(3).death, "killed by SIGKILL")


def test_failures_are_data_first() -> None:
    failure = failed()
    assert (failure.mesh_name, failure.rank, failure.point) == ("workers", 3, {"gpus": 3})
    with pytest.raises(AttributeError):
        failure.rank = 4  # type: ignore[misc]
