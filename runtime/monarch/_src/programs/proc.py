"""The main program of a proc: connect, run actors, end.

Runs in: a proc, forked from the zygote. The main thread runs the bootstrap function, if there is
one, and then the first actor, so that signals can interrupt user code (Python runs signal handlers
on no other thread). Actors that run code of the notebook and of maps share the main thread, if no
other actor has it. Further actors get threads of their own.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from monarch._src.actor.context import origin_of_output
from monarch._src.actor.parts import ProcProgram
from monarch._src.actor.refs import ProcsRef, client_ref
from monarch._src.actor.run.bootstrap import BootstrapRun
from monarch._src.actor.run.cell import ActorCell
from monarch._src.actor.run.finalize import run_destructors
from monarch._src.actor.run.local_actors import LocalActors, run_actor
from monarch._src.actor.run.shared_loop import SharedLoop
from monarch._src.actor.runtime import Runtime, set_runtime
from monarch._src.actor.state.history import HISTORY
from monarch._src.actor.state.program_metrics import TELEMETRY
from monarch._src.actor.supervise.ownership import UNTIL_OVERDUE, Process, escalate
from monarch._src.actor.tracing import exports_otlp
from monarch._src.config import settings
from monarch._src.failures.report import MeshFailure, RankFailure
from monarch._src.host.exec_proc import NO_LIFELINE
from monarch._src.host.spawn_spec import Boot
from monarch._src.host.status_board import Slot
from monarch._src.logs.line_origin import flush_all, mark_streams
from monarch._src.logs.output_counters import WRITTEN
from monarch._src.net.local.interrupt import GuardedLock, install_permanent_handler
from monarch._src.net.local.signal_pipe import NotedSignals
from monarch._src.net.local.waitable import Waitable
from monarch._src.net.session_directory import address_of
from monarch._src.pickling import main_names
from monarch._src.programs import parts
from monarch._src.system.interpreter_exit import join_threads, run_exit_functions
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import AGENT, proc_node
from monarch._src.wire.messages import ActorFailed, Bootstrap, GaveUp, StopProc
from monarch._src.wire.stream import StreamError

# The main thread of a proc waits for messages after this time, if eight procs start on two
# processors. An IO thread that polled earlier would receive the first messages and hand them on.
IO_THREAD_DELAY_S = 0.05
OVERDUE_S = 0.5
"""How long a proc that has to end waits for an actor past its deadline, in seconds."""


class Program(ProcProgram):
    """The actors of this proc and their threads."""

    def __init__(self) -> None:
        """Build the parts that all procs share, in the zygote. `begin` follows in the fork."""
        self._runtime = runtime = Runtime("", "proc", "")
        runtime.hooks.program = self
        runtime.ownership.on_unhandled = self._escalate
        self._incarnation = 0
        self._restarts = False  # whether the host agent restarts this proc when it dies
        self._actors = LocalActors(runtime, self._take_main)
        self._main_queue: MainQueue[ActorCell | BootstrapRun] = MainQueue()
        self._has_work = Waitable()  # done when the main thread has work
        self._ending = False
        self._ends_at: float | None = None  # when the host agent kills this process
        self._gave_up = False
        self._giving_up = threading.Lock()
        self._leaving = threading.Lock()
        self._left = False
        self._signals = NotedSignals(runtime.node.leader.wake_all)

    def begin(self, boot: Boot, lifeline: int) -> None:
        """Become that proc and connect."""
        spec, ties, runtime = boot.spec, boot.ties, self._runtime
        HISTORY.clear()  # a fork inherits that of preloaded modules, as it does their counts
        name = proc_node(spec.mesh, boot.rank, boot.life)
        runtime.begin(name, spec.directory, mesh=spec.mesh, rank=boot.rank, site=spec.site)
        runtime.slot = Slot(spec.board, boot.rank)
        WRITTEN.begin(flush_all, runtime.slot.reads())
        runtime.serves_at = spec.serves_at
        ref = runtime.proc_ref = ProcsRef(
            spec.mesh, spec.name, tuple(spec.labels), tuple(spec.sizes), spec.directory,
            # Restarted by request, it looks the other ranks up: they may have been restarted too.
            ties.owner, runtime.host, (), spec.while_restarting or ("wait" if boot.life else ""),
            tuple(spec.sites),
        )  # fmt: skip
        self._incarnation = boot.life
        self._restarts = bool(spec.while_restarting)
        if ref.restarts:
            runtime.known.set_incarnation(spec.mesh, boot.rank, boot.life)
        runtime.client_ref = client_ref(
            ties.client, spec.directory, runtime.host, ties.client_number
        )
        if spec.bootstrap:
            self._actors.hold()
            runtime.bootstrapping = True
        set_runtime(runtime)
        TELEMETRY.clear()  # a fork inherits the counts of preloaded modules
        node = runtime.node
        node.on_broken = _on_broken_stream
        # Messages to other hosts go through the agent on a worker host, else through the client.
        node.gateway = AGENT if spec.site else ties.client
        node.gateway_pipe = address_of(spec.directory, node.gateway)
        signals = self._signals
        signals.begin()
        node.leader.watch(signals.fd, signals.look)
        if lifeline != NO_LIFELINE:
            node.leader.watch(lifeline, _on_host_gone)
        runtime.slot.idle()  # before any node can send a message here
        if exports_otlp():
            from monarch._src.telemetry import otlp

            otlp.begin(runtime)
        node.link(AGENT, address_of(spec.directory, AGENT))
        node.link_to(ties.owner, ties.owner_address)
        # Started after the first messages are sent: it would compete with this thread.
        node.start(IO_THREAD_DELAY_S)

    def run(self) -> int:
        """Run actors until told to end; returns the exit status."""
        while True:
            try:
                if not self._has_work.done and not self._runtime.node.wait(
                    self._has_work, idle=True
                ):
                    return 1
            except KeyboardInterrupt:
                continue  # no user code was running
            self._has_work.done = False
            while (item := self._main_queue.take()) is not None:
                self._run_main(item)
                del item  # release an actor that has ended
            if self._ending:
                break
        self._actors.join()
        self._end_own_meshes()
        with self._leaving:
            return self._leave()

    def _run_main(self, item: ActorCell | BootstrapRun) -> None:
        """Run an item of the main thread, and the actors that share the thread with it."""
        queue = self._main_queue
        if isinstance(item, BootstrapRun):
            item.run()
            queue.on_ended(item)
            self._runtime.bootstrapping = False
            self._actors.release(item.failure)
            item.report_to_owner()
        elif item.shares_main_thread:
            SharedLoop(self._take_shared, self._has_work, queue.on_ended).serve(item)
        else:
            run_actor(item)
            queue.on_ended(item)

    def _take_shared(self) -> ActorCell | None:
        item = self._main_queue.take_shared()
        return item if isinstance(item, ActorCell) else None

    def join_threads(self) -> None:
        """Wait for the threads of the program, for half of the time that is left at most."""
        if self._ends_at is None:
            return
        left = join_threads(max(0.0, self._ends_at - time.monotonic()) / 2)
        if left:
            sys.stderr.write(
                f"this process ends though threads run that are no daemons: {', '.join(left)}\n"
            )

    def _leave(self) -> int:
        """End this process's part; returns the exit status. Call with the lock held."""
        self._left = True
        if not self._gave_up:  # the owner did not ask for this end
            self._runtime.slot.leave()
        self._runtime.close(linger_s=1.0)
        return 1 if self._gave_up else 0

    # --- from the thread that receives ----------------------------------------------------------

    def _take_main(self, worker: ActorCell) -> bool:
        given = worker.spec.main_thread != "never" and self._main_queue.give(worker)
        if given:
            self._has_work.finish()
        return given

    def on_bootstrap(self, message: Bootstrap, payload: Payload) -> None:
        """Queue the bootstrap function for the main thread."""
        self._main_queue.give(BootstrapRun(self._runtime, message, payload))
        self._has_work.finish()

    def on_stop_proc(self, message: StopProc) -> None:
        """Stop the actors, after which the main thread ends the process."""
        self._ending = True
        self._ends_at = time.monotonic() + message.grace_s
        if self._actors.are_overdue():
            threading.Thread(
                target=self._leave_overdue_actors, args=(message.grace_s,), daemon=True
            ).start()
        self._runtime.ownership.root.stop(message.reason, message.grace_s)
        self._actors.stop(message.reason, message.grace_s)
        self._runtime.hooks.debugger.unpause(None, None)
        self._has_work.finish()

    def _leave_overdue_actors(self, grace_s: float) -> None:
        """End this process though an actor is past its deadline; no actor gets its time twice.

        An actor that does not react may be stuck on the main thread.
        """
        if self._actors.wait_until_gone(min(grace_s, OVERDUE_S)):
            return  # the main thread ends the process
        with self._leaving:
            if self._left:
                return
            status = self._leave()
            run_exit_functions()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _end_own_meshes(self) -> None:
        """Wait for the end of meshes that code outside of any actor has spawned."""
        root = self._runtime.ownership.root
        if root.meshes:
            self._runtime.node.wait(root.may_clean, root.grace_s * UNTIL_OVERDUE)

    def _escalate(self, fault: MeshFailure) -> None:
        """Pass a failure that no actor here can judge to the owner of this process."""
        ref, runtime = self._runtime.proc_ref, self._runtime
        assert ref is not None
        process = Process(
            ref.name, runtime.rank, dict(ref.extent.point_of_rank(runtime.rank)), runtime.host
        )
        failure = escalate(process, fault, "no actor of that process owns it")
        runtime.report_to_creator(ref.owner, ActorFailed(0, runtime.rank, failure, ref.uid))

    # --- from any thread ------------------------------------------------------------------------

    def ends_process(self, failure: RankFailure) -> bool:
        """Whether a failed actor ends this process, which is then restarted."""
        if not self._restarts:
            return False
        if self._gave_up:  # callers are told of the end of the process
            return True
        if failure.kind == "stopped" or failure.endpoint == "__cleanup__":
            return False
        if failure.kind == "constructor" and not self._incarnation:
            return False  # the next incarnation would fail again
        return not self._ending

    def end_process(self, failure: RankFailure) -> None:
        """Give up this incarnation with that failure; only the first one counts."""
        with self._giving_up:
            if self._gave_up:
                return
            self._gave_up = True
        self._runtime.node.send(AGENT, GaveUp(failure))
        self._ending = True
        reason, grace_s = f"its process ends, since {failure.what}", settings().cleanup_s
        self._ends_at = time.monotonic() + grace_s
        self._runtime.ownership.root.stop(reason, grace_s)
        self._actors.stop(reason, grace_s)
        self._has_work.finish()


