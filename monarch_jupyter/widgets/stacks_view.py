"""The stacks of ranks, with a console a click away.

Runs in: the kernel. The page's side is `stacks_view.js`.
"""

from __future__ import annotations

from typing import Any

import traitlets

from monarch.frontend import name_point
from monarch.observe import MeshStacks, Stacks
from monarch_jupyter.page.request_handler import RequestHandler
from monarch_jupyter.rendering.source_lines import CellNames
from monarch_jupyter.rendering.stacks import (
    group_head,
    group_lines,
    size_text,
    stacks_html,
    stacks_text,
)
from monarch_jupyter.widgets.bundle import joined, styles
from monarch_jupyter.widgets.widget import RequestingWidget


class StacksView(RequestingWidget):
    """The stacks of `%monarch stacks`, by group of ranks."""

    _esm = joined("stacks_view")
    _css = styles("explorer", "console")
    meshes: Any = traitlets.List(traitlets.Dict(), help="groups by mesh").tag(sync=True)

    def __init__(
        self, request_handler: RequestHandler, stacks: Stacks, cell_names: CellNames
    ) -> None:
        super().__init__(
            request_handler, meshes=[_mesh(mesh, cell_names) for mesh in stacks.meshes]
        )
        self._static = {
            "text/plain": stacks_text(stacks, cell_names),
            "text/html": str(stacks_html(stacks, cell_names)),
        }

    def __repr__(self) -> str:
        return self._static["text/plain"]

    def static_bundle(self) -> dict[str, str]:
        """The same without buttons."""
        return self._static


def _mesh(mesh: MeshStacks, cell_names: CellNames) -> dict[str, Any]:
    return {
        "name": mesh.name,
        "size": size_text(mesh),
        "headline": mesh.headline,
        "groups": [
            {
                "mesh": mesh.uid,
                "ranks": list(group.ranks),
                "names": [name_point(point) for point in group.points],
                "head": group_head(mesh, group),
                "stack": "\n".join(group_lines(group, cell_names)),
                "open": number > 0,
            }
            for number, group in enumerate(mesh.groups)
            if group.threads
        ],
    }
