"""The mesh explorer: a live grid of ranks in a cell, with actions on them.

Runs in: the kernel. The page's side is `explorer.js`, which uses the messages of
`monarch_jupyter.protocol.messages`.
"""

from __future__ import annotations

from typing import cast

import traitlets

from monarch import observe
from monarch_jupyter.page.publisher import Publisher
from monarch_jupyter.page.request_handler import RequestHandler
from monarch_jupyter.protocol.messages import (
    LastSeen,
    MeshMessage,
    SnapshotMessage,
    StreamMessage,
    mesh_message,
)
from monarch_jupyter.rendering.meshes import listing_html, listing_text
from monarch_jupyter.widgets.bundle import joined, styles
from monarch_jupyter.widgets.stream_widget import StreamingWidget

NO_SEQ = -1
"""The number of a snapshot that is no part of the stream: shown until the stream begins."""


class Explorer(StreamingWidget):
    """The ranks of one mesh, or of all, by state; live until its last view is gone."""

    _esm = joined("explorer")
    _css = styles("explorer")
    only = traitlets.Unicode("", help="uid of the mesh to show; empty for all").tag(sync=True)

    def __init__(
        self, publisher: Publisher, request_handler: RequestHandler, only: str = ""
    ) -> None:
        self._has_ended = False
        self._last_seen = LastSeen()  # before the traits, of which one is made of it
        super().__init__(publisher, request_handler, None, only=only)

    def current(self) -> SnapshotMessage:
        return SnapshotMessage(type="snapshot", seq=NO_SEQ, meshes=self.meshes_now())

    def meshes_now(self) -> list[MeshMessage]:
        """The meshes to show; an ended one in its last known state."""
        meshes = [mesh_message(mesh) for mesh in observe.snapshot()]
        if self.only and all(mesh["uid"] != self.only for mesh in meshes):
            ended = self._last_seen.of(self.only)
            meshes += [ended] if ended is not None else []
        return meshes

    def _sink(self, message: StreamMessage) -> None:
        if self.only:
            self._last_seen.take(message)
        super()._sink(message)
        if self.only:
            self._follow(message)

    def _follow(self, message: StreamMessage) -> None:
        """Show the mesh that has taken the place of an ended one: it was restarted."""
        if message["type"] == "delta" and self.only in message["gone"]:
            self._has_ended = True
        ended = self._last_seen.of(self.only)
        if not self._has_ended or ended is None or message["type"] not in ("snapshot", "delta"):
            return
        for mesh in cast("SnapshotMessage", message)["meshes"]:
            is_alike = (mesh["name"], mesh["sizes"]) == (ended["name"], ended["sizes"])
            if is_alike and mesh["uid"] != self.only and mesh["state"] != "stopped":
                self.only, self._has_ended = mesh["uid"], False

    def __repr__(self) -> str:
        return listing_text([mesh for mesh in observe.snapshot() if self.only in ("", mesh.uid)])

    def static_bundle(self) -> dict[str, str]:
        """The same table as it is now, for readers without widgets."""
        meshes = [mesh for mesh in observe.snapshot() if self.only in ("", mesh.uid)]
        return {"text/plain": repr(self), "text/html": cast("str", listing_html(meshes))}
