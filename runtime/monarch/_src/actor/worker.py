"""Runs one actor: its mailbox, its thread, its life from constructor to clean-up.

Runs in: a proc, one thread an actor. A sync actor's thread waits for its own messages through the
baton, so an idle actor receives them itself. An async actor's thread runs its event loop.
Invariants: one message at a time, in the order they came (a `concurrent_endpoint` begins in that
order); whatever is still queued when an actor ends is answered with why it ended.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, cast

from monarch._src.actor.context import (
    ActorId,
    ActorInstance,
    Context,
    CreatorInstance,
    End,
    current,
)
from monarch._src.actor.creators import creator_of
from monarch._src.actor.endpoint import ActorClass, actor_class
from monarch._src.actor.mailbox import Mailbox, StopNow
from monarch._src.actor.remote import describe, frames_here, pack, ship, unship
from monarch._src.actor.runtime import Runtime
from monarch._src.actor.served import Served, ServedEndpoints
from monarch._src.config import settings
from monarch._src.core.metrics import EndpointCounts
from monarch._src.core.waiting import Waiting
from monarch._src.errors import FailureKind, MeshFailure, RankFailure, SupervisionError, moved
from monarch._src.proc.board import Running
from monarch._src.shape import Extent
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.messages import (
    DIED,
    OK,
    RAISED,
    ActorFailed,
    Call,
    SpawnActor,
    StopActor,
)

log = logging.getLogger("monarch.actor")
_NONE = ship(None)


class CutShort(Exception):
    """A call that was cancelled because its actor ends. No failure of its own."""

    def __init__(self, why: RankFailure) -> None:
        super().__init__(why)
        self.why = why


class Worker:
    """One actor of this proc."""

    def __init__(self, runtime: Runtime, spec: SpawnActor, payload: Payload) -> None:
        self.runtime = runtime
        self.spec = spec
        self._payload: Payload | None = payload
        self._given: tuple[Any, ...] = ()  # class, args, kwargs
        self.mailbox = Mailbox()
        # Why it takes no message any more; `cause` if that is a failure. Set once, by `_end_with`.
        self.dead: RankFailure | None = None
        self.cause: BaseException | None = None
        self.gone = False  # it has cleaned up too
        # The calls that are neither answered nor queued. Whoever takes one out answers it.
        self.in_hand: dict[int, tuple[str, Call, Payload]] = {}
        # Have the thread of an async actor look whether it has ended.
        self.interrupt: Callable[[], None] | None = None
        self._stops: deque[tuple[str, StopActor]] = deque()  # who waits for its end
        self._lock = threading.Lock()
        self._told = False
        self._cleaned = False
        self._teller: threading.Timer | None = None
        self._class: ActorClass | None = None
        self.endpoints: ServedEndpoints | None = None  # once its class is known
        self.instance_object: Any = None
        point = Extent(spec.labels, spec.sizes).point_of_rank(spec.rank)
        self.instance = ActorInstance(
            ActorId(runtime.name, spec.actor, spec.name), point, spec.class_name, spec.creator,
            Waiting(runtime.name, spec.actor), runtime.proc_ref or runtime.client_ref,
            self._end_from_inside, "__init__",
            find_creator=self._creator,
        )  # fmt: skip
        self.board_name = spec.class_name.encode()[:32]
        self.at_home = Context(self.instance, spec.rank, spec.labels, spec.sizes)

    # --- from the thread that receives ----------------------------------------------------------

    def post(self, peer: str, message: Call | StopActor, payload: Payload) -> None:
        """Queue a message; a call of an actor that has ended is answered at once."""
        if isinstance(message, StopActor):
            self.mailbox.put(StopNow(message.reason, (peer, message)))
        elif self.dead is not None:
            self._refuse(peer, message)
        else:
            self.mailbox.put((peer, message, payload, monotonic_ns()))
        if self.dead is not None:
            self.drain()  # it ended between the look and the put

    def refuse(self, failure: RankFailure) -> None:
        """Never live, because what its proc runs before any actor has failed."""
        spec = self.spec
        point = dict(self.instance.rank) or failure.point
        self.dead = moved(failure, spec.mesh_name, spec.rank, point)
        self.gone = True
        self._payload = None
        self.tell_owner(self.dead)
        self.drain()

    def supervise(self, failure: MeshFailure) -> None:
        """Queue the failure of a mesh that this actor owns."""
        self.mailbox.put(failure)

    def stop(self, reason: str) -> None:
        """End after what is queued."""
        self.mailbox.put(StopNow(reason))

    # --- from any thread of the actor -------------------------------------------------------------

    def _end_from_inside(self, how: End, reason: str | None) -> None:
        if how == "stop":
            self.mailbox.put(StopNow(reason or "stopped by itself"))
        elif self.dead is None:
            failure = self._given_up(how, reason)
            self.condemn(failure, SupervisionError(failures=[failure]))

    def _given_up(self, how: End, reason: str | None) -> RankFailure:
        """The story of an actor that ends itself, told with the place where it does."""
        calls = list(self.in_hand.values())
        endpoint = calls[0][1].endpoint if len(calls) == 1 else None
        if self.instance_object is None:
            endpoint = "__init__"
        spec, frames = self.spec, frames_here()
        return RankFailure(
            spec.mesh_name, spec.rank, dict(self.instance.rank), spec.class_name, endpoint,
            self.runtime.host, os.getpid(), "actor died", how, reason or "no reason was given",
            frames, "".join(f'  File "{f.filename}", line {f.lineno}, in {f.name}\n    {f.line}\n'
                            for f in frames),
        )  # fmt: skip

    def _creator(self) -> CreatorInstance | None:
        return creator_of(self.spec, self.runtime.directory, self.runtime.client_ref)

    # --- on the actor's own thread ----------------------------------------------------------------

    def run(self) -> None:
        """Live and end. Returns when the actor is gone."""
        self.instance.thread = threading.get_ident()
        current.set(self.at_home)
        try:
            self._given = unship(cast(Payload, self._payload))
            self._payload = None
            self._class = actor_class(self._given[0])
            self.endpoints = ServedEndpoints(self.runtime, self.spec, self._class)
        except BaseException as error:
            self.end(self.describe(error, "constructor", None), error)
            return
        if self._class.is_async:
            from monarch._src.actor import async_life  # asyncio is slow to load

            async_life.live(self)
        else:
            self._run_sync()

    def construct(self) -> None:
        """Make the actor object. What the constructor does not keep, nobody keeps."""
        (cls, args, kwargs), self._given = self._given, ()
        self.instance_object = cls(*args, **kwargs)

    def _run_sync(self) -> None:
        try:
            self.construct()
        except BaseException as error:
            self.end(self.describe(error, "constructor", None), error)
            return
        assert self.endpoints is not None
        endpoints = self.endpoints
        mailbox, wait, in_hand = self.mailbox, self.runtime.node.wait, self.in_hand
        while True:
            item = mailbox.take()
            if item is None:
                if self.dead is not None:
                    break
                try:
                    if not wait(mailbox, patient=True):
                        return  # the node is closed
                except KeyboardInterrupt:
                    log.debug("interrupted while idle")
                continue
            if isinstance(item, tuple):
                peer, call, payload, _ = item
                in_hand[id(call)] = (peer, call, payload)
                if self.dead is not None:  # looked at after it is in hand: one of us answers it
                    self.drain()
                    continue
                fatal = self.finish(peer, call, *self._run_endpoint(endpoints, *item))
                if fatal is not None:
                    self.condemn(*fatal)
            elif isinstance(item, StopNow):
                self.stopped(item, self.clean_up(None) if self.dead is None else None)
            elif self.dead is None:
                fatal = self.supervised(item, self.ask_supervisor(item))
                if fatal is not None:
                    self.condemn(*fatal)
        if not self.gone:
            self.clean_up(self.cause)
            self.buried()

    def _run_endpoint(
        self, endpoints: ServedEndpoints, peer: str, call: Call, payload: Payload, came_ns: int
    ) -> tuple[Any, BaseException | None, Served | None, int]:
        """Run a sync endpoint: its value, or what it raised; what ran, and for how long (ns)."""
        current.set(Context(self.instance, call.rank, call.labels, call.sizes))
        self.instance.endpoint = call.endpoint
        running = self.runtime.slot.begin(self.board_name, call.endpoint.encode())
        served = None
        try:
            served = endpoints.take(call, payload, running[0] - came_ns)
            value = None
            if served is not None:
                args, kwargs = unship(payload)
                payload.drop()
                if call.by_port:
                    args = (endpoints.port_for(peer, call, served.counts), *args)
                value = served.method.function(self.instance_object, *args, **kwargs)
        except BaseException as error:
            return None, error, served, self.ran(running)
        return value, None, served, self.ran(running)

    def ran(self, running: Running) -> int:
        """An endpoint has returned or raised; for how many nanoseconds it ran."""
        ran_ns = self.runtime.slot.end(running)
        current.set(self.at_home)
        return ran_ns

    # --- ends of messages -------------------------------------------------------------------------

    def finish(
        self,
        peer: str,
        call: Call,
        value: Any,
        error: BaseException | None,
        served: Served | None,
        ran_ns: int,
    ) -> tuple[RankFailure, BaseException] | None:
        """Answer a call. What it raised may be the end of the actor: then the end is returned."""
        counts = None if served is None else served.counts
        if counts is not None:  # before the answer, so that whoever has that finds it counted
            counts.ended(ran_ns)
        if self.in_hand.pop(id(call), None) is None:
            return None  # the actor was ended meanwhile, and this call answered
        if error is None:
            if not call.call or call.by_port:
                return None
            try:
                payload = _NONE if value is None else ship(value)
            except Exception as unpicklable:
                error = TypeError(
                    f"the value that it returned, a {type(value).__qualname__}, cannot be sent to "
                    f"another process: {unpicklable}"
                )
            else:
                self._answer(peer, call, OK, payload, counts)
                return None
        self.runtime.slot.failed()
        if counts is not None:
            counts.errors += 1
        if isinstance(error, CutShort):
            if call.call:
                self._answer(peer, call, DIED, pack(error.why, None), counts)
            return None
        if isinstance(error, Exception) and call.call and not call.by_port:
            failure = self.describe(error, "endpoint", call.endpoint)
            self._answer(peer, call, RAISED, pack(failure, error), counts)
            return None
        failure = self.describe(error, "actor died", call.endpoint)
        if call.call:
            self._answer(peer, call, DIED, pack(failure, None), counts)
        return failure, error

    def _answer(
        self,
        peer: str,
        call: Call | StopActor,
        status: int,
        payload: Payload,
        counts: EndpointCounts | None = None,
    ) -> None:
        if counts is not None:
            counts.bytes_out += payload.nbytes if payload.buffers else len(payload.body)
        self.runtime.routes.reply(peer, call, status, payload)

    def _refuse(self, peer: str, call: Call) -> None:
        assert self.dead is not None
        if call.call:
            self._answer(peer, call, DIED, pack(self.dead, None))

    def describe(
        self, error: BaseException, kind: FailureKind, endpoint: str | None
    ) -> RankFailure:
        """The story of what escaped this actor's code."""
        spec = self.spec
        return describe(
            error, mesh_name=spec.mesh_name, rank=spec.rank, point=dict(self.instance.rank),
            actor_class=spec.class_name, endpoint=endpoint, host=self.runtime.host, kind=kind,
        )  # fmt: skip

    # --- the end of the actor ---------------------------------------------------------------------

    def condemn(self, failure: RankFailure, cause: BaseException, *, cleans: bool = True) -> None:
        """It has failed: from here on all that is sent to it, or was, is answered with that.

        Any thread; the first failure stands. Its own thread cleans up and calls `buried`.
        """
        with self._lock:
            if self.dead is not None:
                return
            self.dead, self.cause = failure, cause
        if cleans and self._class is not None and hasattr(self._class.cls, "__cleanup__"):
            # Its owner is told when it has cleaned up, and in any case.
            self._teller = threading.Timer(settings().cleanup_s, self._tell_of_end)
            self._teller.daemon = True
            self._teller.start()
        else:
            self._tell_of_end()
        self.drain()
        self.mailbox.close()
        if self.interrupt is not None:
            self.interrupt()

    def end(self, failure: RankFailure, cause: BaseException) -> None:
        """It has failed before there was anything to clean up."""
        self.condemn(failure, cause, cleans=False)
        self.buried()

    def stopped(self, item: StopNow, failed: BaseException | None) -> None:
        """It was told to end, and has cleaned up; `failed` is what clean-up raised."""
        if item.asked is not None:
            self._stops.append(item.asked)
        with self._lock:
            if self.dead is not None:  # it has failed meanwhile
                return
            self.dead = self.epitaph(item.reason)
        if failed is not None:
            self.tell_owner(self.describe(failed, "actor died", "__cleanup__"))
        self.mailbox.close()
        self.buried()

    def buried(self) -> None:
        """It has cleaned up, and nothing of it runs any more."""
        if self.cause is not None:
            self._tell_of_end()
        self.gone = True
        self.drain()

    def _tell_of_end(self) -> None:
        with self._lock:
            told, self._told = self._told, True
        if not told and self.dead is not None:
            self.tell_owner(self.dead)
        if self._teller is not None:
            self._teller.cancel()

    def epitaph(self, reason: str) -> RankFailure:
        """What is told of an actor that was stopped."""
        spec = self.spec
        return RankFailure(
            spec.mesh_name, spec.rank, dict(self.instance.rank), spec.class_name, None,
            self.runtime.host, os.getpid(), "stopped", "", reason,
        )  # fmt: skip

    def tell_owner(self, failure: RankFailure) -> None:
        """Report this actor's failure to the process that spawned it."""
        spec = self.spec
        self.runtime.node.send(spec.creator, ActorFailed(spec.actor, spec.rank, failure))

    def clean_up(self, cause: BaseException | None) -> Any:
        """Run `__cleanup__`, if the class has one: what it raised, an awaitable, or None."""
        hook = getattr(self.instance_object, "__cleanup__", None)
        if hook is None or self._cleaned:
            return None
        self._cleaned = True
        try:
            return hook(cause)
        except BaseException as error:
            return error

    def drain(self) -> None:
        """Answer what is in hand or queued with why there will be no other answer. Any thread."""
        for number in list(self.in_hand):
            item = self.in_hand.pop(number, None)
            if item is not None:
                self._refuse(item[0], item[1])
        while (item := self.mailbox.take()) is not None:
            if isinstance(item, tuple):
                self._refuse(item[0], item[1])
            elif isinstance(item, StopNow) and item.asked is not None:
                self._stops.append(item.asked)
        while self.gone and self._stops:
            try:
                peer, message = self._stops.popleft()
            except IndexError:
                return  # another thread has answered the last one
            self._answer(peer, message, OK, NO_PAYLOAD)

    # --- supervision ------------------------------------------------------------------------------

    def ask_supervisor(self, failure: MeshFailure) -> Any:
        """What `__supervise__` says to a failure: truthy, falsy, an awaitable, what it raised."""
        hook = getattr(self.instance_object, "__supervise__", None)
        if hook is None:
            return False
        try:
            return hook(failure)
        except BaseException as error:
            return error

    def supervised(
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
        return self.describe(error, "actor died", "__supervise__"), error
