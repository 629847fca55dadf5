"""torch, typed as Any: its annotations are partial, and some of the names used here are private.

Imported by the client when a program activates a mesh, and by the ranks. Without torch, the import
raises a ModuleNotFoundError that says how to install it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from monarch._src.spmd import torch_modules

torch: Any = torch_modules.torch()
TorchTensor: Any = torch.Tensor
TorchDispatchMode: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode
TorchFunctionMode: Any = import_module("torch.overrides").TorchFunctionMode
pytree: Any = import_module("torch.utils._pytree")


CONJUGATED, NEGATED = 1, 2  # how torch reads the values in the memory of a tensor


def bits_of(tensor: Any) -> int:
    """CONJUGATED, NEGATED, both, or 0."""
    return CONJUGATED * tensor.is_conj() | NEGATED * tensor.is_neg()


def with_bits(tensor: Any, bits: int) -> Any:
    """A new tensor, with these bits set."""
    if bits & CONJUGATED:
        torch._C._set_conj(tensor, True)
    if bits & NEGATED:
        torch._C._set_neg(tensor, True)
    return tensor


def plain_values(tensor: Any) -> Any:
    """A tensor whose memory has its values: itself, unless it is conjugated or negated."""
    if bits_of(tensor):
        return tensor.resolve_conj().resolve_neg()
    return tensor


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to each leaf of nested lists, tuples and dicts."""
    return pytree.tree_map(function, tree)


def without_modes() -> Any:
    """A context in which torch runs operations in this process, also while a mesh is active."""
    return import_module("torch.utils._python_dispatch")._disable_current_modes()


def never_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have torch.compile run a function, and all that it calls, as they are.

    It would compile the dispatcher, anew for each operation. Calls cost no more for it.
    """
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def locally() -> Any:
    """A faster `without_modes`, for code of this package."""
    return torch._C._DisableTorchDispatch()
