"""Paused ranks, shown in the cell that ran into breakpoints, while it still runs.

Runs in: the kernel; updated on the thread of `pause_notices.py`. The page's side is
`breakpoints.js`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import traitlets

from monarch.frontend import name_point
from monarch.observe import RankPaused
from monarch_jupyter.debugger.pause_notices import Groups, ranks_text, where_text
from monarch_jupyter.page.request_handler import RequestHandler
from monarch_jupyter.rendering import html
from monarch_jupyter.widgets.bundle import joined, styles
from monarch_jupyter.widgets.widget import RequestingWidget


class GroupMessage(TypedDict):
    """Ranks of a mesh that stand in one place."""

    mesh: str
    ranks: list[int]
    names: list[str]
    name: str
    where: str


class Breakpoints(RequestingWidget):
    """A live view of paused ranks, with a console a click away."""

    _esm = joined("breakpoints")
    _css = styles("explorer", "console")
    groups: Any = traitlets.List(traitlets.Dict(), help="paused ranks").tag(sync=True)

    def __init__(self, request_handler: RequestHandler, waits: Groups, said: str) -> None:
        super().__init__(request_handler, groups=[_group_message(group) for group in waits])
        self._said = said

    def update(self, waits: Groups) -> None:
        """Show these paused ranks, grouped by place. Any thread."""
        self.groups = [_group_message(group) for group in waits]

    def __repr__(self) -> str:
        return self._said

    def static_bundle(self) -> dict[str, str]:
        """The line about the paused ranks, with the commands to use."""
        return {"text/plain": self._said, "text/html": html.card(self._said)}


def _group_message(group: Sequence[RankPaused]) -> GroupMessage:
    return GroupMessage(
        mesh=group[0].uid,
        ranks=[one.rank for one in group],
        names=[name_point(one.point) for one in group],
        name=ranks_text(group),
        where=where_text(group),
    )
