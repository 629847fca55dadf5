"""Future: the answer to a call, read by blocking or by awaiting.

Runs in: any process. The receiving thread settles a future; any number of threads and tasks may
read it, any number of times. The first reader decodes the value, once.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Generator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar, cast

from monarch._src.actor.context import ActorInstance, current
from monarch._src.actor.deadlock.state.waits import FIRST_S, Wait
from monarch._src.actor.state.calls import PendingCall
from monarch._src.actor.state.deadline_pauses import Pauses
from monarch._src.errors import CallCancelled, DeadlockError
from monarch._src.failures.endpoint_text import endpoint_text
from monarch._src.failures.report import at_text, points_text
from monarch._src.net.local.leader import ReceiveLeader
from monarch._src.net.local.waitable import RuntimeEnded, UnmanagedWait, Waitable

if TYPE_CHECKING:
    import asyncio

    from monarch._src.actor.call.unread import UnreadError

R = TypeVar("R")
# After the first error of several ranks, `get` waits this long (seconds) for the others.
OTHERS_S = 0.05
PAUSES = Pauses()
"""The pauses of ranks at breakpoints, as far as this process knows them."""
POLL_S = 0.1  # how often a wait checks whether a paused deadline runs again
# One lock for all futures, since each call makes one, and few are read by several threads.
_decoding = threading.RLock()  # a value is decoded once
_observing = threading.RLock()  # a list of callbacks is created once


class Prober(Protocol):
    """Detects waits of actors that can never end; see `actor.deadlock.detector`."""

    @property
    def has_actors(self) -> bool:
        """Whether any actor runs in this process."""
        ...

    def probe(self, instance: ActorInstance, wait: Wait) -> None:
        """Check whether that wait is part of a cycle; if so, it fails."""
        ...

    def blocked_by(self, thread: int) -> Sequence[ActorInstance]:
        """The actors of this process that cannot go on before that thread has finished its work."""
        ...


class Future(Waitable, Generic[R]):
    """The answer to a call. Dropping the future does not cancel the call."""

    __slots__ = (
        "_callbacks",
        "_cycle",
        "_decode",
        "_error",
        "_prober",
        "_receive_leader",
        "_value",
        "abandoned",
        "all_answered",
        "pending",
        "reader",
        "source",
        "unread",
    )

    def __init__(self, leader: ReceiveLeader, prober: Prober | None = None) -> None:
        """`prober` checks whether a long wait of an actor can ever end; None: no check."""
        # In place of `super().__init__()`, since every call creates a future.
        self.done = False
        self.leader = None
        self.sleepers = None
        self._receive_leader = leader
        self._prober = prober
        self._decode: Callable[[], R] | None = None
        self._value: R | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] | None = None
        # Done when every rank has answered; a first error settles the future earlier.
        self.all_answered: Waitable | None = None
        # The last wait has ended without the answer, so a receiver may hand this future out again.
        self.abandoned = False
        # Set if a call settles this future.
        self.pending: PendingCall | None = None
        # The cycle that the last wait was part of, if that wait had a time-out.
        self._cycle: Sequence[str] = ()
        # An object that must live as long as this future is waited for, if any.
        self.source: Any
        # If a call has failed: reports its error when this future goes away unread.
        self.unread: UnreadError | None = None
        # A future that the threads waiting for this one are to settle, if any.
        self.reader: Future[Any] | None = None

    @property
    def awaited(self) -> bool:
        """Whether the program waits for it now, in a thread or task. Any thread."""
        if self.reader is not None:
            return not self.done and self.reader.awaited
        return not self.done and bool(self.leader or self.sleepers or self._callbacks)

    # --- for the runtime ----------------------------------------------------------------------

    @staticmethod
    def of(value: R) -> Future[R]:
        """A future that is done; needs no runtime."""
        future: Future[R] = Future(cast(ReceiveLeader, None))  # used by waits only
        future.settle(lambda: value)
        return future

    @staticmethod
    def unmanaged() -> Future[Any]:
        """A future that another thread of this process settles; needs no runtime."""
        return Future(cast(ReceiveLeader, UnmanagedWait()))

    def settle(self, decode: Callable[[], R]) -> None:
        """Settle with a value, which the first reader makes by `decode`. The first outcome wins."""
        # A settled future may still wait for earlier output, and then is not `done`.
        if not self.done and self._decode is None and self._error is None:
            self._decode = decode
            self._finish_in_turn()

    def fail(self, error: BaseException) -> None:
        """Settle with an error. The first outcome wins."""
        if not self.done and self._decode is None and self._error is None:
            self._error = error
            self._finish_in_turn()

    def _finish_in_turn(self) -> None:
        pending = self.pending
        # After the first error of several ranks, the waiting thread first waits for the others.
        if pending is None or pending.after_output is None or self.all_answered is not None:
            self._finish()
        else:
            pending.after_output(self._finish)

    def on_done(self, callback: Callable[[], None], *, receives: bool = False) -> None:
        """Call back when done, or at once if it is done already.

        The settling thread calls it, so it must not block. `receives`: the waiting thread receives
        messages itself while it is idle.
        """
        try:  # two concurrent first callers must not both create the list
            _observing.acquire()  # as in `_result`
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)
        finally:
            try:
                _observing.release()
            except RuntimeError:
                pass
        if self.done:
            self._run_callbacks()
        elif not receives:
            self._receive_leader.receive_now()

    def _finish(self) -> None:
        self.finish()
        if self._callbacks:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        callbacks = self._callbacks
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:
                return  # another thread took the last one
            callback()

    # --- for users ----------------------------------------------------------------------------

    def get(self, timeout: float | None = None) -> R:
        """Wait for the answer and return it, or raise what went wrong.

        Args:
            timeout: seconds; None waits without limit. A wait for a dead process always fails.

        Time during which a rank that owes the answer is paused at a breakpoint does not count, so
        that debugging does not run into the program's deadlines.

        Raises:
            TimeoutError: not done in time. The call goes on, and `get` may be called again.
            RuntimeError: the runtime was shut down, or this is a fork of the process that has it.
            ValueError: a negative or NaN time-out.
        """
        if timeout is not None and not timeout >= 0:  # NaN is neither
            raise ValueError(f"timeout={timeout}: give seconds of at least 0, or None")
        if not self.done:
            _warn_under_a_loop()
            began = monotonic() if timeout else 0.0
            if not self._wait(timeout) and not self._outlasts_pauses(timeout, began):
                if self._receive_leader.ended:
                    raise RuntimeEnded(self._receive_leader.ended)
                self.abandoned = True
                raise TimeoutError(self._timeout_text(timeout))
        if self.all_answered is not None:
            # Ranks often fail alike and together: a short wait joins them into one error.
            all_answered, self.all_answered = self.all_answered, None
            self._receive_leader.wait(all_answered, OTHERS_S)
            # The last lines of those ranks are shown before the error too.
            if self.pending is not None and self.pending.after_output is not None:
                shown = Waitable()
                self.pending.after_output(shown.finish)
                self._receive_leader.wait(shown)
        return self._result()

    def _wait(self, timeout: float | None) -> bool:
        context = current.get()
        if context is None or context.actor_instance.thread != threading.get_ident():
            return self._wait_outside_actor(timeout)
        instance = context.actor_instance
        deadline = None if timeout is None else monotonic() + timeout
        wait = None
        try:
            if self.pending is not None:
                wait = Wait(self.pending.number, self, None, timeout is not None)
                instance.waiting.begin(wait)
            instance.blocked_since = monotonic()
            instance.blocked_on = self
            while True:
                check_due = instance.check_due
                left = None if deadline is None else max(0.0, deadline - monotonic())
                round_s = None if wait is None else wait.next_round_s()
                probes = round_s is not None and (left is None or round_s < left)
                if self._receive_leader.wait(self, round_s if probes else left, unless=check_due):
                    return True
                if check_due is not None and check_due.done:
                    if instance.check_failures is None:
                        return False
                    # A safe point: this wait may depend on the mesh that has failed.
                    instance.blocked_on = None
                    instance.check_failures()
                    instance.blocked_on = self
                elif not probes or wait is None or self._receive_leader.ended:
                    return False  # timed out, or the runtime was shut down
                elif self._prober is not None:
                    self._prober.probe(instance, wait)
        except CallCancelled:
            # Cancel the awaited call too: the canceller may have missed a wait that began just now.
            if self.pending is not None:
                _cancel_pending(self.pending)
            raise
        finally:
            instance.blocked_on = None
            if wait is not None:
                instance.waiting.end(wait)
                self._cycle = wait.cycle

    def _wait_outside_actor(self, timeout: float | None) -> bool:
        """Wait on a thread that handles no actor's messages.

        The wait fails if the awaited actor waits for this thread in turn.
        """
        if self.pending is None or self._prober is None or not self._prober.has_actors:
            return self._receive_leader.wait(self, timeout)
        deadline = None if timeout is None else monotonic() + timeout
        number, thread = self.pending.number, threading.get_ident()
        waits: dict[ActorInstance, Wait] = {}
        round_s = FIRST_S
        try:
            while True:
                left = None if deadline is None else max(0.0, deadline - monotonic())
                probes = left is None or round_s < left
                if self._receive_leader.wait(self, round_s if probes else left):
                    return True
                if not probes or self._receive_leader.ended:
                    return False
                round_s *= 2
                for instance in self._prober.blocked_by(thread):
                    wait = waits.get(instance)
                    if wait is None:
                        timed = timeout is not None
                        wait = waits[instance] = Wait(number, self, timed=timed, thread=thread)
                        instance.waiting.begin(wait)
                    self._prober.probe(instance, wait)
        finally:
            for instance, wait in waits.items():
                instance.waiting.end(wait)
                self._cycle = wait.cycle or self._cycle

    def _timeout_text(self, timeout: float | None) -> str:
        late = f"no answer within {timeout} s"
        if not self._cycle:
            return f"{late}{owing_text(self.pending)}; the call goes on, ask again"
        return f"{late}; none can come while this waits: {DeadlockError(self._cycle)}"

    def _outlasts_pauses(self, timeout: float | None, began: float) -> bool:
        """After a time-out, wait on for as long as ranks that owe an answer were paused."""
        pending = self.pending
        target = None if pending is None else pending.actor_mesh
        while PAUSES and timeout and pending is not None and target is not None and not self.done:
            mesh, region = target.procs.uid, pending.region
            owing = [(mesh, region.global_rank(at)) for at in pending.owing()]
            now = monotonic()
            stood_still, paused = PAUSES.within(owing, began, now)
            left = began + timeout + stood_still - now
            if left <= 0 and not paused:
                break
            self._wait(max(left, POLL_S))
        return self.done

    def result(self, timeout: float | None = None) -> R:
        """Same as `get`."""
        return self.get(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, then return the error of the call, or None if it has a value."""
        try:
            self.get(timeout)
        except BaseException as error:
            if self.done:
                return error
            raise
        return None

    def __await__(self) -> Generator[Any, None, R]:
        if not self.done:
            waiter = self._when_done()
            watched = self._task_wait(waiter)
            _began = monotonic()  # read from this frame by `observe.stacks.rank_part`
            try:
                yield from waiter.__await__()
            except BaseException:
                self.abandoned = True
                raise
            finally:
                if watched is not None:
                    watched.end()
        all_answered, self.all_answered = self.all_answered, None
        if (
            all_answered is not None
            and self.pending is not None
            and self.pending.after_output is not None
        ):
            shown: Future[None] = Future(self._receive_leader)
            self.pending.after_output(lambda: shown.settle(_nothing))
            yield from shown.__await__()
        return self._result()

    def _task_wait(self, waiter: asyncio.Future[None]) -> _TaskWait | None:
        """Begin to probe for cycles while a task of an actor awaits this future."""
        context = current.get()
        if context is None or self.pending is None or self._prober is None:
            return None
        instance = context.actor_instance
        if instance.is_async:
            if instance.task is None:  # its calls overlap
                if instance.waiting.on_begin is not None:
                    instance.waiting.on_begin()
                return None
        elif instance.thread != threading.get_ident():
            return None
        wait = Wait(self.pending.number, self, waiter)
        return _TaskWait(self._prober, instance, wait, waiter.get_loop())

    def as_asyncio(self) -> asyncio.Future[R]:
        """An asyncio future of the running loop with the same outcome; cancelling it is local."""
        import asyncio  # takes 13 ms to load; a caller with a running loop has loaded it

        loop = asyncio.get_running_loop()
        mirror: asyncio.Future[R] = loop.create_future()

        def copy(done: asyncio.Future[None]) -> None:
            if mirror.done() or done.cancelled():
                return
            try:
                mirror.set_result(self._result())
            except BaseException as error:
                mirror.set_exception(error)

        def give_up(done: asyncio.Future[R]) -> None:
            if done.cancelled():
                self.abandoned = True

        mirror.add_done_callback(give_up)  # also keeps this future alive as long as the mirror
        waiter = self._when_done()
        waiter.add_done_callback(copy)
        watched = None if self.done else self._task_wait(waiter)
        if watched is not None:
            waiter.add_done_callback(watched.end)
        return mirror

    def _when_done(self) -> asyncio.Future[None]:
        # Each reader has its own asyncio future, so that cancelling one affects no other.
        import asyncio

        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        # An actor's loop receives messages itself.
        awaiting = getattr(loop, "awaiting", None)
        if awaiting is not None:
            awaiting.awaits += 1

        def wake() -> None:
            if awaiting is not None:
                awaiting.awaits -= 1
            if not waiter.done():
                waiter.set_result(None)

        def done() -> None:
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:
                pass  # the loop was closed before the answer arrived

        self.on_done(done, receives=awaiting is not None)
        return waiter

    def _result(self) -> R:
        self.abandoned = False
        if self._decode is not None:
            try:
                # Not `with`: from Python 3.14 on an asynchronous exception can be raised between
                # the acquisition and the body, and the lock would stay taken. Here `release` fails
                # if this thread does not hold the lock.
                _decoding.acquire()
                decode = self._decode
                if decode is not None:
                    try:
                        self._value = decode()
                    except RecursionError:
                        raise  # the stack is too full here; another caller may succeed
                    except BaseException as error:
                        self._error = error
                    self._decode = None
            finally:
                try:
                    _decoding.release()
                except RuntimeError:
                    pass  # interrupted while waiting for the lock
        if self._error is not None:
            if self.unread is not None:
                self.unread.mark_read()
            raise self._error
        return cast(R, self._value)

    if not TYPE_CHECKING:  # a type checker should report these

        def __iter__(self) -> NoReturn:
            raise TypeError(
                "a Future cannot be iterated before its value is there: get() it, or await "
                "it; `for point, value in mesh.endpoint.call(...).get().items():`"
            )

        def __getitem__(self, at: object) -> NoReturn:
            raise TypeError(
                f"a Future has no item {at!r}: it stands for an answer; get() it, or await it, "
                "first: `mesh.endpoint.call(...).get()`"
            )

        def __getattr__(self, name: str) -> NoReturn:
            if name in _OF_ASYNCIO:
                raise AttributeError(_NO_ASYNCIO.format(name=name), name=name, obj=self)
            # Called for missing attributes only. Protocols probe for private names, without a hint.
            hint = "" if name.startswith("_") or name == "source" else _NO_ANSWER.format(name=name)
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{hint}",
                name=name, obj=self,
            )  # fmt: skip

    def __repr__(self) -> str:
        state = "pending" if not self.done else "failed" if self._error is not None else "done"
        # asyncio's error for a missing coroutine shows only the repr of the object.
        caller = sys._getframe(1).f_globals.get("__name__", "")  # pyright: ignore[reportPrivateUsage]
        hint = _NO_COROUTINE if str(caller).startswith("asyncio.") else ""
        return f"<Future {state}{hint}>"


