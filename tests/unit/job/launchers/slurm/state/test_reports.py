"""Reports of workers in the comment of a job, which anybody may change."""

from __future__ import annotations

import pytest

from monarch._src.job.launchers.slurm.state.reports import (
    Problem,
    Worker,
    own_comment,
    problem,
    workers,
)


def test_workers_are_read_behind_a_comment_of_the_users_own() -> None:
    said = "project 7 monarch-workers n0/12:26600@10.0.0.1:26600,[fd77::1]:26600@h-1 n1/9:7@@h-2"
    assert workers(said) == [
        Worker("n0", 12, 26600, ["10.0.0.1:26600", "[fd77::1]:26600"], "h-1"),
        Worker("n1", 9, 7, [], "h-2"),
    ]


@pytest.mark.parametrize("said", ["", "project 7", 'monarch-problem {"status": 1}'])
def test_there_are_none_before_they_report(said: str) -> None:
    assert workers(said) is None


@pytest.mark.parametrize(
    "word",
    [
        "n0", "n0@h:1@s", "n0/x:1@h:1@s", "n0/1:x@h:1@s", "/1@h:1@s", "n0/1:2", "n0/1:2@h:1",
        "n0/1:2@h:1@",
    ],
)  # fmt: skip
def test_a_comment_that_was_changed_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="the comment of the job was changed"):
        workers(f"monarch-workers {word}")


def test_a_problem_is_read() -> None:
    said = 'mine monarch-problem {"node": "n1", "answer": {"text": "no"}, "other": 1}'
    assert problem(said) == Problem("n1", 0, {"text": "no"})
    assert problem("monarch-workers n0/1:2@@s") is None


def test_a_damaged_problem_is_refused() -> None:
    with pytest.raises(ValueError, match="the comment of the job was changed"):
        problem("monarch-problem {")


def test_the_comment_of_the_user_is_found_among_the_options() -> None:
    assert own_comment(["--comment=project 7"]) == "project 7"
    assert own_comment(["-C", "a100", "--comment", "project 7"]) == "project 7"
    assert own_comment(["--comment"]) == ""
    assert own_comment([]) == ""
