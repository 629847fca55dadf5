"""`monarch exec`: run a command on the hosts of a job."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from monarch._src.cli.job import hosts_of
from monarch._src.errors import ActorError, JobError, SessionError, SupervisionError


def run(
    words: Sequence[str],
    job: str | None,
    env: Sequence[str],
    *,
    everywhere: bool,
    point: str | None,
    per_host: str | None,
    workdir: str | None,
    output_dir: str | None,
) -> int:
    """Run the command; return its highest exit status, 1 if it could not be run."""
    # The public module: it also sets up where faults and output are shown.
    jobs: Any = import_module("monarch.job")
    actor: Any = import_module("monarch.actor")
    # The error of the call tells of a rank that dies, so the default hook would tell it twice.
    actor.unhandled_fault_hook = lambda _failure: None  # pyright: ignore[reportUnknownLambdaType]
    try:
        variables = _pairs(env, "--env", str)
        at = None if point is None else _pairs(point.split(","), "--point", int)
        sizes = None if per_host is None else _pairs(per_host.split(","), "--per-host", int)
        hosts = actor.this_host() if job is None else hosts_of(job)
        rank = 0 if at is None and not everywhere else None
        status: int = jobs.exec_command(
            hosts, list(words), env=variables, workdir=workdir, output_dir=output_dir, rank=rank,
            point=at, per_host=sizes,
        ).get()  # fmt: skip
    except (ActorError, SupervisionError) as error:
        print(error, file=sys.stderr)
        return 1
    except (OSError, ValueError, TypeError, LookupError, JobError, SessionError) as error:
        print(f"monarch exec: {error}", file=sys.stderr)
        return 1
    return status


def _pairs(words: Sequence[str], option: str, kind: type[Any]) -> Mapping[str, Any]:
    """`NAME=VALUE` of each word.

    Raises:
        ValueError: a word is no such pair.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        try:
            if not name or not equals:
                raise ValueError
            found[name] = kind(value)
        except ValueError:
            example = "NAME=VALUE" if kind is str else "DIM=NUMBER"
            raise ValueError(f"{option} {word}: give {example}") from None
    return found
