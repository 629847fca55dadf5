"""Runs the commands of several roles at once, each on its mesh of hosts.

Runs in: clients, on the thread that calls, which waits; a thread for each role runs its command.
Invariants: when a role fails, or the calling thread is interrupted, the others are ended before an
error leaves; no thread is left.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Sequence

from monarch._src.mesh.meshes import HostMesh
from monarch._src.spmd.torchrun import RunControl, run
from monarch._src.spmd.torchrun_arguments import Launch

POLL_S = 0.5  # an interrupt of a thread that blocks for longer is noticed late on some systems


class _RoleRun:
    """The run of a role, on a thread of its own."""

    def __init__(
        self, name: str, launch: Launch, hosts: HostMesh, ended: queue.SimpleQueue[_RoleRun]
    ) -> None:
        self.name = name
        self.error: BaseException | None = None
        self.control = RunControl(name)
        self._launch, self._hosts, self._ended = launch, hosts, ended
        # In a copy of the caller's context, so that the output of ranks belongs to its cell.
        context = contextvars.copy_context()
        self.thread = threading.Thread(target=context.run, args=(self._run,), name=f"role-{name}")

    def _run(self) -> None:
        try:
            run(self._launch, self._hosts, control=self.control)
        except BaseException as error:
            self.error = error
        finally:
            self._ended.put(self)


def run_roles(runs: Sequence[tuple[str, Launch, HostMesh]]) -> None:
    """Run the command of each role on its hosts. Returns when all of them have ended.

    When one fails, the others get SIGTERM, as ranks do when another rank of their run fails. An
    interrupt is handed on to all of them; a second one kills them.

    Raises what `monarch.spmd.torchrun` raises for the role that failed first.
    """
    ended: queue.SimpleQueue[_RoleRun] = queue.SimpleQueue()
    roles = [_RoleRun(name, launch, hosts, ended) for name, launch, hosts in runs]
    for one in roles:
        one.thread.start()
    try:
        error = _first_error(roles, ended)
        if error is not None:
            _end(roles, None)
            raise error
    except KeyboardInterrupt as interrupt:
        _end(roles, interrupt)
        raise


def _first_error(
    roles: Sequence[_RoleRun], ended: queue.SimpleQueue[_RoleRun]
) -> BaseException | None:
    """Wait until a role has failed, or all have ended."""
    for _ in roles:
        while True:
            try:
                one = ended.get(timeout=POLL_S)
                break
            except queue.Empty:
                continue
        one.thread.join()
        if one.error is not None:
            return one.error
    return None


def _end(roles: Sequence[_RoleRun], interrupt: KeyboardInterrupt | None) -> None:
    """End the roles that still run, and wait for that; an interrupt meanwhile kills their ranks."""
    try:
        for one in roles:
            one.control.end(interrupt)
        for one in roles:
            while one.thread.is_alive():
                one.thread.join(POLL_S)
    except KeyboardInterrupt:
        for one in roles:
            one.control.kill()
        for one in roles:
            one.thread.join()
        raise
