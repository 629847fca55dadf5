"""Errors for common misuses of endpoints and of the results of their adverbs.

Runs in: any process, any thread. Python's own errors would name internal types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

if TYPE_CHECKING:
    from monarch._src.actor.future import Future

R = TypeVar("R")
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
