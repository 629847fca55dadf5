"""How a method of an actor is declared as an endpoint: its options and its signature.

Callers read it to check arguments before they send a message; ranks read it to run the method.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any


class MethodDeclaration:
    """The declaration of an endpoint: the function, its options, and its signature."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        concurrent: bool = False,
        by_port: bool = False,
        instrument: bool = True,
        propagate: Any = None,
    ) -> None:
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.concurrent = concurrent
        self.by_port = by_port
        self.instrument = instrument
        self.propagate = propagate
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters:
            raise TypeError(f"endpoint {function.__qualname__} takes no self; add it")
        if by_port and len(parameters) < 2:
            raise TypeError(
                f"endpoint {function.__qualname__} answers through a port: take it as the first "
                "parameter after self"
            )
        parameters = list(self.signature.parameters.values())
        simple = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
        plain = all(p.kind in simple for p in parameters)
        needed = sum(p.default is inspect.Parameter.empty for p in parameters)
        # The counts of positional arguments that need no check by `inspect`, which takes 10 us.
        self._positional_counts = range(needed, len(parameters) + 1) if plain else range(0)

    @cached_property
    def signature(self) -> inspect.Signature:
        """The parameters that a caller passes."""
        parameters = list(self._full_signature.parameters.values())
        return inspect.Signature(parameters[self._skipped :])

    @cached_property
    def _full_signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @property
    def _skipped(self) -> int:
        """How many leading parameters the caller does not pass: self, and the port."""
        return 2 if self.by_port else 1

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the signatures: few receivers need them, and they can be derived."""
        derived = ("signature", "_full_signature")
        return {name: value for name, value in self.__dict__.items() if name not in derived}

    def check(self, class_name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise TypeError if the method cannot be called with these arguments."""
        if not kwargs and len(args) in self._positional_counts:
            return
        try:
            # The full signature, since a keyword argument called `self` would fail only on the
            # rank.
            self._full_signature.bind(*(None,) * self._skipped, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{class_name}.{self.name}{self.signature}: {error}") from None
