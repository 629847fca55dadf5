"""Other ways to call than the adverbs: `send`, `Accumulator`, `as_endpoint`.

Runs in: any process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar

from monarch._src.actor.call.call import Endpoint
from monarch._src.actor.call.responses import OneCall
from monarch._src.actor.call.target import Target
from monarch._src.actor.endpoint import EndpointMethod
from monarch._src.actor.future import Future
from monarch._src.actor.ports import Port
from monarch._src.actor.runtime import Runtime
from monarch._src.actor.serialize import unpack_value
from monarch._src.actor.state.calls import PendingCall
from monarch._src.failures.report import RankFailure
from monarch._src.shape import Region
from monarch._src.wire.frames import Payload

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
Selection: TypeAlias = Literal["all", "choose"]
"""The ranks that get a message: every one, or one that is drawn at random."""


def send(
    endpoint: Endpoint[P, R],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    port: Port[R] | None = None,
    selection: Selection = "all",
) -> None:
    """Send one message to every rank, or to a random one; answers go to `port`, if given.

    Raises:
        ValueError: `selection` is neither "all" nor "choose". Otherwise the errors of the adverbs.
    """
    if selection not in ("all", "choose"):
        raise ValueError(f"selection={selection!r}: give 'all' or 'choose'")
    endpoint.send(args, kwargs, port, choose=selection == "choose")


class Accumulator(Generic[P, R, A]):
    """Folds the answers of all ranks: `combine(combine(identity, first), second)`."""

    def __init__(self, endpoint: Endpoint[P, R], identity: A, combine: Callable[[A, R], A]) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def __repr__(self) -> str:
        return f"<Accumulator over {self._endpoint!r}>"

    def accumulate(self, /, *args: P.args, **kwargs: P.kwargs) -> Future[A]:
        """Call every rank and fold the answers in the order in which they arrive."""
        return self._endpoint.start(args, kwargs, partial(FoldCall, self._fold))

    def _fold(self, answers: list[Payload]) -> A:
        value = self._identity
        for answer in answers:
            value = self._combine(value, unpack_value(answer))
        return value


class FoldCall(PendingCall):
    """A call to every rank, whose value is made of all answers in order of arrival."""

    __slots__ = ("_answers", "_first_failure", "_fold", "_futures")

    def __init__(
        self,
        fold: Callable[[list[Payload]], Any],
        target: Target,
        region: Region,
        future: Future[Any],
    ) -> None:
        super().__init__(target.procs.uid, target, region)
        self._futures: tuple[Future[Any], ...] = (future,)
        self._fold = fold
        self._answers: list[Payload] = []
        self._first_failure = OneCall(target, region, future)  # raises the first failure

    def on_answer(self, position: int, payload: Payload) -> None:
        self._answers.append(payload)
        if not self.owed:
            fold, answers = self._fold, self._answers
            self._futures[0].settle(lambda: fold(answers))

    def futures_of(self) -> Sequence[Future[Any]]:
        return self._futures

    def release(self) -> None:
        self._futures, self._answers = (), []
        self._first_failure.release()

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        self._first_failure.on_error(position, status, payload)

    def on_lost(self, position: int, failure: RankFailure) -> None:
        self._first_failure.on_lost(position, failure)


class PlainMethod:
    """A method of an actor class that is no endpoint, as an attribute of a mesh.

    Its only use is as an argument of `as_endpoint`.
    """

    def __init__(
        self, run: Runtime, target: Target, function: Callable[..., Any], *, is_async: bool
    ) -> None:
        self.runtime = run
        self.target = target
        self.function = function
        self.is_async = is_async

    def _refuse(self) -> TypeError:
        name = self.function.__name__
        return TypeError(
            f"{self.target.class_name}.{name} is no endpoint; mark it with @endpoint, or call it "
            f"as as_endpoint(mesh.{name}).call(...)"
        )

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self._refuse()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._refuse()


def as_endpoint(
    method: Any, *, propagate: Any = None, explicit_response_port: bool = False
) -> Endpoint[Any, Any]:
    """Make an endpoint of an unmarked method: `as_endpoint(mesh.method).call()`.

    A plain method of an async actor blocks the actor's event loop while it runs.

    Raises:
        ValueError: `method` is no method of an actor mesh.
        TypeError: `method` is `async def`, and the actor has no event loop.
    """
    if isinstance(method, Endpoint):
        return method  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(method, PlainMethod):
        raise ValueError(f"as_endpoint takes a method of an actor mesh, not {method!r}")
    function = method.function
    if inspect.iscoroutinefunction(function) and not method.is_async:
        raise TypeError(
            f"{method.target.class_name}.{function.__name__} is `async def`, but the endpoints of "
            "that actor are plain: it has no loop to run it on"
        )
    made: EndpointMethod[Any, Any] = EndpointMethod(
        function, by_port=explicit_response_port, propagate=propagate
    )
    return Endpoint(method.runtime, method.target, made)
