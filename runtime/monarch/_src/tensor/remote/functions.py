"""`remote`: functions of the program that run on every rank, with its tensors as arguments.

Runs in: the client.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from importlib import import_module
from typing import Any, Literal, TypeAlias, TypeVar, cast

from monarch._src.actor.future import Future
from monarch._src.tensor.active_mesh import active_channel
from monarch._src.tensor.channels.channel import Channel
from monarch._src.tensor.local_values import point_of
from monarch._src.tensor.opaque import OBJECT, OpaqueRef, on_ranks
from monarch._src.tensor.operations.kinds import kind_with_outputs, own_kind
from monarch._src.tensor.operations.result_metas import (
    CPU,
    Output,
    layout_of,
    meta_of,
    metas,
    outputs_of,
    stand_in,
)
from monarch._src.tensor.packing import packed
from monarch._src.tensor.remote.errors import remote_exception
from monarch._src.tensor.sites import sites
from monarch._src.tensor.state.instructions import NOTHING, Failure, Slot
from monarch._src.tensor.state.metas import Handle, Meta, Storage
from monarch._src.tensor.tensor import wrap
from monarch._src.tensor.torch_modules import (
    TorchTensor,
    map_tree,
    plain_values,
    pytree,
    torch,
    without_modes,
)
from monarch._src.tensor.trees import Tree, put_together, taken_apart

Propagate: TypeAlias = "Literal['cached', 'inspect'] | Callable[..., Any] | None"
T = TypeVar("T")
KEPT = (TorchTensor, OpaqueRef)
"""The results of functions that stay on the ranks."""
_numbers = itertools.count(1)
_PROPAGATIONS = "None, 'cached', 'inspect' or a function"


class Propagated:
    """The result of a function without values: its tensors, and the tree with their places."""

    def __init__(self, outputs: list[Output], tree: Any) -> None:
        self.outputs = outputs
        self.tree = tree
        self.told = tuple(
            None if output.meta is OBJECT else (output.meta.shape, output.meta.dtype)
            for output in outputs
        )
        self.layouts = tuple(layout_of(output) for output in outputs if output.same < 0)


class Remote:
    """A function that runs on the ranks. Made by `monarch.remote`."""

    def __init__(self, function: Callable[..., Any] | str, propagate: Propagate) -> None:
        self._function = function
        self._propagate = propagate
        self._number = next(_numbers)
        self._packed: bytes | None = None
        self._known: dict[Any, Propagated] = {}
        self.__name__ = getattr(function, "__name__", str(function))
        self.__doc__ = getattr(function, "__doc__", None)

    def __repr__(self) -> str:
        return f"<monarch.remote {self.__name__}>"

    def with_propagate(self, propagate: Propagate) -> Remote:
        """The same function, sent to ranks once for both, with another `propagate`."""
        made = copy(self)
        made._propagate, made._known = propagate, {}
        return made

    # --- adverbs ----------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the function on every rank; returns its result, with tensors of the mesh.

        Returns at once, unless `propagate` has to ask a rank for the shapes.

        Raises:
            TypeError: the function returns values other than tensors and None; an argument cannot
                be pickled.
            ValueError: no mesh is active, and no argument is a tensor of one.
        """
        return self._issue(args, kwargs, sites.number(sys._getframe(1)))  # pyright: ignore[reportPrivateUsage]

    def rref(self, /, *args: Any, **kwargs: Any) -> Any:
        """The same as `__call__`."""
        return self._issue(args, kwargs, sites.number(sys._getframe(1)))  # pyright: ignore[reportPrivateUsage]

    def call(self, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the function on every rank; the future yields a ValueMesh of its results.

        Raises the errors of `__call__`. The future raises ActorError if the function has raised on
        a rank.
        """
        return self._with_workers(args, kwargs, lambda worker, sent: worker.call(*sent))

    def call_one(self, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the function on the one rank of the mesh; the future yields its result.

        Raises the errors of `call`, and ValueError if the mesh has more than one rank.
        """
        channel, found = self._begin(args, kwargs)
        if len(channel.region) != 1:
            raise ValueError(
                f"call_one needs a mesh of one rank; {channel.name} has {channel.region.extent}. "
                "Activate a slice, or use call"
            )
        return self._on_shard(channel, found, {})

    def choose(self, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the function on one rank, drawn uniformly; the future yields its result.

        Raises the errors of `call`.
        """
        channel, found = self._begin(args, kwargs)
        point = channel.region.extent.point_of_rank(random.randrange(len(channel.region)))
        return self._on_shard(channel, found, dict(point))

    def stream(self, /, *args: Any, **kwargs: Any) -> Iterator[Future[Any]]:
        """Run the function on every rank; yields a future for each, in the order of the answers.

        The ranks have the call before the first future is read. Raises the errors of `call`.
        """
        return self._with_workers(args, kwargs, lambda worker, sent: worker.stream(*sent))

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any], make: Any) -> Future[Any]:
        """Run the function on every rank; `make` creates the call that handles the answers.

        For `monarch.actor.Accumulator`.
        """
        return self._with_workers(args, kwargs, lambda worker, sent: worker.start(sent, {}, make))

    def send(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], port: Any, *, choose: bool
    ) -> None:
        """Run the function on every rank, or on a random one; its results go to `port`, if given.

        For `monarch.actor.send`.
        """
        if port is None and choose:
            self.choose(*args, **kwargs)
        elif port is None:
            self.broadcast(*args, **kwargs)
        else:
            self._with_workers(
                args, kwargs, lambda worker, sent: worker.send(sent, {}, port, choose=choose)
            )

    def broadcast(self, /, *args: Any, **kwargs: Any) -> None:
        """Run the function on every rank without a result. A rank logs the error that it raises.

        Raises the errors of `call`.
        """
        channel, found = self._begin(args, kwargs)
        number, arguments, numbers = self._message(channel, found)
        kind = own_kind("monarch::broadcast", stores=NOTHING)
        site = sites.number(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        channel.record(kind, tuple(numbers), (number, arguments), site, len(arguments))

    def on_shard(self, args: tuple[Any, ...], kwargs: dict[str, Any], shard: Any) -> Future[Any]:
        """Run the function on one rank."""
        channel, found = self._begin(args, kwargs)
        return self._on_shard(channel, found, shard)

    def _on_shard(self, channel: Channel, found: Tree, shard: Mapping[str, int]) -> Future[Any]:
        point = point_of(channel, shard)
        rank = channel.region.global_rank(channel.region.extent.point(**point).rank)
        channel.check_values((one.number for one in found.handles), rank)
        message = self._message(channel, found)
        return channel.driver.ask(channel, point, "call", message, _read)

    # --- issuing a call ---------------------------------------------------------------------------

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Channel, Tree]:
        found = taken_apart((args, kwargs))
        channel = found.channel or active_channel()
        if channel is None:
            raise ValueError(
                f"no device mesh is active: call {self.__name__} within `with mesh.activate():`, "
                "or with tensors of a mesh"
            )
        channel.check()
        return channel, found

    def _with_workers(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], use: Callable[[Any, Any], T]
    ) -> T:
        """Call an adverb of the endpoint that runs functions. `use` takes it and the message."""
        channel, found = self._begin(args, kwargs)
        channel.check_values(one.number for one in found.handles)
        message = self._message(channel, found)
        return channel.driver.with_workers(channel, lambda workers: use(workers.call, message))

    def _message(self, channel: Channel, found: Tree) -> tuple[int, bytes, list[int]]:
        """The number of the function, its arguments, and the numbers of the tensors in them."""
        arguments = packed(found.tree)
        if self._packed is None:
            self._packed = packed(self._function)
        if self._number not in channel.functions:
            kind = own_kind("monarch::define", stores=NOTHING)
            scalars = (self._number, self._packed, self.__name__)
            channel.record(kind, (), scalars, 0, len(self._packed))
            channel.functions.add(self._number)
        return self._number, arguments, [handle.number for handle in found.handles]

    def _issue(self, args: tuple[Any, ...], kwargs: dict[str, Any], site: int) -> Any:
        channel, found = self._begin(args, kwargs)
        key = self._key(found)
        known = None if key is None else self._known.get(key)
        if known is None:
            if self._propagate in ("cached", "inspect"):
                return self._run_and_look(channel, found, key, site)
            known = self._propagated(found)
            if key is not None:
                self._known[key] = known
        number, arguments, numbers = self._message(channel, found)
        count = len([output for output in known.outputs if output.same < 0])
        kind = kind_with_outputs("monarch::remote", count)
        places = [place for place, output in enumerate(known.outputs) if output.same < 0]
        scalars = (number, arguments, known.told, places, known.layouts)
        first = channel.record(kind, tuple(numbers), scalars, site, len(arguments))
        return self._result(channel, found, known, first)

    def _result(self, channel: Channel, found: Tree, known: Propagated, first: int) -> Any:
        made: list[Any] = []
        number = first
        for output in known.outputs:
            if output.same >= 0:
                made.append(_wrapped(found.handles[output.same]))
                continue
            storage, base = Storage(), None
            if output.shares >= 0:
                shared = found.handles[output.shares]
                storage, base = shared.storage, shared.base
            elif output.shares_output >= 0:
                storage = made[output.shares_output].monarch_handle.storage
            made.append(_wrapped(Handle(number, output.meta, storage, channel, base=base)))
            number += 1
        return put_together(known.tree, made)

    def _key(self, found: Tree) -> Any:
        """The facts that decide the shapes of the result; None if no key can hold them."""
        if self._propagate == "inspect":
            return None
        leaves, spec = pytree.tree_flatten(found.tree)
        plain = (int, float, bool, str, bytes, type(None), Slot, torch.dtype)
        if not all(type(leaf) in plain for leaf in leaves):
            return None
        typed = tuple((repr(type(leaf)), leaf) for leaf in cast("list[object]", leaves))
        storages: dict[int, int] = {}
        aliases = [storages.setdefault(id(one.storage), len(storages)) for one in found.handles]
        return typed, spec, tuple(one.meta for one in found.handles), tuple(aliases)

    def _propagated(self, found: Tree) -> Propagated:
        """Run the function, or `propagate` in its place, on tensors without values."""
        function: Any = self._function if self._propagate is None else self._propagate
        if isinstance(function, str):
            function = function_at(function)
        fakes: Any = import_module("torch._subclasses.fake_tensor")
        mode = fakes.FakeTensorMode()
        with without_modes(), torch.no_grad():
            place = CPU if found.channel is None else torch.device(found.channel.driver.device)
            inputs = [
                OpaqueRef() if one.meta is OBJECT
                else fakes.FakeTensor(mode, stand_in(one.meta), place)
                for one in found.handles
            ]  # fmt: skip
            args, kwargs = put_together(found.tree, inputs)
            try:
                with mode:
                    result = map_tree(_plain, function(*args, **kwargs))  # as ranks keep them
            except (
                fakes.DynamicOutputShapeException,
                fakes.DataDependentOutputException,
            ) as error:
                raise RuntimeError(
                    f"{self.__name__} uses values, so the shapes of its results are not known "
                    "before it runs; use monarch.remote(function, propagate='inspect'), or give "
                    "propagate a function that returns tensors of the right shapes"
                ) from error
            leaves, spec = pytree.tree_flatten(result)
            self._check(leaves)
            kept = [one for one in leaves if isinstance(one, KEPT)]
            if self._propagate is None:
                before = [one.meta for one in found.handles]
                outputs = outputs_of(self.__name__, kept, inputs, before)
            else:  # `propagate` gives shapes, so each tensor is a new one
                outputs = [Output(meta_of(one)) for one in kept]
        places = itertools.count()
        tree = pytree.tree_unflatten(
            [Slot(next(places)) if isinstance(one, KEPT) else one for one in leaves], spec
        )
        return Propagated(outputs, tree)

    def _check(self, leaves: list[Any]) -> None:
        for one in leaves:
            if one is not None and not isinstance(one, KEPT):
                raise TypeError(
                    f"{self.__name__} returns {type(one).__name__}, and only tensors stay on the "
                    f"ranks; get other values with {self.__name__}.call(...).get(), leave them "
                    "there with monarch.OpaqueRef(value), or run it without a result with "
                    ".broadcast(...)"
                )

    def _run_and_look(self, channel: Channel, found: Tree, key: Any, site: int) -> Any:
        """Run the function, and ask the first rank for the shapes of its result."""
        number, arguments, numbers = self._message(channel, found)
        kind = own_kind("monarch::remote_unknown")
        scalars = (number, arguments)
        result = channel.record(kind, tuple(numbers), scalars, site, len(arguments))
        try:
            told = channel.driver.ask(channel, point_of(channel, {}), "describe", (result,), _read)
            answer = told.get()
            if isinstance(answer, Failure):
                raise remote_exception(answer, channel)
            facts: list[Any] = answer[1]
            tree: Any = answer[0]
            self._check([one for one in pytree.tree_leaves(tree) if not _is_slot(one)])
            outputs = [Output(OBJECT if one is None else _meta(one)) for one in facts]
            places = itertools.count()
            tree = map_tree(lambda one: Slot(next(places)) if _is_slot(one) else one, tree)
            known = Propagated(outputs, tree)
            if key is not None:
                self._known[key] = known
            unpack = kind_with_outputs("monarch::unpack", len(outputs), known.told)
            first = channel.record(unpack, (result,), (), site)
        finally:
            channel.free(result)
        return self._result(channel, found, known, first)


def _meta(facts: tuple[Any, ...]) -> Meta:
    shape, strides, offset, dtype, nbytes = facts
    return metas.of(shape, strides, offset, dtype, CPU, nbytes)


def _wrapped(handle: Handle) -> Any:
    return on_ranks(handle) if handle.meta is OBJECT else wrap(handle)


def _plain(one: Any) -> Any:
    return plain_values(one) if isinstance(one, TorchTensor) else one


def _is_slot(one: Any) -> bool:
    return type(one) is Slot


def _read(unpickle: Callable[[], Any]) -> Any:
    with without_modes():
        return unpickle()


def function_at(path: str) -> Any:
    """The function of an import path.

    Raises:
        ValueError: this process has no such function.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"remote({path!r}): there is no such function here; give a path such as "
            "'package.module.function'"
        ) from error


def remote(function: Callable[..., Any] | str | None = None, *, propagate: Propagate = None) -> Any:
    """Make a function of the program run on every rank, with tensors of a mesh as arguments.

    On a rank, the function gets that rank's tensors, as plain torch tensors, and copies of the
    other arguments. Its tensors stay on the ranks. Use it as a decorator too:
    `@monarch.remote(propagate=...)`.

    Args:
        function: it travels to the ranks by value, or its import path.
        propagate: how the client learns the shapes of the result. None: it runs the function here
            on tensors without values, once for each combination of shapes and other arguments.
            `"cached"`: the client asks a rank after the first run of each combination.
            `"inspect"`: the client asks a rank after every run. A function: the client runs it in
            place of `function`.

    Raises:
        TypeError, ValueError: an argument that does not fit.
    """
    if not (propagate in (None, "cached", "inspect") or callable(propagate)):
        raise ValueError(f"propagate={propagate!r}: give {_PROPAGATIONS}")
    if function is None:
        return partial(remote, propagate=propagate)
    if not isinstance(function, str) and not callable(function):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"remote takes a function or its import path, not {function!r}")
    return Remote(function, propagate)


def no_result(*_args: Any, **_options: Any) -> None:
    """The `propagate` of a remote function that returns None."""


def call_on_shard_and_fetch(
    remote: Remote, /, *args: Any, shard: Mapping[str, int] | None = None, **kwargs: Any
) -> Future[Any]:
    """Call a remote function on one rank; the future yields its result, with local tensors.

    Args:
        remote: made by `monarch.remote`.
        shard: the coordinates of the rank; dims that are left out have 0.

    Raises the errors of `Remote.call`, and ValueError if there is no such rank.
    """
    if not isinstance(remote, Remote):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("call_on_shard_and_fetch takes a function made by monarch.remote")
    return remote.on_shard(args, kwargs, shard or {})
