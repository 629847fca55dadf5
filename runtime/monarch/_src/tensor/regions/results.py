"""What a compiled function returns: how results are built from what a region has made.

Runs in: the client.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from monarch._src.tensor.regions.recording import Watch
from monarch._src.tensor.state.metas import UNPLACED, Handle, Meta, Storage
from monarch._src.tensor.tensor import Tensor, wrap
from monarch._src.tensor.tensor_errors import not_a_result, not_in_region
from monarch._src.tensor.torch_modules import pytree

_CONSTANTS = (int, float, bool, complex, str, bytes, type(None))
INPUT, CAPTURED, MADE, CONSTANT, FRESH = "input", "captured", "made", "constant", "fresh"


class Source(NamedTuple):
    """Where something comes from: an input, a captured tensor, something made, or itself."""

    kind: str
    place: int = 0
    value: Any = None


class Made(NamedTuple):
    """A tensor that a region makes, and whose storage it shares."""

    meta: Meta
    storage: Source


class Results:
    """The leaves of a result, and the tree that holds them.

    `made`: the numbers that the results had in the recording.
    """

    def __init__(
        self, spec: Any, leaves: list[Source], tensors: list[Made], made: list[int]
    ) -> None:
        self._spec = spec
        self._leaves = leaves
        self._tensors = tensors
        self.made = made

    def is_same(self, other: Results) -> bool:
        """Whether both are built the same way."""
        mine = (self._spec, self._tensors, [_comparable(one) for one in self._leaves])
        its = (other._spec, other._tensors, [_comparable(one) for one in other._leaves])
        return mine == its

    def build(self, first: int, channel: Any, tensors: list[Any], handles: list[Handle]) -> Any:
        """The result of a call whose tensors have the numbers from `first` on."""
        made: list[Any] = []
        for place, (meta, source) in enumerate(self._tensors):
            if source.kind == FRESH:
                storage = Storage()
            elif source.kind == INPUT:
                storage = handles[source.place].storage
            elif source.kind == MADE:
                storage = made[source.place].monarch_handle.storage
            else:
                storage = source.value
            made.append(wrap(Handle(first + place, meta, storage, channel)))
        leaves: list[Any] = []
        for kind, place, value in self._leaves:
            if kind == MADE:
                leaves.append(made[place])
            elif kind == INPUT:
                leaves.append(tensors[place])
            else:
                leaves.append(value)
        return leaves[0] if self._spec is None else pytree.tree_unflatten(leaves, self._spec)


def _comparable(source: Source) -> Any:
    if source.kind == CAPTURED:
        return source.kind, id(source.value)
    if source.kind == CONSTANT:
        return source.kind, type(source.value), repr(source.value)
    return source.kind, source.place


def results_of(name: str, result: Any, inputs: list[Any], watch: Watch) -> Results:
    """Describe the result of a call that was recorded.

    Raises:
        TypeError: it has something else than tensors, numbers and text.
        RuntimeError: a tensor in it needs a gradient, or is on another mesh.
    """
    spec: Any = None
    leaves: list[Any] = [result]
    if type(result) is not Tensor:
        leaves, spec = pytree.tree_flatten(result)
    tensors: list[Made] = []
    numbers: list[int] = []
    sources = _storages(inputs, watch)
    places = {one.monarch_handle.number: place for place, one in reversed(list(enumerate(inputs)))}

    def source_of(leaf: Any) -> Source:
        if type(leaf) is not Tensor:
            if type(leaf) not in _CONSTANTS:
                raise not_a_result(name, leaf)
            return Source(CONSTANT, 0, leaf)
        handle = leaf.monarch_handle
        if handle.channel is not watch.channel:
            raise not_in_region(
                name, "a result on another mesh or slice", "take slice_mesh(...) after the call"
            )
        if handle.number in places:
            return Source(INPUT, places[handle.number])
        if not watch.recording.has_made(handle.number):
            return Source(CAPTURED, 0, leaf)
        if handle.meta.bits & UNPLACED:
            raise not_in_region(
                name, "a result x[i] with an i on the ranks, whose place in memory they know only,",
                "return x[i].clone()",
            )  # fmt: skip
        if leaf.requires_grad:
            raise not_in_region(
                name, "a result that requires gradients",
                "autograd does not see what ranks repeat; return result.detach(), and compute "
                "gradients in the function with torch.autograd.grad(loss, tensors)",
            )  # fmt: skip
        if handle.number in numbers:
            return Source(MADE, numbers.index(handle.number))
        place = len(tensors)
        shared = sources.setdefault(id(handle.storage), Source(MADE, place))
        if shared == Source(MADE, place):
            shared = Source(FRESH)
        tensors.append(Made(handle.meta, shared))
        numbers.append(handle.number)
        return Source(MADE, place)

    found = [source_of(leaf) for leaf in leaves]
    return Results(spec, found, tensors, numbers)


def _storages(inputs: list[Any], watch: Watch) -> dict[int, Source]:
    """Where the storages come from that results may share."""
    found: dict[int, Source] = {}
    for place, one in enumerate(inputs):
        found.setdefault(id(one.monarch_handle.storage), Source(INPUT, place))
    for state in watch.foreign.values():
        storage = state.tensor.monarch_handle.storage
        found.setdefault(id(storage), Source(CAPTURED, 0, storage))
    return found
