"""`monarch.job.spmd`: hosts that are reserved once, on which a torchrun command runs many times."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.actor import ActorError
from monarch.job import DEFAULT_JOB_PATH, JobError, LocalJob, ProcessJob, job_load, spmd
from monarch.job.spmd import SPMDJob, serve
from tests.integration.programs import running
from tests.integration.segments import until

SCRIPT = """
import os, sys
from pathlib import Path
import torch, torch.distributed as dist

if sys.argv[2:] == ["fail"]:
    raise ValueError("a bad batch")
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
names = ("RANK", "GROUP_RANK", "LOCAL_RANK", "ADDED")
text = " ".join([*(os.environ.get(name, "-") for name in names), str(total.item())])
Path(sys.argv[1], os.environ["RANK"]).write_text(f"{text} {os.getppid()}")
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory for the records of `serve`."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture
def jobs() -> Iterator[ExitStack]:
    """Jobs that are killed after the test."""
    with ExitStack() as stack:
        yield stack


def written(folder: Path, count: int) -> list[str]:
    """What the ranks wrote, without their parents."""
    texts = [(folder / str(rank)).read_text() for rank in range(count)]
    return [text.rpartition(" ")[0] for text in texts]


def test_a_command_runs_on_its_hosts_again_and_again(
    script: str, tmp_path: Path, jobs: ExitStack
) -> None:
    job = serve(["torchrun", "--nnodes=2", "--nproc-per-node", "2", script, str(tmp_path)])
    jobs.callback(job.kill)
    assert job.active
    assert [name for name, _ in job.places()] == ["workers[0]", "workers[1]"]
    parents: list[set[str]] = []
    for _ in range(2):
        job.run_spmd()
        assert written(tmp_path, 4) == [
            "0 0 0 - 4.0", "1 0 1 - 4.0", "2 1 0 - 4.0", "3 1 1 - 4.0",
        ]  # fmt: skip
        parents.append({(tmp_path / str(rank)).read_text().split()[-1] for rank in range(4)})
    assert parents[0] == parents[1]
    assert len(job.state(cached_path=None).workers) == 2


def test_a_later_program_takes_the_hosts_up_by_the_record(
    script: str, tmp_path: Path, jobs: ExitStack
) -> None:
    record = tmp_path / "job"
    job = serve(["torchrun", script, str(tmp_path)])
    jobs.callback(job.kill)
    job.dump(record)
    again = job_load(record)
    assert isinstance(again, SPMDJob)
    again.run_spmd()
    assert written(tmp_path, 1) == ["0 0 0 - 1.0"]
    assert again.state(cached_path=None).workers.hosts == (os.uname().nodename,)
    changed = SPMDJob(["torchrun", script, str(tmp_path), "fail"], ProcessJob({"workers": 1}))
    assert again.can_run(changed)
    assert not again.can_run(SPMDJob(["torchrun", script], ProcessJob({"workers": 2})))


def test_serve_leaves_a_record_by_which_the_next_program_runs_the_command(
    script: str, tmp_path: Path, jobs: ExitStack
) -> None:
    job = serve(["torchrun", "--nproc-per-node=2", script, str(tmp_path)])
    jobs.callback(job.kill)
    again = spmd.job_load(".monarch/job_state.pkl")
    assert isinstance(again, SPMDJob)
    assert again.apply_id == job.apply_id
    again.run_spmd()
    assert written(tmp_path, 2) == ["0 0 0 - 2.0", "1 0 1 - 2.0"]
    job.kill()
    assert not job_load(".monarch/job_state.pkl").active


