"""`monarch job`, as a shell runs it, and jobs by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.job import ProcessJob, job_load, job_names, job_path
from tests.integration.commands import monarch
from tests.integration.programs import watched


@pytest.fixture
def training() -> Iterator[ProcessJob]:
    """A job of that name, reserved as if by another program."""
    job = ProcessJob({"trainers": 2})
    job.apply()
    path = job_path("training")
    job.dump(path)
    yield job
    job.kill()
    path.unlink(missing_ok=True)


def test_a_job_has_a_name_and_is_found_by_it(training: ProcessJob) -> None:
    assert job_names() == ["training"]
    assert job_load(job_path("training")).apply_id == training.apply_id
    assert job_path("training").parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["", "../up", "-x", "two words", "mjob-x"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a job"):
        job_path(name)


def test_it_lists_jobs_with_their_kind_and_age(training: ProcessJob) -> None:
    status, out, err = monarch("job", "list")
    assert (status, err) == (0, "")
    head, line = out.splitlines()
    assert head.split() == ["JOB", "KIND", "AGE", "STATE"]
    assert line.split()[:2] == ["training", "ProcessJob"]
    assert line.endswith("applied")


def test_it_shows_where_the_hosts_are_and_that_they_answer(training: ProcessJob) -> None:
    status, out, err = monarch("job", "show", "training")
    assert (status, err) == (0, "")
    assert "all hosts answer" in out
    for index, pid in enumerate(training.pids):
        assert f"trainers[{index}]" in out
        assert f"process {pid}\n" in out


def test_it_ends_a_job_by_name_and_by_the_path_of_its_record(
    training: ProcessJob, tmp_path: Path
) -> None:
    with watched(training.pids) as workers:
        assert monarch("job", "kill", "training") == (0, "ended training: released 2 hosts\n", "")
        workers.wait_all_ended()
    assert job_names() == []
    other = ProcessJob({"trainers": 1})
    other.apply()
    other.dump(tmp_path / "job")
    with watched(other.pids) as workers:
        status, out, _ = monarch("job", "kill", str(tmp_path / "job"))
        workers.wait_all_ended()
    assert (status, out) == (0, f"ended {tmp_path / 'job'}: released 1 host\n")


def test_a_name_means_the_job_whatever_is_called_so_in_this_directory(
    training: ProcessJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "training").mkdir()
    status, out, err = monarch("job", "show", "training")
    assert (status, err) == (0, "")
    assert str(training.apply_id) in out


def test_a_directory_of_jobs_that_others_can_enter_is_told_with_the_command_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    directory = job_path("training").parent
    directory.chmod(0o755)
    for command in (("list",), ("show", "training"), ("kill", "training")):
        status, out, err = monarch("job", *command)
        assert (status, out) == (1, "")
        assert err.startswith("monarch job: ")
        assert err.endswith(f"; run `chmod 700 {directory}` if it is yours\n")


def test_what_is_not_there_or_no_record_is_said(tmp_path: Path) -> None:
    assert monarch("job", "list")[1].startswith("you have no named jobs")
    status, out, err = monarch("job", "show", "nothing")
    assert (status, out) == (1, "")
    assert err == "monarch job: there is no job nothing; named jobs: none\n"
    (tmp_path / "job").write_text("nonsense")
    status, out, err = monarch("job", "kill", str(tmp_path / "job"))
    assert (status, out) == (1, "")
    assert "is not a record of a job" in err
