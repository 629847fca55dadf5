"""Checks this machine for everything that Monarch uses, and gives remedies."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from monarch._src.config import from_environment, settings
from monarch._src.install_check import REMEDY, rival_install
from monarch._src.net import session_directory as sessions
from monarch._src.net.observer import ask_agents
from monarch._src.observe.stacks.py_spy import INSTALL, find_py_spy
from monarch._src.rdma.cuda.driver import NoGpuError, load
from monarch._src.rdma.transports.cma import works_here
from monarch._src.rdma.verbs import sysfs
from monarch._src.system.process import pidfd
from monarch._src.version import VERSION
from monarch._src.wire.messages import Snapshotted

_FDS_PER_PROC = 3
_ANSWER_S = 2.0  # how long an agent may take to answer


@dataclass(frozen=True)
class Finding:
    """One check. `missing` limits the features; a `problem` breaks one."""

    name: str
    status: Literal["ok", "missing", "problem"]
    detail: str
    remedy: str | None = None


def doctor() -> list[Finding]:
    """Check this machine and this installation; takes seconds at most."""
    return [check() for check in _CHECKS]


def _python() -> Finding:
    found = (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}"
    )
    return Finding("python", "ok", found)


def _monarch() -> Finding:
    rival = rival_install()
    if rival is not None:
        return Finding("monarch", "problem", f"torchmonarch is installed too ({rival})", REMEDY)
    return Finding("monarch", "ok", f"monarch-jupyter {VERSION}")


def _settings() -> Finding:
    try:
        settings()
    except (TypeError, ValueError) as error:
        return Finding("settings", "problem", f"{error}", "correct it, or unset the variable")
    given = from_environment()
    text = f"the environment sets {', '.join(given)}" if given else "the environment sets none"
    return Finding("settings", "ok", text)


def _imports() -> Finding:
    """Libraries with which the processes of living sessions cannot be forked."""
    living = [one for one in sessions.find(sessions.search_path()) if sessions.is_held(one)]
    found: dict[str, str] = {}
    for answer in ask_agents(living, _ANSWER_S):
        if isinstance(answer, Snapshotted):
            found.update(answer.given_up)
    if not found:
        return Finding("shared imports", "ok", "ranks are forked with what the client has imported")
    text = "; ".join(f"{module}: {why}" for module, why in found.items())
    return Finding(
        "shared imports", "missing", f"ranks import these for themselves: {text}",
        "nothing to do, unless their start is slow: name in `preload` what to import once",
    )  # fmt: skip


def _directory() -> Finding:
    try:
        base = sessions.base_directory()
    except OSError as error:
        return Finding("session directory", "problem", str(error), "set TMPDIR to a short path")
    return Finding("session directory", "ok", f"sockets go to private directories under {base}")


def _descriptors() -> Finding:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        return Finding("open files", "ok", "no limit")
    most = max(0, hard - 64) // _FDS_PER_PROC
    text = f"the hard limit of {hard} is enough for about {most} procs"
    if most < 256:
        return Finding("open files", "problem", text, "raise it (`ulimit -Hn`, limits.conf)")
    return Finding("open files", "ok", text)


def _cores() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding("processors", "ok", f"{usable} usable of {os.cpu_count()}")


def _numactl() -> Finding:
    program = shutil.which("numactl")
    if program is None:
        detail = "proc_bind by memory nodes and physical cpus needs numactl; by cpus it does not"
        return Finding("numactl", "missing", detail, "apt install numactl, dnf install numactl")
    return Finding("numactl", "ok", program)


def _death_notice() -> Finding:
    fd = pidfd(os.getpid())
    if fd is None:
        return Finding(
            "death notices", "missing",
            "no pidfd here; the end of the client or the agent is noticed within half a second",
        )  # fmt: skip
    os.close(fd)
    return Finding("death notices", "ok", "pidfd: the end of a process is noticed at once")


def _cuda() -> Finding:
    devices = [name for name in _listed("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
    if not devices:
        return Finding("gpus", "missing", "no NVIDIA device nodes; procs run on the processor")
    return Finding("gpus", "ok", f"{len(devices)} NVIDIA device nodes")


def _gpu_memory() -> Finding:
    """Finds the driver without initializing it, since this process may fork later."""
    what = "gpu memory"
    try:
        load()
    except NoGpuError as error:
        return Finding(what, "missing", f"RDMABuffers are of memory of the CPU: {error}")
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if "expandable_segments:True" in os.environ.get(name, ""):
            detail = f"RDMABuffers go over TCP: {name} has expandable_segments:True"
            return Finding(what, "missing", detail, f"{name}=expandable_segments:False")
    detail = "RDMABuffers: cuda_ipc between processes of this host, through pinned memory elsewhere"
    return Finding(what, "ok", detail)


def _rdma() -> Finding:
    place, reason, remedy = sysfs.usable_here()
    if place is None:
        return Finding("rdma", "missing", reason, remedy or None)
    try:
        disabled = settings().rdma_disable_ibverbs
    except (TypeError, ValueError):
        disabled = False  # `_settings` reports it
    if disabled:
        return Finding("rdma", "missing", f"{place.text}: rdma_disable_ibverbs is True")
    return Finding("rdma", "ok", f"RDMABuffers can go over {place.text}")


def _bulk() -> Finding:
    why = works_here()
    if why is not None:
        detail = f"RDMABuffers go over TCP between processes: {why[0]}"
        return Finding("bulk data", "missing", detail, why[1] or None)
    detail = "RDMABuffers: cma between processes of one user, shm for what shared_empty allocates"
    return Finding("bulk data", "ok", detail)


def _listed(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _stacks() -> Finding:
    program = find_py_spy()
    if program is None:
        what = "py-spy is not installed: `monarch stacks` cannot read ranks"
        return Finding("stacks", "missing", what, INSTALL)
    try:
        allowed = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text()) < 2
    except (OSError, ValueError):
        allowed = True  # a kernel without Yama has no such limit
    if not allowed:
        what = "this kernel forbids reading other processes (kernel.yama.ptrace_scope)"
        return Finding("stacks", "problem", what, "sysctl kernel.yama.ptrace_scope=1")
    return Finding("stacks", "ok", f"{program}")


def _package(name: str, module: str, extra: str, what: str) -> Callable[[], Finding]:
    def check() -> Finding:
        if importlib.util.find_spec(module) is None:
            return Finding(name, "missing", what, f"pip install 'monarch-jupyter[{extra}]'")
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = "of unknown version"
        return Finding(name, "ok", f"{name} {version}")

    return check


_CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _monarch,
    _settings,
    _imports,
    _directory,
    _descriptors,
    _cores,
    _numactl,
    _death_notice,
    _cuda,
    _bulk,
    _gpu_memory,
    _rdma,
    _package("torch", "torch", "torch", "tensors and training need it; actors do not"),
    _package(
        "jupyterlab", "jupyterlab", "lab", "the side panel needs it; magics and widgets do not"
    ),
    _stacks,
    _package("debugpy", "debugpy", "debug", "the graphical debugger needs it"),
    _package("duckdb", "duckdb", "sql", "`monarch query` and `%%monarch sql` need it"),
)
