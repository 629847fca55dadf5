"""How an async actor lives: an event loop on its own thread, messages awaited one after another.

Runs in: a proc, on the actor's thread. Loaded with the first async actor: asyncio takes 13 ms.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from monarch._src.actor.context import current
from monarch._src.actor.errors.remote import unship
from monarch._src.actor.run.cell import ActorCell
from monarch._src.actor.run.endpoint_table import BoundEndpoint
from monarch._src.actor.run.event_loop import ActorLoop, new_loop
from monarch._src.actor.run.mailbox import CHECK_FAILURES, CheckFailures, Item, Mailbox, Stop
from monarch._src.actor.run.running_calls import CutShort
from monarch._src.actor.supervise.ownership import UNTIL_OVERDUE, Supervisor
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
"""A loop that has not come to cancelling a call after so long is blocked by it."""


def live(worker: ActorCell) -> None:
    """Construct the actor and serve its messages until it ends."""
    # Not asyncio.run: on the main thread it would put a SIGINT handler of its own in place.
    loop = new_loop(worker.runtime.node.leader)
    life = _AsyncLife(worker, loop)
    shield = shield_this_thread(CallCancelled)
    if isinstance(shield, SignalShield):
        shield.work_of = life.work_here
    try:
        life.shield = shield
        asyncio.set_event_loop(loop)
        loop.run_until_complete(life.serve())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        worker.mailbox.on_put = None
        worker.raise_in = None
        unshield_this_thread(shield)
        asyncio.set_event_loop(None)
        loop.close()


class _Inbox:
    """A mailbox, awaited."""

    def __init__(self, mailbox: Mailbox, loop: asyncio.AbstractEventLoop) -> None:
        self._mailbox = mailbox
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        mailbox.on_put = self._put

    async def next(self) -> Item | None:
        """The next item; None if there is none and the mailbox is closed."""
        while (item := self._mailbox.take()) is None and not self._mailbox.closed:
            self._waiter = self._loop.create_future()
            if not self._mailbox and not self._mailbox.closed:
                await self._waiter
            self._waiter = None
        return item

    def _put(self) -> None:
        # On the thread that receives. Registered before the look at the mailbox, so none is missed.
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


class _Changes:
    """What becomes of a keeper, awaited."""

    def __init__(self, keeper: Supervisor, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._came = asyncio.Event()
        keeper.on_change = self._changed

    async def until(self, there: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Return when that is so, or after that time."""
        try:
            await asyncio.wait_for(self._until(there), timeout_s)
        except asyncio.TimeoutError:
            pass

    async def _until(self, there: Callable[[], bool]) -> None:
        while not there():
            self._came.clear()
            if not there():
                await self._came.wait()

    def _changed(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._came.set)
        except RuntimeError:
            pass  # the loop has ended


