"""The notice of a Slurm job's end: one for each job, of the session that uses it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch._src.events import RankFailed, bus
from monarch._src.job.launchers.slurm import end_notice
from monarch._src.job.launchers.slurm.end_notice import begin_notice


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The jobs that Slurm was asked about, all of which it does not know any more."""
    found: list[str] = []

    def entry(job: str, _name: str) -> None:
        found.append(job)

    monkeypatch.setattr(end_notice.commands, "entry", entry)
    yield found
    for job in ("7", "8"):
        end_notice.end_notice(job)


@pytest.fixture
def fail(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """A function that emits the failure of a rank, and returns the warnings about Slurm jobs."""

    def run() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "monarch.job"):
            failure: Any = None
            bus.emit(RankFailed(failure))
            for thread in threading.enumerate():
                if thread.name == "asks-slurm":
                    thread.join(60)
        return [one for one in caplog.messages if "Slurm" in one]

    return run


def test_two_objects_of_one_job_have_one_notice(
    asked: list[str], fail: Callable[[], list[str]]
) -> None:
    begin_notice("7", "train")
    begin_notice("7", "train")
    assert fail() == ["Slurm does not know job 7 any more: it ended some time ago"]
    assert fail() == []
    assert asked == ["7"]


def test_a_job_that_was_killed_has_none(asked: list[str], fail: Callable[[], list[str]]) -> None:
    begin_notice("7", "train")
    begin_notice("8", "train")
    end_notice.end_notice("7")
    end_notice.end_notice("7")
    fail()
    assert asked == ["8"]


def test_a_notice_ends_with_its_session(
    asked: list[str], fail: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_notice("7", "train")
    monkeypatch.setattr(end_notice, "runtime_or_none", lambda: "another session")
    assert fail() == []
    begin_notice("7", "train")  # a job of that number, in the new session
    assert len(fail()) == 1
    assert asked == ["7"]
