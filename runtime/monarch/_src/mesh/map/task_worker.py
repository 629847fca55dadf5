"""The actor that runs submitted functions on a rank.

Runs in: procs. It is there while functions are submitted, or run.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from monarch._src.mesh.map import name_scopes
from monarch._src.mesh.map.worker import Map
from monarch._src.pickling.main_names import MAIN

Call: TypeAlias = "tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]"


class Tasks(Map):
    """Runs one function after another, each with its arguments."""

    __monarch_label__ = "the submitted function"

    def __init__(self) -> None:
        super().__init__(self._call, stops_at_error=False, longest_s=math.inf)

    def _call(self, call: Call) -> Any:
        __tracebackhide__ = True
        function, args, kwargs = call
        found = name_scopes.bind(function, vars(sys.modules[MAIN]))
        self._conflicts.of_rank += found.of_rank
        self._conflicts.of_sender += found.of_sender
        return function(*args, **kwargs)
