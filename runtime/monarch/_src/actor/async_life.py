"""How an async actor lives: an event loop on its own thread, messages awaited one after another.

Runs in: a proc, on the actor's thread. Loaded with the first async actor: asyncio takes 13 ms.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any

from monarch._src.actor.context import Context, current
from monarch._src.actor.mailbox import Item, Mailbox, StopNow
from monarch._src.actor.remote import unship
from monarch._src.actor.served import Served
from monarch._src.actor.worker import CutShort, Worker
from monarch._src.errors import RankFailure
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Call


def live(worker: Worker) -> None:
    """Construct the actor and serve its messages until it ends."""
    # Not asyncio.run: on the main thread it would put a SIGINT handler of its own in place.
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(_AsyncLife(worker, loop).serve())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        worker.mailbox.on_put = None
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
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                pass  # the loop has ended; what is queued is answered by `drain`

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _AsyncLife:
    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self._worker = worker
        assert worker.endpoints is not None
        self._endpoints = worker.endpoints
        self._loop = loop
        self._inbox = _Inbox(worker.mailbox, loop)
        self._overlapping: set[asyncio.Task[None]] = set()
        self._ends: RankFailure | None = None  # why they are being cancelled

    async def serve(self) -> None:
        worker = self._worker
        worker.interrupt = self._interrupt
        try:
            worker.construct()
        except BaseException as error:
            worker.end(worker.describe(error, "constructor", None), error)
            return
        while worker.dead is None:
            item = await self._inbox.next()
            if isinstance(item, tuple):
                await self._call(*item)
            elif isinstance(item, StopNow):
                await self._cancel_overlapping(worker.epitaph(item.reason))
                failed = await self._clean_up(None) if worker.dead is None else None
                worker.stopped(item, failed)
            elif item is not None:
                handled = worker.ask_supervisor(item)
                if inspect.isawaitable(handled):
                    handled = await _outcome(handled)
                fatal = worker.supervised(item, handled)
                if fatal is not None:
                    worker.condemn(*fatal)
        await self._cancel_overlapping()
        if not worker.gone:
            await self._clean_up(worker.cause)
            worker.buried()

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

    async def _call(self, peer: str, call: Call, payload: Payload, came_ns: int) -> None:
        worker = self._worker
        instance = worker.instance
        worker.in_hand[id(call)] = (peer, call, payload)
        if worker.dead is not None:  # looked at after it is in hand: one of us answers it
            worker.drain()
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
        current.set(Context(worker.instance, call.rank, call.labels, call.sizes))
        running = worker.runtime.slot.begin(worker.board_name, call.endpoint.encode())
        served: Served | None = None
        value: Any = None
        error: BaseException | None = None
        try:
            served = self._endpoints.take(call, payload, running[0] - came_ns)
            if served is not None:
                args, kwargs = unship(payload)
                payload.drop()
                if call.by_port:
                    args = (self._endpoints.port_for(peer, call, served.counts), *args)
                value = await served.method.function(worker.instance_object, *args, **kwargs)
        except asyncio.CancelledError as cancelled:
            error = cancelled if self._ends is None else CutShort(self._ends)
        except BaseException as raised:
            error = raised
        finally:
            ran_ns = worker.ran(running)
        fatal = worker.finish(peer, call, value, error, served, ran_ns)
        if fatal is not None:
            worker.condemn(*fatal)

    async def _clean_up(self, cause: BaseException | None) -> BaseException | None:
        done = self._worker.clean_up(cause)
        return await _outcome(done) if inspect.isawaitable(done) else done

    async def _cancel_overlapping(self, why: RankFailure | None = None) -> None:
        self._ends = why  # of an actor that has failed they have been told
        own = asyncio.current_task()
        tasks = [task for task in self._overlapping if task is not own]
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


async def _outcome(hook: Awaitable[Any]) -> Any:
    """What a hook of the user answered, or what it raised."""
    try:
        return await hook
    except BaseException as error:
        return error
