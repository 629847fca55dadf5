"""The line of `%monarch spawn` as a `SpawnRequest`. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Arguments
from monarch_jupyter.meshes.spawn_requests import (
    EXAMPLE,
    SpawnRequest,
    check_label,
    check_name,
    check_size,
    split_job,
)


def parse_spawn(arguments: Arguments) -> SpawnRequest:
    """The request in `NAME [dim=N ...] [--preload MODULE] [--env KEY=VALUE] ...`.

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
        restart=arguments.has("--restart"),
    )


def _parse_dims(name: str, words: Sequence[str]) -> dict[str, int]:
    dims: dict[str, int] = {}
    for word in words:
        label, equals, size = word.partition("=")
        if not equals:
            raise CommandError(
                f"'{word}' is not a dim; write dim=N, as in `%monarch spawn {name} gpus=8`"
            )
        check_label(label)
        if label in dims:
            raise CommandError(f"dim {label} is given twice; give each dim one size")
        try:
            number = int(size)
        except ValueError:
            raise CommandError(
                f"{word}: '{size}' is not a size; give a whole number, as in {label}=8"
            ) from None
        check_size(name, label, number)
        dims[label] = number
    return dims


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
