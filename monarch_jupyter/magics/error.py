"""`%monarch error`: the last error of ranks, in full."""

from __future__ import annotations

import sys

from monarch.actor import ActorError, SupervisionError
from monarch.frontend import fold_failures
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.rendering.failures import whole_text


def error() -> str:
    """The whole text of the last error of ranks that a cell raised: every frame, every rank.

    Raises:
        CommandError: there was none.
    """
    last = getattr(sys, "last_value", None)
    if not isinstance(last, ActorError | SupervisionError):
        raise CommandError("the last error in this notebook did not come from a rank")
    return "\n\n".join(whole_text(group) for group in fold_failures(last.failures)) or str(last)


def _run(invocation: Invocation) -> None:
    sys.stdout.write(error() + "\n")


COMMAND = Command(
    name="error",
    usage="error",
    summary="the last error of ranks in full: every frame, each process, its last lines on stderr",
    run=_run,
)
