"""`monarch apply`, `context`, `exec`, `shell` and `kill`: a job of the working directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.job import ProcessJob, load_current_job
from tests.integration.commands import monarch
from tests.integration.programs import PATIENCE_S, watched
from tests.integration.terminals import terminal

pytestmark = pytest.mark.slow

JOBS = """
from monarch.job import ProcessJob

training = ProcessJob({"trainers": 2, "loaders": 1})
small = ProcessJob({"hosts": 1})
number = 3
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with a module of job objects; their hosts are released at the end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.py").write_text(JOBS)
    yield tmp_path
    for record in tmp_path.glob(".monarch/*/state.pkl"):
        monarch("job", "kill", str(record))
    if os.path.exists(".monarch/job_state.pkl"):
        monarch("kill")


def done(*words: str) -> str:
    """What a command prints that succeeds and complains of nothing."""
    status, out, err = monarch(*words)
    assert (status, err) == (0, "")
    return out


def test_it_reserves_once_and_exec_shell_and_kill_use_that(directory: Path) -> None:
    out = done("apply", "jobs.training")
    assert out.startswith("context default: reserved these hosts\n")
    assert "loaders[0]" in out
    assert Path(".monarch/default/spec").read_text() == "jobs.training\n"
    job = load_current_job()
    assert isinstance(job, ProcessJob)
    assert done("apply").startswith("context default: there are already these hosts\n")
    assert load_current_job().apply_id == job.apply_id

    place = ["sh", "-c", 'echo "$MONARCH_RANK_HOSTS of $MONARCH_SIZE_HOSTS"']
    assert done("exec", "--", *place).endswith("0 of 2\n")
    assert done("exec", "--mesh", "loaders", "--", *place).endswith("0 of 1\n")
    out = done("exec", "--all", "--", *place)
    assert "0 of 2\n" in out
    assert "1 of 2\n" in out

    with watched(job.pids) as workers:
        assert done("kill") == "ended the job of default: released 3 hosts\n"
        workers.wait_all_ended()
    assert monarch("kill")[0] == 2


def test_contexts_have_jobs_of_their_own(directory: Path) -> None:
    done("apply", "jobs.training")
    assert "`monarch context use little` makes it the current one" in done(
        "context", "create", "little"
    )
    assert done("context", "use", "little") == "the current context is little\n"
    done("apply", "jobs.small")
    assert os.readlink(".monarch/job_state.pkl") == "little/state.pkl"
    rows = [line.split() for line in done("context", "ls").splitlines()]
    assert rows == [
        ["CONTEXT", "JOB", "KIND", "STATE"],
        ["default", "jobs.training", "ProcessJob", "has", "hosts"],
        ["*", "little", "jobs.small", "ProcessJob", "has", "hosts"],
    ]
    assert monarch("context", "rm", "default")[2] == (
        "monarch context: the job of the context default has hosts; `monarch kill --context "
        "default` releases them\n"
    )
    assert done("kill", "default") == "ended the job of default: released 3 hosts\n"
    assert done("context", "rm", "default") == "removed the context default\n"
    assert done("kill", "--context", "little") == "ended the job of little: released 1 host\n"
    assert monarch("kill", "--context", "little") == (
        1, "", "monarch kill: the context little has no job\n",
    )  # fmt: skip


def test_a_shell_on_a_host_of_the_job_that_ends_it_afterwards(directory: Path) -> None:
    done("apply", "jobs.training")
    job = load_current_job()
    assert isinstance(job, ProcessJob)
    words = ["shell", "--point", "hosts=1", "-e", "WORD=x", "-e", "PS1=ready> ", "--kill"]
    command = ["-m", "monarch", *words, "--", "/bin/sh"]
    with watched(job.pids) as workers, terminal(command) as screen:
        screen.expect("ready> ")
        screen.type("echo $WORD on $MONARCH_RANK_HOSTS; exit 6\n")
        screen.expect("x on 1\r\n")
        assert screen.end() == 6
        workers.wait_all_ended()
    assert not os.path.exists(".monarch/job_state.pkl")


def test_a_script_runs_by_its_text_and_the_job_ends_afterwards(directory: Path) -> None:
    done("apply", "jobs.small")
    Path("script.sh").write_text("for word in $@; do echo got $word; done\nexit 5\n")
    status, out, err = monarch("exec", "--kill", "--script", "script.sh", "--", "a", "b")
    assert (status, err) == (5, "")
    assert "got a\n" in out
    assert "got b\n" in out
    assert not os.path.exists(".monarch/job_state.pkl")
    path = os.pathsep.join(p for p in sys.path if p)
    read = subprocess.run(
        [sys.executable, "-m", "monarch", "exec", "--script", "-"], input="echo from $0\n",
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert (read.returncode, read.stderr) == (0, "")
    assert read.stdout.endswith("from stdin\n")


def test_a_module_runs_with_the_python_of_the_rank(directory: Path) -> None:
    Path("hello.py").write_text("import sys; print('hello from', sys.executable, sys.argv[1:])")
    out = done("exec", "-m", "hello", "--", "--lr", "0.1")
    assert out.endswith(f"hello from {sys.executable} ['--lr', '0.1']\n")


def test_without_a_job_exec_runs_here(directory: Path) -> None:
    assert done("exec", "--", "pwd").endswith(f"{directory}\n")
    done("apply", "jobs.small")
    assert done("exec", "--here", "--", "pwd").endswith(f"{directory}\n")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("apply",), "the context default has no job object yet: `monarch apply MODULE.JOB`"),
        (("apply", "training"), "'training' names no job object; write MODULE.JOB"),
        (("apply", "nothing.training"), "No module named 'nothing'"),
        (("apply", "jobs.big"), "jobs has no attribute big; of job objects it has training, small"),
        (("apply", "jobs.number"), "jobs has no job, but another object, as number"),
        (("context", "use", "big"), "there is no context big; there are default"),
        (("context", "rm", "default"), "default is the current context"),
        (("context", "create", "../x"), "'../x' cannot name a context"),
        (("kill", "--context", "big"), "there is no context big"),
        (("exec",), "give a command, as in `monarch exec -- nvidia-smi -L`, or --script or -m"),
        (("exec", "--mesh", "big", "--", "ls"), "the context default has no hosts"),
        (("exec", "--kill", "--", "ls"), "the context default has no hosts"),
        (("exec", "--here", "--job", "x", "--", "ls"), "--here is this machine"),
        (("exec", "--script", "none.sh"), "none.sh"),
        (("shell", "--point", "hosts"), "--point hosts: give DIM=NUMBER"),
    ],
)
def test_bad_input_is_one_line(directory: Path, words: tuple[str, ...], why: str) -> None:
    status, out, err = monarch(*words)
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert err.startswith(f"monarch {words[0]}: ")
    assert why in err
