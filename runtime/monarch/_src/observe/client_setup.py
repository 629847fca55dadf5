"""Prepares a client's sessions: reports faults to the program's hook and forwards output.

Runs in: a client, on the first use of a name that can start a session (`monarch.actor`).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from monarch._src.actor.tracing import OTLP, exports_otlp
from monarch._src.config import settings
from monarch._src.mesh import fault_hook
from monarch._src.mesh.client import ClientSession, on_start
from monarch._src.mesh.forwarded_output import forward_output
from monarch._src.observe.meshes import anybody_listens


def prepare(find_hook: Callable[[], fault_hook.Hook]) -> None:
    """Have every session that starts from now on report its faults to the current hook."""
    fault_hook.set_hook_lookup(find_hook)
    forward_output(lambda: settings().enable_log_forwarding and not anybody_listens())
    on_start(_started)


def _started(session: ClientSession) -> None:
    fault_hook.attach(session.runtime)
    session.runtime.agent.want_output(True)
    if exports_otlp():
        import_module(OTLP).begin(session.runtime)
