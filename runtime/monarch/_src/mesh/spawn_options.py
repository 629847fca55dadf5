"""The options of `spawn_procs`, checked and resolved for each rank.

Runs in: the process that spawns, before it sends anything, so that errors are raised there.
"""

from __future__ import annotations

import inspect
import os
import shutil
import site
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from monarch._src.actor.call.pickling_errors import as_refusal
from monarch._src.actor.serialize import pack_value
from monarch._src.host.exec_proc import PYTHON_VARIABLE
from monarch._src.shape import Extent, Point
from monarch._src.system.hardware import (
    CUDA,
    list_text,
    nvidia_devices,
    online_cpus,
    online_nodes,
    parse_cpu_list,
)
from monarch._src.system.main_programs import EXECUTED_PROC
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Command, SpawnProcs

T = TypeVar("T")
PerRank: TypeAlias = "T | Callable[[Point], T]"
BootstrapFunction: TypeAlias = "Callable[[], None] | Callable[[], Awaitable[None]]"

MOST_PROCS = 1 << 16
_NUMACTL = ("cpunodebind", "membind", "physcpubind")
# The interpreter, the loader and the allocator read these once, as a program begins.
_READ_AT_START = ("PYTHON", "LD_", "DYLD_", "MALLOC_", "GLIBC_TUNABLES")


@dataclass
class BootstrapCommand:
    """A command that starts a process, in place of a fork of a Python that stands ready.

    It must end, in its own process or a child, by running the program and arguments of
    `default_bootstrap_cmd()`, and must pass on the environment that it is given. `program` is
    looked up on PATH; `arg0` is the program's own name (`argv[0]`). `env` is added to the inherited
    environment and to the `env` of `spawn_procs`; None removes a variable. Without `inherit_env`
    nothing of the host agent's environment is inherited. Variables that the runtime needs are
    always set.

    Raises:
        TypeError: a field of the wrong type.
    """

    program: str
    arg0: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])
    inherit_env: bool = True

    def __post_init__(self) -> None:
        self.check()

    def with_env(self, env: Mapping[str, str | None]) -> BootstrapCommand:
        """A copy with these variables added; None removes a variable."""
        return replace(self, env={**self.env, **env})

    def check(self) -> None:
        """Raise TypeError if a field has the wrong type. Fields may have been assigned since."""
        args = cast(Any, self.args)
        if isinstance(args, str) or not all(isinstance(a, str) for a in args):
            raise TypeError(f"args={args!r}: give a list of texts")
        if not _is_text(self.program) or not (self.arg0 is None or _is_text(self.arg0)):
            raise TypeError(f"program={self.program!r}, arg0={self.arg0!r}: names are text")
        _check_env(self.env, "env of a BootstrapCommand", removes=True)


def default_bootstrap_cmd() -> BootstrapCommand:
    """The command that processes run by default, to put behind another command or to change."""
    return BootstrapCommand(sys.executable, None, ["-m", EXECUTED_PROC], {})


# --- dims -----------------------------------------------------------------------------------------


