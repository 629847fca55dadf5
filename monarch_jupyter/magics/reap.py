"""`%monarch reap`: end processes that no client owns any more."""

from __future__ import annotations

import sys

from monarch import session
from monarch.session import Reaped
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Option
from monarch_jupyter.magics.command import Command, Invocation


def reap(*, dry_run: bool = False) -> Reaped:
    """End sessions whose client is gone, and remains of others; `dry_run` only lists them.

    Kept sessions and sessions with a live client are never touched.
    """
    return session.reap(dry_run=dry_run)


def _run(invocation: Invocation) -> None:
    if invocation.arguments.positionals:
        raise CommandError("reap takes no names; `%monarch stop NAME` ends a mesh of this kernel")
    done = reap(dry_run=invocation.arguments.has("--dry-run"))
    lines = [*done.done, *done.complaints] or ["nothing is left behind"]
    sys.stdout.write("\n".join(lines) + "\n")


COMMAND = Command(
    name="reap",
    usage="reap [--dry-run]",
    summary="end what clients that are gone left behind; kept and live sessions are not touched",
    run=_run,
    options=(Option("--dry-run", "only list what would be ended"),),
)
