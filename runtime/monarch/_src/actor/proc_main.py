"""The main program of a proc: connect, run actors, end.

Runs in: a proc, forked from the zygote. The main thread runs the bootstrap function, if there is
one, and then the first actor, so that a signal can interrupt what it does (Python runs signal
handlers nowhere else); further actors get threads.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections import deque

from monarch._src.actor.bootstrap import BootstrapRun
from monarch._src.actor.local import LocalActors
from monarch._src.actor.refs import ProcsRef, client_ref
from monarch._src.actor.runtime import Runtime, set_runtime
from monarch._src.actor.worker import Worker
from monarch._src.core.ids import AGENT, proc_node
from monarch._src.errors import RankFailure
from monarch._src.net.baton import Waitable
from monarch._src.net.directory import address_of
from monarch._src.proc.board import Slot
from monarch._src.proc.execute import NO_LIFELINE
from monarch._src.proc.spec import Boot
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import StopProc


class Program:
    """The actors of this proc and the thread that each runs on."""

    def __init__(self, boot: Boot, lifeline: int) -> None:
        spec = boot.spec
        name = proc_node(spec.mesh, boot.rank)
        runtime = Runtime(name, "proc", spec.directory, mesh=spec.mesh, rank=boot.rank)
        runtime.slot = Slot(spec.board, boot.rank)
        runtime.proc_ref = ProcsRef(
            spec.mesh, spec.name, tuple(spec.labels), tuple(spec.sizes), spec.directory,
            spec.owner, runtime.host,
        )  # fmt: skip
        runtime.client_ref = client_ref(spec.client, spec.directory, runtime.host)
        runtime.on_stop_proc = self._stop
        runtime.ends.on_failure = self._failed
        self._runtime = runtime
        self._actors = LocalActors(runtime, self._take_main)
        self._for_main: deque[Worker | BootstrapRun] = deque()
        self._main_busy = False
        self._turn = Waitable()  # done: the main thread has something to do
        self._ending = False
        if spec.bootstrap:
            self._actors.hold()
            runtime.bootstrapping = True
            runtime.on_bootstrap = self._bootstrap
        set_runtime(runtime)
        node = runtime.node
        node.start()
        if lifeline != NO_LIFELINE:
            node.baton.watch(lifeline, _host_is_gone)
        runtime.slot.idle()  # before anybody can know of us and send something
        node.link(AGENT, address_of(spec.directory, AGENT))
        node.link(spec.owner, spec.owner_address)

    def run(self) -> int:
        """Run actors until told to end; the exit status."""
        while True:
            try:
                if not self._turn.done and not self._runtime.node.wait(self._turn, patient=True):
                    return 1
            except KeyboardInterrupt:
                continue  # nothing of ours was running
            self._turn.done = False
            while self._for_main:
                item = self._for_main.popleft()
                item.run()
                self._main_busy = False
                if isinstance(item, BootstrapRun):
                    self._runtime.bootstrapping = False
                    self._actors.release(item.failure)
                    item.tell_owner()
            if self._ending:
                break
        self._actors.join()
        self._runtime.slot.leave()
        self._runtime.close(linger_s=1.0)
        return 0

    # --- from the thread that receives ----------------------------------------------------------

    def _take_main(self, worker: Worker) -> bool:
        if self._main_busy:
            return False
        self._main_busy = True
        self._for_main.append(worker)
        self._turn.finish()
        return True

    def _bootstrap(self, payload: Payload) -> None:
        self._main_busy = True
        self._for_main.append(BootstrapRun(self._runtime, payload))
        self._turn.finish()

    def _stop(self, message: StopProc) -> None:
        self._ending = True
        self._actors.stop(message.reason)
        self._turn.finish()

    def _failed(self, mesh: int, actor: int | None, failures: list[RankFailure]) -> None:
        self._actors.supervise(mesh, actor, failures)


def _host_is_gone() -> None:
    # The kernel has told us already on Linux; elsewhere this is how we learn.
    os._exit(1)


def main(boot: Boot, lifeline: int) -> int:
    """The entry point that the host agent names (`monarch._src.proc.agent.ENTRY`)."""
    logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
    program = Program(boot, lifeline)
    try:
        return program.run()
    finally:
        # The process ends by os._exit, since a fork must not run its parent's end; what user code
        # registered here still runs.
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
