"""A real Slurm on this machine: Debian's slurmctld, with several slurmd and a munged of its own.

Runs in: the process of pytest, as root. Owns: the daemons, in a directory of its own; nothing
under /etc or /run is touched. Each slurmd is a node of its own: on this host, or each on a host of
`tests.netns`, with slurmctld on another one.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

from monarch._src.job.launchers import local_workers
from monarch._src.net import session_directory as sessions
from monarch.actor import shutdown_context
from tests import netns
from tests.leaks import TOKEN_VARIABLE

PATIENCE_S = 90.0
DAEMONS = ("munged", "slurmctld", "slurmd")
NODES, GPUS = 3, 2


@cache
def why_not() -> str:
    """Why there can be no Slurm here; empty if there can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    missing = [name for name in (*DAEMONS, "sbatch", "srun") if not shutil.which(name, path=path)]
    if missing:
        return f"a Slurm of the test's own needs {', '.join(missing)} (slurmctld, slurmd, munge)"
    if os.geteuid() != 0:
        return "a Slurm of the test's own needs root"
    return ""


class Cluster:
    """Nodes n0, n1, ... in the partition `main`, and others in smaller ones.

    `cheap` is preempted by `main`, and so is `graced`, after a minute; `paid` takes jobs of the
    account `payers` alone.

    `hosts`: n0 is h1, n1 is h2, ...; the host after the last node has slurmctld, and the commands
    run there. None: all of them are this host.
    """

    def __init__(self, folder: Path, nodes: int = NODES, hosts: netns.Hosts | None = None) -> None:
        self.folder = folder
        self._hosts = hosts
        self.nodes = [f"n{number}" for number in range(nodes)]
        self.conf = folder / "etc" / "slurm.conf"
        self._running: list[Path] = []

    def up(self) -> None:
        """Start the daemons, and wait until each node is idle."""
        for name in ("etc", "run", "log", "state", *(f"spool/{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for path in (self.folder, self.folder / "run"):
            path.chmod(0o755)
        self._configure()
        self._munge()
        self._daemon(*self.at_login("slurmctld", "-f", str(self.conf), "-c"), pid="slurmctld")
        for node in self.nodes:
            self.start_node(node)
        self.wait_for(self.is_idle, "the nodes are not idle")

    def down(self) -> None:
        """Cancel every job, and stop the daemons."""
        self.cancel_all()
        while self._running:
            _end(self._running.pop())

    def cancel_all(self) -> None:
        """Cancel every job, and wait until none holds a node."""
        self.command("scancel", "--user=root")
        self.wait_for(lambda: not self.jobs(), "jobs do not end")

    def jobs(self) -> list[str]:
        """The jobs that wait, run or end."""
        return self.command("squeue", "--noheader", "--format=%i").split()

    def command(self, *words: str) -> str:
        """What a command of Slurm prints."""
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        done = subprocess.run(
            self.at_login(*words), env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def kill_node(self, node: str) -> None:
        """Kill the slurmd of a node, as if the machine had failed."""
        path = self.folder / "run" / f"slurmd-{node}.pid"
        self._running.remove(path)
        pid = int(path.read_text())
        os.kill(pid, signal.SIGKILL)
        path.unlink()

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node."""
        words = ("slurmd", "-f", str(self.conf), "-N", node)
        if self._hosts is not None:
            words = self._hosts.machine(self._number_of(node), *words)
        self._daemon(*words, pid=f"slurmd-{node}")

    @property
    def login(self) -> int:
        """The number of the host that has slurmctld, if nodes are hosts of their own."""
        return len(self.nodes) + 1

    def at_login(self, *words: str) -> list[str]:
        """The command line that runs a command where slurmctld is."""
        return list(words) if self._hosts is None else self._hosts.machine(self.login, *words)

    def _number_of(self, node: str) -> int:
        return self.nodes.index(node) + 1

    def wait_for(self, holds: Callable[[], bool], otherwise: str) -> None:
        """Wait until that holds."""
        until = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < until, f"{otherwise}: {self.logs()}"
            time.sleep(0.1)

    def wait_for_state(self, job: str | None, state: str) -> None:
        """Wait until Slurm says that state of a job."""
        assert job is not None
        words = ("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")
        self.wait_for(lambda: self.command(*words).split() == [state], f"{job} is not {state}")

    def logs(self) -> str:
        """The last lines of each log."""
        found = ""
        for path in sorted((self.folder / "log").iterdir()):
            found += f"\n{path.name}:\n" + "\n".join(path.read_text().splitlines()[-15:])
        return found

    def is_idle(self) -> bool:
        """Whether each node is idle."""
        shown = self.command("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N")
        return set(shown.split()) == set(self.nodes)

    def _daemon(self, *words: str, pid: str) -> None:
        env = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
        env["PATH"] = f"{env.get('PATH', '')}:/usr/sbin"
        log = self.folder / "log" / "started.log"
        with open(log, "ab") as file:
            subprocess.run(
                words, env=env, check=True, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        path = self.folder / "run" / f"{pid}.pid"
        self.wait_for(path.exists, f"{words[0]} has written no {path.name}")
        self._running.append(path)

    def _munge(self) -> None:
        key = self.folder / "etc" / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        run, log = self.folder / "run", self.folder / "log"
        self._daemon(
            "munged", "--force", f"--key-file={key}", f"--socket={run}/munge.sock",
            f"--pid-file={run}/munged.pid", f"--log-file={log}/munged.log",
            f"--seed-file={self.folder}/etc/munge.seed", "--num-threads=2", pid="munged",
        )  # fmt: skip

    def _configure(self) -> None:
        at, control = self._places()
        run, log = self.folder / "run", self.folder / "log"
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={control[0]}({control[1]})",
            f"SlurmctldPort={control[2]}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={run}/munge.sock",
            "CredType=cred/munge",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool/%n",
            f"SlurmctldPidFile={run}/slurmctld.pid",
            f"SlurmdPidFile={run}/slurmd-%n.pid",
            f"SlurmctldLogFile={log}/slurmctld.log",
            f"SlurmdLogFile={log}/slurmd-%n.log",
            # No cgroups, which a container may not have; no accounting, which needs a database.
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "SwitchType=switch/none",
            "MpiDefault=none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "SlurmdParameters=config_overrides",  # the CPUs below, which this machine may not have
            "SchedulerType=sched/backfill",
            "SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=0",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=CANCEL",
            "EnforcePartLimits=ANY",
            "GresTypes=gpu",
            "ReturnToService=2",
            "SlurmdTimeout=10",
            "KillWait=30",
            "MinJobAge=300",
            "PropagateResourceLimits=NONE",
        ]
        for node, (host, address, port) in zip(self.nodes, at, strict=True):
            lines.append(
                f"NodeName={node} NodeHostname={host} NodeAddr={address} Port={port} CPUs=4 "
                f"RealMemory=1000 Gres=gpu:{GPUS} State=UNKNOWN"
            )
        every = ",".join(self.nodes)
        lines += [
            f"PartitionName=main Nodes={every} Default=YES State=UP PriorityTier=5",
            f"PartitionName=cheap Nodes={every} State=UP PriorityTier=1",
            f"PartitionName=graced Nodes={every} State=UP PriorityTier=1 GraceTime=60",
            f"PartitionName=paid Nodes={every} State=UP AllowAccounts=payers",
        ]
        self.conf.write_text("\n".join([*lines, ""]))
        self._configure_gpus()

    def _places(self) -> tuple[list[tuple[str, str, int]], tuple[str, str, int]]:
        """The host name, address and port of each slurmd, and those of slurmctld."""
        if self._hosts is not None:
            found = [(f"h{n}", netns.v4(n), 6818) for n in range(1, self.login)]
            return found, (f"h{self.login}", netns.v4(self.login), 6817)
        host = socket.gethostname().partition(".")[0]
        control, *ports = ((host, "127.0.0.1", port) for port in _free_ports(self.login))
        return ports, control

    def _configure_gpus(self) -> None:
        """GPUs that are null devices: Slurm counts them, and tells tasks which are theirs."""
        lines: list[str] = []
        for node in self.nodes:
            for number in range(GPUS):
                path = self.folder / "etc" / f"{node}-gpu{number}"
                os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
            lines.append(
                f"NodeName={node} Name=gpu File={self.folder}/etc/{node}-gpu[0-{GPUS - 1}]"
            )
        (self.folder / "etc" / "gres.conf").write_text("\n".join([*lines, ""]))


class Blocker:
    """A running job of another program, on every node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._job = cluster.command(
            "sbatch", "--parsable", f"--nodes={len(cluster.nodes)}", "--exclusive",
            "--output=/dev/null", "--wrap=sleep 1000",
        ).strip()  # fmt: skip
        cluster.wait_for_state(self._job, "RUNNING")

    def end(self) -> None:
        """Cancel it; its nodes are free then."""
        self._cluster.command("scancel", self._job)
        self._cluster.wait_for_state(self._job, "CANCELLED")


@contextmanager
def cluster_up(
    folder: Path, nodes: int = NODES, hosts: netns.Hosts | None = None
) -> Generator[Cluster]:
    """A running cluster; nothing of it is left."""
    made = Cluster(folder, nodes, hosts)
    try:
        made.up()
        yield made
        made.cancel_all()  # workers that are killed with their node leave a directory
    finally:
        made.down()


def of_jobs() -> list[Path]:
    """The directories of jobs here: those of workers, and those of keys."""
    return list(sessions.base_directory().glob(f"**/{local_workers.PREFIX}*"))


@contextmanager
def used(cluster: Cluster, patch: pytest.MonkeyPatch) -> Generator[None]:
    """The cluster is that of this process. A test leaves no job there, and no file of one."""
    patch.setenv("SLURM_CONF", str(cluster.conf))
    yield
    shutdown_context(reason="the test has ended")
    left = cluster.jobs()
    cluster.cancel_all()
    files = of_jobs()
    for path in files:  # the next test would find them too
        shutil.rmtree(path, ignore_errors=True)
    assert (left, files) == ([], [])


def environment() -> dict[str, str]:
    """What a worker that Slurm starts has to have, so that the test finds what it leaves."""
    return {"XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"]}


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def _end(path: Path) -> None:
    """End the daemon with that pid file, and wait for it."""
    with suppress(FileNotFoundError, ProcessLookupError, ValueError):
        pid = int(path.read_text())
        fd = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGTERM)
            if not select.select([fd], [], [], PATIENCE_S)[0]:
                os.kill(pid, signal.SIGKILL)
                select.select([fd], [], [], PATIENCE_S)
        finally:
            os.close(fd)
