"""Contexts: several jobs of one directory, by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch._src.job.contexts import Contexts, load_current_job, set_current_job
from monarch._src.job.trait import job_load
from monarch.job import DEFAULT_JOB_PATH, JobError, LocalJob


@pytest.fixture
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Contexts:
    monkeypatch.chdir(tmp_path)
    return Contexts()


def test_a_directory_without_contexts_has_the_default_one_and_stays_as_it_is(
    contexts: Contexts,
) -> None:
    assert contexts.current() == "default"
    assert contexts.names() == ["default"]
    assert not contexts.has_hosts("default")
    assert os.listdir() == []


def test_programs_use_the_record_of_the_current_context(contexts: Contexts) -> None:
    contexts.create("big")
    contexts.use("big")
    LocalJob(["trainers"]).state()
    assert contexts.current() == "big"
    assert job_load(".monarch/big/state.pkl").active
    assert os.readlink(DEFAULT_JOB_PATH) == "big/state.pkl"
    contexts.use("default")
    assert not Path(DEFAULT_JOB_PATH).exists()
    assert contexts.has_hosts("big")
    assert not contexts.has_hosts("default")


def test_a_record_from_before_becomes_that_of_the_default_context(contexts: Contexts) -> None:
    LocalJob(["old"]).state()
    assert contexts.record("default") == Path(DEFAULT_JOB_PATH)
    contexts.create("new")
    contexts.use("new")
    assert list(job_load(".monarch/default/state.pkl").state(cached_path=None)) == ["old"]
    contexts.use("default")
    assert list(load_current_job().state(cached_path=None)) == ["old"]


def test_a_context_keeps_the_name_of_its_job_object(contexts: Contexts) -> None:
    assert contexts.spec("default") is None
    contexts.save_spec("default", "jobs.training")
    assert contexts.spec("default") == "jobs.training"


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", ".hidden", "logs", "job_state.pkl"])
def test_what_is_no_name_is_refused(contexts: Contexts, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a context"):
        contexts.create(name)


def test_what_does_not_fit_is_refused_and_changes_nothing(contexts: Contexts) -> None:
    contexts.create("one")
    with pytest.raises(ValueError, match="the context one exists"):
        contexts.create("one")
    with pytest.raises(ValueError, match="there is no context two; there are default, one"):
        contexts.use("two")
    with pytest.raises(ValueError, match="default is the current context"):
        contexts.remove("default")
    contexts.use("one")
    LocalJob().state()
    contexts.use("default")
    with pytest.raises(ValueError, match="`monarch kill --context one` releases them"):
        contexts.remove("one")
    assert contexts.names() == ["default", "one"]
    job_load(contexts.record("one")).kill()
    Path(contexts.record("one")).unlink()
    contexts.remove("one")
    assert contexts.names() == ["default"]


def test_a_link_that_leads_elsewhere_is_told(contexts: Contexts) -> None:
    Path(".monarch").mkdir()
    Path(DEFAULT_JOB_PATH).symlink_to("/somewhere/else")
    with pytest.raises(ValueError, match="leads to /somewhere/else, which is no context"):
        contexts.current()


def test_the_current_job_is_set_and_loaded(contexts: Contexts) -> None:
    with pytest.raises(FileNotFoundError, match=r"the context default of .* has no job"):
        load_current_job()
    job = LocalJob(["trainers"])
    job.apply()
    set_current_job(job)
    assert load_current_job().apply_id == job.apply_id
    set_current_job(job)  # again
    other = LocalJob(["others"])
    with pytest.raises(JobError, match="the context default has another job, with hosts"):
        set_current_job(other)
    contexts.create("second")
    contexts.use("second")
    set_current_job(other)
    assert not load_current_job().active
