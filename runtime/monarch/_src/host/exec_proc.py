"""A proc that is executed and not forked: runs its command, and begins the proc at its end.

Runs in: `execute` in a fork of the zygote, which becomes the command; then the programs of that
command; `take_boot` in the last of them, a Python (`programs.executed_proc`), as the proc.
Invariants: the programs in between pass on their environment. The variables of this module, and
the PYTHONPATH that finds this package, are removed before user code runs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

import msgspec

from monarch._src.host import spawn_spec as wire
from monarch._src.host import workspace_paths
from monarch._src.host.spawn_spec import Boot
from monarch._src.system.process import CHILD_VARIABLE, adopt_orphans
from monarch._src.wire.messages import Command

BOOT_VARIABLE = "MONARCH_BOOT"
LIFELINE_VARIABLE = "MONARCH_LIFELINE"
PYTHON_VARIABLE = "MONARCH_PYTHON_EXECUTABLE"
NO_LIFELINE = -1
Main: TypeAlias = Callable[[Boot, int], int]
_inherited_python = ""


def execute(command: Command, env: dict[str, str | None], boot: Boot, lifeline: int) -> NoReturn:
    """Become that command; `env` has the changes of the mesh to the environment."""
    changes: dict[str, str | None] = {**env, **command.env}
    full = dict(os.environ) if command.inherit_env else {}
    for name, value in changes.items():
        if value is None:
            full.pop(name, None)
        else:
            full[name] = value
    # Paths that the user names come first; inherited ones are in the client's path already.
    named = (changes.get("PYTHONPATH") or "").split(os.pathsep)
    path = [p for p in dict.fromkeys([*named, *boot.spec.path]) if p]
    boot = msgspec.structs.replace(boot, path=path, python_path=full.get("PYTHONPATH"))
    full["PYTHONPATH"] = os.pathsep.join(path)
    full[BOOT_VARIABLE] = wire.encode_boot(boot)
    os.set_inheritable(lifeline, True)
    full[LIFELINE_VARIABLE] = f"{lifeline}:{os.fstat(lifeline).st_ino}"
    os.execve(command.program, [command.arg0 or command.program, *command.args], full)


def take_boot() -> tuple[Boot, int]:
    """The parameters of this proc, and its lifeline, out of the environment of the command.

    From here on the environment is that of user code.
    """
    if BOOT_VARIABLE not in os.environ:
        raise SystemExit(
            f"{BOOT_VARIABLE} is not set. This program is a process of a mesh and is started by "
            "spawn_procs; a bootstrap_command has to pass on the environment that it is given"
        )
    boot = wire.decode_boot(os.environ.pop(BOOT_VARIABLE))
    lifeline = _lifeline(os.environ.pop(LIFELINE_VARIABLE, ""))
    global _inherited_python
    _inherited_python = os.environ.pop(PYTHON_VARIABLE, "")
    if os.environ.get("PYTHONPATH") == os.pathsep.join(boot.path):
        if boot.python_path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = boot.python_path
    return boot, lifeline


def inherited_python() -> str:
    """The interpreter set by `with_python_executable` for the hosts of this proc; empty if none.

    Processes that this proc spawns on its own host use the same interpreter.
    """
    return _inherited_python


def prepared(entry: str) -> Main:
    """Call the entry point, whose result runs a proc: the work that all procs share.

    From here on stdout and stderr of this process behave as those of procs.
    """
    faulthandler.enable(2, all_threads=False)  # a crash of C code leaves its stack on stderr
    module, _, function = entry.partition(":")
    return getattr(importlib.import_module(module), function)()


def begin(boot: Boot, lifeline: int, main: Main | None = None) -> int:
    """In any proc: enter the client's working directory and run the proc; returns the exit status.

    `main` is the result of `prepared` in the zygote, for its forks.
    """
    spec = boot.spec
    os.environ[CHILD_VARIABLE] = spec.directory
    sys.path[:] = import_path(boot.path or spec.path, sys.path)
    adopt_orphans()
    cwd, copy = spec.cwd, workspace_paths.workspace_paths(spec.directory)
    if copy is not None:
        workspace_paths.enter(copy)
        cwd = copy.here(cwd)
    if cwd:
        try:
            os.chdir(cwd)
        except OSError as error:
            sys.stderr.write(f"monarch: could not enter {cwd}: {error.strerror}\n")
    if boot.affinity:
        _bind(boot.affinity)
    _as_after_own_imports()
    return (main or prepared(spec.entry))(boot, lifeline)


def import_path(client: list[str], own: list[str]) -> list[str]:
    """The import path of a proc: the client's, then that of its own Python."""
    return client + [p for p in own if p not in client]


def _as_after_own_imports() -> None:
    """Set what modules have taken from the zygote as they were imported there.

    Forks of one process would draw the same numbers. `random` reseeds itself in a fork, and the
    generators of devices begin with the same seed in every process.
    """
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    processes: Any = sys.modules.get("multiprocessing.process")
    if processes is not None:
        with contextlib.suppress(FileNotFoundError):  # the working directory was removed
            processes.ORIGINAL_DIR = os.getcwd()
        processes.current_process().authkey = os.urandom(32)


def _bind(cpus: list[int]) -> None:
    if sys.platform != "linux":
        raise SystemExit("monarch: this system cannot bind a process to cpus")
    wanted = set(cpus)
    try:
        os.sched_setaffinity(0, wanted)
        given = os.sched_getaffinity(0)
    except OSError:
        given = set[int]()
    if given != wanted:  # the kernel silently drops cpus outside the cpuset
        raise SystemExit(
            f"monarch: proc_bind asks for cpus {sorted(wanted)}, of which this process may use "
            f"{sorted(given & wanted) or 'none'}: its cpuset (container, batch system) rules"
        )


def _lifeline(text: str) -> int:
    """The descriptor that ends with the zygote, unless a program in between has closed it."""
    fd, _, inode = text.partition(":")
    try:
        if os.fstat(int(fd)).st_ino != int(inode):
            return NO_LIFELINE
        os.set_inheritable(int(fd), False)
    except (ValueError, OSError):
        return NO_LIFELINE
    return int(fd)