class _AsyncLife:
    def __init__(self, worker: ActorCell, loop: asyncio.AbstractEventLoop) -> None:
        self._worker = worker
        assert worker.endpoints is not None
        self._endpoints = worker.endpoints
        self._loop = self.loop = loop
        self._inbox = _Inbox(worker.mailbox, loop)
        self._overlapping: set[asyncio.Task[None]] = set()
        self._judging: asyncio.Task[None] | None = None
        self._hook_waits = False  # `_judging` has begun to wait for the answer of an actor
        self._released: asyncio.Future[None] | None = None  # messages need not wait for `_judging`
        self._changes = _Changes(worker.keeper, loop)
        self._ends: RankFailure | None = None  # why they are being cancelled
        # What each task is busy with: a call, or the worker while that is constructed.
        self.work: dict[asyncio.Task[Any] | None, Any] = {}
        self.shield: Shield | SignalShield | None = None

    async def serve(self) -> None:
        worker = self._worker
        worker.interrupt = self._interrupt
        worker.raise_in = self._raise_in
        worker.tasks = self
        worker.instance.is_async = True
        task = asyncio.current_task()
        try:
            self.work[task] = worker
            try:
                worker.construct()
            finally:
                del self.work[task]
        except BaseException as error:
            worker.end(worker.describe(error, "constructor", None), error)
            return
        worker.instance.waiting.on_begin = self._begins_to_wait
        worker.on_ask = self._ask
        self._judge_soon()  # what came before there was anybody to ask
        keeper = worker.keeper
        while worker.dead is None and keeper.lives:
            item = await self._inbox.next()
            if isinstance(item, tuple):
                await self._call(*item)
            elif isinstance(item, Stop):
                worker.told_to_stop(item)
                # Behind what it has to judge; a verdict may also be its end.
                await self._changes.until(lambda: not keeper.lives)
                await self._cancel_overlapping(worker.epitaph(item.reason))
            elif isinstance(item, CheckFailures):
                await self._judge_first()
            elif item is not None:
                answer = worker.supervision.returned(item)
                if inspect.isawaitable(answer):
                    answer = await _outcome(answer)
                worker.supervision.settled(item, answer)
        if worker.dead is not None:
            await self._cancel_overlapping()
        await self._changes.until(lambda: keeper.may_clean.done, keeper.grace_s * UNTIL_OVERDUE)
        keeper.had_its_time()
        failed = None if worker.gone else await self._clean_up(worker.cause)
        worker.cleaned(failed)

    # --- supervision: beside what it does, one failure after another ------------------------------

    def _ask(self) -> None:
        # Any thread. For a look before the next message, and beside an endpoint that awaits.
        self._worker.mailbox.put_first(CHECK_FAILURES)
        try:
            self._loop.call_soon_threadsafe(self._judge_soon)
        except RuntimeError:
            pass  # the loop has ended

    def _judge_soon(self) -> None:
        if self._judging is None or self._judging.done():
            self._judging = self._loop.create_task(self._judge())
            self._hook_waits = False

    async def _judge_first(self) -> None:
        """Have what has failed judged before the next message.

        Messages wait until `__supervise__` returns, or awaits the answer of an actor: that one may
        need another message of this actor before it answers.
        """
        self._judge_soon()
        judging = self._judging
        assert judging is not None
        if not self._hook_waits:
            released = self._released = self._loop.create_future()
            await asyncio.wait({judging, released}, return_when=asyncio.FIRST_COMPLETED)
            self._released = None

    def _begins_to_wait(self) -> None:
        judging = self._judging
        if judging is not None and asyncio.current_task(self._loop) is judging:
            self._hook_waits = True
            self._release()

    def _release(self) -> None:
        if self._released is not None and not self._released.done():
            self._released.set_result(None)

    async def _judge(self) -> None:
        worker = self._worker
        current.set(worker.at_home)
        while (fault := worker.keeper.judge()) is not None:
            answer = worker.supervision.call(fault)
            if inspect.isawaitable(answer):
                answer = await _outcome(answer)
            worker.supervision.answered(fault, answer)

    # --- calls ------------------------------------------------------------------------------------

    def _interrupt(self) -> None:
        # Any thread. On the loop's own, too: what is cancelled must not be what runs now.
        try:
            self._loop.call_soon_threadsafe(self._cancel_call)
        except RuntimeError:
            pass  # the loop has ended

    def _cancel_call(self) -> None:
        task = self._worker.instance.task
        if task is not None:
            task.cancel()
        self._release()

    def work_here(self) -> Any:
        """What this thread does now. On it, in a signal handler."""
        return self.work.get(asyncio.current_task(self._loop))

    def _raise_in(self, call: Call) -> bool:
        """Cancel the task of a call; if its loop does not come to that, raise where it stands.

        Any thread. Raising is possible on the main thread only.
        """
        came = threading.Event()

        def cancel() -> None:
            came.set()
            # What the endpoint has just set going begins to wait first, to be found waiting.
            self._loop.call_soon(self._cancel_work, call)

        def look() -> None:
            if not came.wait(BLOCKED_S) and self.shield is not None:
                self.shield.raise_in(call)

        try:
            self._loop.call_soon_threadsafe(cancel)
        except RuntimeError:
            return False  # the loop has ended
        if isinstance(self.shield, SignalShield):
            threading.Thread(target=look, name="cancel", daemon=True).start()
        return True

    def _cancel_work(self, call: Call) -> None:
        worker = self._worker
        for task, work in list(self.work.items()):
            if work is call and task is not None:
                worker.in_hand.cancel_waits(call)
                task.cancel()

    async def _call(self, peer: str, call: Call, payload: Payload, came_ns: int) -> None:
        worker = self._worker
        instance = worker.instance
        if not worker.in_hand.take(peer, call, payload):
            return
        if not self._endpoints.is_concurrent(call.endpoint):
            instance.endpoint, instance.task = call.endpoint, asyncio.current_task()
            await self._run(peer, call, payload, came_ns)
            instance.task = None
            return
        task = self._loop.create_task(self._run(peer, call, payload, came_ns))
        self._overlapping.add(task)
        task.add_done_callback(self._overlapping.discard)
        await asyncio.sleep(0)  # it begins before the next message does

    async def _run(self, peer: str, call: Call, payload: Payload, came_ns: int) -> None:
        worker = self._worker
        worker.set_context(call)
        running = worker.runtime.slot.begin(worker.board_name, call.endpoint.encode())
        task = asyncio.current_task()
        served: BoundEndpoint | None = None
        value: Any = None
        error: BaseException | None = None
        try:
            served = self._endpoints.take(call, payload, running[0] - came_ns)
            if served is not None:
                args, kwargs = unship(payload)
                payload.drop()
                if call.by_port:
                    args = (self._endpoints.port_for(peer, call, served.counts), *args)
                try:
                    self.work[task] = call
                    value = await served.method.function(worker.instance_object, *args, **kwargs)
                finally:
                    self.work.pop(task, None)  # nothing is raised behind this, see `work_here`
        except asyncio.CancelledError as cancelled:
            if id(call) in worker.in_hand.cancelled:
                _uncancel(task)
            error = cancelled if self._ends is None else CutShort(self._ends)
            if worker.runtime.on_failure is not None:
                worker.runtime.on_failure(worker, error)
        except BaseException as raised:
            error = raised
            if worker.runtime.on_failure is not None:
                worker.runtime.on_failure(worker, raised)
        finally:
            ran_ns = worker.ran(running)
        fatal = worker.in_hand.finish(peer, call, value, error, served, ran_ns)
        if fatal is not None:
            worker.condemn(*fatal)

    async def _clean_up(self, cause: BaseException | None) -> BaseException | None:
        done = self._worker.clean_up(cause)
        return await _outcome(done) if inspect.isawaitable(done) else done

    async def _cancel_overlapping(self, why: RankFailure | None = None) -> None:
        self._ends = why  # of an actor that has failed they have been told
        own = asyncio.current_task()
        tasks = [task for task in self._overlapping if task is not own]
        if why is None and self._judging is not None and self._judging is not own:
            tasks.append(self._judging)  # it has failed: there is nothing left to judge
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_awaitable(awaitable: Awaitable[Any]) -> BaseException | None:
    """Run it to its end on a loop of its own: what it raised, or None."""

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
    """What cancelled the task has been dealt with (from Python 3.11 on, that is counted)."""
    uncancel = getattr(task, "uncancel", None)
    if uncancel is not None:
        uncancel()


async def _outcome(hook: Awaitable[Any]) -> Any:
    """What a hook of the user answered, or what it raised."""
    try:
        return await hook
    except BaseException as error:
        return error


# Where code of users begins in a task.
ENTRY = _AsyncLife._run.__code__  # pyright: ignore[reportPrivateUsage]
