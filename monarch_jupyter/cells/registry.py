"""The cells of this notebook, by number: the cell that causes a call, and the place of its output.

Runs in: the kernel. `origin_now` on any thread that calls; the writing methods on the output
thread and the display thread.
"""

from __future__ import annotations

import sys
import uuid
from collections import OrderedDict
from contextvars import ContextVar
from typing import Any, cast

from monarch_jupyter.cells.static_views import WIDGET, leave_out_widget, shared_static_views

REMEMBERED = 1000
"""Number of cells that still take output; that of older ones goes to the newest cell."""


class Cells:
    """Numbers cells for `monarch.frontend.number_calls`, and writes into them."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._has_parents = hasattr(shell, "get_parent")
        self._newest = 0
        # By the id of the request that runs it: its number. By number: that request.
        self._numbers: dict[str, int] = {}
        self._parents: OrderedDict[int, Any] = OrderedDict()
        # By number and name: the id of a display, and what it shows.
        self._displays: dict[tuple[int, str], tuple[str, dict[str, Any]]] = {}
        self.begin()

    def begin(self) -> None:
        """Give the running cell a number."""
        if not self._has_parents:
            return
        parent = self._shell.get_parent()
        self._newest += 1
        self._numbers[_id(parent)] = self._newest
        self._parents[self._newest] = parent
        if len(self._parents) > REMEMBERED:
            _, gone = self._parents.popitem(last=False)
            self._numbers.pop(_id(gone), None)

    def origin_now(self) -> int:
        """The number of the cell that started the work of this thread or task.

        A task belongs to the cell that made it. A thread of the user belongs to the running cell,
        as its output does.
        """
        if not self._has_parents:
            return 0
        return self._numbers.get(_id(self._shell.get_parent()), self._newest)

    @property
    def newest(self) -> int:
        """The number of the cell that runs, or ran last: for threads that belong to no cell."""
        return self._newest

    # --- on the output and display threads --------------------------------------------------------

    def write(self, stream: str, text: str, origin: int) -> None:
        """Append to the stdout or stderr of that cell."""
        self._go_to(origin)
        target = sys.stderr if stream == "stderr" else sys.stdout
        target.write(text)
        target.flush()

    def show(self, what: str, text: str, origin: int) -> None:
        """Replace the text that the cell shows under this name."""
        self.put(what, {"text/plain": text}, origin)

    def put(self, what: str, data: dict[str, Any], origin: int) -> None:
        """Replace the bundle that the cell shows under this name; an empty text removes it."""
        if not self._has_parents:
            return
        shown = self._displays.get((origin, what))
        if (shown is None and not data["text/plain"]) or (shown is not None and shown[1] == data):
            return
        name = uuid.uuid4().hex if shown is None else shown[0]
        self._displays[origin, what] = (name, data)
        self.publish(data, origin, display_id=name, update=shown is not None)

    def publish(
        self,
        data: dict[str, Any],
        origin: int,
        *,
        metadata: dict[str, Any] | None = None,
        display_id: str | None = None,
        update: bool = False,
    ) -> None:
        """Show a mime bundle in that cell."""
        self._go_to(origin)
        views = shared_static_views()
        if WIDGET in data and views is not None and views.on:
            data = dict(data)
            leave_out_widget(data)
        transient = {"display_id": display_id} if display_id else {}
        self._shell.display_pub.publish(data, metadata or {}, transient=transient, update=update)

    def _go_to(self, origin: int) -> None:
        parent = self._parents.get(origin) or self._parents.get(self._newest)
        # While `%%capture` runs, its cell takes all output, and IPython 8's capture has no parent.
        if parent is None or not hasattr(self._shell.display_pub, "set_parent"):
            return
        set_parent = getattr(self._shell, "set_thread_parent", None)
        if set_parent is None:
            _set_thread_parent(self._shell, parent)
        else:
            set_parent(parent)


def _set_thread_parent(shell: Any, parent: Any) -> None:
    """As the method of that name, which ipykernel has from 7.4 on, and so from Python 3.11 on.

    `set_parent` also changes the parent of all threads that have none of their own, and they would
    then write into that earlier cell.
    """
    header = _header(parent)
    shell._parent_header.set(parent)
    for writer in (shell.displayhook, shell.display_pub, sys.stdout, sys.stderr):
        own: Any = getattr(writer, "_parent_header", None)  # `%%capture` puts others in place
        if isinstance(own, ContextVar):
            cast("ContextVar[Any]", own).set(header)


def _id(parent: Any) -> str:
    return str(_header(parent).get("msg_id", ""))


def _header(parent: Any) -> Any:
    return parent.get("header", parent) if parent else {}
