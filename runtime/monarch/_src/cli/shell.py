"""`monarch shell`: an interactive shell on a host of a job."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from monarch._src.cli.exec import pairs
from monarch._src.cli.job import chosen_hosts, kill_chosen
from monarch._src.errors import ActorError, JobError, SessionError, SupervisionError
from monarch._src.job.command_runner import rank_env


def run(
    job: str | None,
    mesh: str | None,
    point: str | None,
    env: Sequence[str],
    workdir: str | None,
    words: Sequence[str],
    *,
    here: bool,
    kill: bool,
) -> int:
    """Run the shell; return its exit status, 1 if it could not be run."""
    # The public module: it also sets up where faults and output are shown.
    from monarch import actor
    from monarch import job as jobs

    # The error of the call tells of a rank that dies, so the default hook would tell it twice.
    actor.unhandled_fault_hook = lambda _failure: None  # pyright: ignore[reportUnknownLambdaType]
    try:
        variables = pairs(env, "--env", str)
        at = None if point is None else dict(pairs(point.split(","), "--point", int))
        hosts = chosen_hosts(job, mesh, here=here, kill=kill)
        if at is None:
            at = dict.fromkeys(hosts.extent.labels, 0)
        place = rank_env(at, dict(hosts.sizes))
        status: int = jobs.shell(
            hosts.slice(**at), env={**place, **variables}, workdir=workdir, cmd=list(words) or None
        )
        if kill:
            kill_chosen(job)
    except (ActorError, SupervisionError) as error:
        print(error, file=sys.stderr)
        return 1
    except (
        OSError, ValueError, TypeError, LookupError, RuntimeError, JobError, SessionError,
    ) as error:  # fmt: skip
        print(f"monarch shell: {error}", file=sys.stderr)
        return 1
    return status
