"""The main program of a proc: connect, run actors, end.

Runs in: a proc, forked from the zygote. The main thread runs the bootstrap function, if there is
one, and then the first actor, so that a signal can interrupt what it does (Python runs signal
handlers nowhere else); further actors get threads.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from monarch._src.actor.context import origin_of_output
from monarch._src.actor.inspect.handlers import DEBUGGER
from monarch._src.actor.refs import ProcsRef, client_ref
from monarch._src.actor.run import actor_thread
from monarch._src.actor.run.bootstrap import BootstrapRun
from monarch._src.actor.run.cell import ActorCell
from monarch._src.actor.run.finalize import run_destructors, run_exit_functions
from monarch._src.actor.run.local_actors import LocalActors
from monarch._src.actor.runtime import Runtime, set_runtime
from monarch._src.actor.state.program_metrics import TELEMETRY
from monarch._src.actor.supervise.ownership import UNTIL_OVERDUE, Process, escalate
from monarch._src.config import settings
from monarch._src.failures.report import MeshFailure, RankFailure
from monarch._src.host.exec_proc import NO_LIFELINE
from monarch._src.host.spawn_spec import Boot
from monarch._src.host.status_board import Slot
from monarch._src.logs.line_origin import flush_all, mark_streams
from monarch._src.logs.output_counters import WRITTEN
from monarch._src.net.local.interrupt import keep_handler
from monarch._src.net.local.signal_pipe import NotedSignals
from monarch._src.net.local.waitable import Waitable
from monarch._src.net.session_directory import address_of
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import AGENT, proc_node
from monarch._src.wire.messages import ActorFailed, Bootstrap, GaveUp, StopProc
from monarch._src.wire.pickling import main_names
from monarch._src.wire.stream import StreamError

# By when the main thread of a proc waits for messages, beside seven others that begin on two
# processors: an IO thread that looked sooner would take the first ones, and hand them on.
MAIN_COMES_S = 0.05
OVERDUE_S = 0.5
"""How long a proc that is to end waits for an actor that has had its time to end before."""


class Program:
    """The actors of this proc and the thread that each runs on."""

    def __init__(self) -> None:
        """Of no proc yet: what each has, whichever it is. `begin` is to follow."""
        self._runtime = runtime = Runtime("", "proc", "")
        runtime.hooks.on_stop_proc = self._stop
        runtime.ownership.on_unhandled = self._pass_on
        self._life = 0
        self._actors = LocalActors(runtime, self._take_main)
        self._for_main: deque[ActorCell | BootstrapRun] = deque()
        self._main_busy = False
        self._turn = Waitable()  # done: the main thread has something to do
        self._ending = False
        self._gave_up = False
        self._giving_up = threading.Lock()
        self._leaving = threading.Lock()
        self._left = False
        self._noted = NotedSignals(runtime.node.baton.nudge)

    def begin(self, boot: Boot, lifeline: int) -> None:
        """Be that proc."""
        spec, ties, runtime = boot.spec, boot.ties, self._runtime
        name = proc_node(spec.mesh, boot.rank, boot.life)
        runtime.begin(name, spec.directory, mesh=spec.mesh, rank=boot.rank, site=spec.site)
        runtime.slot = Slot(spec.board, boot.rank)
        WRITTEN.begin(flush_all, runtime.slot.reads())
        runtime.serves_at = spec.serves_at
        runtime.proc_ref = ProcsRef(
            spec.mesh, spec.name, tuple(spec.labels), tuple(spec.sizes), spec.directory,
            ties.owner, runtime.host, (), spec.while_restarting, tuple(spec.sites),
        )  # fmt: skip
        self._life = boot.life
        if spec.while_restarting:
            runtime.known.set_incarnation(spec.mesh, boot.rank, boot.life)
            runtime.hooks.ends_process, runtime.hooks.end_process = self._is_fatal, self._give_up
        runtime.client_ref = client_ref(
            ties.client, spec.directory, runtime.host, ties.client_number
        )
        if spec.bootstrap:
            self._actors.hold()
            runtime.bootstrapping = True
            runtime.hooks.on_bootstrap = self._bootstrap
        set_runtime(runtime)
        TELEMETRY.clear()  # of what was preloaded, each fork has what its template has counted
        node = runtime.node
        node.on_broken = _what_came_is_lost
        # The agent of a worker host passes on what goes to other hosts, at its own a client does.
        node.gateway = AGENT if spec.site else ties.client
        node.gateway_pipe = address_of(spec.directory, node.gateway)
        noted = self._noted
        noted.begin()
        node.baton.watch(noted.fd, noted.look)
        if lifeline != NO_LIFELINE:
            node.baton.watch(lifeline, _host_is_gone)
        runtime.slot.idle()  # before anybody can know of us and send something
        node.link(AGENT, address_of(spec.directory, AGENT))
        node.reach(ties.owner, ties.owner_address)
        # After what is said first, for which it would take turns with this thread.
        node.start(MAIN_COMES_S)

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
                if isinstance(item, ActorCell):
                    actor_thread.run(item)
                else:
                    item.run()
                self._main_busy = False
                if isinstance(item, BootstrapRun):
                    self._runtime.bootstrapping = False
                    self._actors.release(item.failure)
                    item.report_to_owner()
                del item  # what has ended is kept no longer
            if self._ending:
                break
        self._actors.join()
        self._end_own_meshes()
        with self._leaving:
            return self._leave()

    def _leave(self) -> int:
        """End this process's part; the exit status. Under the lock."""
        self._left = True
        if not self._gave_up:  # that end is none that somebody has asked for
            self._runtime.slot.leave()
        self._runtime.close(linger_s=1.0)
        return 1 if self._gave_up else 0

    # --- from the thread that receives ----------------------------------------------------------

    def _take_main(self, worker: ActorCell) -> bool:
        if self._main_busy:
            return False
        self._main_busy = True
        self._for_main.append(worker)
        self._turn.finish()
        return True

    def _bootstrap(self, message: Bootstrap, payload: Payload) -> None:
        self._main_busy = True
        self._for_main.append(BootstrapRun(self._runtime, message, payload))
        self._turn.finish()

    def _stop(self, message: StopProc) -> None:
        self._ending = True
        if self._actors.are_overdue():
            threading.Thread(
                target=self._leave_the_overdue, args=(message.grace_s,), daemon=True
            ).start()
        self._runtime.ownership.root.stop(message.reason, message.grace_s)
        self._actors.stop(message.reason, message.grace_s)
        if self._runtime.hooks.unpause is not None:
            self._runtime.hooks.unpause(None, None)
        self._turn.finish()

    def _leave_the_overdue(self, grace_s: float) -> None:
        """End this process though an actor runs on that has had its time: none gets it twice.

        One that was told to end by itself and does not may be stuck on the main thread.
        """
        if self._actors.wait_until_gone(min(grace_s, OVERDUE_S)):
            return  # the main thread goes on
        with self._leaving:
            if self._left:
                return
            status = self._leave()
            run_exit_functions()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _end_own_meshes(self) -> None:
        """Wait until nothing is left of what was made here where no actor runs."""
        root = self._runtime.ownership.root
        if root.meshes:
            self._runtime.node.wait(root.may_clean, root.grace_s * UNTIL_OVERDUE)

    def _pass_on(self, fault: MeshFailure) -> None:
        """What no actor here is to judge is a failure of this process, for its owner to judge."""
        ref, runtime = self._runtime.proc_ref, self._runtime
        assert ref is not None
        process = Process(
            ref.name, runtime.rank, dict(ref.extent.point_of_rank(runtime.rank)), runtime.host
        )
        failure = escalate(process, fault, "no actor of that process owns it")
        runtime.report_to_creator(ref.owner, ActorFailed(0, runtime.rank, failure, ref.uid))

    # --- from any thread ------------------------------------------------------------------------

    def _is_fatal(self, failure: RankFailure) -> bool:
        """Whether this process ends with an actor of it that has failed, to be started again."""
        if self._gave_up:  # who waits for any of its actors hears of its end
            return True
        if failure.kind == "stopped" or failure.endpoint == "__cleanup__":
            return False
        if failure.kind == "constructor" and not self._life:
            return False  # it never lived, and would fail in the same way
        return not self._ending

    def _give_up(self, failure: RankFailure) -> None:
        with self._giving_up:
            if self._gave_up:
                return
            self._gave_up = True
        self._runtime.node.send(AGENT, GaveUp(failure))
        self._ending = True
        reason, grace_s = f"its process ends, since {failure.what}", settings().cleanup_s
        self._runtime.ownership.root.stop(reason, grace_s)
        self._actors.stop(reason, grace_s)
        self._turn.finish()


