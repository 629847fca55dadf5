"""The facts of a torch operation, read once from its schema.

Runs in: the client, on any thread.
"""

from __future__ import annotations

from typing import Any

from monarch._src.tensor.torch_modules import torch

# The only operations whose shapes depend on arguments of type Scalar.
_SIZED_BY_SCALARS = {"aten::arange", "aten::range"}
_DATA_DEPENDENT = {
    "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::item",
    "aten::allclose",
}  # fmt: skip
_LIFTS = {"aten::lift_fresh", "aten::lift"}
# Operations that turn a tensor into a view of its memory, and those that return this view.
_VIEWS_IN_PLACE = {
    "aten::squeeze_.default": "aten::squeeze.default",
    "aten::squeeze_.dim": "aten::squeeze.dim",
    "aten::squeeze_.dims": "aten::squeeze.dims",
    "aten::t_.default": "aten::t.default",
    "aten::transpose_.default": "aten::transpose.int",
    "aten::unsqueeze_.default": "aten::unsqueeze.default",
}


class Operation:
    """An overload of a torch operation.

    `by_type`: the positional arguments whose value changes neither the shape nor the dtype of the
    result, so the key of the cache has their type only. `kwargs_by_type`: such keyword arguments.
    """

    __slots__ = (
        "by_type", "func", "functional", "has_dtype", "is_check", "is_data_dependent", "is_factory",
        "is_lift", "kwargs_by_type", "mutated", "mutated_kwargs", "name", "view",
    )  # fmt: skip

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.func = func
        self.name: str = schema.name + "." + (schema.overload_name or "default")
        arguments = list(schema.arguments)
        sized = schema.name in _SIZED_BY_SCALARS
        value_free = [not sized and _is_value_free(one.type) for one in arguments]
        self.by_type = tuple(value_free)
        self.kwargs_by_type = frozenset(
            one.name for one, free in zip(arguments, value_free, strict=True) if free
        )
        written = [one.alias_info is not None and one.alias_info.is_write for one in arguments]
        self.mutated = tuple(place for place, one in enumerate(written) if one)
        self.mutated_kwargs = frozenset(
            one.name for one, is_written in zip(arguments, written, strict=True) if is_written
        )
        self.is_data_dependent = schema.name in _DATA_DEPENDENT
        # Such an operation only raises, as the one that looks whether a matrix was singular.
        self.is_check = not schema.returns and not any(written)
        self.is_lift = schema.name in _LIFTS
        # Other operations without a tensor, such as those of the profiler, belong to this process.
        self.has_dtype = any(one.name == "dtype" for one in arguments)
        self.is_factory = any(one.name == "device" for one in arguments)
        view = _VIEWS_IN_PLACE.get(self.name)
        self.view = None if view is None else overload_of(view)
        # The overload that returns the result in place of writing to the first argument.
        self.functional = None
        if self.mutated == (0,) and schema.name.endswith("_"):
            try:
                self.functional = overload_of(self.name.replace("_.", ".", 1))
            except AttributeError:
                pass


def _is_value_free(kind: Any) -> bool:
    text = str(kind)
    # A program may pass a number where the schema has a tensor, as in `x + 1`.
    return text in ("number", "Optional[number]", "float", "Tensor", "Optional[Tensor]")


_known: dict[Any, Operation] = {}


def operation_of(func: Any) -> Operation:
    """The facts of an overload."""
    found = _known.get(func)
    if found is None:
        found = _known[func] = Operation(func)
    return found


def overload_of(name: str) -> Any:
    """The overload of a name such as `aten::add.Tensor`. AttributeError if there is none here."""
    qualified, _, overload = name.rpartition(".")
    namespace, _, operation = qualified.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), operation), overload)
