"""Hosts that are processes of this machine: what is so of these alone (`test_launchers.py`)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.job import JobError, ProcessJob, job_load
from tests.integration.programs import watched


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where a record stands; the job of it is ended."""
    found = tmp_path / "job"
    yield found
    if found.exists():
        job_load(found).kill()


def pids(path: Path) -> list[int]:
    job = job_load(path)
    assert isinstance(job, ProcessJob)
    return job.pids


def test_what_is_asked_of_a_job_whose_host_is_gone_names_it(path: Path) -> None:
    job = ProcessJob({"trainers": 1})
    job.apply()
    job.dump(path)
    (pid,) = pids(path)
    with watched([pid]) as workers:
        os.kill(pid, signal.SIGKILL)
        workers.wait_all_ended()
    with pytest.raises(JobError, match=rf"trainers\[0\] \(pid {pid}\); kill\(\) the job"):
        job.state(cached_path=None)
    job.kill()


@pytest.mark.parametrize(
    ("meshes", "why"),
    [({}, "has no mesh"), ({"a b": 1}, "'a b' cannot name"), ({"a": 0}, "a has 0 hosts"),
     ({"a": True}, "a has True hosts")],
)  # fmt: skip
def test_what_cannot_be_reserved_is_refused(meshes: dict[str, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ProcessJob(meshes)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((["a"],), "meshes of a ProcessJob are .*; give a dict"),
        (({"a": 1}, ["A=1"]), "give a dict of text"),
        (({"a": 1}, {"A": 1}), "'A': 1; names and values are text"),
    ],
)
def test_what_is_of_another_type_is_refused_before_anything_is_reserved(
    arguments: Any, why: str
) -> None:
    with pytest.raises(TypeError, match=why):
        ProcessJob(*arguments)


def test_an_environment_that_no_process_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="'A=B': 'c', which no environment can hold"):
        ProcessJob({"a": 1}, env={"A=B": "c"})


def test_it_runs_no_script() -> None:
    with pytest.raises(JobError, match="run it yourself"):
        ProcessJob({"trainers": 1}).apply("train.py")


def test_a_record_that_is_seen_on_another_host_is_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ProcessJob({"trainers": 1})
    job.apply()
    job.dump(path)
    with monkeypatch.context() as patch:
        other = os.uname_result(("Linux", "elsewhere", *os.uname()[2:]))
        patch.setattr(os, "uname", lambda: other)
        with pytest.raises(
            JobError, match=r"is a ProcessJob of the host .* this host is elsewhere"
        ):
            ProcessJob({"trainers": 1}).state(path)
    assert job_load(path).can_run(job)
