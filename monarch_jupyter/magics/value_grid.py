"""The values of a mesh as a live grid; `%monarch show NAME` of a variable that holds some."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from monarch.actor import ValueMesh
from monarch_jupyter.errors import CommandError
from monarch_jupyter.page.shared import shared_publisher, shared_request_handler

if TYPE_CHECKING:
    from monarch_jupyter.widgets.value_grid import ValueGrid

MOST = 32
"""Grids that follow a variable."""


def value_grid(values: ValueMesh[Any], name: str = "") -> ValueGrid:
    """A live grid of these values, one a rank, over the dims of their mesh: numbers as a heat map.

    `update(values)` replaces the values, also while a cell runs.

    Raises:
        CommandError: `values` is not a ValueMesh, or has more than 4,096 values.
    """
    # Widgets are slow to import, and procs import this package without them.
    from monarch_jupyter.widgets.value_grid import ValueGrid

    return ValueGrid(shared_publisher(), shared_request_handler(), values, name)


class FollowedVariables:
    """Grids that show the value of a variable and are updated after each cell."""

    def __init__(self) -> None:
        # ipywidgets keeps each widget until the kernel ends, so which are still on a page is not
        # known: the newest are followed.
        self._grids: deque[tuple[ValueGrid, str, Mapping[str, object]]] = deque(maxlen=MOST)

    def add(self, grid: ValueGrid, name: str, namespace: Mapping[str, object]) -> None:
        """Let `grid` follow the variable `name`."""
        self._grids.append((grid, name, namespace))

    def update_grids(self, say: Callable[[str], None]) -> None:
        """Update each grid after a cell; `say` reports a value that a grid cannot show, once."""
        for entry in list(self._grids):
            grid, name, namespace = entry
            values = namespace.get(name)
            if values is grid.values or not isinstance(values, ValueMesh):
                continue
            try:
                grid.update(cast("ValueMesh[object]", values))
            except CommandError as error:
                self._grids.remove(entry)
                say(f"monarch: {name} no longer updates its grid: {error}")


followed_variables = FollowedVariables()
