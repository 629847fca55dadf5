"""The extension in one shell: what `%load_ext monarch_jupyter` starts and `%unload_ext` ends.

Runs in: the kernel's main thread.
Owns: the output router, the fault hook, the error handler, the formatters, the magic, the comm
target, the publisher. Each is undone in the reverse order of its making, so that the shell is
afterwards as it was before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

import monarch.actor
from monarch import observe
from monarch_jupyter.cell_errors import CellErrors, cell_names_of
from monarch_jupyter.comms import PanelLink
from monarch_jupyter.faults import FaultNotices
from monarch_jupyter.magics import MonarchMagic
from monarch_jupyter.output import OutputRouter
from monarch_jupyter.publishing import close_publisher, shared_publisher
from monarch_jupyter.rendering.formatters import Formatters


class ShellOutput:
    """The streams of the cell that runs, or of the last one that did."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._parent: object = None
        self.mark_cell()

    def mark_cell(self) -> None:
        """The cell that runs now is where lines go from now on."""
        self._parent = self._shell.get_parent() if hasattr(self._shell, "get_parent") else None

    def write(self, stream: str, text: str) -> None:
        # Without this a line could follow a comm message of the page instead of a cell.
        set_parent = getattr(self._shell, "set_thread_parent", None)
        if set_parent is None:
            set_parent = getattr(self._shell, "set_parent", None)
        if set_parent is not None and self._parent is not None:
            set_parent(self._parent)
        target = sys.stderr if stream == "stderr" else sys.stdout
        target.write(text)
        target.flush()


class Extension:
    """Everything that is loaded, once per shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell: Any = shell
        self._undo = ExitStack()

    def load(self) -> None:
        """Start; if something can't be, what was started is undone before the error goes on."""
        with ExitStack() as undo:
            target = ShellOutput(self._shell)
            router = OutputRouter(target)
            router.start()
            undo.callback(router.close)
            self._on("pre_run_cell", target.mark_cell, undo)
            notices = FaultNotices(router.say)
            self._set_fault_hook(notices, undo)
            self._on("post_run_cell", notices.say_waiting, undo)
            self._on("post_run_cell", router.flush, undo)
            self._flush_before_values(router, undo)
            errors = CellErrors(self._shell, router.flush, notices.forget)
            errors.install()
            undo.callback(errors.restore)
            formatters = Formatters(self._shell.display_formatter, cell_names_of(self._shell))
            formatters.install()
            undo.callback(formatters.restore)
            magic = MonarchMagic(self._shell)
            magic.install()
            undo.callback(magic.restore)
            self._start_views(undo)
            self._undo = undo.pop_all()

    def unload(self) -> None:
        """Undo all of it. Meshes live on. Idempotent."""
        self._undo.close()

    def _on(self, event: str, call: Callable[[], None], undo: ExitStack) -> None:
        def called(*_: object) -> None:
            call()

        self._shell.events.register(event, called)
        undo.callback(self._shell.events.unregister, event, called)

    def _flush_before_values(self, router: OutputRouter, undo: ExitStack) -> None:
        """What ranks printed for a cell stands above the cell's value."""
        trap = self._shell.display_trap
        show = trap.hook

        def show_after_output(value: object) -> None:
            router.flush()
            show(value)

        trap.hook = show_after_output
        undo.callback(setattr, trap, "hook", show)

    def _set_fault_hook(self, hook: FaultNotices, undo: ExitStack) -> None:
        before = monarch.actor.unhandled_fault_hook
        monarch.actor.unhandled_fault_hook = hook
        undo.callback(setattr, monarch.actor, "unhandled_fault_hook", before)

    def _start_views(self, undo: ExitStack) -> None:
        if not hasattr(self._shell, "kernel"):
            return  # A terminal has no page to talk to.
        undo.callback(close_publisher)
        publisher = shared_publisher()
        self._on("pre_run_cell", publisher.wake, undo)
        self._on("post_run_cell", publisher.wake, undo)
        undo.callback(observe.on_change(lambda _: publisher.wake()))
        undo.callback(PanelLink(publisher).close)
