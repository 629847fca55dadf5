"""`monarch apply`: reserve the hosts of a job object, for the current context."""

from __future__ import annotations

import importlib
import os
import sys

from monarch._src.cli.columns import columns
from monarch._src.errors import HostUnreachableError, JobError, SessionError
from monarch._src.job.contexts import Contexts
from monarch._src.job.trait import JobTrait


def run(spec: str | None) -> int:
    """Reserve the hosts of `module.attr`, or of the spec of the context; 1 if that failed."""
    contexts = Contexts()
    found: JobTrait | None = None
    try:
        name = contexts.current()
        found = job = _job_of(spec or _saved(contexts, name))
        if spec is not None:
            contexts.save_spec(name, spec)
        reserved = job.reserve(contexts.record(name))
        job.wait_for_hosts()
        print(f"context {name}: {'reserved' if reserved else 'there are already'} these hosts")
        if rows := [(f"  {place}", where) for place, where in job.places()]:
            print("\n".join(columns(rows)))
    except (
        ImportError, TypeError, ValueError, OSError, JobError, SessionError, HostUnreachableError,
    ) as error:  # fmt: skip
        print(f"monarch apply: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        left = (
            "is still reserved; `monarch kill` ends it" if found and found.active else "was ended"
        )
        print(f"monarch apply: interrupted; the job {left}", file=sys.stderr)
        return 130
    return 0


def _saved(contexts: Contexts, name: str) -> str:
    spec = contexts.spec(name)
    if spec is None:
        raise ValueError(
            f"the context {name} has no job object yet: `monarch apply MODULE.JOB`, where "
            "MODULE.py has JOB = ProcessJob(...) or another job"
        )
    return spec


def _job_of(spec: str) -> JobTrait:
    """The job object that `module.attr` names; imports the module from the working directory.

    Raises:
        ValueError: that is no such name, the module has no such attribute, or it is no job.
        ImportError: the module cannot be imported.
    """
    module_name, dot, attr = spec.rpartition(".")
    if not dot or not module_name or not attr.isidentifier():
        raise ValueError(f"{spec!r} names no job object; write MODULE.JOB, such as jobs.training")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    from monarch import actor

    actor._prepare()  # pyright: ignore[reportPrivateUsage] - where faults and output are shown
    module = importlib.import_module(module_name)
    job = getattr(module, attr, None)
    if not isinstance(job, JobTrait):
        found = [name for name, value in vars(module).items() if isinstance(value, JobTrait)]
        has = f"it has {', '.join(found)}" if found else "it has none"
        what = "no attribute" if not hasattr(module, attr) else "no job, but another object, as"
        raise ValueError(f"{module_name} has {what} {attr}; of job objects {has}")
    return job
