"""Runs one actor: its mailbox, its thread, its life from constructor to clean-up.

Runs in: a proc, one thread an actor. A sync actor's thread waits for its own messages through the
baton, so an idle actor receives them itself. An async actor's thread runs its event loop.
Invariants: one message at a time, in the order they came (a `concurrent_endpoint` begins in that
order); whatever is still queued when an actor ends is answered with why it ended.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections import deque
from collections.abc import Awaitable
from typing import Any, cast

from monarch._src.actor.context import ActorId, ActorInstance, Context, current
from monarch._src.actor.endpoint import ActorClass, EndpointMethod, actor_class
from monarch._src.actor.remote import describe, pack, ship, unship
from monarch._src.actor.runtime import Runtime
from monarch._src.errors import FailureKind, MeshFailure, RankFailure
from monarch._src.net.baton import Waitable
from monarch._src.shape import Extent
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.messages import (
    DIED,
    OK,
    RAISED,
    ActorFailed,
    Call,
    Reply,
    SpawnActor,
    StopActor,
)

log = logging.getLogger("monarch.actor")
_NONE = ship(None)


class StopNow:
    """A mailbox item: end after what came before. `reply_to` is (node, call, rank) or None."""

    __slots__ = ("reason", "reply_to")

    def __init__(self, reason: str, reply_to: tuple[str, int, int] | None = None) -> None:
        self.reason = reason
        self.reply_to = reply_to


Item = tuple[str, Call, Payload] | StopNow | MeshFailure


class Mailbox(Waitable):
    """Messages of one actor; done (as a Waitable) while it holds any."""

    __slots__ = ("_items", "_loop", "_waiter")

    def __init__(self) -> None:
        super().__init__()
        self._items: deque[Item] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Item) -> None:
        """Queue an item. Any thread."""
        self._items.append(item)
        self.finish()
        loop = self._loop
        if loop is not None and self._waiter is not None:
            try:
                loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                pass  # the loop has ended; what is queued is answered by `drain`

    def take(self) -> Item | None:
        """The next item, or None. Only the actor's own thread."""
        if not self._items:
            return None
        item = self._items.popleft()
        if not self._items:
            self.done = False
            if self._items:  # one came between the two lines above
                self.done = True
        return item

    async def next(self, loop: asyncio.AbstractEventLoop) -> Item:
        """The next item, awaited on the actor's loop."""
        self._loop = loop
        while (item := self.take()) is None:
            self._waiter = loop.create_future()
            if self._items:
                self._waiter = None
                continue
            await self._waiter
        return item

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Worker:
    """One actor of this proc."""

    def __init__(self, runtime: Runtime, spec: SpawnActor, payload: Payload) -> None:
        self.runtime = runtime
        self.spec = spec
        self._payload: Payload | None = payload
        self.mailbox = Mailbox()
        self.dead: RankFailure | None = None
        self._class: ActorClass | None = None
        self._object: Any = None
        point = Extent(spec.labels, spec.sizes).point_of_rank(spec.rank)
        self.instance = ActorInstance(
            ActorId(runtime.name, spec.actor, spec.name), point, spec.class_name, spec.creator,
            runtime.proc_ref, self._stop_from_inside,
        )  # fmt: skip
        self._board_name = spec.class_name.encode()[:32]
        self._at_home = Context(self.instance, spec.rank, spec.labels, spec.sizes)

    # --- from the thread that receives ----------------------------------------------------------

    def post(self, peer: str, message: Call | StopActor, payload: Payload) -> None:
        """Queue a message; one for an actor that has ended is answered at once."""
        if self.dead is not None:
            self._refuse(peer, message.call, message.rank)
        elif isinstance(message, StopActor):
            self.mailbox.put(StopNow(message.reason, (peer, message.call, message.rank)))
        else:
            self.mailbox.put((peer, message, payload))
        if self.dead is not None:
            self._drain()  # it ended between the look and the put

    def supervise(self, failure: MeshFailure) -> None:
        """Queue the failure of a mesh that this actor owns."""
        self.mailbox.put(failure)

    def stop(self, reason: str) -> None:
        """End after what is queued."""
        self.mailbox.put(StopNow(reason))

    def _stop_from_inside(self, reason: str) -> None:
        self.mailbox.put(StopNow(reason))

    # --- on the actor's own thread ----------------------------------------------------------------

    def run(self) -> None:
        """Live and end. Returns when the actor is gone."""
        current.set(self._at_home)
        try:
            cls, args, kwargs = unship(cast(Payload, self._payload))
            self._payload = None
            self._class = actor_class(cls)
        except BaseException as error:
            self._end(self._describe(error, "constructor", None), error)
            return
        if self._class.is_async:
            self._run_async(cls, args, kwargs)
        else:
            self._run_sync(cls, args, kwargs)

    def _run_sync(self, cls: Any, args: Any, kwargs: Any) -> None:
        try:
            self._object = cls(*args, **kwargs)
        except BaseException as error:
            self._end(self._describe(error, "constructor", None), error)
            return
        mailbox, wait = self.mailbox, self.runtime.node.wait
        while self.dead is None:
            item = mailbox.take()
            if item is None:
                try:
                    if not wait(mailbox):
                        return  # the node is closed
                except KeyboardInterrupt:
                    log.debug("interrupted while idle")
                continue
            if isinstance(item, tuple):
                peer, call, payload = item
                fatal = self._finish(peer, call, *self._run_endpoint(call, payload))
                if fatal is not None:
                    self._end(*fatal)
            elif isinstance(item, StopNow):
                self._stopped(item, self._clean_up(None))
                return
            else:
                fatal = self._supervised(item, self._ask_supervisor(item))
                if fatal is not None:
                    self._end(*fatal)

    def _run_endpoint(self, call: Call, payload: Payload) -> tuple[Any, BaseException | None]:
        """Run a sync endpoint; its value, or what it raised."""
        runtime = self.runtime
        current.set(Context(self.instance, call.rank, call.labels, call.sizes))
        runtime.slot.begin(self._board_name, call.endpoint.encode())
        try:
            method = self._method(call.endpoint)
            if method is None:
                return None, None
            args, kwargs = unship(payload)
            return method.function(self._object, *args, **kwargs), None
        except BaseException as error:
            return None, error
        finally:
            runtime.slot.end()
            current.set(self._at_home)

    def _method(self, name: str) -> EndpointMethod[Any, Any] | None:
        """The endpoint of that name; None for the empty one, which only answers."""
        if not name:
            return None
        assert self._class is not None
        method = self._class.endpoints.get(name)
        if method is None:
            raise AttributeError(f"{self._class.name} has no endpoint {name!r}")
        return method

    # --- async actors ---------------------------------------------------------------------------

    def _run_async(self, cls: Any, args: Any, kwargs: Any) -> None:
        # Not asyncio.run: on the main thread it would put a SIGINT handler of its own in place.
        loop = asyncio.new_event_loop()
        try:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(self._serve(cls, args, kwargs))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    async def _serve(self, cls: Any, args: Any, kwargs: Any) -> None:
        try:
            self._object = cls(*args, **kwargs)
        except BaseException as error:
            self._end(self._describe(error, "constructor", None), error)
            return
        assert self._class is not None
        loop = asyncio.get_running_loop()
        overlapping: set[asyncio.Task[None]] = set()
        while self.dead is None:
            item = await self.mailbox.next(loop)
            if self.dead is not None:  # an overlapping call ended the actor meanwhile
                self.mailbox.put(item)
                break
            if isinstance(item, tuple):
                method = self._class.endpoints.get(item[1].endpoint)
                if method is None or not method.concurrent:
                    await self._run_async_endpoint(*item)
                    continue
                task = loop.create_task(self._run_async_endpoint(*item))
                overlapping.add(task)
                task.add_done_callback(overlapping.discard)
                await asyncio.sleep(0)  # it begins before the next message does
            elif isinstance(item, StopNow):
                await _cancelled(overlapping)
                self._stopped(item, await self._clean_up_async(None))
                return
            else:
                handled = self._ask_supervisor(item)
                if inspect.isawaitable(handled):
                    handled = await _outcome(handled)
                fatal = self._supervised(item, handled)
                if fatal is not None:
                    await self._end_async(*fatal)
        await _cancelled(overlapping)
        self._drain()

    async def _run_async_endpoint(self, peer: str, call: Call, payload: Payload) -> None:
        runtime = self.runtime
        current.set(Context(self.instance, call.rank, call.labels, call.sizes))
        runtime.slot.begin(self._board_name, call.endpoint.encode())
        value: Any = None
        error: BaseException | None = None
        try:
            method = self._method(call.endpoint)
            if method is not None:
                args, kwargs = unship(payload)
                value = await method.function(self._object, *args, **kwargs)
        except asyncio.CancelledError:
            error = RuntimeError("the call was cancelled: its actor ended")
        except BaseException as raised:
            error = raised
        finally:
            runtime.slot.end()
            current.set(self._at_home)
        fatal = self._finish(peer, call, value, error)
        if fatal is not None and self.dead is None:
            await self._end_async(*fatal)

    # --- ends of messages -------------------------------------------------------------------------

    def _finish(
        self, peer: str, call: Call, value: Any, error: BaseException | None
    ) -> tuple[RankFailure, BaseException] | None:
        """Answer a call. What it raised may be the end of the actor: then the end is returned."""
        if error is None:
            if not call.call:
                return None
            try:
                payload = _NONE if value is None else ship(value)
            except Exception as unpicklable:
                error = TypeError(
                    f"the value that it returned, a {type(value).__qualname__}, cannot be sent to "
                    f"another process: {unpicklable}"
                )
            else:
                self.runtime.node.send(peer, Reply(call.call, call.rank, OK), payload)
                return None
        if isinstance(error, Exception) and call.call:
            failure = self._describe(error, "endpoint", call.endpoint)
            self._reply(peer, call, RAISED, failure, error)
            return None
        failure = self._describe(error, "actor died", call.endpoint)
        if call.call:
            self._reply(peer, call, DIED, failure, None)
        return failure, error

    def _reply(
        self, peer: str, call: Call, status: int, failure: RankFailure, error: BaseException | None
    ) -> None:
        self.runtime.node.send(peer, Reply(call.call, call.rank, status), pack(failure, error))

    def _refuse(self, peer: str, call: int, rank: int) -> None:
        assert self.dead is not None
        if call:
            self.runtime.node.send(peer, Reply(call, rank, DIED), pack(self.dead, None))

    def _describe(
        self, error: BaseException, kind: FailureKind, endpoint: str | None
    ) -> RankFailure:
        spec = self.spec
        return describe(
            error, mesh_name=spec.name, rank=spec.rank, point=dict(self.instance.rank),
            actor_class=spec.class_name, endpoint=endpoint, host=self.runtime.host, kind=kind,
        )  # fmt: skip

    # --- the end of the actor ---------------------------------------------------------------------

    def _stopped(self, item: StopNow, failed: BaseException | None) -> None:
        self.dead = self._epitaph(item.reason)
        if failed is not None:
            self._tell_owner(self._describe(failed, "actor died", "__cleanup__"))
        if item.reply_to is not None:
            node, call, rank = item.reply_to
            self.runtime.node.send(node, Reply(call, rank, OK), _NONE)
        self._drain()

    def _epitaph(self, reason: str) -> RankFailure:
        spec = self.spec
        return RankFailure(
            spec.name, spec.rank, dict(self.instance.rank), spec.class_name, None,
            self.runtime.host, os.getpid(), "stopped", "", reason,
        )  # fmt: skip

    def _end(self, failure: RankFailure, cause: BaseException) -> None:
        """The actor has failed: clean up, tell its owner, answer what is queued."""
        self.dead = failure
        if self._object is not None:
            self._clean_up(cause)
        self._tell_owner(failure)
        self._drain()

    async def _end_async(self, failure: RankFailure, cause: BaseException) -> None:
        self.dead = failure
        await self._clean_up_async(cause)
        self._tell_owner(failure)
        self.mailbox.put(StopNow(""))  # wakes the loop if it waits for a message

    def _tell_owner(self, failure: RankFailure) -> None:
        spec = self.spec
        self.runtime.node.send(spec.creator, ActorFailed(spec.actor, spec.rank, failure))

    def _clean_up(self, cause: BaseException | None) -> BaseException | None:
        """Run `__cleanup__`, if the class has one; what it raised, if anything."""
        hook = getattr(self._object, "__cleanup__", None)
        if hook is None:
            return None
        try:
            hook(cause)
        except BaseException as error:
            log.exception("__cleanup__ of %s raised", self.spec.class_name)
            return error
        return None

    async def _clean_up_async(self, cause: BaseException | None) -> BaseException | None:
        hook = getattr(self._object, "__cleanup__", None)
        if hook is None:
            return None
        try:
            done = hook(cause)
            if inspect.isawaitable(done):
                await done
        except BaseException as error:
            log.exception("__cleanup__ of %s raised", self.spec.class_name)
            return error
        return None

    def _drain(self) -> None:
        while (item := self.mailbox.take()) is not None:
            if isinstance(item, tuple):
                self._refuse(item[0], item[1].call, item[1].rank)
            elif isinstance(item, StopNow) and item.reply_to is not None:
                node, call, rank = item.reply_to
                self.runtime.node.send(node, Reply(call, rank, OK), NO_PAYLOAD)

    # --- supervision ------------------------------------------------------------------------------

    def _ask_supervisor(self, failure: MeshFailure) -> Any:
        hook = getattr(self._object, "__supervise__", None)
        if hook is None:
            return False
        try:
            return hook(failure)
        except BaseException as error:
            return error

    def _supervised(
        self, failure: MeshFailure, handled: Any
    ) -> tuple[RankFailure, BaseException] | None:
        """An unhandled failure of what this actor owns is its own failure."""
        if isinstance(handled, BaseException):
            error = handled
            error.__context__ = RuntimeError(str(failure))
        elif handled:
            return None
        else:
            error = RuntimeError(f"a mesh that it owns has failed: {failure.report()}")
        return self._describe(error, "actor died", "__supervise__"), error


async def _cancelled(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _outcome(handled: Awaitable[Any]) -> Any:
    """What a `__supervise__` answered, or what it raised."""
    try:
        return await handled
    except BaseException as error:
        return error
