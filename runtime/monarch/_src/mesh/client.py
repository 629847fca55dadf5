"""What a client has beside its session: somewhere for faults to go, and what its ranks print.

Runs in: a client, on the first use of a name that can start a session (`monarch.actor`).
"""

from __future__ import annotations

from collections.abc import Callable

from monarch._src.config import settings
from monarch._src.mesh import faults
from monarch._src.mesh.observe import anybody_listens
from monarch._src.mesh.session import Session, on_start


def prepare(find_hook: Callable[[], faults.Hook]) -> None:
    """Have every session that starts from now on tell its faults to the hook of the moment."""
    faults.set_hook_lookup(find_hook)
    faults.forward_output(lambda: settings().enable_log_forwarding and not anybody_listens())
    on_start(_started)


def _started(session: Session) -> None:
    faults.attach(session.runtime)
    session.runtime.agent.want_output(True)
