"""`%monarch detach`: detach from kept meshes without ending them."""

from __future__ import annotations

import os
import sys

from monarch import session
from monarch.session import SessionError
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.command import Command, Invocation


def detach() -> str:
    """Detach from the session of this kernel, and return its name. Kept meshes live on; others end.

    Raises:
        CommandError: nothing is kept.
    """
    mine = [one.kept_as for one in session.sessions() if one.client_pid == os.getpid()]
    try:
        session.detach()
    except SessionError:
        raise CommandError(
            "this kernel has no kept mesh; `%monarch spawn NAME --keep` makes one"
        ) from None
    return next((name for name in mine if name), "")


def _run(invocation: Invocation) -> None:
    if invocation.arguments.positionals:
        raise CommandError("detach takes no names: a kernel holds one session")
    name = detach()
    sys.stdout.write(f"detached from {name}; `%monarch attach {name}` attaches to it again\n")


COMMAND = Command(
    name="detach",
    usage="detach",
    summary="detach from meshes that were spawned with --keep: they live on, all others end",
    run=_run,
)
