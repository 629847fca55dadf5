"""Future: the answer of a call, to be had by blocking, by awaiting, or by asking later.

Runs in: any process. Settled by the thread that receives; observed by any number of threads and
tasks, any number of times. The value is decoded by whoever first looks at it, once.
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
from monarch._src.actor.state.deadline_pauses import Pauses
from monarch._src.errors import CallCancelled, DeadlockError
from monarch._src.failures.report import at_text, points_text
from monarch._src.net.local.leader import ReceiveLeader
from monarch._src.net.local.waitable import RuntimeEnded, UnmanagedWait, Waitable

if TYPE_CHECKING:
    import asyncio

R = TypeVar("R")
OTHERS_S = 0.05
PAUSES = Pauses()
"""What this process has been told of ranks that stand at a breakpoint."""
POLL_S = 0.1  # how often a wait whose deadline stands still looks whether it goes on
_decoding = threading.RLock()
_observing = threading.RLock()


class Prober(Protocol):
    """Finds out whether long waits of actors can ever end; see `actor.deadlock.detector`."""

    @property
    def has_actors(self) -> bool:
        """Whether any actor lives in this process."""
        ...

    def probe(self, instance: ActorInstance, wait: Wait) -> None:
        """Look whether that wait is in a cycle, which then ends it."""
        ...

    def blocked_by(self, thread: int) -> Sequence[ActorInstance]:
        """The actors of this process that can't go on before that thread has done what it does."""
        ...


