"""A job on this host: what a program with a larger one is tried with."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch.actor import Actor, current_rank, endpoint
from monarch.job import JobError, LocalJob, job_load


class Teller(Actor):
    @endpoint
    def rank(self) -> int:
        return current_rank().rank


def test_its_meshes_are_this_host_and_actors_run_there(tmp_path: Path) -> None:
    state = LocalJob(["trainers", "loaders"]).state(tmp_path / "job")
    assert list(state) == ["trainers", "loaders"]
    procs = state.trainers.spawn_procs({"gpus": 2})
    assert list(procs.spawn("teller", Teller).rank.call().get().values()) == [0, 1]
    assert {"trainers", "loaders"} <= set(dir(state))
    procs.stop().get()


def test_a_mesh_that_was_not_asked_for_is_named_with_those_that_were() -> None:
    with pytest.raises(AttributeError, match="no mesh 'trainer'; it has hosts"):
        _ = LocalJob().state(cached_path=None).trainer


@pytest.mark.parametrize("names", [(), ("two words",), ("_hidden",)])
def test_names_that_are_no_attributes_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="mesh"):
        LocalJob(names)


def test_names_are_a_list_and_not_one_text() -> None:
    with pytest.raises(TypeError, match=r"give a list, as in LocalJob\(\['trainers'\]\)"):
        LocalJob("trainers")


def test_a_script_runs_as_the_client_with_its_output_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import sys; print('trained'); sys.exit('and failed')")
    job = LocalJob()
    with pytest.raises(ValueError, match="apply"):
        _ = job.process
    with pytest.raises(JobError, match=r"no script other\.py"):
        job.apply("other.py")
    assert not job.active
    job.apply("train.py")
    assert job.process.wait(timeout=60) == 1
    assert job.log_directory is not None
    logs = Path(job.log_directory)
    assert (logs / "stdout.log").read_text() == "trained\n"
    assert (logs / "stderr.log").read_text() == "and failed\n"
    job.dump("job")
    loaded = job_load("job")
    assert isinstance(loaded, LocalJob)
    assert loaded.log_directory == job.log_directory
    job.kill()
