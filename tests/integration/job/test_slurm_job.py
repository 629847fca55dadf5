"""Jobs on nodes that Slurm allocates: what is so of these alone, beside `test_launchers.py`.

The Slurm is Debian's, with three nodes that are all this host.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._src.net import session_directory as sessions
from monarch.actor import Actor, SupervisionError, endpoint
from monarch.job import JobError, SlurmJob, open_waits
from monarch.job.spmd import serve
from tests import slurm
from tests.integration.commands import monarch
from tests.integration.gates import Gate, GateKeeper
from tests.integration.programs import running
from tests.integration.terminals import terminal
from tests.leaks import processes
from tests.support.slurm_cluster import cluster, running_cluster

__all__ = ["cluster", "running_cluster"]
pytestmark = [pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not()), pytest.mark.slow]

QUEUED = """
    import sys
    from monarch.job import SlurmJob, open_waits

    job = SlurmJob({meshes!r}, log_dir={logs!r}, env={env!r})
    job.apply()
    job.dump(sys.argv[1])
    print(job.slurm_job_id, flush=True)
    print(list(job.state(sys.argv[1])), flush=True)
"""


class Teller(Actor):
    @endpoint
    def gpus(self) -> str:
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")

    @endpoint
    def wait(self) -> None:
        threading.Event().wait()

    @endpoint
    def save_at_sigterm(self, folder: str, gate: Gate) -> None:
        """Wait for SIGTERM, whose handler saves in two steps, each behind the gate."""
        node = os.environ["SLURMD_NODENAME"]
        signals: list[int] = []

        def save(number: int, _frame: Any) -> None:
            signals.append(number)
            if len(signals) > 1:  # Slurm sends two if it preempts a job without a grace
                return
            for step in range(2):
                gate.pass_through()
                Path(folder, f"{node} step {step}").touch()
            raise SystemExit(0)

        signal.signal(signal.SIGTERM, save)
        gate.pass_through()
        while True:
            signal.pause()

    @endpoint
    def place(self) -> tuple[str, str]:
        return os.environ["SLURMD_NODENAME"], os.environ["SLURM_LOCALID"]


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"log_dir": tmp_path / "logs", "env": slurm.environment()}


class Waiting:
    """`job.state(None)` on a thread."""

    def __init__(self, job: SlurmJob) -> None:
        self.error: BaseException | None = None
        self._job = job
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._job.state(None)
        except JobError as error:
            self.error = error

    def end(self) -> str:
        """The text of its error."""
        self._thread.join(slurm.PATIENCE_S)
        assert not self._thread.is_alive()
        return str(self.error)


# --- meshes ---------------------------------------------------------------------------------------


def test_each_mesh_has_nodes_of_its_own_in_one_allocation(
    cluster: slurm.Cluster, options: dict[str, Any]
) -> None:
    job = SlurmJob({"trainers": 2}, **options)
    job.add_mesh("loaders", 1)
    state = job.state(None)
    assert cluster.jobs() == [job.slurm_job_id]
    found = [
        list(mesh.spawn_procs({"gpus": 1}).spawn("teller", Teller).place.call().get().values())
        for mesh in (state.trainers, state.loaders)
    ]
    assert found == [[("n0", "0"), ("n1", "0")], [("n2", "0")]]
    assert [node for node, _ in job.pids] == ["n0", "n1", "n2"]
    with pytest.raises(JobError, match="comes too late"):
        job.add_mesh("more", 1)
    job.kill()
    assert job.slurm_job_id is None
    assert job.places() == []


def test_nodes_are_shared_by_a_worker_for_each_task(
    cluster: slurm.Cluster, options: dict[str, Any]
) -> None:
    job = SlurmJob({"trainers": 1, "loaders": 1}, **options)
    job.share_node(2, 0)
    state = job.state(None)
    procs = state.trainers.spawn_procs({"gpus": 1})
    assert procs.sizes == {"hosts": 2, "gpus": 1}
    places = procs.spawn("teller", Teller).place.call().get()
    assert [local for _, local in places.values()] == ["0", "1"]
    assert [node for node, _ in places.values()] == ["n0", "n0"]
    job.kill()


def test_a_worker_sees_the_gpus_of_its_node_or_of_its_task(
    cluster: slurm.Cluster, options: dict[str, Any]
) -> None:
    whole = SlurmJob({"trainers": 1}, gpus_per_node=2, **options)
    shared = SlurmJob({"trainers": 1}, **options)
    shared.share_node(tasks_per_node=2, gpus_per_task=1)
    for job, gpus in ((whole, ["0,1"]), (shared, ["0", "1"])):
        procs = job.state(None).trainers.spawn_procs({"gpus": 1})
        found = procs.spawn("teller", Teller).gpus.call().get()
        assert sorted(found.values()) == gpus
        job.kill()


def test_a_client_outside_the_cluster_goes_through_the_first_worker(
    cluster: slurm.Cluster, options: dict[str, Any]
) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    at = f"tcp://127.0.0.1:{port}"
    job = SlurmJob(
        {"trainers": 2}, out_of_cluster=True, attach_to=at, bind_to=f"tcp://*:{port}", **options
    )
    procs = job.state(None).trainers.spawn_procs({"gpus": 1})
    assert len(list(procs.spawn("teller", Teller).place.call().get().values())) == 2
    job.kill()


def test_a_client_script_runs_on_the_first_node_and_the_job_ends_with_it(
    cluster: slurm.Cluster, options: dict[str, Any], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    told = tmp_path / "told"
    logs, env = str(options["log_dir"]), options["env"]
    env = {**env, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    script.write_text(
        "import os, socket\n"
        "from monarch.job import SlurmJob\n"
        f"job = SlurmJob({{'trainers': 2}}, log_dir={logs!r}, env={env!r})\n"
        "procs = job.state().trainers.spawn_procs({'gpus': 1})\n"
        "procs.initialized.get()\n"
        f"open({str(told)!r}, 'w').write(f\"{{os.environ['SLURMD_NODENAME']}} {{procs.sizes}}\")\n"
    )
    job = SlurmJob({"trainers": 2}, log_dir=logs, env=env)
    job.apply(str(script))
    number, log = job.slurm_job_id, job.log_path
    assert log is not None
    cluster.wait_for(lambda: not cluster.jobs(), "the job does not end")
    assert "the client script has ended with status 0" in Path(log).read_text()
    assert told.read_text() == "n0 {'hosts': 2, 'gpus': 1}"
    cluster.wait_for_state(number, "COMPLETED")
    job.kill()


def test_a_torchrun_command_runs_on_the_nodes(
    cluster: slurm.Cluster, options: dict[str, Any], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "Path(sys.argv[1], os.environ['RANK']).write_text(os.environ['SLURMD_NODENAME'])\n"
    )
    command = ["torchrun", "--nnodes=2", "--nproc-per-node=1", str(script), str(tmp_path)]
    record = tmp_path / "record"
    job = serve(command, scheduler="slurm", scheduler_cfg=options, cached_path=record)
    job.run_spmd()
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["n0", "n1"]
    job.kill()


TELLS = """
import os, sys

