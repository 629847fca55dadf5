"""Future: the answer of a call, to be had by blocking, by awaiting, or by asking later.

Runs in: any process. Settled by the thread that receives; observed by any number of threads and
tasks, any number of times. The value is decoded by whoever first looks at it, once.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from monarch._src.actor.context import ActorInstance, current
from monarch._src.net.baton import Baton, Waitable

if TYPE_CHECKING:
    import asyncio

R = TypeVar("R")
OTHERS_S = 0.05
PROBE_S = 0.25
Prober: TypeAlias = "Callable[[ActorInstance, Future[Any]], None]"
_decoding = threading.RLock()
_observing = threading.Lock()


class Future(Waitable, Generic[R]):
    """The answer to come. Dropping it does not unsend the message."""

    __slots__ = (
        "_baton",
        "_callbacks",
        "_decode",
        "_error",
        "_prober",
        "_value",
        "given_up",
        "pending",
        "rest",
        "source",
    )

    def __init__(self, baton: Baton, prober: Prober | None = None) -> None:
        """`prober(actor, future)` is asked whether a long wait of an actor can ever end."""
        super().__init__()
        self._baton = baton
        self._prober = prober
        self._decode: Callable[[], R] | None = None
        self._value: R | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] | None = None
        # Done when every rank has answered; a first error settles the future before that.
        self.rest: Waitable | None = None
        # Whoever waited has stopped waiting: a receiver may hand this future out again.
        self.given_up = False
        # The call that it answers, as far as there is one.
        self.pending: Any = None
        # `source` is set where something must live as long as this is waited for.
        self.source: Any

    # --- for the runtime ----------------------------------------------------------------------

    @staticmethod
    def of(value: R) -> Future[R]:
        """One that is done, where there is nothing to wait for and maybe no runtime."""
        future: Future[R] = Future(cast(Baton, None))  # only those who wait ask for it
        future.settle(lambda: value)
        return future

    def settle(self, decode: Callable[[], R]) -> None:
        """Done, with a value that `decode` makes when it is first looked at. First one wins."""
        if not self.done:
            self._decode = decode
            self._finish()

    def fail(self, error: BaseException) -> None:
        """Done, with an error. First one wins."""
        if not self.done:
            self._error = error
            self._finish()

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call when done, at once if it is; on the thread that settles it, so be quick."""
        with _observing:  # two first observers at once must not each make a list
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)
        if self.done:
            self._run_callbacks()
        else:
            self._baton.receive_now()

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

        Raises:
            TimeoutError: not done in time. Nothing is lost: ask again.
            ValueError: a negative or NaN time-out.
        """
        if timeout is not None and not timeout >= 0:  # NaN is neither
            raise ValueError(f"timeout={timeout}: give seconds of at least 0, or None")
        if not self.done:
            _warn_under_a_loop()
            if not self._wait(timeout):
                if timeout is None:
                    raise RuntimeError("the runtime was shut down before the answer came")
                self.given_up = True
                raise TimeoutError(f"no answer within {timeout} s; the call goes on, ask again")
        if self.rest is not None:
            # Ranks that fail alike do so together: a moment's patience folds them into one error.
            rest, self.rest = self.rest, None
            self._baton.wait(rest, OTHERS_S)
        return self._result()

    def _wait(self, timeout: float | None) -> bool:
        pending = self.pending
        brisk = pending is not None and pending.alone and pending.owed == 1
        context = current.get() if timeout is None and pending is not None else None
        # A thread beside the one that takes the messages may wait for what that one brings about.
        if context is None or context.actor_instance.thread != threading.get_ident():
            return self._baton.wait(self, timeout, brisk=brisk)
        instance = context.actor_instance
        self._begin_wait(instance)
        try:
            if self._baton.wait(self, PROBE_S, brisk=brisk):
                return True
            if self._prober is not None:
                self._prober(instance, self)
            return self._baton.wait(self, None)
        finally:
            self._end_wait(instance)

    def _begin_wait(self, instance: ActorInstance) -> None:
        instance.waits_for = self
        instance.waiting.begin(self.pending.number)

    def _end_wait(self, instance: ActorInstance) -> None:
        instance.waits_for = None
        instance.waiting.end()

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
            instance = self._waiting_actor()
            try:
                yield from self._when_done().__await__()
            except BaseException:
                self.given_up = True
                raise
            finally:
                if instance is not None:
                    self._end_wait(instance)
        return self._result()

    def _waiting_actor(self) -> ActorInstance | None:
        """The actor that can take no message until this is done, if that is who awaits it."""
        context = current.get() if self.pending is not None else None
        if context is None or context.actor_instance.task is None:
            return None
        import asyncio

        instance = context.actor_instance
        if asyncio.current_task() is not instance.task:
            return None  # one of several things that its endpoint does at once
        self._begin_wait(instance)

        def look() -> None:
            if not self.done and instance.waits_for is self and self._prober is not None:
                self._prober(instance, self)

        asyncio.get_running_loop().call_later(PROBE_S, look)
        return instance

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

        waiter = self._when_done()
        waiter.add_done_callback(copy)
        return mirror

    def _when_done(self) -> asyncio.Future[None]:
        # Each observer gets its own asyncio future, so that cancelling one touches no other.
        import asyncio

        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        def done() -> None:
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:
                pass  # the loop was closed before the answer came; nobody awaits

        self.on_done(done)
        return waiter

    def _result(self) -> R:
        self.given_up = False
        if self._decode is not None:
            with _decoding:
                decode = self._decode
                if decode is not None:
                    try:
                        self._value = decode()
                    except BaseException as error:
                        self._error = error
                    self._decode = None
        if self._error is not None:
            raise self._error
        return cast(R, self._value)

    def __repr__(self) -> str:
        state = "pending" if not self.done else "failed" if self._error is not None else "done"
        return f"<Future {state}>"


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
