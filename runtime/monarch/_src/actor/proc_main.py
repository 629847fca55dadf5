"""The main program of a proc: connect, run actors, end.

Runs in: a proc, forked from the zygote. The main thread runs the first actor, so that a signal can
interrupt what it does (Python runs signal handlers nowhere else); further actors get threads.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque

from monarch._src.actor.remote import pack
from monarch._src.actor.runtime import ProcsRef, Runtime, set_runtime
from monarch._src.actor.worker import Worker
from monarch._src.core.ids import AGENT, proc_node
from monarch._src.errors import MeshFailure, RankFailure
from monarch._src.net.baton import Waitable
from monarch._src.net.directory import address_of
from monarch._src.proc.board import Slot
from monarch._src.proc.spec import Boot
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import DIED, Call, Reply, SpawnActor, StopActor, StopProc


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
        runtime.learn(runtime.proc_ref)
        runtime.on_spawn = self._spawn
        runtime.on_stop_proc = self._stop
        runtime.unknown_actor = self._unknown
        runtime.on_failure = self._failed
        self._runtime = runtime
        self._workers: list[Worker] = []
        self._threads: list[threading.Thread] = []
        self._for_main: deque[Worker] = deque()
        self._main_busy = False
        self._turn = Waitable()  # done: the main thread has something to do
        self._ending = False
        set_runtime(runtime)
        node = runtime.node
        node.start()
        node.baton.watch(lifeline, _host_is_gone)
        node.link(AGENT, address_of(spec.directory, AGENT))
        node.link(spec.owner, spec.owner_address)
        runtime.slot.idle()

    def run(self) -> int:
        """Run actors until told to end; the exit status."""
        while True:
            try:
                if not self._turn.done and not self._runtime.node.wait(self._turn):
                    return 1
            except KeyboardInterrupt:
                continue  # nothing of ours was running
            self._turn.done = False
            while self._for_main:
                worker = self._for_main.popleft()
                worker.run()
                self._main_busy = False
            if self._ending:
                break
        for thread in self._threads:
            thread.join()
        self._runtime.close(linger_s=1.0)
        return 0

    # --- from the thread that receives ----------------------------------------------------------

    def _spawn(self, _peer: str, spec: SpawnActor, payload: Payload) -> None:
        worker = Worker(self._runtime, spec, payload)
        self._runtime.workers[spec.actor] = worker
        self._workers.append(worker)
        if not self._main_busy:
            self._main_busy = True
            self._for_main.append(worker)
            self._turn.finish()
            return
        thread = threading.Thread(target=worker.run, name=f"actor-{spec.name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _stop(self, message: StopProc) -> None:
        self._ending = True
        for worker in self._workers:
            if worker.dead is None:
                worker.stop(message.reason)
        self._turn.finish()

    def _unknown(self, peer: str, message: Call | StopActor) -> None:
        if message.call:
            runtime = self._runtime
            assert runtime.proc_ref is not None
            point = dict(runtime.proc_ref.extent.point_of_rank(runtime.rank))
            failure = RankFailure(
                runtime.proc_ref.name, runtime.rank, point, "an actor", None, runtime.host,
                os.getpid(), "stopped", "", "there is no such actor on this proc (any more)",
            )  # fmt: skip
            runtime.node.send(peer, Reply(message.call, message.rank, DIED), pack(failure, None))

    def _failed(self, mesh: int, actor: int | None, failures: list[RankFailure]) -> None:
        owner = self._runtime.owner_of(mesh, actor)
        worker = self._runtime.workers.get(owner) if owner is not None else None
        if worker is not None:
            worker.supervise(MeshFailure(failures[0].mesh_name, tuple(failures)))


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
