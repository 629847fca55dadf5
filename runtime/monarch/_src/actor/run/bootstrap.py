"""The bootstrap function, which a proc runs before any actor.

Runs in: a proc, on the main thread, once.
"""

from __future__ import annotations

import inspect
import threading

from monarch._src.actor.context import ActorId, ActorInstance, Context, End, current
from monarch._src.actor.deadlock.state.waits import ActorWaits
from monarch._src.actor.errors.remote import describe
from monarch._src.actor.forked import end_fork
from monarch._src.actor.run.spawn_context import BOOTSTRAP as NAME
from monarch._src.actor.run.spawn_context import apply_spawn_extras
from monarch._src.actor.runtime import Runtime
from monarch._src.actor.serialize import unpack_value
from monarch._src.failures.report import RankFailure
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Bootstrap, Bootstrapped


class BootstrapRun:
    """One run of a bootstrap function. `failure` describes its exception, if it raised one."""

    def __init__(self, runtime: Runtime, message: Bootstrap, payload: Payload) -> None:
        self.failure: RankFailure | None = None
        # For `programs.proc`. The main thread leaves it as it ends.
        self.finalized = self.shares_main_thread = False
        self.is_busy = True
        self._message = message
        self._runtime = runtime
        self._payload = payload

    def run(self) -> None:
        """Run the function. Its exception, `SystemExit` included, is stored, not raised."""
        runtime, ref = self._runtime, self._runtime.proc_ref
        assert ref is not None
        uid = runtime.uids()
        point = ref.extent.point_of_rank(runtime.rank)
        instance = ActorInstance(
            ActorId(runtime.name, uid, NAME), point, NAME, ActorWaits(runtime.name, uid),
            ref, _no_end, NAME,
        )  # fmt: skip
        instance.thread = threading.get_ident()
        origin = self._message.origin
        here = Context(instance, runtime.rank, list(ref.labels), list(ref.sizes), origin)
        before = current.set(here)
        running = runtime.slot.prepare(NAME.encode())
        try:
            apply_spawn_extras(self._message.along, f"the bootstrap function of {ref.name!r}")
            error = self._run()
        except BaseException as raised:
            error = raised
        finally:
            runtime.slot.end(running)
            current.reset(before)
        if runtime.node.is_fork:
            end_fork(error)
        if error is not None:
            self.failure = describe(
                error, mesh_name=ref.name, rank=runtime.rank, point=dict(point), actor_class="",
                endpoint=NAME, host=runtime.host, kind="constructor",
            )  # fmt: skip

    def _run(self) -> BaseException | None:
        awaitable = unpack_value(self._payload)()
        if not inspect.isawaitable(awaitable):
            return None
        from monarch._src.actor.run import async_loop

        return async_loop.run_awaitable(awaitable)

    def report_to_owner(self) -> None:
        """Report the outcome to the process that spawned the mesh."""
        runtime, ref = self._runtime, self._runtime.proc_ref
        assert ref is not None
        failure = self.failure
        program = runtime.hooks.program
        if failure is not None and program.ends_process(failure):
            program.end_process(failure)
            return
        runtime.node.send(ref.owner, Bootstrapped(ref.uid, runtime.rank, self.failure))


def _no_end(how: End, reason: str | None) -> None:
    raise RuntimeError(
        f"a bootstrap function ends by returning, or fails by raising; {how}({reason!r}) is for "
        "actors"
    )
