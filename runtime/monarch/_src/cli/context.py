"""`monarch context`: make, choose, remove and list contexts; end the job of one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from monarch._src.cli.columns import columns
from monarch._src.errors import JobError
from monarch._src.job import record
from monarch._src.job.contexts import Contexts


def run_create(name: str) -> int:
    """Make a context; return 1 if that cannot be."""

    def create(contexts: Contexts) -> None:
        contexts.create(name)
        print(f"made the context {name}; `monarch context use {name}` makes it the current one")

    return _reported(create)


def run_use(name: str) -> int:
    """Make a context the current one; return 1 if there is none of that name."""

    def use(contexts: Contexts) -> None:
        contexts.use(name)
        print(f"the current context is {name}")

    return _reported(use)


def run_remove(name: str) -> int:
    """Remove a context; return 1 if it is current, its job has hosts, or there is none."""

    def remove(contexts: Contexts) -> None:
        contexts.remove(name)
        print(f"removed the context {name}")

    return _reported(remove)


def run_list() -> int:
    """Print the contexts of this directory."""

    def show(contexts: Contexts) -> None:
        current = contexts.current()
        rows = [
            (
                "*" if name == current else "",
                name,
                contexts.spec(name) or "-",
                *_state(contexts, name),
            )
            for name in contexts.names()
        ]
        print("\n".join(columns([("", "CONTEXT", "JOB", "KIND", "STATE"), *rows])))

    return _reported(show)


def run_kill(name: str | None) -> int:
    """End the job of a context, by default of the current one; return 1 if that failed."""
    return _reported(lambda contexts: print(kill(contexts, name or contexts.current())), "kill")


def kill(contexts: Contexts, name: str) -> str:
    """End the job of a context, and remove its record. Returns a sentence that reports it.

    Raises:
        ValueError: there is no such context, or it has no job.
        JobError, OSError: some hosts could not be released; the record stays.
    """
    path = contexts.record(name)
    from monarch.job import job_load

    try:
        job = job_load(path)
    except FileNotFoundError:
        raise ValueError(f"the context {name} has no job") from None
    count = len(job.places()) if job.active else 0
    job.kill()
    os.unlink(os.path.realpath(path))
    return f"ended the job of {name}: released {count} host{'' if count == 1 else 's'}"


def has_record(contexts: Contexts, name: str) -> bool:
    """Whether that is a context with a record of a job."""
    return contexts.exists(name) and contexts.record(name).exists()


def current_has_record() -> bool:
    """Whether the current context has a record of a job, or one that cannot be looked for."""
    contexts = Contexts()
    try:
        return has_record(contexts, contexts.current())
    except ValueError:
        return True  # `run_kill` says why


def _state(contexts: Contexts, name: str) -> tuple[str, str]:
    try:
        found = record.read(contexts.record(name))
    except FileNotFoundError:
        return "-", "no hosts"
    except (JobError, OSError) as error:
        return "-", str(error)
    kind = found.kind.rpartition(":")[2]
    return kind, "no hosts" if found.apply_id is None else "has hosts"


def _reported(run: Callable[[Contexts], None], command: str = "context") -> int:
    try:
        run(Contexts())
    except (JobError, OSError, ValueError) as error:
        print(f"monarch {command}: {error}", file=sys.stderr)
        return 1
    return 0
