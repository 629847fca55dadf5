"""Calling endpoints: the adverbs `call`, `call_one`, `choose`, `stream` and `broadcast`.

Runs in: any process, on the calling thread. `call.responses` handles the answers.
Invariants: a call is checked and pickled before any message is sent, and all its messages are sent
before the adverb returns. Common misuses of endpoints and results have errors of their own, since
Python's would name internal types.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, cast

from monarch._src.actor.call.on_ranks import WAYS, OnRanksError
from monarch._src.actor.call.pickling_errors import unpicklable
from monarch._src.actor.call.responses import AllCall, OneCall, StreamCall
from monarch._src.actor.call.target import Target
from monarch._src.actor.context import ActorId, current, origin_now
from monarch._src.actor.future import Future
from monarch._src.actor.method_declaration import MethodDeclaration
from monarch._src.actor.ports import Port
from monarch._src.actor.runtime import Runtime
from monarch._src.actor.serialize import pack_value
from monarch._src.actor.state.calls import PendingCall
from monarch._src.actor.state.endpoint_metrics import EndpointCounts
from monarch._src.actor.state.history import HISTORY
from monarch._src.actor.tracing import TRACE
from monarch._src.errors import CallCancelled, SupervisionError, death_error
from monarch._src.failures.report import RankFailure, at_text, for_later_call
from monarch._src.net.local.interrupt import uninterrupted
from monarch._src.net.local.leader import FORKED
from monarch._src.net.local.waitable import RuntimeEnded
from monarch._src.pickling.pickler import dumps_arguments
from monarch._src.shape import Region, ValueMesh
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Call, Undelivered
from monarch._src.wire.process_codec import Key

if TYPE_CHECKING:
    from monarch._src.actor.future import Future

P = ParamSpec("P")
R = TypeVar("R")


def send_call(
    runtime: Runtime, target: Target, region: Region, name: str, payload: Payload,
    pending: PendingCall | None, *, by_port: bool = False, port: Port[Any] | None = None,
    part_of: tuple[Region, int] | None = None,
) -> None:  # fmt: skip
    """Send a call to every rank. If a rank is known to be dead, the call or broadcast fails here.

    Answers go to `port` if it is given, otherwise to `pending`. `part_of`: a region and a rank of
    it, which a call to one rank shows its endpoint in place of that rank alone.
    """
    if runtime.node.is_fork:
        raise RuntimeEnded(FORKED)
    failed = target.failures_in(region)
    if failed:
        failed = {position: for_later_call(one) for position, one in failed.items()}
        if pending is None:  # all or none
            ranks = region.ranks()
            raise death_error([target.describe_as_actor(f, ranks[p]) for p, f in failed.items()])
    extent, origin = region.extent, origin_now()
    runtime.routes.await_room(target.procs, region, large=payload.is_large)
    try:
        with uninterrupted():  # all ranks or none; cheaper than once for each rank
            number = 0
            if pending is not None:
                pending.endpoint, pending.origin = name, origin
                number = runtime.calls.open(pending)
            call = Call(
                target.uid,
                number,
                name,
                0,
                extent.labels,
                extent.sizes,
                by_port,
                origin=origin,
            )
            if (pending is None and port is None) or HISTORY.sent is not None:
                context = current.get()
                call.sent_by = 0 if context is None else context.actor_instance.actor_id.uid
                if pending is not None:
                    pending.sent_by = call.sent_by
            if port is not None:
                call.call, call.reply_to, call.reply_address = port.number, port.node, port.address
            if part_of is not None:
                whole, call.seen_as = part_of
                call.labels, call.sizes = whole.extent.labels, whole.extent.sizes
            if TRACE.on_send is not None:
                call.trace = TRACE.on_send(target.class_name, target.name, name)
            missed = runtime.routes.post(
                target.procs, region, call, payload, skip=failed,
                gather=pending is not None and not by_port,
                each=pending is not None and pending.streams_answers,
            )  # fmt: skip
            if pending is not None and (missed or failed):
                # The message to a missed rank is lost; its death notice may still be on the way.
                # A skipped rank was sent nothing, even if it has restarted by now.
                failed = {**target.failures_in(region), **failed}
                with runtime.answering:
                    for position, failure in failed.items():
                        runtime.calls.on_rank_lost(number, position, failure)
            elif missed and port is None:
                runtime.undeliverable.deliver(_not_sent(target, region, call, missed))
    except CallCancelled:
        # The calling endpoint was cancelled meanwhile, and will not wait for the answer.
        if pending is not None:
            runtime.cancel(pending)
        raise


def _not_sent(target: Target, region: Region, call: Call, missed: Collection[int]) -> Undelivered:
    """The report of a message that could not be sent to some ranks."""
    position = min(missed)
    failure = RankFailure(
        target.procs.name, position, dict(region.extent.point_of_rank(position)),
        target.class_name, call.endpoint, target.procs.host_of(region.global_rank(position)), None,
        "undeliverable", "", "its process is gone",
    )  # fmt: skip
    node = target.procs.node(region.global_rank(position))
    to = ActorId(node, target.uid, target.name)
    return Undelivered(call.sent_by, str(to), target.uid, failure)


class Endpoint(Generic[P, R]):
    """One endpoint of an actor mesh. Its adverbs send a message to every rank, or to one rank."""

    __slots__ = ("_counts", "_method", "_runtime", "_target", "name")

    def __init__(self, runtime: Runtime, target: Target, method: MethodDeclaration) -> None:
        self._runtime = runtime
        self._target = target
        self._method = method
        self._counts: dict[str, EndpointCounts] = {}  # by adverb
        self.name = method.name

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Call every rank; the future yields a ValueMesh of their answers.

        Raises:
            TypeError: the arguments do not fit the endpoint, or one of them cannot be pickled.
            MeshStoppedError: the mesh has been stopped.
        """
        try:
            return self.start(args, kwargs, AllCall)
        except OnRanksError as error:
            return self._on_ranks("call", args, kwargs, error)

    def call_one(self, /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the one rank of this mesh.

        Raises:
            ValueError: the mesh has more than one rank; slice it, or use `call` or `choose`.
        """
        region = self._target.region
        if len(region) != 1:
            raise ValueError(
                f"call_one needs a mesh of one rank; {self._target.name} has {region.extent}. "
                "Slice it to one, or use `call` (all) or `choose` (any)"
            )
        begun = monotonic_ns()
        try:
            payload = self._pack(args, kwargs)
        except OnRanksError as error:
            return self._on_ranks("call_one", args, kwargs, error)
        future: Future[R] = self._runtime.new_future()
        pending = future.pending = OneCall(self._target, region, future)
        self._send("call_one", begun, region, payload, pending)
        return future

    def choose(self, /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call one rank, drawn uniformly at random."""
        begun = monotonic_ns()
        try:
            payload = self._pack(args, kwargs)
        except OnRanksError as error:
            return self._on_ranks("choose", args, kwargs, error)
        region = self._drawn()
        future: Future[R] = self._runtime.new_future()
        pending = future.pending = OneCall(self._target, region, future)
        self._send("choose", begun, region, payload, pending)
        return future

    def stream(self, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[R]]:
        """Call every rank; yields a future for each, in the order in which ranks answer."""
        begun = monotonic_ns()
        try:
            payload = self._pack(args, kwargs)
        except OnRanksError as error:
            return self._on_ranks("stream", args, kwargs, error)
        region = self._target.region
        futures: list[Future[R]] = [self._runtime.new_future() for _ in range(len(region))]
        pending = StreamCall(self._target, region, futures)
        for future in futures:
            future.pending = pending
        self._send("stream", begun, region, payload, pending)
        return Answers(futures)

    def broadcast(self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send to every rank and expect no answer.

        No caller receives an exception of the endpoint, so it ends the actor, and the actor's owner
        handles the failure.

        Raises:
            SupervisionError: a rank of this mesh is known to have failed.
        """
        try:
            payload = self._pack(args, kwargs)
        except OnRanksError as error:
            self._on_ranks("broadcast", args, kwargs, error)
        else:
            self._send("broadcast", 0, self._target.region, payload, None)

    def rref(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call every rank; the tensors that the endpoint returns stay there, as those of the mesh.

        The endpoint returns tensors, in tuples, lists and dicts; they have one shape on all ranks.
        Returns once a rank has told their shapes, or at once if `@endpoint(propagate=function)`
        computes them from the arguments.

        Raises:
            RuntimeError: no tensors of a mesh have been used yet; `mesh.activate()` makes some.
            ValueError: the arguments are not on exactly the ranks of these actors; or there are no
                tensors among them, and no mesh is active.
        """
        self._target.check_usable()
        self._method.check(self._target.class_name, args, kwargs)
        if WAYS.tensors is None:
            raise RuntimeError(
                f"{self.name}.rref needs an active mesh: call it within `with mesh.activate():`"
            )
        return WAYS.tensors(self, "rref", args, kwargs)

    def _on_ranks(
        self, adverb: str, args: tuple[Any, ...], kwargs: dict[str, Any], error: OnRanksError
    ) -> Any:
        """The result of an adverb some of whose arguments are on the ranks."""
        if WAYS.tensors is None:
            raise error
        return WAYS.tensors(self, adverb, args, kwargs)

    @property
    def actor_mesh(self) -> Any:
        """The actors that it calls."""
        return cast("Any", self._target).actor_mesh

    @property
    def propagate(self) -> Any:
        """How `rref` learns the shapes of its results; see `@endpoint`."""
        return self._method.propagate

    def start(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        make: Callable[[Target, Region, Future[Any]], PendingCall],
    ) -> Future[Any]:
        """Call every rank; `make` creates the PendingCall that handles the answers."""
        begun = monotonic_ns()
        payload = self._pack(args, kwargs)
        future = self._runtime.new_future()
        region = self._target.region
        pending = future.pending = make(self._target, region, future)
        self._send("call", begun, region, payload, pending)
        return future

    def send(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], port: Port[R] | None, *, choose: bool
    ) -> None:
        """Send to every rank, or to a random one; answers go to `port`, if given."""
        payload = self._pack(args, kwargs)
        region = self._drawn() if choose else self._target.region
        self._send("send", 0, region, payload, None, port)

    def forward(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], part_of: tuple[Region, int],
        *, answered: bool,
    ) -> Future[R] | None:  # fmt: skip
        """Call the one rank of this mesh, as part of a call to a region; see `send_call`."""
        region, payload = self._target.region, self._pack(args, kwargs)
        pending, future = None, None
        if answered:
            future = self._runtime.new_future()
            pending = future.pending = OneCall(self._target, region, future)
        send_call(
            self._runtime, self._target, region, self.name, payload, pending,
            by_port=self._method.by_port, part_of=part_of,
        )  # fmt: skip
        return future

    def _drawn(self) -> Region:
        region = self._target.region
        if len(region) == 1:
            return region
        point = region.extent.point_of_rank(random.randrange(len(region)))
        return region.slice(**dict(point))

    def _send(
        self,
        adverb: str,
        begun_ns: int,
        region: Region,
        payload: Payload,
        pending: PendingCall | None,
        port: Port[R] | None = None,
    ) -> None:
        method = self._method
        counts = None
        if method.instrument:
            counts = self._counts.get(adverb) or self._counts_of(adverb)
            nbytes = payload.nbytes if payload.buffers else len(payload.body)
            if pending is not None:
                pending.counts = counts
                pending.begun_ns = begun_ns
                counts.sent(nbytes * pending.owed.bit_count())
            else:
                counts.sent(nbytes * len(region))
                counts.untimed += 1
                if HISTORY.sent is not None:
                    self._remember(region)
        try:
            send_call(
                self._runtime, self._target, region, self.name, payload, pending,
                by_port=method.by_port, port=port,
            )  # fmt: skip
        except SupervisionError:  # no message was sent
            if counts is not None:
                counts.errors += 1
            raise

    def _remember(self, region: Region) -> None:
        """Add a message without an answer to the history."""
        context, target, now_ns = current.get(), self._target, monotonic_ns()
        sent_by = 0 if context is None else context.actor_instance.actor_id.uid
        if HISTORY.sent is not None:
            HISTORY.sent.add(
                (
                    now_ns, now_ns, 0, sent_by, target.uid, target.procs.uid, target.name, region,
                    self.name, False,
                )
            )  # fmt: skip

    def _counts_of(self, adverb: str) -> EndpointCounts:
        target = self._target
        ref = target.procs
        key = Key(ref.uid, ref.name, target.class_name, target.name, self.name, adverb)
        counts = self._counts[adverb] = self._runtime.metrics.counts(key, monotonic_ns())
        return counts

    def _pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Payload:
        target = self._target
        target.check_usable()
        self._method.check(target.class_name, args, kwargs)
        try:
            return dumps_arguments(args, kwargs) or pack_value((args, kwargs), own=2, loose=True)
        except OnRanksError:
            raise
        except Exception as error:
            callee = f"{target.class_name}.{self.name}"
            refusal, cause = unpicklable(callee, self._method.signature, args, kwargs, error)
            raise refusal from cause

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Always a TypeError.

        Use `.call(...)`, `.call_one`, `.choose`, `.stream` or `.broadcast`.
        """
        raise TypeError(not_callable_text(f"{self._target.class_name}.{self.name}", self.name))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            no_adverb_text(f"{self._target.class_name}.{self.name}", self.name, name)
        )

    # Help in a notebook, such as `t.step?`, shows the method of the endpoint.

    @property
    def method_signature(self) -> inspect.Signature:
        """The method's parameters, without self and the port, and its return annotation."""
        method = self._method
        annotation = inspect.signature(method.function).return_annotation
        return method.signature.replace(return_annotation=annotation)

    @property
    def method_doc(self) -> str | None:
        """The docstring of the method."""
        return self._method.__doc__

    def __repr__(self) -> str:
        at = at_text(self._target.region.sizes)
        return f"<endpoint {self._target.class_name}.{self.name} of {self._target.name}{at}>"


