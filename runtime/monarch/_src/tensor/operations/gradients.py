"""`grad_function`, `grad_generator`: gradients beside torch's own API. Runs in: the client."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import wraps
from typing import Any, cast

from monarch._src.tensor.torch_modules import torch

_Function: Any = torch.autograd.Function


class _WithGradient(_Function):
    """A call of a function that defines its own gradient."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *args: Any) -> Any:
        found: Any = function(*args)
        pair = cast("tuple[Any, ...]", found) if isinstance(found, tuple) else ()
        if len(pair) != 2 or not callable(pair[1]):
            name = getattr(function, "__name__", "the function")
            raise TypeError(
                f"grad_function: {name} has to return its result and a function of the gradients"
            )
        result, ctx.gradient = pair
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found = ctx.gradient(*gradients)
        return (None, *found) if isinstance(found, tuple) else (None, found)


def grad_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that defines its own gradient for autograd.

    `function(*args)` returns its result, and a function that gets the gradients of the result and
    returns those of the arguments: one, or a tuple, with None for an argument that has none. Both
    run without autograd, so that they may `reduce`.
    """

    @wraps(function)
    def differentiable(*args: Any) -> Any:
        return _WithGradient.apply(function, *args)

    return differentiable


def grad_generator(
    roots: Any, with_respect_to: Sequence[Any], grad_roots: Sequence[Any] = ()
) -> Generator[Any]:
    """Yield the gradient of each tensor of `with_respect_to`, in this order; None if it has none.

    The operations of all are recorded at the first one, and ranks run them in this order. So a loop
    that reduces each gradient, the last layer's first, reduces it while the others are computed.

    Args:
        roots: the tensor whose gradient is taken, or several.
        grad_roots: a gradient for each root, as torch.autograd.grad takes; none for scalars.
    """
    tops = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    yield from torch.autograd.grad(
        tops, list(with_respect_to), list(grad_roots) or None, allow_unused=True
    )
