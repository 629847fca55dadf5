"""`exec_command` and `monarch exec`: commands of the operating system on ranks of hosts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from monarch.actor import ActorError, HostMesh, this_host
from monarch.job import ProcessJob, exec_command, job_load, job_loads, job_path
from monarch.observe import cancel_calls, on_output, open_calls
from tests.integration.commands import monarch
from tests.integration.programs import PATIENCE_S, watched

PLACE = "import os; print(os.environ['MONARCH_RANK_HOSTS'], os.environ['MONARCH_SIZE_HOSTS'])"


@pytest.fixture(scope="module")
def job() -> Iterator[ProcessJob]:
    """Two hosts, recorded under a name."""
    job = ProcessJob({"trainers": 2})
    job.apply()
    path = job_path("commands")
    job.dump(path)
    yield job
    job.kill()
    path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def hosts(job: ProcessJob) -> Iterator[HostMesh]:
    hosts = job.state(cached_path=None).trainers
    yield hosts
    hosts.stop().get(timeout=PATIENCE_S)


@pytest.fixture
def lines() -> Iterator[list[tuple[int, str]]]:
    """The rank and text of each line of output."""
    found: list[tuple[int, str]] = []
    end = on_output(lambda lines: found.extend((line.rank, line.text) for line in lines))
    yield found
    end()


def test_each_host_runs_it_and_knows_its_place(
    hosts: HostMesh, lines: list[tuple[int, str]]
) -> None:
    assert exec_command(hosts, [sys.executable, "-c", PLACE]).get(timeout=PATIENCE_S) == 0
    assert sorted(lines) == [(0, "0 2"), (1, "1 2")]


def test_the_highest_status_of_all_ranks_is_the_result() -> None:
    code = "import os, sys; sys.exit(10 + int(os.environ['MONARCH_RANK_GPUS']))"
    status = exec_command(this_host(), [sys.executable, "-c", code], per_host={"gpus": 3})
    assert status.get(timeout=PATIENCE_S) == 12


@pytest.mark.parametrize(
    ("cmd", "status"),
    [
        ("true", 0),
        ("sh -c 'exit 3'", 3),
        (["sh", "-c", "kill -9 $$"], 128 + 9),
        (["no-such-program-anywhere"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_a_status_is_that_of_a_shell(cmd: Any, status: int) -> None:
    assert exec_command(this_host(), cmd).get(timeout=PATIENCE_S) == status


def test_variables_directory_and_a_file_for_each_rank(tmp_path: Path) -> None:
    done = exec_command(
        this_host(), ["sh", "-c", "echo $WORD in $(pwd); echo trouble >&2"], env={"WORD": "hello"},
        workdir=tmp_path, output_dir=tmp_path / "logs", per_host={"gpus": 2},
    )  # fmt: skip
    assert done.get(timeout=PATIENCE_S) == 0
    for rank in range(2):
        text = (tmp_path / "logs" / f"rank_{rank}.log").read_text()
        assert text == f"hello in {tmp_path}\ntrouble\n"


@pytest.mark.parametrize("where", [{"rank": 1}, {"point": {"hosts": 1}}])
def test_one_rank_runs_it(
    hosts: HostMesh, lines: list[tuple[int, str]], where: dict[str, Any]
) -> None:
    assert exec_command(hosts, [sys.executable, "-c", PLACE], **where).get(timeout=PATIENCE_S) == 0
    assert lines == [(1, "1 2")]


def test_a_cancelled_call_ends_the_command_and_its_children(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    script = f"sleep 600 & echo $$ $! > {told}.new; mv {told}.new {told}; wait"
    status = exec_command(this_host(), ["sh", "-c", script])
    while not told.exists():
        assert not status.done
    with watched([int(word) for word in told.read_text().split()]) as processes:
        with pytest.raises(TimeoutError):
            status.get(timeout=0.01)
        cancel_calls(open_calls())
        processes.wait_all_ended()
    with pytest.raises(ActorError, match="CallCancelled"):
        status.get(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        ({"cmd": 3}, TypeError, r"cmd=3: give words, as in \['nvidia-smi', '-L'\], or a text"),
        ({"cmd": ["ls", 3]}, TypeError, "give words"),
        ({"cmd": []}, ValueError, "cmd has no words; name a program"),
        ({"cmd": "ls", "env": {"A": 1}}, TypeError, "names and values are text"),
        ({"cmd": "ls", "rank": 7}, IndexError, "rank=7: the command has 1 ranks, from 0"),
        ({"cmd": "ls", "rank": 0, "point": {}}, ValueError, "give rank or point, not both"),
        ({"cmd": "ls", "point": {"racks": 0}}, TypeError, "racks"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(
    arguments: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        exec_command(this_host(), **arguments)


# --- from a shell ---------------------------------------------------------------------------------


def test_from_a_shell_it_runs_on_rank_0_and_its_status_is_that_of_the_command() -> None:
    status, out, err = monarch("exec", "--", "sh", "-c", "echo here; exit 5")
    assert (status, err) == (5, "")
    assert out.endswith("here\n")


def test_from_a_shell_it_runs_on_all_hosts_of_a_job(tmp_path: Path) -> None:
    free, path = ProcessJob({"trainers": 2}), str(tmp_path / "job")
    free.apply()
    free.dump(path)
    try:
        _run_on_all(path, tmp_path)
    finally:
        free.kill()


def _run_on_all(job: str, tmp_path: Path) -> None:
    logs = str(tmp_path / "logs")
    command = ("--job", job, "--all", "-e", "WORD=x", "--output-dir", logs)
    status, _, err = monarch("exec", *command, "--", "sh", "-c", "echo $WORD $MONARCH_RANK_HOSTS")
    assert (status, err) == (0, "")
    assert [(tmp_path / "logs" / f"rank_{n}.log").read_text() for n in (0, 1)] == ["x 0\n", "x 1\n"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--job", "nothing", "--", "ls"), "there is no job nothing"),
        (("-e", "WORD", "--", "ls"), "--env WORD: give NAME=VALUE"),
        (("--point", "hosts=x", "--", "ls"), "--point hosts=x: give DIM=NUMBER"),
        (("--point", "racks=1", "--", "ls"), "racks"),
    ],
)
def test_from_a_shell_bad_input_is_one_line(words: tuple[str, ...], why: str) -> None:
    status, out, err = monarch("exec", *words)
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert err.startswith("monarch exec: ")
    assert why in err


# --- records as bytes -----------------------------------------------------------------------------


def test_a_record_in_bytes_is_the_job(job: ProcessJob) -> None:
    loaded = job_loads(job.dumps())
    assert type(loaded) is ProcessJob
    assert loaded.apply_id == job.apply_id == job_load(job_path("commands")).apply_id
    assert loaded.places() == job.places()
    assert all(psutil.pid_exists(child.pid) for child in psutil.Process().children())