def owing_text(pending: PendingCall | None) -> str:
    """` from Trainer.step on cells[gpus=3] (1 of 8 ranks)`: the ranks that owe an answer."""
    target = None if pending is None else pending.actor_mesh
    if pending is None or target is None or not pending.endpoint:
        return ""
    owing = [pending.region.global_rank(position) for position in pending.owing()]
    if not owing:  # the last answer has just arrived
        return ""
    procs, ranks = target.procs, len(pending.region)
    called = endpoint_text(target.class_name, pending.endpoint)
    points = [(dict(procs.extent.point_of_rank(rank)), procs.name) for rank in owing]
    if len(owing) == 1:
        where = procs.name + at_text(points[0][0])
    elif len(owing) == ranks:
        return f" from {called} on {procs.name} (all {ranks} ranks)"
    else:
        where = f"{procs.name}, {points_text(points)}"
    of = f" ({len(owing)} of {ranks} ranks)" if ranks > 1 else ""
    return f" from {called} on {where}{of}"


def _nothing() -> None:
    pass


_OF_ASYNCIO = ("add_done_callback", "remove_done_callback", "get_loop", "cancel", "cancelled")
_NO_ASYNCIO = (
    "this Future is awaited like one of asyncio's, but is bound to no loop and has no {name!r}: "
    "use future.as_asyncio(), as in `await asyncio.wait([f.as_asyncio() for f in futures])`. To "
    "cancel a running endpoint, use monarch.observe.cancel_calls"
)
_NO_COROUTINE = (
    ", which is no coroutine: `await` it inside an `async def`, or give asyncio its as_asyncio()"
)
_NO_ANSWER = (
    ": it stands for an answer; get() it, or await it, first: "
    "`mesh.endpoint.call(...).get().{name}`"
)


