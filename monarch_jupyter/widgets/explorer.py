"""The mesh explorer: a live grid of ranks in a cell.

Runs in: the kernel. The page's side is `explorer.js`, which speaks the wire of
`monarch_jupyter.wire`.
"""

from __future__ import annotations

import pathlib
from typing import Any, cast

import anywidget
import traitlets

from monarch import observe
from monarch_jupyter.comms import answer_while_busy
from monarch_jupyter.publisher import Publisher
from monarch_jupyter.rendering.meshes import listing_html, listing_text
from monarch_jupyter.wire import KernelMessage, SnapshotMessage, mesh_message, parse_page_message

_HERE = pathlib.Path(__file__).parent
NO_SEQ = -1
"""The number of a snapshot that is no part of the stream: shown until the stream begins."""


def _fresh(_: object, widget: object) -> SnapshotMessage:
    # Serialised when a page asks for the model, so a page loaded later starts from how things are
    # then.
    meshes = [mesh_message(mesh) for mesh in observe.snapshot()]
    return SnapshotMessage(type="snapshot", seq=NO_SEQ, meshes=meshes)


class Explorer(anywidget.AnyWidget):
    """The ranks of one mesh, or of all, by state; live until its last view is gone."""

    _esm = _HERE / "explorer.js"
    _css = _HERE / "explorer.css"
    only = traitlets.Unicode("", help="uid of the mesh to show; empty for all").tag(sync=True)
    first = traitlets.Any(None, help="what to show before the stream begins").tag(
        sync=True, to_json=_fresh
    )

    def __init__(self, publisher: Publisher, only: str = "") -> None:
        super().__init__(only=only)
        self._publisher = publisher
        self._views: set[str] = set()
        cast("Any", self).on_msg(self._received)
        answer_while_busy(self.comm)
        publisher.connect(self._sink, repeat=True)

    def close(self) -> None:
        """End the updates and the widget. Idempotent."""
        self._publisher.disconnect(self._sink)
        super().close()

    def _sink(self, message: KernelMessage) -> None:
        cast("Any", self).send(message)

    def _received(self, widget: object, content: object, buffers: object) -> None:
        """Called off the main thread while a cell runs."""
        said = parse_page_message(content)
        if said is None:
            return
        if said["type"] == "sync":
            self._views.add(said["view"])
            self._publisher.sync(self._sink)
        else:
            self._views.discard(said["view"])
            if not self._views:
                self._publisher.disconnect(self._sink)

    def __repr__(self) -> str:
        return listing_text([mesh for mesh in observe.snapshot() if self.only in ("", mesh.uid)])

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = cast("Any", super())._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = cast("tuple[dict[str, Any], dict[str, Any]]", bundle)
        # For readers without widgets: the same table as it is now.
        meshes = [mesh for mesh in observe.snapshot() if self.only in ("", mesh.uid)]
        return {**data, "text/plain": repr(self), "text/html": listing_html(meshes)}, metadata