class Future(Waitable, Generic[R]):
    """The answer to come. Dropping it does not unsend the message."""

    __slots__ = (
        "_callbacks",
        "_cycle",
        "_decode",
        "_error",
        "_prober",
        "_receive_leader",
        "_value",
        "abandoned",
        "pending",
        "rest",
        "source",
    )

    def __init__(self, leader: ReceiveLeader, prober: Prober | None = None) -> None:
        """`prober` is check_due whether a long wait of an actor can ever end."""
        # What `super().__init__()` would: one is made for every call.
        self.done = False
        self.leader = None
        self.sleepers = None
        self._receive_leader = leader
        self._prober = prober
        self._decode: Callable[[], R] | None = None
        self._value: R | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] | None = None
        # Done when every rank has answered; a first error settles the future before that.
        self.rest: Waitable | None = None
        # Whoever waited has stopped waiting: a receiver may hand this future out again.
        self.abandoned = False
        # The call that it answers, as far as there is one.
        self.pending: Any = None
        # In which its last wait was, if that had a time-out.
        self._cycle: Sequence[str] = ()
        # `source` is set where something must live as long as this is waited for.
        self.source: Any

    @property
    def awaited(self) -> bool:
        """Whether anybody waits for it at this moment, by blocking or in a task. Any thread."""
        return not self.done and bool(self.leader or self.sleepers or self._callbacks)

    # --- for the runtime ----------------------------------------------------------------------

    @staticmethod
    def of(value: R) -> Future[R]:
        """One that is done, where there is nothing to wait for and maybe no runtime."""
        future: Future[R] = Future(cast(ReceiveLeader, None))  # only those who wait ask for it
        future.settle(lambda: value)
        return future

    @staticmethod
    def unmanaged() -> Future[Any]:
        """One that another thread of this process settles, where there may be no runtime."""
        return Future(cast(ReceiveLeader, UnmanagedWait()))

    def settle(self, decode: Callable[[], R]) -> None:
        """Done, with a value that `decode` makes when it is first looked at. First one wins."""
        # It may be settled, and wait until what was written before it is shown.
        if not self.done and self._decode is None and self._error is None:
            self._decode = decode
            self._finish_in_turn()

    def fail(self, error: BaseException) -> None:
        """Done, with an error. First one wins."""
        if not self.done and self._decode is None and self._error is None:
            self._error = error
            self._finish_in_turn()

    def _finish_in_turn(self) -> None:
        pending = self.pending
        # After a first error of several ranks those who wait give the others a moment, first.
        if pending is None or pending.after_output is None or self.rest is not None:
            self._finish()
        else:
            pending.after_output(self._finish)

    def on_done(self, callback: Callable[[], None], *, receives: bool = False) -> None:
        """Call when done, at once if it is; on the thread that settles it, so be quick.

        `receives`: who waits for it receives messages itself once it has nothing else to do.
        """
        try:  # two first observers at once must not each make a list
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
                return  # the other thread took the last one
            callback()

    # --- for users ----------------------------------------------------------------------------

    def get(self, timeout: float | None = None) -> R:
        """Wait for the answer and return it, or raise what went wrong.

        Args:
            timeout: seconds; None waits for ever (the runtime ends every wait on something dead).

        The time for which a rank that owes the answer stands at a breakpoint does not count: who
        debugs must not lose the program to its own deadlines.

        Raises:
            TimeoutError: not done in time. Nothing is lost: ask again.
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
        if self.rest is not None:
            # Ranks that fail alike do so together: a moment's patience folds them into one error.
            rest, self.rest = self.rest, None
            self._receive_leader.wait(rest, OTHERS_S)
            if (
                self.pending is not None and self.pending.after_output is not None
            ):  # and so do their last lines
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
                    # A safe point: what has failed may be what this wait would never end without.
                    instance.blocked_on = None
                    instance.check_failures()
                    instance.blocked_on = self
                elif not probes or wait is None or self._receive_leader.ended:
                    return False  # not in time, or the runtime was shut down
                elif self._prober is not None:
                    self._prober.probe(instance, wait)
        except CallCancelled:
            # With what it waits for: who cancelled may have looked for that just before it waited.
            if self.pending is not None:
                _cancel(self.pending)
            raise
        finally:
            instance.blocked_on = None
            if wait is not None:
                instance.waiting.end(wait)
                self._cycle = wait.cycle

    def _wait_outside_actor(self, timeout: float | None) -> bool:
        """Wait on a thread that takes no messages of an actor.

        It may wait for what an actor of this process brings about, but for no actor that waits for
        this thread to end.
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
            return f"{late}{_owing_text(self.pending)}; the call goes on, ask again"
        return f"{late}; none can come while this waits: {DeadlockError(self._cycle)}"

    def _outlasts_pauses(self, timeout: float | None, began: float) -> bool:
        """The time is up. Wait on for as long as ranks that owe an answer were paused meanwhile."""
        while PAUSES and timeout and self.pending is not None and not self.done:
            mesh, region = self.pending.actor_mesh.procs.uid, self.pending.region
            owing = [(mesh, region.global_rank(at)) for at in self.pending.owing()]
            now = monotonic()
            stood_still, paused = PAUSES.within(owing, began, now)
            left = began + timeout + stood_still - now
            if left <= 0 and not paused:
                break
            self._wait(max(left, POLL_S))
        return self.done

    def result(self, timeout: float | None = None) -> R:
        """The same as `get`."""
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
            try:
                yield from waiter.__await__()
            except BaseException:
                self.abandoned = True
                raise
            finally:
                if watched is not None:
                    watched.end()
        rest, self.rest = self.rest, None
        if rest is not None and self.pending is not None and self.pending.after_output is not None:
            shown: Future[None] = Future(self._receive_leader)
            self.pending.after_output(lambda: shown.settle(_nothing))
            yield from shown.__await__()
        return self._result()

    def _task_wait(self, waiter: asyncio.Future[None]) -> _TaskWait | None:
        """See that a task of an actor does not wait for ever on what it keeps from happening."""
        context = current.get()
        if context is None or self.pending is None or self._prober is None:
            return None
        instance = context.actor_instance
        if instance.is_async:
            if instance.task is None:  # what it does overlaps
                if instance.waiting.on_begin is not None:
                    instance.waiting.on_begin()
                return None
        elif instance.thread != threading.get_ident():
            return None
        wait = Wait(self.pending.number, self, waiter)
        return _TaskWait(self._prober, instance, wait, waiter.get_loop())

    def as_asyncio(self) -> asyncio.Future[R]:
        """An asyncio future of the running loop with the same outcome; cancelling it is local."""
        import asyncio  # 13 ms to load, and who has a loop has loaded it

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

        mirror.add_done_callback(give_up)  # which also keeps this future while that one is kept
        waiter = self._when_done()
        waiter.add_done_callback(copy)
        watched = None if self.done else self._task_wait(waiter)
        if watched is not None:
            waiter.add_done_callback(watched.end)
        return mirror

    def _when_done(self) -> asyncio.Future[None]:
        # Each observer gets its own asyncio future, so that cancelling one touches no other.
        import asyncio

        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        # That of an actor receives messages itself.
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
                pass  # the loop was closed before the answer came; nobody awaits

        self.on_done(done, receives=awaiting is not None)
        return waiter

    def _result(self) -> R:
        self.abandoned = False
        if self._decode is not None:
            try:
                # Not `with`: from Python 3.14 on an exception can arrive between the acquisition
                # and the body of that, and the lock stays taken. Here nothing comes before the
                # acquisition, and a release knows whether the lock is this thread's.
                _decoding.acquire()
                decode = self._decode
                if decode is not None:
                    try:
                        self._value = decode()
                    except RecursionError:
                        raise  # this thread's stack is too full; from another place it can be had
                    except BaseException as error:
                        self._error = error
                    self._decode = None
            finally:
                try:
                    _decoding.release()
                except RuntimeError:
                    pass  # what interrupted the wait for the lock is raised
        if self._error is not None:
            raise self._error
        return cast(R, self._value)

    if not TYPE_CHECKING:  # a type checker is to find it

        def __iter__(self) -> NoReturn:
            raise TypeError(
                "a Future has no values to go through before they are there: get() it, or await "
                "it; `for point, value in mesh.endpoint.call(...).get().items():`"
            )

        def __getitem__(self, at: object) -> NoReturn:
            raise TypeError(
                f"a Future has no item {at!r}: it is the answer to come; get() it, or await it, "
                "first: `mesh.endpoint.call(...).get()`"
            )

        def __getattr__(self, name: str) -> NoReturn:
            if name in _OF_ASYNCIO:
                raise AttributeError(_NO_ASYNCIO.format(name=name), name=name, obj=self)
            # Only of what is not there. Who asks what an object can do asks for private names.
            hint = "" if name.startswith("_") or name == "source" else _NO_ANSWER.format(name=name)
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{hint}",
                name=name, obj=self,
            )  # fmt: skip

    def __repr__(self) -> str:
        state = "pending" if not self.done else "failed" if self._error is not None else "done"
        # asyncio says what it was given in place of a coroutine, and no more than that.
        caller = sys._getframe(1).f_globals.get("__name__", "")  # pyright: ignore[reportPrivateUsage]
        hint = _NO_COROUTINE if str(caller).startswith("asyncio.") else ""
        return f"<Future {state}{hint}>"


