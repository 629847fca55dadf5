"""The options of sbatch and srun, and the batch script, which a real shell runs here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from monarch._src.job.launchers.slurm.state.request import (
    Request,
    check,
    sbatch_options,
    script,
    shares,
    srun_command,
)

PLAIN = Request(python="python3", job_name="job", log_dir="/logs")


def changed(**options: Any) -> Request:
    return msgspec.structs.replace(PLAIN, **options)


def test_what_is_not_given_is_left_to_slurm() -> None:
    assert sbatch_options(PLAIN, 3) == [
        "--parsable", "--job-name=job", "--nodes=3", "--ntasks-per-node=1",
        "--output=/logs/job-%j.log", "--no-requeue", "--exclusive",
    ]  # fmt: skip


def test_each_option_is_one_of_sbatch_and_those_of_the_user_come_last() -> None:
    request = changed(
        time_limit="1-00:00:00", partition="p", account="a", qos="q", gpus_per_node="a100:2",
        gpus_per_task=1, cpus_per_task=4, mem="10G", exclusive=False, slurm_args=["-C", "fast"],
    )  # fmt: skip
    found = sbatch_options(request, 1)
    assert "--exclusive" not in found
    assert found[-2:] == ["-C", "fast"]
    assert set(found) > {
        "--time=1-00:00:00", "--partition=p", "--account=a", "--qos=q", "--gpus-per-node=a100:2",
        "--gpus-per-task=1", "--cpus-per-task=4", "--mem=10G",
    }  # fmt: skip


def test_a_step_has_the_cpus_of_each_task_that_the_job_has() -> None:
    assert "--cpus-per-task=4" in srun_command(changed(cpus_per_task=4), 2, "true")
    assert srun_command(PLAIN, 2, "exec x")[-3:] == ["sh", "-c", "exec x"]


@pytest.mark.parametrize("limit", ["90", "90:00", "01:30:00", "2-00", "2-00:00:00", "UNLIMITED"])
def test_a_time_limit_is_what_sbatch_takes(limit: str) -> None:
    check(changed(time_limit=limit))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"time_limit": "1h"}, "write HH:MM:SS"),
        ({"time_limit": "01:30:00\n"}, "write HH:MM:SS"),
        ({"job_name": "a/b"}, "without /"),
        ({"job_name": "a,b"}, "without /"),
        ({"job_name": "a%j"}, "without /"),
        ({"job_name": ""}, "without /"),
        ({"ntasks_per_node": 0}, "ntasks_per_node=0: give 1 or more"),
        ({"cpus_per_task": 0}, "cpus_per_task=0: give 1 or more"),
        ({"slurm_args": ["--nodes=4"]}, "the meshes say how many nodes"),
        ({"slurm_args": ["-o", "x"]}, "log_dir says where logs are"),
    ],
)
def test_an_option_of_which_sbatch_would_say_less_is_refused(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        check(changed(**options))


def test_meshes_share_the_tasks_in_order() -> None:
    assert shares([("a", 1), ("b", 2)], 2) == [("a", 0, 2), ("b", 2, 6)]


def run_script(text: bytes, folder: Path) -> tuple[int, str, str]:
    """Run a script with an scontrol that prints its arguments."""
    scontrol = folder / "scontrol"
    scontrol.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    scontrol.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "12"}
    done = subprocess.run(["sh"], input=text, capture_output=True, env=env, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_the_script_gives_the_program_its_order_and_no_argument_has_any_of_it(
    tmp_path: Path,
) -> None:
    program = (
        "import sys\n"
        "print(sys.stdin.readline(), end='')\n"
        "print(open('/proc/self/cmdline').read().count('$HOME'))\n"
    )
    order = {"it's": 'a "quoted"\n$HOME `id` END_OF_MONARCH_INPUT'}
    status, out, err = run_script(script(sys.executable, program, order), tmp_path)
    assert (status, err) == (0, "")
    said, count = out.splitlines()
    assert json.loads(said) == order
    assert count == "0"


def test_a_path_from_the_home_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my python").symlink_to(sys.executable)
    assert run_script(script("~/my python", "print(7)", {}), tmp_path)[1] == "7\n"


def test_a_missing_interpreter_is_reported_as_a_problem(tmp_path: Path) -> None:
    status, out, _ = run_script(script("/no such/python", "", {}), tmp_path)
    assert status == 127
    words = out.splitlines()
    assert words[:2] == ["update", "JobId=12"]
    said = json.loads(words[2].removeprefix("Comment=monarch-problem "))
    assert said == {"status": 127, "last": ["/no such/python: no such program"]}
