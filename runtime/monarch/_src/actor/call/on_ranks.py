"""Arguments that are on the ranks already, such as tensors of a mesh. Their calls go another way.

Runs in: the client. `monarch._src.tensor` sets the way at its first use.
"""

from __future__ import annotations

from typing import Any, Protocol


class OnRanksError(TypeError):
    """Raised where an argument that is on the ranks would be pickled."""


class Way(Protocol):
    """Calls an endpoint with such arguments; returns the result of the adverb."""

    def __call__(
        self, endpoint: Any, adverb: str, args: tuple[Any, ...], kwargs: dict[str, Any], /
    ) -> Any: ...


class _Ways:
    tensors: Way | None = None


WAYS = _Ways()
