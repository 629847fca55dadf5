"""What `%monarch spawn` was asked for, checked before any process starts. No I/O."""

from __future__ import annotations

import builtins
import keyword
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Arguments

EXAMPLE = "%monarch spawn workers gpus=8"


@dataclass(frozen=True)
class SpawnRequest:
    """A mesh to make: its name, its dims with their sizes, what to import early, what to set.

    `keep`: it outlives the kernel. `job`: that has the hosts, by name or path; empty: this one has.
    `hosts`: which mesh of the job, if it has several.
    """

    name: str
    dims: dict[str, int] = field(default_factory=dict[str, int])
    preload: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict[str, str])
    keep: bool = False
    job: str = ""
    hosts: str = ""

    @property
    def ranks(self) -> int:
        """How many processes this asks for."""
        return math.prod(self.dims.values())


def parse_spawn(arguments: Arguments) -> SpawnRequest:
    """The request in `NAME [dim=N ...] [--preload MODULE] [--env KEY=VALUE] [--keep] [--job JOB]`.

    Raises:
        CommandError: no name, a bad one, a dim that is no dim, fewer ranks than one, a bad option.
    """
    if not arguments.positionals:
        raise CommandError(f"spawn needs a name; for example `{EXAMPLE}`")
    name, *words = arguments.positionals
    check_name(name)
    keep = arguments.has("--keep")
    job, hosts = split_job(next(iter(arguments.values("--job")), ""))
    return SpawnRequest(
        name=name,
        dims=_parse_dims(name, words),
        preload=_parse_preload(arguments.values("--preload")),
        env=_parse_env(arguments.values("--env")),
        keep=keep,
        job=job,
        hosts=hosts,
    )


def split_job(text: str) -> tuple[str, str]:
    """The job and its mesh in `JOB[:MESH]`."""
    job, colon, hosts = text.rpartition(":")
    return (job, hosts) if colon and hosts.isidentifier() else (text, "")


def check_name(name: str) -> None:
    """Raises:
    CommandError: `name` can't be a variable of the notebook, or hides a function of Python.
    """
    if "=" in name:
        raise CommandError(f"spawn needs a name before {name}; for example `{EXAMPLE}`")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise CommandError(
            f"'{name}' can't name a mesh, because the notebook binds it as a variable; "
            "use letters, digits and _"
        )
    if hasattr(builtins, name):
        raise CommandError(
            f"'{name}' is Python's own, which the notebook would lose; choose another name"
        )


def check_dims(name: str, dims: Mapping[str, int]) -> dict[str, int]:
    """The dims as given.

    Raises:
        CommandError: a label that is no identifier, a size that is no whole number above zero.
    """
    for label, size in dims.items():
        _check_label(label)
        # A bool is an int to Python, and to nobody else.
        if isinstance(size, bool) or not isinstance(size, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CommandError(f"{label}={size!r} is no size; give a whole number")
        _check_size(name, label, size)
    return dict(dims)


def _parse_dims(name: str, words: Sequence[str]) -> dict[str, int]:
    dims: dict[str, int] = {}
    for word in words:
        label, equals, size = word.partition("=")
        if not equals:
            raise CommandError(
                f"'{word}' is no dim; write dim=N, as in `%monarch spawn {name} gpus=8`"
            )
        _check_label(label)
        if label in dims:
            raise CommandError(f"dim {label} is given twice; give each dim one size")
        try:
            number = int(size)
        except ValueError:
            raise CommandError(
                f"{word}: '{size}' is no size; give a whole number, as in {label}=8"
            ) from None
        _check_size(name, label, number)
        dims[label] = number
    return dims


def _check_label(label: str) -> None:
    if not label.isidentifier() or keyword.iskeyword(label):
        raise CommandError(f"'{label}' can't be a dim; use a name such as gpus=8")


def _check_size(name: str, label: str, size: int) -> None:
    if size < 1:
        raise CommandError(
            f"{label}={size} leaves {name} without ranks; a dim has at least one, as in {label}=1"
        )


def _parse_preload(values: Sequence[str]) -> tuple[str, ...]:
    modules = [module.strip() for value in values for module in value.split(",")]
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise CommandError(f"--preload {module}: no module has this name")
    return tuple(dict.fromkeys(modules))


def _parse_env(values: Sequence[str]) -> dict[str, str]:
    env: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise CommandError(
                f"--env {value} sets nothing; write --env KEY=VALUE, as in --env OMP_NUM_THREADS=1"
            )
        env[key] = text
    return env