def checked_dims(per_host: Mapping[str, int]) -> Extent:
    """The dims and sizes of the processes of one host.

    Raises:
        ValueError: a dim that is no identifier, a size below 1, or too many processes.
        TypeError: not a mapping, or a size that is not a whole number.
    """
    if not isinstance(per_host, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f'per_host={per_host!r}: give dims and sizes, as in {{"gpus": 8}}')
    count = 1
    for dim, size in per_host.items():
        if not isinstance(dim, str) or not dim.isidentifier():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"{dim!r} cannot name a dim; use a Python identifier, such as gpus")
        if not isinstance(size, int) or isinstance(size, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{dim}={size!r}: give a whole number of processes")
        if size < 1:
            raise ValueError(f"{dim}={size}: a mesh needs at least one process in each dim")
        count *= size
    if count > MOST_PROCS:
        raise ValueError(f"{count} processes on one host; the most is {MOST_PROCS}")
    return Extent(tuple(per_host), tuple(per_host.values()))


# --- bootstrap ------------------------------------------------------------------------------------


def bootstrap_payload(function: BootstrapFunction) -> Payload:
    """The bootstrap function, pickled.

    Raises:
        TypeError: it is not a function without arguments, or cannot be pickled.
    """
    if inspect.iscoroutine(function) or not callable(function):
        raise TypeError(f"bootstrap={function!r}: give a function, not what it returns")
    try:
        inspect.signature(function).bind()
    except ValueError:
        pass  # some extension types have no signature; the call itself checks
    except TypeError as error:
        raise TypeError(f"bootstrap={function!r} is called without arguments: {error}") from None
    try:
        return pack_value(function)
    except Exception as error:
        name = getattr(function, "__qualname__", function)
        said = f"the bootstrap function {name} cannot be sent to another process: {error}"
        raise as_refusal(said, error) from error


# --- environment ----------------------------------------------------------------------------------


def env_for(
    env: PerRank[Mapping[str, str]] | None, extent: Extent, *, elsewhere: bool = False
) -> list[dict[str, str]]:
    """Variables to add to the environment: one dict for all ranks, one for each, or none.

    `elsewhere`: the processes are on other hosts, whose agents assign the devices.
    """
    devices = [] if elsewhere else _own_devices(extent)
    if callable(env):
        asked = [_check_env(env(p), f"env of rank {p.rank}") for p in extent.points()]
    elif env is not None or devices:
        asked = [_check_env(env or {}, "env")]
    else:
        return []
    if not devices:
        return asked
    if len(asked) == 1:
        asked *= len(devices)
    return [{CUDA: own, **added} for own, added in zip(devices, asked, strict=True)]


def _own_devices(extent: Extent) -> list[str]:
    """The CUDA device of each rank, if there is an obvious choice."""
    if tuple(extent.labels) != ("gpus",) or CUDA in os.environ:
        return []
    count = extent.nelements
    return [str(rank) for rank in range(count)] if count <= nvidia_devices() else []


def _check_env(env: Any, what: str, *, removes: bool = False) -> dict[str, Any]:
    if not isinstance(env, Mapping):
        raise TypeError(f"{what} is {env!r}: give a mapping of names to values")
    for key, value in cast("Mapping[Any, Any]", env).items():
        fits = _is_text(value) or (removes and value is None)
        if not _is_text(key) or not fits or not key or "=" in key or "\0" in f"{key}{value}":
            raise TypeError(
                f"{what} {key!r}={value!r}: names and values are text, names without '=', and "
                "neither has a zero byte"
            )
    return dict(cast("Mapping[str, Any]", env))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


# --- binding --------------------------------------------------------------------------------------


def proc_bind_for(
    proc_bind: Sequence[Mapping[str, str]] | None, extent: Extent, *, elsewhere: bool = False
) -> tuple[list[list[int]], list[list[str]]]:
    """The cpus of each rank, and the `numactl` command of each rank; [] if no rank has any.

    `extent`: the processes of one host. `elsewhere`: they are on other hosts, which check whether
    the cpus and nodes exist.

    Raises:
        ValueError: the wrong number of entries, an unknown key, a cpu or node that does not exist,
            or no `numactl`; the text has the rank and key.
        TypeError: a value that is not text, or not a list of dicts.
    """
    if proc_bind is None:
        return [], []
    asked: Any = proc_bind
    if not isinstance(asked, Sequence) or not all(isinstance(one, Mapping) for one in asked):  # pyright: ignore[reportUnknownVariableType]
        raise TypeError(
            f'proc_bind={asked!r}: give a list of a dict for each process, as [{{"cpus": "0-3"}}]'
        )
    if len(proc_bind) != extent.nelements:
        raise ValueError(
            f"proc_bind has {len(proc_bind)} entries for {extent.nelements} processes; "
            "give one for each"
        )
    cpus = [_cpus(rank, asked, elsewhere) for rank, asked in enumerate(proc_bind)]
    numactl = [_numactl(rank, asked, elsewhere) for rank, asked in enumerate(proc_bind)]
    return (cpus if any(cpus) else []), (numactl if any(numactl) else [])


def _cpus(rank: int, asked: Mapping[str, str], elsewhere: bool) -> list[int]:
    for key, value in asked.items():
        if key != "cpus" and key not in _NUMACTL:
            known = ", ".join(("cpus", *_NUMACTL))
            raise ValueError(f"proc_bind of rank {rank} has the key {key!r}; there are {known}")
        if not _is_text(value):
            raise TypeError(f'proc_bind of rank {rank}: {key}={value!r}; give text such as "0-3,8"')
    if "cpus" not in asked:
        return []
    if not hasattr(os, "sched_setaffinity"):
        raise ValueError(f"proc_bind of rank {rank}: this system cannot bind to cpus")
    there = None if elsewhere else online_cpus()
    return _existing(rank, "cpus", asked["cpus"], there, "cpu")


def _numactl(rank: int, asked: Mapping[str, str], elsewhere: bool) -> list[str]:
    options: list[str] = []
    for key in _NUMACTL:
        if key not in asked:
            continue
        value = asked[key]
        # numactl accepts more than numbers (all, +0-1, !0, netdev:eth0), and checks those itself.
        if not value.strip() or value.strip()[0].isdigit():
            of_cpus = key == "physcpubind"
            there = None if elsewhere else online_cpus() if of_cpus else online_nodes()
            _existing(rank, key, value, there, "cpu" if of_cpus else "memory node")
        options.append(f"--{key}={value}")
    if not options:
        return []
    program = "/usr/bin/numactl" if elsewhere else shutil.which("numactl")
    if program is None:
        key = next(key for key in _NUMACTL if key in asked)
        raise ValueError(
            f"proc_bind of rank {rank}: {key!r} needs the program numactl, which is not on PATH; "
            "install it (`apt install numactl`, `dnf install numactl`), or bind by 'cpus'"
        )
    return [os.path.abspath(program), *options, "--"]


def _existing(rank: int, key: str, text: str, there: list[int] | None, what: str) -> list[int]:
    try:
        numbers = parse_cpu_list(text)
    except ValueError as error:
        raise ValueError(f"proc_bind of rank {rank}: {key}: {error}") from None
    missing = sorted(set(numbers) - set(numbers if there is None else there))
    if missing:
        raise ValueError(
            f"proc_bind of rank {rank}: {key}={text!r}: this host has no {what} "
            f"{list_text(missing)}; it has {list_text(there or [])}"
        )
    return numbers


# --- commands -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """The command of a rank. `program` is the one that the user named, without numactl."""

    command: Command
    program: str


def commands_for(
    asked: PerRank[BootstrapCommand] | None,
    python: str,
    env: Sequence[Mapping[str, str | None]],
    numactl: list[list[str]],
    extent: Extent,
    *,
    elsewhere: bool = False,
) -> list[Launch | None]:
    """The commands to execute: one for all ranks, one for each, or none; None means fork.

    `python` is an interpreter to take where no command is `asked` for. `elsewhere`: the processes
    are on other hosts, where programs are looked up and whose Python runs.

    Raises:
        ValueError: a program that does not exist.
        TypeError: not a BootstrapCommand.
    """
    alike = len(env) <= 1 and not numactl and not callable(asked)
    found: list[Launch | None] = []
    for point in [None] if alike else extent.points():
        rank = 0 if point is None else point.rank
        # With a function there is a point for every rank.
        command: Any = asked(point) if callable(asked) and point is not None else asked
        before = numactl[rank] if numactl else []
        added: Mapping[str, str | None] = env[rank if len(env) > 1 else 0] if env else {}
        if asked is not None:
            command = _checked_command(command, rank, elsewhere)
        elif python:
            own = {PYTHON_VARIABLE: python}
            command = replace(default_bootstrap_cmd(), program=python, env=own)
        elif before or any(name.startswith(_READ_AT_START) for name in added):
            command = default_bootstrap_cmd()
        found.append(None if command is None else _launch(command, before, rank))
    if elsewhere:
        found = [None if one is None else _there(one) for one in found]
    return found if any(found) else []


def _there(launch: Launch) -> Launch:
    """The same command for another host, where this Python is that host's own."""
    command = launch.command
    if command.program == sys.executable:
        return replace(launch, command=msgspec.structs.replace(command, program=""))
    return launch


def is_this_python(program: str) -> bool:
    """Whether a program is the interpreter that runs this process."""
    return os.path.realpath(program) == os.path.realpath(sys.executable)


def _checked_command(command: Any, rank: int, elsewhere: bool) -> BootstrapCommand:
    if not isinstance(command, BootstrapCommand):
        raise TypeError(f"bootstrap_command of rank {rank} is {command!r}, no BootstrapCommand")
    command.check()
    if elsewhere:
        return command
    program = shutil.which(command.program)
    if program is None:
        raise ValueError(
            f"bootstrap_command of rank {rank}: {command.program!r} is no program that can be "
            "executed, neither as a path nor on PATH"
        )
    arg0 = command.program if command.arg0 is None else command.arg0
    return replace(command, program=os.path.abspath(program), arg0=arg0)


def _launch(command: BootstrapCommand, numactl: list[str], rank: int) -> Launch:
    program, arg0, args = command.program, command.arg0, list(command.args)
    if numactl:
        if arg0 is not None and shutil.which(arg0) != program and arg0 != program:
            raise ValueError(
                f"rank {rank}: a bootstrap_command with arg0={arg0!r} cannot be started by "
                "numactl, which names programs by their path; leave out one of the two"
            )
        program, arg0, args = numactl[0], None, [*numactl[1:], program, *args]
    full = Command(program, arg0, args, dict(command.env), command.inherit_env)
    return Launch(full, command.program)


# --- directories ----------------------------------------------------------------------------------


def working_directory() -> str:
    """The working directory of this process; the root directory if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def clients_path(same_python: bool) -> list[str]:
    """The directories that this process imports from, so that procs find the same modules.

    `same_python`: the procs run in the interpreter of this process, and share its library.
    """
    path = _absolute(working_directory(), tuple(sys.path))
    if not same_python:
        # Another interpreter has its own library, and a command may start another interpreter.
        owned = {os.path.dirname(os.__file__), *site.getsitepackages()}
        zipped = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
        path = [
            p
            for p in path
            if os.path.basename(p) != zipped
            and not any(p == o or p.startswith(o + os.sep) for o in owned)
        ]
    return list(dict.fromkeys(path))


@lru_cache(maxsize=1)
def _absolute(here: str, path: tuple[str, ...]) -> list[str]:
    return [os.path.abspath(os.path.join(here, p)) for p in path]


# --- hosts ----------------------------------------------------------------------------------------


def requests_by_site(spec: SpawnProcs) -> Iterator[tuple[str, SpawnProcs]]:
    """The part of the request for each host, with the host's site."""
    if not spec.sites:
        yield "", spec
        return
    count = spec.ranks // len(spec.sites)
    for at, place in enumerate(spec.sites):
        block = slice(at * count, (at + 1) * count)
        yield place, msgspec.structs.replace(
            spec, first=at * count, count=count, env=_of_block(spec.env, block),
            commands=_of_block(spec.commands, block), affinity=_of_block(spec.affinity, block),
        )  # fmt: skip


def _of_block(options: list[T], block: slice) -> list[T]:
    """The options of a block of ranks. A single option applies to all ranks, and stays."""
    return options if len(options) < 2 else options[block]