told = [os.environ[name] for name in ("SLURMD_NODENAME", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")]
with open(os.path.join(sys.argv[1], sys.argv[2] + os.environ["RANK"]), "w") as file:
    file.write(" ".join(told))
"""


def test_each_role_of_an_app_has_nodes_of_its_own_in_one_allocation_with_its_resource(
    cluster: slurm.Cluster, options: dict[str, Any], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TELLS)
    resource = SimpleNamespace(cpu=1, gpu=1, memMB=-1)
    roles = [
        SimpleNamespace(
            name=name, entrypoint="torchrun", args=[str(script), str(tmp_path), name], env={},
            num_replicas=count, resource=resource,
        )
        for name, count in (("trainer", 2), ("reader", 1))
    ]  # fmt: skip
    job = serve(SimpleNamespace(roles=roles), "slurm", options, cached_path=tmp_path / "record")
    job.run_spmd()
    assert len(cluster.jobs()) == 1
    told = {name: (tmp_path / name).read_text() for name in ("trainer0", "trainer1", "reader0")}
    assert told == {
        "trainer0": "n0 2 0",
        "trainer1": "n1 2 0",
        "reader0": "n2 1 0",
    }
    job.kill()


WAITS = """
import sys, time
from pathlib import Path

Path(sys.argv[1]).touch()
while True:
    time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (["scancel"], r"has ended \(CANCELLED.*\): it was cancelled"),
        (["scontrol", "update", "EndTime=now"], r"has ended \(TIMEOUT.*give a longer time_limit"),
    ],
    ids=["cancelled", "time limit"],
)
def test_the_error_of_a_torchrun_command_says_how_slurm_has_ended_its_job(
    cluster: slurm.Cluster, options: dict[str, Any], tmp_path: Path, how: list[str], said: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(WAITS)
    cfg = {**options, "time_limit": "00:01:00"}
    job = serve(["torchrun", str(script), str(tmp_path / "runs")], "slurm", cfg, cached_path=None)
    (number,) = cluster.jobs()

    def end() -> None:
        cluster.wait_for((tmp_path / "runs").exists, "the script does not run")
        cluster.command(how[0], *how[1:], number if how == ["scancel"] else f"JobId={number}")

    ends = threading.Thread(target=end)
    ends.start()
    with pytest.raises(SupervisionError, match="killed by SIGTERM") as failed:
        job.run_spmd()
    ends.join()
    assert re.search(rf"\nSlurm job {number} .*{said}", str(failed.value))
    job.kill()


def test_a_comment_of_the_users_own_stays(cluster: slurm.Cluster, options: dict[str, Any]) -> None:
    job = SlurmJob({"trainers": 1}, slurm_args=["--comment=project 7"], **options)
    job.state(None)
    comment = cluster.command("squeue", "--noheader", "--format=%k").strip()
    assert comment.startswith("project 7 monarch-workers n0/")
    job.kill()


def test_keys_are_in_no_argument_no_environment_no_log_and_in_nothing_that_others_may_read(
    cluster: slurm.Cluster, options: dict[str, Any], tmp_path: Path
) -> None:
    job = SlurmJob({"trainers": 2}, **options)
    job.state(tmp_path / "job")
    (own,) = [path for path in slurm.of_jobs() if (path / "keys").exists()]
    secrets = {json.loads(file.read_text())["secret"] for file in (own / "keys").glob("*.key")}
    assert len(secrets) == 3
    seen = [repr(job), (tmp_path / "job").read_text()]
    seen += [
        cluster.command("scontrol", "show", "job", "-dd"),
        cluster.command("squeue", "-O", "ALL"),
    ]
    for one in processes():
        seen += [Path(f"/proc/{one.pid}/cmdline").read_text(errors="replace")]
        seen += [Path(f"/proc/{one.pid}/environ").read_text(errors="replace")]
    roots = [sessions.base_directory(), options["log_dir"], cluster.folder]
    files = [path for root in roots for path in root.rglob("*") if path.is_file()]
    for path in files:
        with suppress(FileNotFoundError):  # slurmctld renames files of its own meanwhile
            if not path.is_relative_to(own) and path.stat().st_mode & 0o077:
                seen.append(path.read_text(errors="replace"))
    assert [secret for secret in secrets for text in seen if secret in text] == []
    job.kill()


# --- the queue ------------------------------------------------------------------------------------


def test_a_job_that_waits_says_for_what_and_a_cancelled_one_ends_in_an_error(
    cluster: slurm.Cluster, options: dict[str, Any]
) -> None:
    blocker = slurm.Blocker(cluster)
    job = SlurmJob({"trainers": 1}, **options)
    job.apply()
    number = job.slurm_job_id
    waiting = Waiting(job)
    text = f"Slurm job {number}: pending (Resources)"
    cluster.wait_for(lambda: [one.text for one in open_waits()] == [text], "no such progress")
    cluster.command("scancel", str(number))
    assert f"Slurm job {number} has ended (CANCELLED" in waiting.end()
    assert open_waits() == []
    assert not job.active
    blocker.end()


def test_a_job_that_is_cancelled_while_it_is_used_says_so(
    cluster: slurm.Cluster, options: dict[str, Any], faults: Any,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("MONARCH_LIVENESS", "6")
    job = SlurmJob({"trainers": 2}, **options)
    procs = job.state(None).trainers.spawn_procs({"gpus": 1})
    call = procs.spawn("teller", Teller).wait.call()
    assert job.condition() == "all hosts answer"
    cluster.command("scancel", str(job.slurm_job_id))
    with pytest.raises(SupervisionError):
        call.get()
    said = f"Slurm job {job.slurm_job_id} on n[0-1] has ended (CANCELLED): it was cancelled"
    cluster.wait_for(lambda: said in caplog.text, "nothing was said")
    (notice,) = [message for message in caplog.messages if message.startswith("Slurm job")]
    assert job.condition() == notice
    with pytest.raises(JobError, match=r"has ended \(CANCELLED"):
        job.state(None)
    assert not job.active


def test_an_interrupt_in_the_queue_leaves_no_job(
    cluster: slurm.Cluster, options: dict[str, Any], tmp_path: Path
) -> None:
    blocker = slurm.Blocker(cluster)
    source = queued(options)
    with running(tmp_path, source, str(tmp_path / "job")) as program:
        number = program.line()
        cluster.wait_for_state(number, "PENDING")
        program.signal(signal.SIGINT)
        status, _, err = program.end()
    assert status != 0
    assert "KeyboardInterrupt" in err
    cluster.wait_for_state(number, "CANCELLED")
    blocker.end()


def test_a_program_that_is_killed_in_the_queue_is_followed_by_one_that_gets_its_nodes(
    cluster: slurm.Cluster, options: dict[str, Any], tmp_path: Path
) -> None:
    blocker = slurm.Blocker(cluster)
    path = tmp_path / "job"
    with running(tmp_path, queued(options), str(path)) as program:
        number = program.line()
        program.process.kill()
        program.end()
    job = SlurmJob({"trainers": 2}, **options)
    blocker.end()
    assert list(job.state(path)) == ["trainers"]
    assert job.slurm_job_id == number
    job.kill()


def queued(options: dict[str, Any]) -> str:
    """A program that submits a job, says its number, and waits for it."""
    logs = str(options["log_dir"])
    return QUEUED.format(meshes={"trainers": 2}, logs=logs, env=options["env"])


def test_a_job_that_waits_for_too_long_is_given_up(
    cluster: slurm.Cluster, options: dict[str, Any]
) -> None:
    blocker = slurm.Blocker(cluster)
    job = SlurmJob({"trainers": 1}, job_start_timeout=0.5, **options)
    with pytest.raises(JobError, match=r"pending \(.*\), and job_start_timeout=0.5 s is over"):
        job.state(None)
    assert not job.active
    blocker.end()


def test_a_preempted_job_ends_in_an_error_that_says_so(
    cluster: slurm.Cluster, options: dict[str, Any]
) -> None:
    job = SlurmJob({"trainers": 1}, partition="cheap", **options)
    job.apply()
    cluster.wait_for(lambda: bool(job.pids), "workers have not reported")
    blocker = slurm.Blocker(cluster)
    cluster.wait_for_state(job.slurm_job_id, "PREEMPTED")
    with pytest.raises(JobError, match=r"PREEMPTED.*preempted by a job of higher priority"):
        job.state(None)
    blocker.end()


@pytest.mark.parametrize(
    ("how", "partition", "said"),
    [
        ("cancelled", "main", r"has ended \(CANCELLED.*was cancelled"),
        ("preempted", "cheap", r"has ended \(PREEMPTED.*job of higher priority"),
        ("preempted with a grace", "graced", r"has ended \(PREEMPTED.*job of higher priority"),
    ],
)
def test_ranks_of_a_job_that_ends_have_the_time_of_slurm_to_save_their_work(
    cluster: slurm.Cluster, options: dict[str, Any], tmp_path: Path, gate: GateKeeper, faults: Any,
    caplog: pytest.LogCaptureFixture, how: str, partition: str, said: str,
) -> None:  # fmt: skip
    saved = tmp_path / "saved"
    saved.mkdir()
    job = SlurmJob({"trainers": 2}, partition=partition, **options)
    procs = job.state(None).trainers.spawn_procs({"gpus": 1})
    call = procs.spawn("teller", Teller).save_at_sigterm.call(str(saved), gate.gate)
    gate.wait_entered(2)
    gate.open(2)
    blocker: list[slurm.Blocker] = []
    if how == "cancelled":
        cluster.command("scancel", str(job.slurm_job_id))
    else:
        blocks = threading.Thread(target=lambda: blocker.append(slurm.Blocker(cluster)))
        blocks.start()
    gate.wait_entered(2)
    gate.open(4)  # both steps of both ranks
    with pytest.raises(SupervisionError, match="SystemExit: 0"):
        call.get(timeout=slurm.PATIENCE_S)
    cluster.wait_for(lambda: re.search(said, caplog.text) is not None, "nothing was said")
    assert sorted(path.name for path in saved.iterdir()) == [
        "n0 step 0", "n0 step 1", "n1 step 0", "n1 step 1",
    ]  # fmt: skip
    with pytest.raises(JobError, match=said):
        job.state(None)
    if how != "cancelled":
        blocks.join()
        blocker[0].end()


def test_a_job_that_reaches_its_time_limit_ends_in_an_error_that_says_so(
    cluster: slurm.Cluster, options: dict[str, Any]
) -> None:
    job = SlurmJob({"trainers": 1}, time_limit="00:01:00", **options)
    job.apply()
    cluster.wait_for(lambda: bool(job.pids), "workers have not reported")
    cluster.command("scontrol", "update", f"JobId={job.slurm_job_id}", "EndTime=now")
    cluster.wait_for_state(job.slurm_job_id, "TIMEOUT")
    with pytest.raises(JobError, match=r"TIMEOUT.*time limit; give a longer time_limit"):
        job.state(None)


def test_a_job_whose_node_fails_ends_in_an_error_that_says_so(
    cluster: slurm.Cluster, options: dict[str, Any]
) -> None:
    job = SlurmJob({"trainers": 2}, **options)
    job.apply()
    cluster.wait_for(lambda: bool(job.pids), "workers have not reported")
    cluster.kill_node("n1")
    try:
        cluster.wait_for_state(job.slurm_job_id, "NODE_FAIL")
        with pytest.raises(JobError, match=r"NODE_FAIL.*one of its nodes has failed"):
            job.state(None)
    finally:
        cluster.start_node("n1")
    cluster.wait_for(cluster.is_idle, "the node does not come back")
    cluster.wait_for(lambda: not slurm.of_jobs(), "the node does not end what it had")


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def directory(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a module of job objects."""
    monkeypatch.chdir(tmp_path)
    options = {**options, "log_dir": str(options["log_dir"])}
    (tmp_path / "jobs.py").write_text(
        f"from monarch.job import SlurmJob\ntraining = SlurmJob({{'trainers': 2}}, **{options!r})\n"
    )
    return tmp_path


def test_apply_shows_what_the_job_waits_for_and_then_its_hosts(
    cluster: slurm.Cluster, directory: Path
) -> None:
    blocker = slurm.Blocker(cluster)
    with terminal(["-m", "monarch", "apply", "jobs.training"]) as screen:
        screen.expect(r"Slurm job \d+: pending \((Resources|Priority)\), \d+ s")
        blocker.end()
        screen.expect(r"context default: reserved these hosts")
        screen.expect(r"trainers\[0\] +process \d+ on n0")
        screen.expect(r"trainers\[1\] +process \d+ on n1")
    assert monarch("kill")[0] == 0


def test_an_interrupted_apply_leaves_no_job(cluster: slurm.Cluster, directory: Path) -> None:
    blocker = slurm.Blocker(cluster)
    with terminal(["-m", "monarch", "apply", "jobs.training"]) as screen:
        screen.expect(r"Slurm job \d+: pending")
        screen.type("\x03")
        screen.expect(r"monarch apply: interrupted; the job was ended")
    blocker.end()


def test_a_job_that_is_held_is_refused_with_the_remedy(
    cluster: slurm.Cluster, options: dict[str, Any]
) -> None:
    job = SlurmJob({"trainers": 1}, slurm_args=["--hold"], **options)
    with pytest.raises(JobError, match=r"cannot run \(JobHeldUser\): .*leave --hold out"):
        job.state(None)
    assert not job.active


# --- what cannot be -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"partition": "none"}, r"refused the job: .*partition.*`sinfo` lists the partitions"),
        ({"partition": "paid", "account": "me"}, r"refused the job: .*ccount.*give an account="),
        ({"mem": "9999999G"}, r"refused the job: .*`sinfo"),
        ({"meshes": {"trainers": 9}}, r"refused the job: .*`sinfo` lists .*ask for less"),
        ({"slurm_args": ["--no-such"]}, r"refused the job: .*no-such.*an option of slurm_args"),
    ],
)
def test_what_slurm_refuses_is_one_error_with_a_remedy(
    cluster: slurm.Cluster, options: dict[str, Any], wrong: dict[str, Any], why: str
) -> None:
    arguments: dict[str, Any] = {"meshes": {"trainers": 1}, **options, **wrong}
    job = SlurmJob(**arguments)
    with pytest.raises(JobError, match=why):
        job.state(None)
    assert not job.active


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"python_exe": "/no/python"}, r"/no/python: no such program; give python_exe="),
        ({"env": {"PYTHONPATH": "HERE"}}, r"on n0 has no monarch .*pip install monarch-"),
        ({"monarch_port": 1}, r"the worker did not start: .*another program listens there"),
    ],
)
def test_a_node_that_cannot_serve_is_named_with_a_remedy_and_the_job_ends(
    cluster: slurm.Cluster, options: dict[str, Any], tmp_path: Path, wrong: dict[str, Any],
    why: str,
) -> None:  # fmt: skip
    (tmp_path / "monarch").mkdir()
    (tmp_path / "monarch" / "__init__.py").touch()
    if "env" in wrong:
        wrong = {"env": {**options["env"], "PYTHONPATH": str(tmp_path)}}
    with socket.create_server(("", 0)) as taken:
        if "monarch_port" in wrong:
            wrong = {"monarch_port": taken.getsockname()[1]}
        arguments: dict[str, Any] = {"meshes": {"trainers": 1}, **options, **wrong}
        job = SlurmJob(**arguments)
        with pytest.raises(JobError, match=why):
            job.state(None)
    assert not job.active


def test_without_slurm_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobError, match=r"sbatch cannot be run .*on a login host of the cluster"):
        SlurmJob({"trainers": 1}, log_dir=tmp_path).apply()
    assert slurm.of_jobs() == []


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        ({"meshes": {}}, ValueError, "has no mesh"),
        ({"meshes": {"a b": 1}}, ValueError, "cannot name"),
        ({"meshes": {"a": 0}}, ValueError, "a mesh has 1 or more"),
        ({"meshes": {"a": 1}, "mem": 7}, TypeError, r"wrong type: .*mem"),
        ({"meshes": {"a": 1}, "slurm_args": "-C x"}, TypeError, "give a list"),
        ({"meshes": {"a": 1}, "monarch_port": 70000}, ValueError, "not a port"),
        ({"meshes": {"a": 1}, "attach_to": "tcp://h:1"}, ValueError, "out_of_cluster=True"),
        ({"meshes": {"a": 1}, "time_limit": "1h"}, ValueError, "write HH:MM:SS"),
    ],
)
def test_what_cannot_be_a_job_is_refused(
    arguments: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        SlurmJob(**arguments)