def test_serve_takes_up_hosts_that_fit_and_records_its_own_command(
    script: str, tmp_path: Path, jobs: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    first = serve(["torchrun", script, str(tmp_path), "fail"])
    jobs.callback(first.kill)
    second = serve(["torchrun", script, str(tmp_path)])
    assert second.apply_id == first.apply_id
    assert second.places() == first.places()
    second.run_spmd()
    loaded = job_load(DEFAULT_JOB_PATH)
    assert isinstance(loaded, SPMDJob)
    loaded.run_spmd()  # not the command that fails
    assert caplog.text == ""
    third = serve(["torchrun", "--nnodes=2", script, str(tmp_path)])
    jobs.callback(third.kill)
    assert third.apply_id != first.apply_id
    assert "does not satisfy the present request" in caplog.text


def test_without_a_path_hosts_are_for_this_job_alone(
    script: str, tmp_path: Path, jobs: ExitStack
) -> None:
    made = [serve(["torchrun", script], cached_path=None) for _ in range(2)]
    for job in made:
        jobs.callback(job.kill)
    assert made[0].apply_id != made[1].apply_id
    assert not (tmp_path / DEFAULT_JOB_PATH).exists()


def test_the_error_of_a_script_is_the_error_of_the_run(
    script: str, tmp_path: Path, jobs: ExitStack
) -> None:
    job = serve(["torchrun", script, str(tmp_path), "fail"], scheduler=LocalJob(["workers"]))
    jobs.callback(job.kill)
    with pytest.raises(ActorError, match="ValueError: a bad batch"):
        job.run_spmd()


def appdef(*args: str, entrypoint: str = "torchrun", replicas: int = 1) -> Any:
    """An object with the shape of a TorchX AppDef."""
    role = SimpleNamespace(
        name="trainer", entrypoint=entrypoint, args=list(args), env={"ADDED": "yes"},
        num_replicas=replicas, image="",
    )  # fmt: skip
    return SimpleNamespace(name="app", roles=[role], metadata={})


def test_an_appdef_is_taken_by_its_shape(script: str, tmp_path: Path, jobs: ExitStack) -> None:
    command = (
        "torchrun --rdzv_backend c10d --rdzv_endpoint localhost:0 --rdzv_id 'app' --nnodes 1 "
        f"--nproc_per_node 2 --tee 0 --role '' {script} {tmp_path}"
    )
    job = serve(appdef("-c", command, entrypoint="bash"))
    jobs.callback(job.kill)
    job.run_spmd()
    assert written(tmp_path, 2) == ["0 0 0 yes 2.0", "1 0 1 yes 2.0"]


def test_an_appdef_has_as_many_hosts_as_replicas(script: str, jobs: ExitStack) -> None:
    job = serve(appdef(script, replicas=2))
    jobs.callback(job.kill)
    assert len(job.places()) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((["python", "train.py"],), ValueError, "is no torchrun command; begin it with 'torchrun'"),
        (([],), ValueError, "is no torchrun command"),
        (("torchrun train.py",), TypeError, r"a list of words, such as \['torchrun', 'train.py'\]"),
        ((["torchrun", 4],), TypeError, "the command is a list of text"),
        ((3,), TypeError, "serve takes a list of words or an AppDef, not int"),
        ((["torchrun", "--bogus", "train.py"],), ValueError, "unrecognized arguments: --bogus"),
        ((["torchrun", "train.py"], "mast_conda"), ValueError, "no scheduler 'mast_conda'"),
        ((["torchrun", "train.py"], "ssh"), ValueError, r"needs scheduler_cfg=\{'hosts'"),
        (
            (["torchrun", "--nnodes=3", "train.py"], "ssh", {"hosts": ["h1"]}),
            ValueError, "asks for 3 nodes, and hosts has 1",
        ),
        (
            (["torchrun", "train.py"], "local_cwd", {"partition": "gpu"}),
            ValueError, "scheduler_cfg of 'local_cwd' has partition; it takes env",
        ),
        ((SimpleNamespace(roles=[]),), ValueError, "the AppDef has no role"),
    ],
)  # fmt: skip
def test_bad_input_reserves_nothing(
    arguments: tuple[Any, ...], error: type[Exception], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        serve(*arguments)
    assert not (tmp_path / DEFAULT_JOB_PATH).exists()


def test_a_job_that_has_hosts_already_is_refused(jobs: ExitStack) -> None:
    other = ProcessJob({"workers": 1})
    other.apply()
    jobs.callback(other.kill)
    with pytest.raises(ValueError, match="has hosts already"):
        serve(["torchrun", "train.py"], scheduler=other)


# --- several roles --------------------------------------------------------------------------------


def role(name: str, *words: str, **fields: Any) -> Any:
    """A role of an AppDef."""
    given = {"env": {}, "num_replicas": 1, "image": "", **fields}
    return SimpleNamespace(name=name, entrypoint="torchrun", args=list(words), **given)


def app(*roles: Any) -> Any:
    return SimpleNamespace(name="app", roles=list(roles), metadata={})


WAITS = """
import os, signal, sys
from pathlib import Path

def save(number, frame):
    Path(sys.argv[1], "saved").touch()
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
Path(sys.argv[1], "waits").touch()
while True:
    signal.pause()
"""
IGNORES = """
import signal, sys

signal.signal(signal.SIGINT, lambda number, frame: print("goes on", sys.argv[1], flush=True))
print("begins", sys.argv[1], flush=True)
while True:
    signal.pause()
"""
FAILS = """
import sys
from pathlib import Path

while not Path(sys.argv[1], "waits").exists():
    pass
raise ValueError("no more batches")
"""


def test_each_of_several_roles_runs_in_a_world_of_its_own_on_hosts_of_its_own(
    script: str, tmp_path: Path, jobs: ExitStack
) -> None:
    folders = {name: tmp_path / name for name in ("trainer", "reader")}
    for folder in folders.values():
        folder.mkdir()
    job = serve(
        app(
            role("trainer", "--nproc-per-node=2", script, str(folders["trainer"]), num_replicas=2),
            role("reader", script, str(folders["reader"]), env={"ADDED": "yes"}),
        )
    )
    jobs.callback(job.kill)
    assert [name for name, _ in job.places()] == ["trainer[0]", "trainer[1]", "reader[0]"]
    for again in (job, spmd.job_load(".monarch/job_state.pkl")):
        assert isinstance(again, SPMDJob)
        again.run_spmd()
        assert written(folders["trainer"], 4) == [
            "0 0 0 - 4.0", "1 0 1 - 4.0", "2 1 0 - 4.0", "3 1 1 - 4.0",
        ]  # fmt: skip
        assert written(folders["reader"], 1) == ["0 0 0 yes 1.0"]
        for folder in folders.values():
            for path in folder.iterdir():
                path.unlink()


def test_a_role_that_fails_ends_the_others_which_may_save_their_work(
    tmp_path: Path, jobs: ExitStack
) -> None:
    for name, text in (("waits.py", WAITS), ("fails.py", FAILS)):
        (tmp_path / name).write_text(text)
    job = serve(
        app(
            role("reader", str(tmp_path / "waits.py"), str(tmp_path)),
            role("trainer", str(tmp_path / "fails.py"), str(tmp_path)),
        )
    )
    jobs.callback(job.kill)
    with pytest.raises(ActorError, match=r"ValueError: no more batches") as failed:
        job.run_spmd()
    assert "trainer" in str(failed.value)
    assert (tmp_path / "saved").exists()
    (tmp_path / "train.py").write_text("")
    job = serve(["torchrun", str(tmp_path / "train.py")], scheduler=LocalJob(["workers"]))
    jobs.callback(job.kill)
    job.run_spmd()  # nothing of the roles is left that would be in its way


def test_an_interrupt_is_handed_on_to_all_roles(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    folders = [tmp_path / name for name in ("trainer", "reader")]
    for folder in folders:
        folder.mkdir()
    source = f"""
        from types import SimpleNamespace
        from monarch.job.spmd import serve

        def role(name):
            return SimpleNamespace(
                name=name, entrypoint="torchrun", args=[{str(tmp_path / "waits.py")!r},
                {str(tmp_path)!r} + "/" + name], env={{}}, num_replicas=1,
            )
        job = serve(SimpleNamespace(roles=[role("trainer"), role("reader")]), cached_path=None)
        print("it runs", flush=True)
        try:
            job.run_spmd()
        finally:
            job.kill()
    """
    with running(tmp_path, source) as program:
        assert program.line() == "it runs"
        until(lambda: all((folder / "waits").exists() for folder in folders), "both roles run")
        program.signal(signal.SIGINT)
        status, _, err = program.end()
    assert status != 0
    assert "KeyboardInterrupt" in err
    assert all((folder / "saved").exists() for folder in folders)


def test_a_second_interrupt_kills_ranks_that_ignore_the_first(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(IGNORES)
    source = f"""
        from types import SimpleNamespace
        from monarch.job.spmd import serve

        def role(name):
            return SimpleNamespace(
                name=name, entrypoint="torchrun", env={{}}, num_replicas=1,
                args=["--shutdown-timeout=600", {str(tmp_path / "waits.py")!r}, name],
            )
        job = serve(SimpleNamespace(roles=[role("trainer"), role("reader")]), cached_path=None)
        try:
            job.run_spmd()
        finally:
            job.kill()
    """
    with running(tmp_path, source) as program:
        assert {program.line().split()[-1] for _ in range(2)} == {"trainer", "reader"}
        program.signal(signal.SIGINT)
        assert {program.line().split()[-1] for _ in range(2)} == {"trainer", "reader"}
        program.signal(signal.SIGINT)
        status, _, err = program.end()
    assert status != 0
    assert "KeyboardInterrupt" in err


def test_roles_run_on_the_meshes_of_a_job_that_have_their_names(
    script: str, tmp_path: Path, jobs: ExitStack
) -> None:
    roles = [role(name, script, str(tmp_path)) for name in ("trainer", "reader")]
    job = serve(app(*roles), scheduler=LocalJob(["trainer", "loader"]))
    jobs.callback(job.kill)
    with pytest.raises(JobError, match=r"the job has no mesh 'reader' .*; it has trainer"):
        job.run_spmd()
    assert list(tmp_path.glob("[0-9]")) == []


@pytest.mark.parametrize(
    ("roles", "scheduler", "cfg", "text"),
    [
        ([role("my-trainer", "t.py"), role("b", "t.py")], "local", {}, "such as my_trainer"),
        ([role("a", "t.py"), role("a", "t.py")], "local", {}, "has 2 roles 'a'; name each once"),
        ([role("a", "t.py", num_replicas=0)], "local", {}, "role 'a' has num_replicas=0"),
        ([role("a", "t.py", max_retries=3)], "local", {}, "give --max-restarts 3 to its torchrun"),
        ([role("a", "t.py", mounts=["/data"])], "local", {}, "role 'a' has mounts"),
        (
            [role("a", "t.py"), role("b", "t.py")], "ssh", {"hosts": ["h1", "h2"]},
            r"scheduler_cfg=\{'hosts': \{'a': \['h1'\], 'b': \['h1'\]\}\}",
        ),
        (
            [role("a", "t.py", num_replicas=2), role("b", "t.py")], "ssh",
            {"hosts": {"a": ["h1"], "b": ["h2"]}}, "the role 'a' asks for 2 nodes, and hosts has 1",
        ),
        (
            [role("a", "t.py", resource=SimpleNamespace(gpu=8)), role("b", "t.py")], "slurm", {},
            r"different gpus_per_node \(a: 8, b: any\).*give gpus_per_node in scheduler_cfg",
        ),
    ],
)  # fmt: skip
def test_roles_that_cannot_be_run_are_refused(
    roles: list[Any], scheduler: str, cfg: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=text):
        serve(app(*roles), scheduler, cfg)
    assert not (tmp_path / DEFAULT_JOB_PATH).exists()