def _on_host_gone() -> None:
    # On Linux the kernel has killed this process before; other systems rely on the lifeline.
    os._exit(1)


def _on_broken_stream(peer: str, error: StreamError) -> None:
    # The lost calls are unknown, so their callers have to learn from the end of this process.
    os.write(2, f"this process ends, since messages from {peer} are lost: {error}\n".encode())
    os._exit(1)


def _breakpoint(*args: Any, **options: Any) -> Any:
    """Replaces `breakpoint()`: pause in the debugger, unless the user has chosen another one."""
    if os.environ.get("PYTHONBREAKPOINT"):  # as Python has it; 0: none
        return sys.__breakpointhook__(*args, **options)
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    from monarch._src.debug.rank.pauses import pause_here

    return pause_here(frame, *args, **options)


def prepare() -> Callable[[Boot, int], int]:
    """The entry point that the host agent names (`system.main_programs.PROC_ENTRY`).

    The zygote calls it once; each fork calls the result.
    """
    parts.plug_in()
    mark_streams(origin_of_output)
    if exports_otlp():
        from monarch._src.telemetry import otlp

        otlp.preload()
    _log_to_stderr()
    return partial(main, Program())


def _log_to_stderr() -> None:
    """Write log records to stderr until the user configures logging.

    The handler of last resort writes them: a handler of the root logger would turn the user's
    `logging.basicConfig` into a no-op. Records carry no time, so that equal lines of ranks fold.
    """
    for handler in logging.root.handlers[:]:
        logging.root.removeHandler(handler)
    last = logging.lastResort
    if last is not None:
        last.setLevel(logging.NOTSET)
        last.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))