def _without_runtime(_pending: PendingCall) -> None:
    raise RuntimeError("no runtime has set the canceller")


_cancel_pending: Callable[[PendingCall], None] = _without_runtime


def set_canceller(cancel: Callable[[PendingCall], None]) -> None:
    """Set the function that cancels a call. Called once, by `actor.runtime`."""
    global _cancel_pending
    _cancel_pending = cancel


class _TaskWait:
    """A task's wait; the task's loop sends the probes."""

    __slots__ = ("_instance", "_loop", "_prober", "_timer", "_wait")

    def __init__(
        self, prober: Prober, instance: ActorInstance, wait: Wait, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._prober = prober
        self._instance = instance
        self._wait = wait
        self._loop = loop
        instance.waiting.begin(wait)
        self._timer = loop.call_later(wait.next_round_s(), self._probe)

    def _probe(self) -> None:
        self._prober.probe(self._instance, self._wait)
        self._timer = self._loop.call_later(self._wait.next_round_s(), self._probe)

    def end(self, _done: object = None) -> None:
        self._timer.cancel()
        self._instance.waiting.end(self._wait)


def _in_a_kernel() -> bool:
    kernels = sys.modules.get("ipykernel.kernelapp")
    return kernels is not None and kernels.IPKernelApp.initialized()


def _warn_under_a_loop() -> None:
    # A kernel runs its cells inside its loop, where blocking in a cell is normal.
    if "asyncio" not in sys.modules or _in_a_kernel():
        return
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    warnings.warn(
        ".get() blocks the running event loop; `await` the future instead",
        RuntimeWarning,
        stacklevel=3,
    )
