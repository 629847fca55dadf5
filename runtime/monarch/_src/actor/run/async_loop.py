"""The loop of an async actor: an event loop on its own thread awaits one message after another.

Runs in: a proc, on the actor's thread. Loaded with the first async actor: asyncio takes 13 ms.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from monarch._src.actor.context import current
from monarch._src.actor.run.cell import ActorCell
from monarch._src.actor.run.endpoint_table import BoundEndpoint
from monarch._src.actor.run.event_loop import ActorLoop, new_loop
from monarch._src.actor.run.mailbox import CHECK_FAILURES, CheckFailures, Item, Mailbox, Stop
from monarch._src.actor.run.running_calls import CallAborted
from monarch._src.actor.supervise.ownership import UNTIL_OVERDUE, Supervisor
from monarch._src.actor.tracing import TRACE
from monarch._src.errors import CallCancelled
from monarch._src.failures.report import RankFailure
from monarch._src.net.local.interrupt import (
    Shield,
    SignalShield,
    shield_this_thread,
    unshield_this_thread,
)
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Call

BLOCKED_S = 0.1
"""A loop that has not cancelled a call after this time is taken to be blocked by it."""


def serve(cell: ActorCell) -> None:
    """Construct the actor and serve its messages until it ends."""
    # Not asyncio.run, which installs a SIGINT handler of its own on the main thread.
    loop = new_loop(cell.runtime.node.leader)
    actor = _AsyncActor(cell, loop)
    shield = shield_this_thread(CallCancelled)
    if isinstance(shield, SignalShield):
        shield.work_of = actor.work_here
    try:
        actor.shield = shield
        asyncio.set_event_loop(loop)
        loop.run_until_complete(actor.serve())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        cell.mailbox.on_put = None
        cell.raise_in = None
        unshield_this_thread(shield)
        asyncio.set_event_loop(None)
        loop.close()


class _Inbox:
    """A mailbox, awaited."""

    def __init__(self, mailbox: Mailbox, loop: asyncio.AbstractEventLoop) -> None:
        self._mailbox = mailbox
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        mailbox.on_put = self._on_put

    async def next(self) -> Item | None:
        """The next item; None if the mailbox is closed and empty."""
        while (item := self._mailbox.take()) is None and not self._mailbox.closed:
            self._waiter = self._loop.create_future()
            if not self._mailbox and not self._mailbox.closed:
                await self._waiter
            self._waiter = None
        return item

    def _on_put(self) -> None:
        # On the receiving thread. `next` sets the waiter before it checks the mailbox again.
        if self._waiter is not None:
            loop = self._loop
            if isinstance(loop, ActorLoop) and loop.handles():
                self._wake()
                loop.go_on()
                return
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                pass  # the loop has ended; what is queued is answered by `drain`

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _SupervisorChanges:
    """Changes of a supervisor, awaited."""

    def __init__(self, supervisor: Supervisor, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()
        supervisor.on_change = self._on_change

    async def until(self, condition: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Return when the condition holds, or after the time-out."""
        try:
            await asyncio.wait_for(self._until(condition), timeout_s)
        except asyncio.TimeoutError:
            pass

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._event.clear()
            if not condition():
                await self._event.wait()

    def _on_change(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            pass  # the loop has ended


class _AsyncActor:
    def __init__(self, cell: ActorCell, loop: asyncio.AbstractEventLoop) -> None:
        self._cell = cell
        assert cell.endpoints is not None
        self._endpoints = cell.endpoints
        self._loop = self.loop = loop
        self._inbox = _Inbox(cell.mailbox, loop)
        self._overlapping: set[asyncio.Task[None]] = set()
        self._checking: asyncio.Task[None] | None = None
        self._hook_waits = False  # whether `_checking` awaits the answer of an actor
        # Done when messages need not wait for `_checking`.
        self._released: asyncio.Future[None] | None = None
        self._changes = _SupervisorChanges(cell.supervisor, loop)
        self._ending_failure: RankFailure | None = None  # why overlapping calls are cancelled
        # The work of each task: a call, or the cell while the actor is constructed.
        self.work: dict[asyncio.Task[Any] | None, Any] = {}
        self.shield: Shield | SignalShield | None = None

    async def serve(self) -> None:
        cell = self._cell
        cell.interrupt = self._interrupt
        cell.raise_in = self._raise_in
        cell.tasks = self
        cell.instance.is_async = True
        task = asyncio.current_task()
        try:
            self.work[task] = cell
            try:
                cell.construct()
            finally:
                del self.work[task]
        except BaseException as error:
            cell.fail_early(cell.describe(error, "constructor", None), error)
            return
        cell.instance.waiting.on_begin = self._on_wait_begins
        cell.on_check_due = self._on_check_due
        self._check_soon()  # failures may precede the end of the constructor
        supervisor = cell.supervisor
        while cell.dead is None and supervisor.is_living:
            item = await self._inbox.next()
            if isinstance(item, tuple):
                await self._call(*item)
            elif isinstance(item, Stop):
                cell.request_stop(item)
                # Pending failures are checked first, and an unhandled one fails the actor.
                await self._changes.until(lambda: not supervisor.is_living)
                await self._cancel_overlapping(cell.stopped_failure(item.reason))
            elif isinstance(item, CheckFailures):
                await self._check_first()
            elif item is not None:
                answer = cell.supervision.call_undeliverable_hook(item)
                if inspect.isawaitable(answer):
                    answer = await _outcome(answer)
                cell.supervision.on_undeliverable_answered(item, answer)
        if cell.dead is not None:
            await self._cancel_overlapping()
        await self._changes.until(
            lambda: supervisor.may_clean.done, supervisor.grace_s * UNTIL_OVERDUE
        )
        supervisor.on_grace_expired()
        failed = None if cell.finalized else await self._clean_up(cell.cause)
        cell.on_cleaned_up(failed)

    # --- supervision: in a task of its own, one failure after another -----------------------------

    def _on_check_due(self) -> None:
        # Any thread. Check before the next message, and while an endpoint awaits.
        self._cell.mailbox.put_first(CHECK_FAILURES)
        try:
            self._loop.call_soon_threadsafe(self._check_soon)
        except RuntimeError:
            pass  # the loop has ended

    def _check_soon(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = self._loop.create_task(self._check_failures())
            self._hook_waits = False

    async def _check_first(self) -> None:
        """Check pending failures before the next message.

        Messages wait until `__supervise__` returns, or until it awaits the answer of another actor,
        which may need this actor to handle a message first.
        """
        self._check_soon()
        checking = self._checking
        assert checking is not None
        if not self._hook_waits:
            released = self._released = self._loop.create_future()
            await asyncio.wait({checking, released}, return_when=asyncio.FIRST_COMPLETED)
            self._released = None

    def _on_wait_begins(self) -> None:
        checking = self._checking
        if checking is not None and asyncio.current_task(self._loop) is checking:
            self._hook_waits = True
            self._release()

    def _release(self) -> None:
        if self._released is not None and not self._released.done():
            self._released.set_result(None)

    async def _check_failures(self) -> None:
        cell = self._cell
        current.set(cell.idle_context)
        while (fault := cell.supervisor.next_failure()) is not None:
            answer = cell.supervision.call_supervise(fault)
            if inspect.isawaitable(answer):
                answer = await _outcome(answer)
            cell.supervision.on_supervised(fault, answer)

    # --- calls ------------------------------------------------------------------------------------

    def _interrupt(self) -> None:
        # Any thread. Deferred even on the loop's own thread, so that the running task goes on.
        try:
            self._loop.call_soon_threadsafe(self._cancel_call)
        except RuntimeError:
            pass  # the loop has ended

    def _cancel_call(self) -> None:
        task = self._cell.instance.task
        if task is not None:
            task.cancel()
        self._release()

    def work_here(self) -> Any:
        """The work of the running task. Called on the loop's thread, in a signal handler."""
        return self.work.get(asyncio.current_task(self._loop))

    def _raise_in(self, call: Call) -> bool:
        """Cancel the task of a call; if its loop is blocked, raise in the blocking code.

        Any thread. Only on the main thread can blocking code be interrupted.
        """
        reached = threading.Event()

        def cancel() -> None:
            reached.set()
            # Let a call that the endpoint has just sent begin its wait, so that it is cancelled
            # too.
            self._loop.call_soon(self._cancel_work, call)

        def raise_if_blocked() -> None:
            if not reached.wait(BLOCKED_S) and self.shield is not None:
                self.shield.raise_in(call)

        try:
            self._loop.call_soon_threadsafe(cancel)
        except RuntimeError:
            return False  # the loop has ended
        if isinstance(self.shield, SignalShield):
            threading.Thread(target=raise_if_blocked, name="cancel", daemon=True).start()
        return True

    def _cancel_work(self, call: Call) -> None:
        cell = self._cell
        for task, work in list(self.work.items()):
            if work is call and task is not None:
                cell.running_calls.cancel_waits(call)
                task.cancel()

    async def _call(self, peer: str, call: Call, payload: Payload, arrived_ns: int) -> None:
        cell = self._cell
        instance = cell.instance
        if not cell.running_calls.accept(peer, call, payload, arrived_ns):
            return
        if not self._endpoints.is_concurrent(call.endpoint):
            instance.endpoint, instance.task = call.endpoint, asyncio.current_task()
            await self._run(peer, call, payload, arrived_ns)
            instance.task = None
            return
        task = self._loop.create_task(self._run(peer, call, payload, arrived_ns))
        self._overlapping.add(task)
        task.add_done_callback(self._overlapping.discard)
        await asyncio.sleep(0)  # it begins before the next message

    async def _run(self, peer: str, call: Call, payload: Payload, arrived_ns: int) -> None:
        cell = self._cell
        running = cell.begin_call(call)
        task = asyncio.current_task()
        bound: BoundEndpoint | None = None
        value: Any = None
        error: BaseException | None = None
        ended = None if TRACE.on_run is None else TRACE.on_run(cell, call)
        try:
            bound = self._endpoints.look_up(call, payload, running[0] - arrived_ns)
            if bound is not None:
                args, kwargs = bound.arguments(peer, call, payload)
                try:
                    self.work[task] = call
                    if id(call) in cell.running_calls.cancelled:
                        raise asyncio.CancelledError
                    value = await bound.method.function(cell.instance_object, *args, **kwargs)
                finally:
                    self.work.pop(task, None)  # no exception is raised after this, see `work_here`
        except asyncio.CancelledError as cancelled:
            if id(call) in cell.running_calls.cancelled:
                _uncancel(task)
            error = cancelled if self._ending_failure is None else CallAborted(self._ending_failure)
            cell.runtime.hooks.debugger.on_endpoint_error(cell, error)
        except BaseException as raised:
            error = raised
            cell.runtime.hooks.debugger.on_endpoint_error(cell, raised)
        finally:
            ran_ns = cell.end_call(running)
            if ended is not None:
                ended(error)
        if error is not None:
            await cell.runtime.hooks.explainer.await_reason(error)
        cell.running_calls.complete(peer, call, value, error, bound, ran_ns)

    async def _clean_up(self, cause: BaseException | None) -> BaseException | None:
        done = self._cell.clean_up(cause)
        return await _outcome(done) if inspect.isawaitable(done) else done

    async def _cancel_overlapping(self, why: RankFailure | None = None) -> None:
        self._ending_failure = why  # callers of a failed actor have their answers already
        own = asyncio.current_task()
        tasks = [task for task in self._overlapping if task is not own]
        if why is None and self._checking is not None and self._checking is not own:
            tasks.append(self._checking)  # the actor has failed, so no failure is checked any more
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_awaitable(awaitable: Awaitable[Any]) -> BaseException | None:
    """Run an awaitable on a new loop; returns the exception that it raised, or None."""

    async def run() -> BaseException | None:
        try:
            await awaitable
        except BaseException as error:
            return error
        return None

    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        failed = loop.run_until_complete(run())
        loop.run_until_complete(loop.shutdown_asyncgens())
        return failed
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _uncancel(task: asyncio.Task[Any] | None) -> None:
    """Undo a cancellation that has been handled: Python counts them from 3.11 on."""
    uncancel = getattr(task, "uncancel", None)
    if uncancel is not None:
        uncancel()


async def _outcome(hook: Awaitable[Any]) -> Any:
    """The result of a user's hook, or the exception that it raised."""
    try:
        return await hook
    except BaseException as error:
        return error


# The function that calls user code in a task.
ENTRY = _AsyncActor._run.__code__  # pyright: ignore[reportPrivateUsage]