def _host_is_gone() -> None:
    # The kernel has told us already on Linux; elsewhere this is how we learn.
    os._exit(1)


def _what_came_is_lost(peer: str, error: StreamError) -> None:
    # Nobody can be told which calls they were: their callers hear of the end of this process.
    os.write(2, f"this process ends, for what came from {peer} is lost: {error}\n".encode())
    os._exit(1)


def _breakpoint(*args: Any, **options: Any) -> Any:
    """What `breakpoint()` calls: the debugger, unless the user has chosen another one."""
    if os.environ.get("PYTHONBREAKPOINT"):  # as Python has it; 0: none
        return sys.__breakpointhook__(*args, **options)
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    return import_module(DEBUGGER).pause_here(frame, *args, **options)


def prepare() -> Callable[[Boot, int], int]:
    """The entry point that the host agent names (`monarch._src.host.spawn_spec.ENTRY`).

    The zygote calls it, and each of its forks what it returns.
    """
    mark_streams(origin_of_output)
    _log_as_any_program()
    return partial(main, Program())


def _log_as_any_program() -> None:
    """Until the user configures logging, records from the root's level on are written to stderr.

    By the handler of last resort: one of the root's, as the agent has it, would make nothing of the
    user's `logging.basicConfig`. Without the time, so that ranks that log the same can be folded.
    """
    for handler in logging.root.handlers[:]:
        logging.root.removeHandler(handler)
    last = logging.lastResort
    if last is not None:
        last.setLevel(logging.NOTSET)
        last.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))


def main(program: Program, boot: Boot, lifeline: int) -> int:
    """Be that proc, from its begin to its end; the exit status."""
    keep_handler()
    sys.breakpointhook = _breakpoint
    main_names.begin()
    program.begin(boot, lifeline)
    try:
        return program.run()
    finally:
        run_exit_functions()
        run_destructors()
