"""What a job writes of itself, and how it is found again; with a job that reserves files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from monarch.job import JobError, JobState, JobTrait, LocalJob, job_load


class FileJob(JobTrait):
    """Reserves a file for each name; a host is there as long as its file."""

    directory: Path
    names: tuple[str, ...]

    def __init__(self, directory: Path, *names: str) -> None:
        super().__init__()
        self.directory, self.names = directory, names

    def _files(self) -> list[Path]:
        return [self.directory / name for name in self.names]

    def _create(self, client_script: str | None) -> None:
        for file in self._files():
            file.touch(exist_ok=False)

    def _state(self) -> JobState:
        return JobState({})

    def can_run(self, spec: JobTrait) -> bool:
        there = all(file.exists() for file in self._files())
        return there and isinstance(spec, FileJob) and spec.names == self.names

    def _kill(self) -> None:
        for file in self._files():
            file.unlink(missing_ok=True)


class PlainJob(FileJob):
    """One that annotates nothing of its own."""

    def __init__(self, directory: Path, *names: str) -> None:
        super().__init__(directory, *names)
        self.partition = "short"

    def can_run(self, spec: JobTrait) -> bool:
        return super().can_run(spec) and self.partition == "short"


class UnwritableJob(FileJob):
    """One that holds what JSON cannot."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "one")
        self.lock = threading.Lock()


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    made = tmp_path / "hosts"
    made.mkdir()
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "job_state.pkl"


def listed(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def test_what_is_reserved_once_is_found_by_the_next_program(hosts: Path, path: Path) -> None:
    first = FileJob(hosts, "a", "b")
    first.state(path)
    second = FileJob(hosts, "a", "b")
    second.state(path)  # to reserve again would raise: the files are there
    assert first.apply_id == second.apply_id is not None
    second.kill()
    assert listed(hosts) == []
    assert not second.active


def test_without_a_path_it_is_this_program_s_alone(hosts: Path) -> None:
    job = FileJob(hosts, "a")
    job.state(cached_path=None)
    job.state(cached_path=None)
    with pytest.raises(FileExistsError):
        FileJob(hosts, "a").state(cached_path=None)
    job.kill()
    job.kill()
    assert listed(hosts) == []


def test_what_cannot_run_what_is_asked_for_is_ended_and_reserved_anew(
    hosts: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    FileJob(hosts, "a").state(path)
    FileJob(hosts, "b", "c").state(path)
    assert listed(hosts) == ["b", "c"]
    assert "does not satisfy the present request" in caplog.text
    (hosts / "b").unlink()  # a host is lost
    FileJob(hosts, "b", "c").state(path)
    assert listed(hosts) == ["b", "c"]


def test_a_job_keeps_its_attributes_and_their_types(hosts: Path, path: Path) -> None:
    job = FileJob(hosts, "a", "b")
    job.apply()
    job.dump(path)
    found = job_load(path)
    assert isinstance(found, FileJob)
    assert (found.active, found.apply_id) == (True, job.apply_id)
    assert (found.directory, found.names) == (hosts, ("a", "b"))
    assert found.can_run(FileJob(hosts, "a", "b"))


def test_one_that_was_not_applied_is_loaded_as_that(hosts: Path, path: Path) -> None:
    FileJob(hosts, "a").dump(path)
    found = job_load(path)
    assert not found.active
    found.apply()
    assert listed(hosts) == ["a"]


def test_a_record_is_for_its_owner_only_and_never_half_written(hosts: Path, path: Path) -> None:
    job = FileJob(hosts, "a")
    job.state(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["kind"] == f"{__name__}:FileJob"
    assert listed(path.parent) == [".job_state.pkl.lock", "job_state.pkl"]


def test_a_record_behind_a_link_is_written_where_the_link_leads(hosts: Path, path: Path) -> None:
    path.parent.mkdir()
    target = path.parent / "elsewhere" / "real"
    path.symlink_to(target)
    FileJob(hosts, "a").state(path)
    assert path.is_symlink()
    assert job_load(target).active


def test_where_the_record_cannot_be_written_nothing_stays_reserved(hosts: Path, path: Path) -> None:
    with pytest.raises(TypeError, match=r"UnwritableJob\.lock is a lock that JSON cannot hold"):
        UnwritableJob(hosts).state(path)
    assert listed(hosts) == []


def record(kind: str = "monarch.job:LocalJob", number: int = 1, **values: object) -> str:
    return json.dumps(
        {"format": number, "kind": kind, "apply_id": "1", "applied": 1, "values": values}
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a record of a job"),
        ("cos\nsystem\n(S'touch bomb'\ntR.", "is not a record of a job"),
        (record(number=99), "format 99, and this version reads 1"),
        (record("os:system"), "names os:system, which is not a job class"),
        (record("monarch.job:JobTrait"), "names monarch.job:JobTrait, which is not a job class"),
        (record("nowhere:Job"), "a job of class nowhere:Job, which cannot be imported"),
        (record(_host_names=5), "_host_names: Expected `array`"),
        (record(), "_host_names, _log_directory is missing; remove the"),
        (record(_host_names=["hosts"]), "as this version writes one: _log_directory is missing"),
        (record(_log_directory=None, _host_names=["a"], kill=1), "kill is never part of a record"),
        (record(_log_directory=None, _host_names=["a"], _record="/x"), "_record is never part"),
        (record(_log_directory=None, _host_names=["a"], _process=3), "_process is never part"),
    ],
)
def test_what_is_no_record_is_refused_and_runs_nothing(path: Path, text: str, why: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(JobError, match=why):
        job_load(path)
    with pytest.raises(JobError, match=why):
        LocalJob().state(path)
    assert path.read_text() == text


def without(path: Path, name: str) -> None:
    """That attribute goes from the record, as if a version had written it that had none."""
    said = json.loads(path.read_text())
    del said["values"][name]
    path.write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("kind", "name"), [(FileJob, "names"), (PlainJob, "names"), (PlainJob, "partition")]
)
def test_a_record_without_an_attribute_is_told_with_its_path_and_what_to_do(
    hosts: Path, path: Path, kind: type[FileJob], name: str
) -> None:
    kind(hosts, "a").state(path)
    without(path, name)
    with pytest.raises(JobError) as error:
        kind(hosts, "a").state(path)
    said = str(error.value)
    assert said.startswith(f"{path} does not hold a {kind.__name__} as this version writes one: ")
    assert f"{name} is missing; remove the file to reserve" in said
    assert listed(hosts) == ["a"]
    path.unlink()
    (hosts / "a").unlink()
    assert kind(hosts, "a").state(path) is not None


def test_an_attribute_error_of_the_job_s_own_code_stays_one(
    hosts: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FileJob(hosts, "a").state(path)
    monkeypatch.setattr(FileJob, "can_run", lambda *_: path.no_such_thing)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match="no_such_thing"):
        FileJob(hosts, "a").state(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="to give a file away takes root")
def test_a_record_of_somebody_else_is_refused(hosts: Path, path: Path) -> None:
    FileJob(hosts, "a").state(path)
    os.chown(path, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to user 12345"):
        job_load(path)


@pytest.mark.slow
def test_two_programs_that_begin_together_reserve_once(hosts: Path, path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[3])!r})\n"
        "from tests.unit.job.test_records import FileJob; from pathlib import Path\n"
        f"job = FileJob(Path({str(hosts)!r}), 'a'); job.state({str(path)!r}); print(job.apply_id)"
    )
    started: list[Any] = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = {one.communicate(timeout=60)[0] for one in started}
    assert [one.returncode for one in started] == [0] * 4
    assert len(said) == 1