# The methods that call an endpoint, as error texts offer them.
ADVERBS = ("call", "call_one", "choose", "stream", "broadcast")


def not_callable_text(endpoint: str, name: str) -> str:
    """The error text for `mesh.name(...)`; `endpoint` is `Trainer.step`, say."""
    return f"{endpoint} is an endpoint of a mesh, so say which ranks to call: {_ways(name)}"


def no_adverb_text(endpoint: str, name: str, wanted: str) -> str:
    """The error text for `mesh.name.wanted`."""
    import difflib  # slow to load, and used here only

    similar = difflib.get_close_matches(wanted, ADVERBS, n=1, cutoff=0.6)
    if similar:
        return f"the endpoint {endpoint} has no {wanted!r}; did you mean .{name}.{similar[0]}(...)?"
    return f"the endpoint {endpoint} has no {wanted!r}: it is called by {_ways(name)}"


def _ways(name: str) -> str:
    return (
        f".{name}.call(...) (every rank), .call_one(...), .choose(...), .stream(...), or "
        ".broadcast(...) (no answer)"
    )


class Answers(Generic[R]):
    """The result of `stream`: a future for each rank, in the order in which ranks answer."""

    __slots__ = ("_futures",)

    def __init__(self, futures: Sequence[Future[R]]) -> None:
        self._futures = iter(futures)

    def __iter__(self) -> Iterator[Future[R]]:
        return self

    def __next__(self) -> Future[R]:
        return next(self._futures)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"the result of .stream(...) has no {name!r}: it yields a future for each rank as "
            "it answers. Write `for answer in mesh.endpoint.stream(...): answer.get()`, or "
            ".call(...).get() for all values at once"
        )


class DocOfEndpoint:
    """`__doc__` of Endpoint: on an endpoint, the docstring of its method."""

    def __init__(self, class_doc: str | None) -> None:
        self._class_doc = class_doc

    def __get__(self, instance: Any, owner: type) -> str | None:
        return self._class_doc if instance is None else instance.method_doc


class SignatureOfEndpoint:
    """`__signature__` of Endpoint: on an endpoint, the signature of its method."""

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            raise AttributeError("__signature__")
        return instance.method_signature


cast(Any, Endpoint).__doc__ = DocOfEndpoint(Endpoint.__doc__)
cast(Any, Endpoint).__signature__ = SignatureOfEndpoint()