def main(program: Program, boot: Boot, lifeline: int) -> int:
    """Run that proc from start to end; returns the exit status."""
    install_permanent_handler()
    sys.breakpointhook = _breakpoint
    main_names.begin()
    program.begin(boot, lifeline)
    try:
        return program.run()
    finally:
        program.join_threads()
        run_exit_functions()
        run_destructors()


class Item(Protocol):
    """An actor, or the bootstrap function."""

    @property
    def finalized(self) -> bool:
        """Whether its code has ended for good, though the main thread may not have left it."""
        ...

    @property
    def shares_main_thread(self) -> bool:
        """Whether it takes turns with other such items."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether its code runs, or is about to."""
        ...


AnyItem = TypeVar("AnyItem", bound=Item)


class MainQueue(Generic[AnyItem]):
    """The items that have the main thread, and those that follow them at once."""

    def __init__(self) -> None:
        self._lock = GuardedLock()
        self._waiting: deque[AnyItem] = deque()
        self._given: list[AnyItem] = []  # those that have not ended, waiting ones included

    def give(self, item: AnyItem) -> bool:
        """Give an item to the main thread; False if it has to run elsewhere.

        An item has the main thread to itself, unless it and all others there share that thread. It
        joins those only while none of them is busy: it would wait for a call that may wait for it.

        An actor tells its owner of its end before the main thread has left it. An item that comes
        meanwhile waits for that moment, since no code of the actor holds it up.
        """
        with self._lock:
            for other in self._given:
                shares = item.shares_main_thread and other.shares_main_thread
                if not other.finalized and (not shares or other.is_busy):
                    return False
            self._given.append(item)
            self._waiting.append(item)
            return True

    def take(self) -> AnyItem | None:
        """The next item to run; None if there is none."""
        return self._waiting.popleft() if self._waiting else None

    def take_shared(self) -> AnyItem | None:
        """The next item, if it shares the main thread."""
        if self._waiting and self._waiting[0].shares_main_thread:
            return self._waiting.popleft()
        return None

    def on_ended(self, item: AnyItem) -> None:
        """The main thread has left that item."""
        with self._lock:
            self._given = [one for one in self._given if one is not item]
