"""What is told who uses an endpoint, or what its adverbs give, in another way than is meant.

Runs in: any process, any thread. Otherwise Python would tell, of types that the user has not made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

if TYPE_CHECKING:
    from monarch._src.actor.future import Future

R = TypeVar("R")
ADVERBS = ("call", "call_one", "choose", "stream", "broadcast")


def not_callable_text(endpoint: str, name: str) -> str:
    """Of `mesh.name(...)`; `who` is `Trainer.step`."""
    return f"{endpoint} is an endpoint of a mesh, which has to be told whom to call: {_ways(name)}"


def no_adverb_text(endpoint: str, name: str, wanted: str) -> str:
    """Of `mesh.name.wanted`."""
    import difflib  # for this alone

    near = difflib.get_close_matches(wanted, ADVERBS, n=1, cutoff=0.6)
    if near:
        return f"the endpoint {endpoint} has no {wanted!r}; did you mean .{name}.{near[0]}(...)?"
    return f"the endpoint {endpoint} has no {wanted!r}: it is called by {_ways(name)}"


def _ways(name: str) -> str:
    return (
        f".{name}.call(...) (every rank), .call_one(...), .choose(...), .stream(...), or "
        ".broadcast(...) (no answer)"
    )


class Answers(Generic[R]):
    """What `stream` gives: a future for each rank, in the order in which ranks answer."""

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
            f"what .stream(...) gives has no {name!r}: it is a future for each rank, as they "
            "answer. Write `for answer in mesh.endpoint.stream(...): answer.get()`, or "
            ".call(...).get() for all values at once"
        )


class DocOfEndpoint:
    """`__doc__` of a class of endpoints: on an endpoint, what its method says of itself."""

    def __init__(self, own: str | None) -> None:
        self._own = own

    def __get__(self, instance: Any, owner: type) -> str | None:
        return self._own if instance is None else instance.method_doc


class SignatureOfEndpoint:
    """`__signature__` of an endpoint: what its method takes. Of their class: Python's own."""

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            raise AttributeError("__signature__")
        return instance.method_signature
