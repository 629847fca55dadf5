"""The value grid: one value a rank over the dims of its mesh, in a cell, live.

Runs in: the kernel. `update` may be called from any thread; the publisher's thread sends. The
page's side is `value_grid.js`, which uses `monarch_jupyter.protocol.messages`.
"""

from __future__ import annotations

from typing import Any, cast

import traitlets

from monarch import frontend
from monarch.actor import ValueMesh
from monarch_jupyter.errors import CommandError
from monarch_jupyter.page.publisher import Publisher
from monarch_jupyter.page.request_handler import RequestHandler
from monarch_jupyter.protocol.messages import ValuesMessage
from monarch_jupyter.protocol.values import Picture, ValueTable, picture_of
from monarch_jupyter.rendering.values import value_mesh_html, value_mesh_text
from monarch_jupyter.widgets.bundle import joined, styles
from monarch_jupyter.widgets.stream_widget import StreamingWidget

MOST = 4096
"""Values that a grid shows; a page with many more is slow and unreadable."""


class ValueGrid(StreamingWidget):
    """The values of a mesh; those given to `update` take their place."""

    _esm = joined("value_grid")
    _css = styles("explorer")
    name = traitlets.Unicode("", help="what the values are called").tag(sync=True)

    def __init__(
        self,
        publisher: Publisher,
        request_handler: RequestHandler,
        values: ValueMesh[Any],
        name: str = "",
    ) -> None:
        self._values = values
        self._table = ValueTable(_picture(values))  # before the traits, of which one is made of it
        super().__init__(publisher, request_handler, self._table, name=name)

    @property
    def values(self) -> ValueMesh[Any]:
        """The values that are shown."""
        return self._values

    def update(self, values: ValueMesh[Any]) -> None:
        """Show these values from now on; of more than ten updates a second, only the last counts.

        Raises:
            CommandError: `values` is not a ValueMesh, or has too many values.
        """
        picture = _picture(values)
        self._values = values
        self._table.put(picture)
        self._publisher.wake()

    def current(self) -> ValuesMessage:
        return self._table.current()

    def __repr__(self) -> str:
        return value_mesh_text(self._values)

    def static_bundle(self) -> dict[str, str]:
        """The same values as they are now, for readers without widgets."""
        markup = value_mesh_html(self._values)
        return {"text/plain": repr(self), "text/html": str(markup)}


def _picture(values: object) -> Picture:
    if not isinstance(values, ValueMesh):
        raise CommandError(
            f"a value grid shows a ValueMesh, as `trainers.loss.call().get()` gives, and not "
            f"{type(values).__name__}"
        )
    shown = cast("ValueMesh[Any]", values)
    if len(shown) > MOST:
        raise CommandError(
            f"a value grid shows up to {MOST:,} values, and these are {len(shown):,}: slice them"
        )
    return picture_of(shown.sizes, shown.values(), frontend.coordinates(shown))