def _owing_text(pending: Any) -> str:
    """` from Trainer.step on cells[gpus=3] (1 of 8 ranks)`: who has not answered a call."""
    if pending is None or not pending.endpoint:
        return ""
    owing = [pending.region.global_rank(position) for position in pending.owing()]
    if not owing:  # the last answer came just now
        return ""
    target, ranks = pending.actor_mesh, len(pending.region)
    procs = target.procs
    points = [(dict(procs.extent.point_of_rank(rank)), procs.name) for rank in owing]
    if len(owing) == 1:
        where = procs.name + at_text(points[0][0])
    elif len(owing) == ranks:
        return f" from {target.class_name}.{pending.endpoint} on {procs.name} (all {ranks} ranks)"
    else:
        where = f"{procs.name}, {points_text(points)}"
    of = f" ({len(owing)} of {ranks} ranks)" if ranks > 1 else ""
    return f" from {target.class_name}.{pending.endpoint} on {where}{of}"


def _nothing() -> None:
    pass


_OF_ASYNCIO = ("add_done_callback", "remove_done_callback", "get_loop", "cancel", "cancelled")
_NO_ASYNCIO = (
    "this Future is awaited like one of asyncio's, but is bound to no loop and has no {name!r}: "
    "use future.as_asyncio(), as in `await asyncio.wait([f.as_asyncio() for f in futures])`. What "
    "an endpoint does is cancelled by monarch.observe.cancel_calls"
)
_NO_COROUTINE = (
    ", which is no coroutine: `await` it inside an `async def`, or give asyncio its as_asyncio()"
)
_NO_ANSWER = (
    ": it is the answer to come; get() it, or await it, first: "
    "`mesh.endpoint.call(...).get().{name}`"
)


def _cancel(pending: Any) -> None:
    from monarch._src.actor.runtime import runtime_or_none  # which makes futures, so not above

    run = runtime_or_none()
    if run is not None:
        run.cancel(pending)


class _TaskWait:
    """The wait of a task, which sends its probes from the loop of that task."""

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
    # A kernel runs its cells inside its loop; there, blocking in a cell is the normal thing.
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
