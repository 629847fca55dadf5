"""The cell of one actor: its mailbox, its construction, its context, and its end.

Runs in: a proc, or a client that hosts controllers, with one thread for each actor. The thread runs
`sync_loop` or `async_loop`; `running_calls` holds the calls that it has accepted.
Invariants: an actor runs one message at a time, in order of arrival; calls of a
`concurrent_endpoint` begin in that order. When an actor ends, every queued call is answered with
the reason.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec.structs import replace

from monarch._src.actor.context import (
    ActorId,
    ActorInstance,
    Context,
    CreatorInstance,
    End,
    current,
)
from monarch._src.actor.deadlock.state.waits import ActorWaits
from monarch._src.actor.endpoint import ActorClass, actor_class
from monarch._src.actor.errors.remote import describe, without_keyboard
from monarch._src.actor.errors.traceback_frames import frames_here
from monarch._src.actor.forked import end_fork
from monarch._src.actor.run.endpoint_table import EndpointTable
from monarch._src.actor.run.mailbox import Mailbox, Stop
from monarch._src.actor.run.running_calls import RunningCalls
from monarch._src.actor.run.spawn_context import apply_spawn_extras, creator_of
from monarch._src.actor.runtime import Runtime
from monarch._src.actor.serialize import unpack_value
from monarch._src.actor.state.history import HISTORY, LONGEST_TEXT
from monarch._src.actor.supervise.hooks import Supervision, causes_of
from monarch._src.actor.supervise.ownership import UNTIL_OVERDUE, Supervisor
from monarch._src.config import settings
from monarch._src.errors import SupervisionError
from monarch._src.failures.report import FailureKind, RankFailure, for_mesh, shown_point
from monarch._src.host.status_board import Running
from monarch._src.logs.line_origin import begin as begin_output
from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.shape import Extent
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.messages import (
    OK,
    ActorFailed,
    Call,
    SpawnActor,
    StopActor,
    Undelivered,
)

if TYPE_CHECKING:
    import asyncio

    from monarch._src.wire.process_codec import SeenActor

log = logging.getLogger("monarch.actor")


class Tasks(Protocol):
    """The tasks of an async actor; see `actor.run.async_loop`."""

    loop: asyncio.AbstractEventLoop
    work: dict[asyncio.Task[Any] | None, Any]

    def work_here(self) -> Any:
        """The work of the running task: a call, the cell during construction, or None."""
        ...


class ActorCell:
    """One actor of this process."""

    def __init__(self, runtime: Runtime, spec: SpawnActor, payload: Payload) -> None:
        self.runtime = runtime
        self.spec = spec
        self._payload: Payload | None = payload
        self._spawn_args: tuple[Any, ...] = ()  # class, args, kwargs
        self.mailbox = Mailbox()
        # Why the actor accepts no more messages, and the exception if that is a failure. Set once.
        self.dead: RankFailure | None = None
        self.cause: BaseException | None = None
        self.finalized = False  # whether it has ended and cleaned up
        # By when it is to have ended; None: no stop was requested.
        self.stop_deadline: float | None = None
        self.running_calls = RunningCalls(self)
        # Of an async actor: its loop and tasks.
        self.tasks: Tasks | None = None
        # Set by the debugger: called at the next safe point of a blocked sync actor.
        self.pause_at_safe_point: Callable[[], None] | None = None
        # Raises in a running call; returns False if the call has ended.
        self.raise_in: Callable[[Call], bool] | None = None
        # Makes the thread of an async actor notice that the actor has ended.
        self.interrupt: Callable[[], None] | None = None
        # Answered when the actor has ended.
        self._stop_requests: deque[tuple[str, StopActor]] = deque()
        self._lock = GuardedLock()
        self._cleaned = False
        self._report_timer: threading.Timer | None = None
        self.actor_class: ActorClass | None = None
        self.endpoints: EndpointTable | None = None  # set once the class is unpickled
        self.instance_object: Any = None
        point = Extent(spec.labels, spec.sizes).point_of_rank(spec.rank)
        self.instance = ActorInstance(
            ActorId(runtime.name, spec.actor, spec.name), point, spec.class_name,
            ActorWaits(runtime.name, spec.actor), runtime.proc_ref or runtime.client_ref,
            self._end_from_inside, "__init__",
            find_creator=self._creator,
        )  # fmt: skip
        self.board_name = spec.class_name.encode()[:32]
        self.idle_context = Context(self.instance, spec.rank, spec.labels, spec.sizes, spec.origin)
        self.supervision = Supervision(self)
        self.on_check_due: Callable[[], None] = self.supervision.request_check
        self.supervisor = Supervisor(self._request_check, self._report_to_owner, self._finalize)
        self._remember("Created")

    def _request_check(self) -> None:
        self.on_check_due()

    def _remember(self, status: str, reason: str = "") -> None:
        """Add a new state of the actor to the history. Any thread."""
        spec = self.spec
        HISTORY.actors.add(
            (
                monotonic_ns(), spec.actor, spec.rank, spec.name, spec.class_name, status,
                reason[:LONGEST_TEXT], self.point, spec.labels, spec.sizes,
            )
        )  # fmt: skip

    # --- on the receiving thread ----------------------------------------------------------

    def post(self, peer: str, message: Call | StopActor, payload: Payload) -> None:
        """Queue a message; a call of an actor that has ended is answered at once."""
        # The usual type comes first: to find that an object is not of a type takes 0.1 us.
        if isinstance(message, Call):
            if self.dead is None:
                self.mailbox.put((peer, message, payload, monotonic_ns()))
            else:
                self.running_calls.reject(peer, message)
        else:
            self._set_stop_deadline(message.grace_s or settings().cleanup_s)
            self.mailbox.put(Stop(message.reason, (peer, message)))
            self._unpause()
        if self.dead is not None:
            self.drain()  # it ended between the check and the put

    def refuse(self, failure: RankFailure) -> None:
        """Fail before construction, because the bootstrap function of the proc has failed."""
        spec = self.spec
        self._payload = None
        refused = for_mesh(failure, spec.mesh_name, self.rank, self.point)
        self.fail_early(refused, SupervisionError(failures=[refused]))

    def on_undelivered(self, message: Undelivered) -> None:
        """Queue a message that this actor sent and that could not be delivered."""
        if self.dead is None:
            self.mailbox.put(message)

    def stop(self, reason: str, grace_s: float | None = None) -> None:
        """End after the queued messages, within `grace_s`, or within `cleanup_timeout` if None."""
        self._set_stop_deadline(settings().cleanup_s if grace_s is None else grace_s)
        self.mailbox.put(Stop(reason, grace_s=grace_s))
        self._unpause()

    def _set_stop_deadline(self, grace_s: float) -> None:
        if self.stop_deadline is None:  # the first deadline counts
            self.stop_deadline = monotonic() + grace_s

    def cancel(self, caller: str, number: int, *, queued_only: bool = False) -> None:
        """Cancel a call that is queued, runs, or has not arrived yet; or only if it is queued."""
        self.running_calls.cancel(caller, number, queued_only=queued_only)

    @property
    def runs_cancelled_call(self) -> bool:
        """Whether a call that runs here was cancelled by its caller. Any thread."""
        return self.running_calls.holds_cancelled()

    def snapshot(self) -> SeenActor:
        """The present state of the actor."""
        from monarch._src.actor.inspect.actor_snapshot import snapshot_of  # loaded on first use

        return snapshot_of(self, self.running_calls.endpoints())

    def owes(self, caller: str, number: int, *, overlapping: bool) -> bool:
        """Whether the actor has that call, and cannot answer it while it waits. Any thread."""
        return self.mailbox.holds(caller, number) or self.running_calls.owes(
            caller, number, overlapping=overlapping
        )

    def _unpause(self) -> None:
        """Leave the breakpoint, if the actor is paused at one."""
        self.runtime.hooks.debugger.unpause(self, None)

    @property
    def shares_main_thread(self) -> bool:
        """Whether it takes turns with other actors, if it is on the main thread."""
        return self.spec.main_thread == "shared"

    @property
    def is_busy(self) -> bool:
        """Whether a call runs, or is queued. Any thread."""
        return bool(self.running_calls.calls) or self.mailbox.queued_calls() > 0

    @property
    def is_ending(self) -> bool:
        """Whether the actor has failed, or was asked to stop."""
        return self.dead is not None or not self.supervisor.is_living or self.mailbox.holds_stop()

    # --- from any thread of the actor -------------------------------------------------------------

    def _end_from_inside(self, how: End, reason: str | None) -> None:
        if how == "stop":
            self.mailbox.put(Stop(reason or "stopped by itself"))
        elif self.dead is None:
            failure = self._ended_itself(how, reason)
            self.fail(failure, SupervisionError(failures=[failure]))

    def _ended_itself(self, how: End, reason: str | None) -> RankFailure:
        """The failure of an actor that ended itself, with the frames of the call that did so."""
        calls = list(self.running_calls.calls.values())
        endpoint = calls[0][1].endpoint if len(calls) == 1 else None
        if self.instance_object is None:
            endpoint = "__init__"
        spec, frames = self.spec, frames_here()
        return RankFailure(
            spec.mesh_name, self.rank, self.point, spec.class_name, endpoint,
            self.runtime.host, os.getpid(), "actor died", how, reason or "no reason was given",
            frames, "".join(f'  File "{f.filename}", line {f.lineno}, in {f.name}\n    {f.line}\n'
                            for f in frames),
        )  # fmt: skip

    def _creator(self) -> CreatorInstance | None:
        return creator_of(self.spec, self.runtime.directory, self.runtime.client_ref)

    # --- on the actor's own thread ----------------------------------------------------------------

    def prepare(self) -> ActorClass | None:
        """Unpickle the actor's class and arguments; None if that failed and ended the actor."""
        self.instance.thread = threading.get_ident()
        current.set(self.idle_context)
        try:
            given = unpack_value(cast(Payload, self._payload))
            self._payload, self._spawn_args, extras = None, given[:3], given[3:]
            if self.runtime.proc_ref is not None:  # a client has a front end itself
                apply_spawn_extras(
                    extras, f"the actor {self.spec.name!r} on {self.spec.mesh_name!r}"
                )
            self.actor_class = actor_class(self._spawn_args[0])
            self.endpoints = EndpointTable(self.runtime, self.spec, self.actor_class)
        except BaseException as error:
            self.fail_early(self.describe(error, "constructor", None), error)
            return None
        return self.actor_class

    def construct(self) -> None:
        """Construct the actor object, and drop the references to its arguments."""
        (cls, args, kwargs), self._spawn_args = self._spawn_args, ()
        self._remember("Initializing")
        self.instance_object = cls(*args, **kwargs)
        self._remember("Idle")
        if self.runtime.node.is_fork:
            end_fork(None)

    def wait_for_meshes(self) -> None:
        """Wait until the meshes that the actor owns have ended, or their time is up."""
        until = self.meshes_deadline()
        while not self.supervisor.may_clean.done:
            try:
                if not self.runtime.node.wait(self.supervisor.may_clean, until - monotonic()):
                    break
            except KeyboardInterrupt:
                log.debug("interrupted while its meshes end")
        self.supervisor.on_grace_expired()

    def begin_call(self, call: Call) -> Running:
        """Set the context and the output's origin, and show the call on the status board.

        On the thread or in the task of the call; `end_call` needs the result.
        """
        current.set(
            Context(
                self.instance, call.rank if call.seen_as < 0 else call.seen_as, call.labels,
                call.sizes, call.origin, call.endpoint
            )
        )  # fmt: skip
        if call.origin != self.runtime.origin:
            self.runtime.origin = call.origin
            begin_output(call.origin)
        return self.runtime.slot.begin(self.board_name, call.endpoint.encode())

    def end_call(self, running: Running) -> int:
        """Restore the idle context after a call; returns how many nanoseconds the call ran."""
        ran_ns = self.runtime.slot.end(running)
        current.set(self.idle_context)
        return ran_ns

    def is_fatal(self, failure: RankFailure) -> bool:
        """Whether the failure ends this proc; callers then receive the end of the process."""
        return self.runtime.hooks.program.ends_process(failure)

    @property
    def rank(self) -> int:
        """The rank of its proc in the mesh called `mesh_name`."""
        return self.spec.rank if self.runtime.proc_ref is None else self.runtime.rank

    @property
    def point(self) -> dict[str, int]:
        """Its coordinates, as shown to users."""
        own, procs = dict(self.instance.rank), self.runtime.proc_ref
        return (
            own if procs is None else shown_point(dict(procs.extent.point_of_rank(self.rank)), own)
        )

    def describe(
        self, error: BaseException, kind: FailureKind, endpoint: str | None
    ) -> RankFailure:
        """Describe an exception that escaped this actor's code."""
        spec = self.spec
        failure = describe(
            error, mesh_name=spec.mesh_name, rank=self.rank, point=self.point,
            actor_class=spec.class_name, endpoint=endpoint, host=self.runtime.host, kind=kind,
        )  # fmt: skip
        if isinstance(error, EOFError) and self.runtime.proc_ref is not None:
            failure = replace(failure, message=without_keyboard(failure))
        causes = () if kind == "endpoint" else causes_of(error)
        # The causes already hold the text of the error.
        return replace(failure, message="", causes=causes) if causes else failure

    # --- the end of the actor ---------------------------------------------------------------------

    def fail(self, failure: RankFailure, cause: BaseException, *, cleans: bool = True) -> None:
        """Fail the actor: queued and later calls are answered with the failure.

        The meshes that the actor owns are stopped; the actor's own thread cleans up. Any thread may
        call it; only the first failure counts.
        """
        grace_s = settings().cleanup_s
        with self._lock:
            if self.dead is not None:
                return
            reported, actions = self.supervisor.fail(failure, grace_s)
            self.dead, self.cause = reported, cause
        self._remember("Failed", reported.message or reported.exception_type)
        self.supervisor.carry_out(actions)
        if cleans and self.actor_class is not None:
            if hasattr(self.actor_class.cls, "__cleanup__") or self.supervisor.meshes:
                # The report to the owner follows the clean-up, or the end of the time for that.
                self._report_timer = threading.Timer(grace_s, self.supervisor.report_now)
                self._report_timer.daemon = True
                self._report_timer.start()
                if self.finalized:  # it ended before the timer was set
                    self._report_timer.cancel()
            else:
                self.supervisor.report_now()
        self.drain()
        self.mailbox.close()
        if self.interrupt is not None:
            self.interrupt()
        self._unpause()

    def fail_early(self, failure: RankFailure, cause: BaseException) -> None:
        """Fail during construction, when only meshes that the constructor made are cleaned up."""
        if self.runtime.node.is_fork:  # its constructor has forked
            end_fork(cause)
        self.fail(failure, cause, cleans=False)
        self.wait_for_meshes()
        self.on_cleaned_up(None)

    def request_stop(self, item: Stop) -> None:
        """Begin to end: after pending failures are checked, stop the meshes that the actor owns."""
        if item.request is not None:
            self._stop_requests.append(item.request)
        self.supervisor.stop(
            item.reason, settings().cleanup_s if item.grace_s is None else item.grace_s
        )

    def meshes_deadline(self) -> float:
        """Until when the actor waits for the meshes that it owns, by the monotonic clock."""
        return monotonic() + self.supervisor.grace_s * UNTIL_OVERDUE

    def on_cleaned_up(self, failed: BaseException | None) -> None:
        """The actor has cleaned up, and none of its code runs.

        `failed`: the clean-up's exception.
        """
        failure = None
        with self._lock:
            if self.dead is None:
                self.dead = self.stopped_failure(self.supervisor.reason)
                self._remember("Stopped", self.supervisor.reason)
                if failed is not None:
                    failure = self.describe(failed, "actor died", "__cleanup__")
        self.mailbox.close()
        self.supervisor.on_cleaned_up(failure)

    def _finalize(self) -> None:
        self.finalized = True
        if self._report_timer is not None:
            self._report_timer.cancel()
        self.drain()
        if self.runtime.cells.get(self.spec.actor) is self:  # and no newer actor of the same uid
            assert self.dead is not None
            self.runtime.tombstones.add(self.spec, self.dead)
            del self.runtime.cells[self.spec.actor]
        self.runtime.metrics.ended(self.spec.mesh, self.spec.name)
        self.runtime.hooks.actors.on_actor_gone(self)

    def stopped_failure(self, reason: str) -> RankFailure:
        """The failure that callers of a stopped actor receive."""
        return self.failure_of_kind("stopped", reason)

    def failure_of_kind(self, kind: FailureKind, message: str) -> RankFailure:
        """A failure of this actor that is no error of its code."""
        spec = self.spec
        return RankFailure(
            spec.mesh_name, self.rank, self.point, spec.class_name, None,
            self.runtime.host, os.getpid(), kind, "", message,
        )  # fmt: skip

    def _report_to_owner(self, failure: RankFailure) -> None:
        """Report this actor's failure to the process that spawned it, once."""
        spec = self.spec
        if self.is_fatal(failure):
            self.runtime.hooks.program.end_process(failure)
            return
        self.runtime.report_to_creator(spec.creator, ActorFailed(spec.actor, self.rank, failure))

    def clean_up(self, cause: BaseException | None) -> Any:
        """Run `__cleanup__`, if any; returns its exception, its awaitable, or None."""
        hook = getattr(self.instance_object, "__cleanup__", None)
        if hook is None or self._cleaned:
            return None
        self._cleaned = True
        try:
            return hook(cause)
        except BaseException as error:
            if self.runtime.node.is_fork:
                end_fork(error)
            return error

    def drain(self) -> None:
        """Answer running and queued calls with the reason why the actor ended. Any thread."""
        self.running_calls.reject_all()
        while (item := self.mailbox.take()) is not None:
            if isinstance(item, tuple):
                self.running_calls.reject(item[0], item[1], item[3])
            elif isinstance(item, Stop) and item.request is not None:
                self._stop_requests.append(item.request)
        while self.finalized and self._stop_requests:
            try:
                peer, message = self._stop_requests.popleft()
            except IndexError:
                return  # another thread has answered the last one
            self.runtime.routes.reply(peer, message, OK, NO_PAYLOAD)
