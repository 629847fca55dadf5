"""What Slurm says of a job, and what becomes of it for people."""

from __future__ import annotations

import pytest

from monarch._src.job.launchers.slurm.state.queue import (
    Phase,
    QueueEntry,
    ended,
    hopeless,
    parsed,
    progress,
    refused,
)


def test_a_line_of_squeue_is_read_with_a_comment_that_holds_the_separator() -> None:
    said = "RUNNING|None|n[0-1]|mine | monarch-workers n0/1:2@h:2\n"
    assert parsed(said) == QueueEntry("RUNNING", "", "n[0-1]", "mine | monarch-workers n0/1:2@h:2")


@pytest.mark.parametrize("said", ["", "\n", "  \n"])
def test_no_line_is_no_entry(said: str) -> None:
    assert parsed(said) is None


def test_what_is_not_set_is_empty() -> None:
    assert parsed("PENDING|Priority||(null)") == QueueEntry("PENDING", "Priority")
    assert parsed("PENDING") == QueueEntry("PENDING")


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("PENDING", Phase.QUEUED),
        ("CONFIGURING", Phase.QUEUED),
        ("REQUEUED", Phase.QUEUED),
        ("RUNNING", Phase.RUNNING),
        ("SUSPENDED", Phase.RUNNING),
        ("COMPLETING", Phase.ENDING),
        ("COMPLETED", Phase.ENDED),
        ("CANCELLED", Phase.ENDED),
        ("TIMEOUT", Phase.ENDED),
        ("A_STATE_OF_LATER_VERSIONS", Phase.QUEUED),
    ],
)
def test_a_state_has_a_phase(state: str, phase: Phase) -> None:
    assert QueueEntry(state).phase is phase


def test_the_progress_says_the_state_and_the_reason() -> None:
    entry = QueueEntry("PENDING", "Resources")
    assert progress("12", entry) == "Slurm job 12: pending (Resources)"
    running = QueueEntry("RUNNING", "", "n[0-3]")
    assert progress("12", running) == ("Slurm job 12: running on n[0-3]; its workers are starting")


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("CANCELLED", "was cancelled"),
        ("PREEMPTED", "was preempted by a job of higher priority"),
        ("NODE_FAIL", "one of its nodes has failed"),
        ("TIMEOUT", "time limit; give a longer time_limit"),
        ("OUT_OF_MEMORY", "give more mem"),
    ],
)
def test_each_end_has_a_text_of_its_own(state: str, why: str) -> None:
    said = ended("12", QueueEntry(state, "", "n1"))
    assert said.startswith(f"Slurm job 12 on n1 has ended ({state}): ")
    assert why in said


def test_a_job_that_slurm_has_forgotten_has_ended() -> None:
    assert ended("12", None) == "Slurm does not know job 12 any more: it ended some time ago"


def test_only_a_queued_job_is_hopeless_and_only_for_a_reason_that_does_not_pass() -> None:
    assert "ask for less" in hopeless("1", QueueEntry("PENDING", "PartitionNodeLimit"))
    assert hopeless("1", QueueEntry("PENDING", "Resources")) == ""
    assert hopeless("1", QueueEntry("RUNNING", "PartitionNodeLimit")) == ""


@pytest.mark.parametrize(
    ("errors", "remedy"),
    [
        ("Invalid account or account/partition combination specified", "account="),
        ("Invalid qos specification", "qos="),
        ("Invalid partition name specified", "`sinfo` lists the partitions"),
        ("Requested node configuration is not available", "no node has that"),
        ("Node count specification invalid", "ask for less"),
    ],
)
def test_a_refusal_has_slurms_words_and_a_remedy(errors: str, remedy: str) -> None:
    said = refused(f"sbatch: error: Batch job submission failed: {errors}\n")
    assert said.startswith(f"Slurm refused the job: Batch job submission failed: {errors}; ")
    assert remedy in said


def test_a_refusal_for_an_unknown_cause_is_quoted_once() -> None:
    assert refused("sbatch: error: No\nsbatch: error: No\n") == "Slurm refused the job: No"
    assert refused("") == "Slurm refused the job: sbatch said nothing"
