"""Torch's operators that call functions of the program, such as `torch.cond`: refused on a mesh.

Runs in: the client. Such an operator chooses by values, or repeats a function, which ranks do not
have. Of local tensors it is as ever, also while a mesh is active.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from monarch._src.tensor.active_mesh import Mode
from monarch._src.tensor.tensor import Tensor
from monarch._src.tensor.tensor_errors import takes_functions
from monarch._src.tensor.torch_modules import never_compiled, pytree

NAMES = ("associative_scan", "cond", "flex_attention", "map_impl", "scan", "while_loop")


def register() -> None:
    """Have torch call this module for these operators. Once in a process."""
    known: dict[str, Any] = import_module("torch._ops")._higher_order_ops
    for operator in [known[name] for name in NAMES if name in known]:
        operator.py_impl(Mode)(partial(_without_mode, operator))
        operator.py_impl(Tensor)(partial(_refuse, operator.name()))


@never_compiled
def _without_mode(operator: Any, mode: Any, *args: Any, **kwargs: Any) -> Any:
    if any(type(one) is Tensor for one in pytree.tree_leaves((args, kwargs))):
        raise takes_functions(operator.name())
    return operator(*args, **kwargs)  # torch has left the mode for this call


@never_compiled
def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    raise takes_functions(name)
