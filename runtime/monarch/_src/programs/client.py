"""Prepares a client: its features, the program's hook for faults, forwarded output.

A client is the user's program, and no main program of ours runs there. Instead, the public modules
(`monarch.actor`) call `prepare` at the first use of a name that can start a session.

Runs in: a client, and a proc that uses such a name; there no session starts.
"""

from __future__ import annotations

from collections.abc import Callable

from monarch._src.actor.tracing import exports_otlp
from monarch._src.config import settings
from monarch._src.mesh import fault_hook
from monarch._src.mesh.client import ClientSession, on_start
from monarch._src.mesh.forwarded_output import forward_output
from monarch._src.observe.meshes import anybody_listens
from monarch._src.programs import parts


def prepare(find_hook: Callable[[], fault_hook.Hook]) -> None:
    """Complete the runtime, and have later sessions report their faults to the current hook."""
    parts.plug_in()
    fault_hook.set_hook_lookup(find_hook)
    forward_output(lambda: settings().enable_log_forwarding and not anybody_listens())
    on_start(_started)


def _started(session: ClientSession) -> None:
    fault_hook.attach(session.runtime)
    session.runtime.agent.want_output(True)
    if exports_otlp():
        from monarch._src.telemetry import otlp

        otlp.begin(session.runtime)
