"""`compile`: functions whose operations ranks keep, so that a call costs one message.

Runs in: the client, on the threads of the program. The first call of a function with arguments of a
kind runs it as ever, and records what it does. With `verify`, so does the next one, and both have
to agree. Later calls bind the tensors of the call to the registers of the region.
Owns: for each compiled function, its regions on the ranks. They are freed with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import Any, NamedTuple, cast

from monarch._src.tensor.active_mesh import active_channel
from monarch._src.tensor.channels.channel import Channel, two_channels
from monarch._src.tensor.operations.kinds import kind_with_outputs, own_kind
from monarch._src.tensor.regions.recording import State, Watch, active, recorded
from monarch._src.tensor.sites import sites
from monarch._src.tensor.state.metas import UNPLACED, Handle, Meta, Storage
from monarch._src.tensor.state.regions import Recording
from monarch._src.tensor.tensor import Tensor, wrap
from monarch._src.tensor.tensor_errors import (
    argument_not_keyed,
    lent,
    local_argument,
    not_a_result,
    not_in_region,
    not_repeated,
    unusable,
)
from monarch._src.tensor.torch_modules import TorchTensor, pytree, torch

_CONSTANTS = (int, float, bool, complex, str, bytes, type(None))
INPUT, CAPTURED, MADE, CONSTANT, FRESH = "input", "captured", "made", "constant", "fresh"
MOST_REGIONS = 64  # of a function; one with ever new arguments starts anew
BYTES_OF_STEP = 64  # what an operation of a region counts for in a batch
_PLAIN = frozenset((Tensor, int, float, bool, complex, str, type(None)))
_NO_META = Meta((), (), 0, None, None, 0)


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


class CompiledRegion:
    """What one key of a compiled function stands for."""

    def __init__(
        self, channel: Channel, recording: Recording, foreign: dict[int, State], results: Results
    ) -> None:
        self.channel = channel
        self.recording = recording
        self.results = results
        self.captured = [foreign[number].tensor for number in recording.captured]
        self._captured_numbers = tuple(recording.captured)
        self.inputs = recording.inputs
        self.fixed = set(range(len(self.inputs)))  # places that had one tensor in all recordings
        self.is_checked = False
        self.written_inputs: tuple[int, ...] = ()
        self.written_captured: list[Any] = []
        self._kept: Handle | None = None
        self._kind = kind_with_outputs("monarch::region", len(results.made))
        self._nbytes = BYTES_OF_STEP * len(recording.steps)

    def is_proven(self, handles: list[Handle]) -> bool:
        """Whether a region that was recorded with other tensors may run with these.

        A tensor argument that was the same object in all recordings may be one that the function
        also refers to in another way.
        """
        if not self.is_checked:
            return False
        inputs = self.inputs
        return all(handles[place].number == inputs[place] for place in self.fixed)

    def run(self, tensors: list[Any], handles: list[Handle], site: int) -> Any:
        """Run it on the ranks with these tensors as arguments."""
        for tensor in self.captured:
            if tensor.monarch_handle.storage.unusable:
                raise unusable(tensor.monarch_handle)
        written = [handles[place] for place in self.written_inputs]
        for handle in (*written, *[one.monarch_handle for one in self.written_captured]):
            if handle.storage.lent:
                raise lent(handle)
        kept = self._kept or self._define()
        numbers = (
            kept.number,
            *[handle.number for handle in handles],
            *self._captured_numbers,
        )
        first = self.channel.record(self._kind, numbers, (), site, self._nbytes)
        for place in self.written_inputs:
            _count_write(tensors[place])
        for tensor in self.written_captured:
            _count_write(tensor)
        return self.results.build(first, self.channel, tensors, handles)

    def _define(self) -> Handle:
        """Have the ranks keep it."""
        region = self.recording.finish(self.results.made)
        data = sum(
            len(one)
            for step in self.recording.steps
            for one in step.scalars
            if isinstance(one, bytes)
        )
        kind = own_kind("monarch::define_region")
        number = self.channel.record(kind, (), (region,), 0, self._nbytes + data)
        self._kept = Handle(number, _NO_META, Storage(), self.channel)
        return self._kept


def _count_write(tensor: Any) -> None:
    """Have autograd know that a tensor was written, as an operation in place does."""
    torch.autograd.graph.increment_version(tensor)


class _Bound(NamedTuple):
    """The arguments of a call."""

    key: tuple[Any, ...]
    channel: Channel
    tensors: list[Any]
    handles: list[Handle]


class Compiled:
    """A function whose operations are recorded once and kept by ranks. Made by `compile`."""

    def __init__(self, function: Callable[..., Any], verify: bool) -> None:
        self._function = function
        self._verify = verify
        self._regions: dict[Any, CompiledRegion] = {}
        self._name = getattr(function, "__name__", type(function).__name__)
        update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<monarch.compile {self._name}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else partial(self, instance)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call it: see `monarch.compile`."""
        if active() is not None:  # within another compiled function, of whose region it is a part
            return self._function(*args, **kwargs)
        bound = self._bind(args, kwargs)
        found = self._regions.get(bound.key)
        if found is not None and found.is_proven(bound.handles):
            site = sites.number(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            return found.run(bound.tensors, bound.handles, site)
        return self._record(bound, found, args, kwargs)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Bound:
        leaves: Sequence[Any] = args
        spec: Any = len(args)
        if kwargs or not all(type(one) in _PLAIN for one in args):
            leaves, spec = pytree.tree_flatten((args, kwargs))
        active_one = active_channel()
        channel: Channel | None = None
        key: list[Any] = [
            spec, active_one, torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            torch.get_default_dtype(),
        ]  # fmt: skip
        tensors: list[Any] = []
        handles: list[Handle] = []
        numbers: dict[int, int] = {}
        storages: dict[int, int] = {}
        for leaf in leaves:
            kind: Any = type(leaf)  # pyright: ignore[reportUnknownVariableType]
            if kind is Tensor:
                handle = leaf.monarch_handle
                if channel is None:
                    channel = cast(Channel, handle.channel)
                self._check(handle, channel)
                place = len(tensors)
                key.append(handle.meta)
                key.append(leaf.requires_grad)
                key.append(leaf.is_inference())
                key.append(numbers.setdefault(handle.number, place))
                key.append(storages.setdefault(id(handle.storage), place))
                tensors.append(leaf)
                handles.append(handle)
            elif isinstance(leaf, TorchTensor):
                raise local_argument(self._name, leaf.shape)
            else:
                key.append(kind)
                # As text: 0.0 and -0.0 are not the same, and NaN is.
                key.append(repr(leaf) if kind is float or kind is complex else leaf)
        channel = channel or active_one
        if channel is None:
            raise ValueError(
                f"no device mesh is active: call {self._name} within `with mesh.activate():`, or "
                "with tensors of a mesh"
            )
        driver: Any = channel.driver
        if driver.losses.has_news:
            driver.take_up_losses()
        key += (channel, driver.deaths, driver.losses.version)  # ranks may have lost the region
        made = tuple(key)
        try:
            hash(made)
        except TypeError:
            raise argument_not_keyed(self._name, leaves) from None
        return _Bound(made, channel, tensors, handles)

    def _check(self, handle: Handle, channel: Channel) -> None:
        if handle.channel is not channel:
            raise two_channels(channel, handle.channel)
        if handle.storage.unusable:
            raise unusable(handle)

    def _record(
        self,
        bound: _Bound,
        before: CompiledRegion | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run the function, record its operations, and compare them with an earlier recording."""
        channel = bound.channel
        channel.check()
        states = [State(one) for one in bound.tensors]
        watch = Watch(self._name, channel, [one.number for one in bound.handles])
        with recorded(watch):
            result = self._function(*args, **kwargs)
        if any(one.has_new_grad for one in (*states, *watch.foreign.values())):
            raise not_in_region(
                self._name, "a write of .grad",
                "compute gradients with torch.autograd.grad(loss, tensors) and use them as results",
            )  # fmt: skip
        results = results_of(self._name, result, bound.tensors, watch)
        found = CompiledRegion(channel, watch.recording, watch.foreign, results)
        found.written_inputs = tuple(at for at, one in enumerate(states) if one.is_written)
        found.written_captured = [one.tensor for one in watch.foreign.values() if one.is_written]
        found.is_checked = not self._verify
        if not self._verify:
            found.fixed.clear()
        elif before is not None:
            self._compare(bound.key, before, found)
        if before is None and len(self._regions) >= MOST_REGIONS:
            self._regions.clear()
        self._regions[bound.key] = found
        return result

    def _compare(self, key: Any, before: CompiledRegion, found: CompiledRegion) -> None:
        """Raise if a function has done something else than before, with arguments of one key."""
        place = before.recording.difference(found.recording)
        if place < 0 and before.results.is_same(found.results):
            found.is_checked = True
            found.fixed = {at for at in before.fixed if before.inputs[at] == found.inputs[at]}
            return
        if set(before.inputs) & set(found.recording.captured):
            return  # it refers to a tensor that was an argument by chance: what is found holds
        del self._regions[key]
        raise not_repeated(
            self._name, before.recording.steps[place:], found.recording.steps[place:], place,
            sites.site,
        )  # fmt: skip


def compile(fn: Callable[..., Any] | None = None, verify: bool = True) -> Any:
    """Have ranks keep the operations of a function, so that a later call costs one message.

    The first call with arguments of a kind runs the function as ever and records its operations.
    Later calls do not run the function: ranks repeat what was recorded, with the tensors of the
    call. Calls are of one kind if their tensors agree in shape, strides, dtype, `requires_grad`
    and in which of them share memory, if their other arguments are equal, and if the same mesh is
    active. A tensor of the mesh that the function refers to otherwise, such as a weight, is the
    one of the recording, with the values that it has at the time of the call.

    The function has to do the same on each call: it may not read values or `.grad`, use two
    meshes, or move or drop tensors. Tensors that it writes in place are written. Its results are
    tensors that need no gradient, numbers and text, in lists, tuples and dicts.

    Use it as a decorator too: `@monarch.compile` or `@monarch.compile(verify=False)`.

    Args:
        fn: takes tensors of a mesh, and values that can be hashed, in lists, tuples and dicts.
        verify: the second call of a kind is recorded too, and has to have done the same as the
            first; so is a later one in which an argument is another tensor for the first time.
            False: the function is trusted, and replayed from the second call on.

    Raises by a call:
        RuntimeError: the function does what cannot be recorded, or was seen to do something else
            than before. Operations up to there have run.
        TypeError: an argument or result that it cannot have.
        ValueError: no mesh is active, tensors of two meshes, or a tensor that was dropped.

    An operation that fails in a region leaves no value in what depends on it, and the error of a
    fetch names its line in the function.
    """
    if fn is None:
        return partial(compile, verify=verify)
    if not callable(fn):
        raise TypeError(f"compile takes a function, not {type(fn).__name__}")
    return Compiled(fn, verify)
