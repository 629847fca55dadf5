"""The extension in one shell: `%load_ext monarch_jupyter` starts it and `%unload_ext` ends it.

Runs in: the kernel's main thread.
Owns: the output router, the fault hook, the interrupt handler, the error handler, the formatters,
the magic, the comm target, the publisher. `unload` undoes them in reverse order, so that the shell
is then as it was before.
"""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell

import monarch.actor
from monarch import frontend, observe
from monarch.observe import Stacks
from monarch.session import import_ahead
from monarch_jupyter.cells.displays import Displays, redirect, share_displays
from monarch_jupyter.cells.errors import CellErrors, cell_names_of
from monarch_jupyter.cells.fault_notices import FaultNotices
from monarch_jupyter.cells.interrupts import InterruptHandler
from monarch_jupyter.cells.line_views import show_folded_again, show_unfolded
from monarch_jupyter.cells.output import MOST, OutputRouter, share_output
from monarch_jupyter.cells.progress import Progress
from monarch_jupyter.cells.registry import Cells
from monarch_jupyter.cells.static_views import StaticViews, share_static_views, shared_static_views
from monarch_jupyter.cells.unread_errors import UnreadErrors
from monarch_jupyter.debugger.pause_notices import Groups, PauseNotices, PauseView
from monarch_jupyter.lines.log_store import LogStore, share
from monarch_jupyter.magics import autoreload
from monarch_jupyter.magics.autopx import Autopx
from monarch_jupyter.magics.magic import MonarchMagic
from monarch_jupyter.magics.nested_asyncio import nested_asyncio
from monarch_jupyter.magics.update import StaleClasses
from monarch_jupyter.magics.value_grid import followed_variables
from monarch_jupyter.page.comms import PanelLink
from monarch_jupyter.page.kernel_status import KernelStatus, ShellReplies
from monarch_jupyter.page.shared import (
    close_publisher,
    close_request_handler,
    shared_publisher,
    shared_request_handler,
)
from monarch_jupyter.rendering.cell_names import share_cell_names
from monarch_jupyter.rendering.formatters import Formatters

if TYPE_CHECKING:
    from monarch_jupyter.protocol.bars import Bar
    from monarch_jupyter.widgets.progress import ProgressBars


log = logging.getLogger("monarch.jupyter.extension")


class Extension:
    """Everything that is loaded, once per shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell: Any = shell
        self._undo = ExitStack()

    def load(self) -> None:
        """Start every part. If one fails, undo the others before the error propagates."""
        with ExitStack() as undo:
            share_cell_names(cell_names_of(self._shell))
            undo.callback(share_cell_names, None)
            cells = Cells(self._shell)
            self._on("pre_run_cell", cells.begin, undo)
            frontend.number_calls(cells.origin_now)
            undo.callback(frontend.number_calls, None)
            store = self._open_store(undo)
            displays = self._start_displays(cells, store, undo)
            router = self._start_output(cells, store, undo)
            notices = FaultNotices(router.say, self._shell.user_ns)
            self._set_fault_hook(notices, undo)
            interrupts = InterruptHandler(self._shell, router.advise)
            interrupts.install()
            undo.callback(interrupts.restore)
            self._on("pre_run_cell", interrupts.on_cell_start, undo)
            self._on("post_run_cell", interrupts.on_cell_end, undo)
            self._on("post_run_cell", notices.report_waiting, undo)
            unread = UnreadErrors(router.say)
            unread.start()
            undo.callback(unread.close)
            self._on("post_run_cell", unread.flush, undo)
            self._show_progress(cells, undo)
            self._report_stale_classes(router, undo)
            autopx = Autopx(self._shell, router.advise)
            autopx.install()
            undo.callback(autopx.restore)
            self._on("post_run_cell", autopx.switch_off_without_ranks, undo)
            self._on("post_run_cell", lambda: followed_variables.update_grids(router.say), undo)
            self._on("post_run_cell", router.flush, undo)
            self._on("post_run_cell", router.cell_ended, undo)
            self._on("post_run_cell", _import_ahead, undo)

            def flush() -> None:
                displays.flush()
                router.flush()

            self._flush_before_values(router, flush, undo)
            undo.callback(nested_asyncio, False)
            autoreload.install(self._shell, router.say)
            undo.callback(autoreload.restore)
            self._report_pauses(cells, router, undo)
            errors = CellErrors(self._shell, flush, notices.mark_shown)
            errors.install()
            undo.callback(errors.restore)
            formatters = Formatters(
                self._shell.display_formatter,
                cell_names_of(self._shell),
                self._stacks_view if hasattr(self._shell, "kernel") else None,
            )
            formatters.install()
            undo.callback(formatters.restore)
            views = StaticViews(self._shell)
            views.install()
            undo.callback(views.restore)
            share_static_views(views)
            undo.callback(share_static_views, None)
            magic = MonarchMagic(self._shell, lambda: interrupts.presses)
            magic.install()
            undo.callback(magic.restore)
            self._start_views(undo)
            undo.callback(_debug_the_kernel)
            self._undo = undo.pop_all()

    def unload(self) -> None:
        """Undo all of it. Meshes live on. Idempotent."""
        self._undo.close()

    def _show_progress(self, cells: Cells, undo: ExitStack) -> None:
        if not hasattr(self._shell, "kernel"):
            return  # A terminal shows no bars.
        progress = Progress(cells.publish, cells.origin_now, self._progress_view)
        progress.start()
        undo.callback(progress.close)
        self._on("pre_run_cell", progress.begin, undo)
        self._on("post_run_cell", progress.end, undo)

    def _report_stale_classes(self, router: OutputRouter, undo: ExitStack) -> None:
        stale = StaleClasses()

        def report() -> None:
            for line in stale.notices(self._shell.user_ns):
                router.advise(line)

        self._on("post_run_cell", report, undo)

    def _open_store(self, undo: ExitStack) -> LogStore:
        store = LogStore()
        undo.callback(store.close)
        share(store)
        undo.callback(share, None)
        atexit.register(store.close)
        undo.callback(atexit.unregister, store.close)
        return store

    def _start_displays(self, cells: Cells, store: LogStore, undo: ExitStack) -> Displays:
        displays = Displays(cells.publish, partial(cells.show, "displays"), store.add)
        undo.callback(displays.close)
        self._on("post_run_cell", displays.flush, undo)
        share_displays(displays)
        undo.callback(share_displays, None)
        frontend.accompany_actors(displays.route)
        undo.callback(frontend.accompany_actors, None)
        redirect(observe.meshes())
        return displays

    def _start_output(self, cells: Cells, store: LogStore, undo: ExitStack) -> OutputRouter:
        in_page = hasattr(self._shell, "kernel")
        router = OutputRouter(
            cells,
            store,
            most=MOST if in_page else None,
            origin_now=cells.origin_now,
            overflow=lambda origin: self._show_lines(cells, store, origin),
            unfold=(lambda origin: show_unfolded(cells, store, origin)) if in_page else _nothing,
            fold_again=lambda origin: show_folded_again(cells, store, origin),
        )
        router.start()
        undo.callback(router.close)
        share_output(router)
        undo.callback(share_output, None)
        return router

    def _show_lines(self, cells: Cells, store: LogStore, origin: int) -> None:
        """Show a view of all lines of a cell that has reached its limit."""
        from monarch_jupyter.widgets.log_view import LogView

        bundle = LogView(shared_request_handler(self._shell.user_ns), store, cell=origin).bundle()
        cells.publish(bundle, origin)

    def _progress_view(self, bars: list[Bar]) -> ProgressBars | None:
        views = shared_static_views()
        if views is not None and views.on:
            return None
        from monarch_jupyter.widgets.progress import ProgressBars

        return ProgressBars(shared_publisher(), shared_request_handler(self._shell.user_ns), bars)

    def _stacks_view(self, found: Stacks) -> dict[str, Any]:
        from monarch_jupyter.widgets.stacks_view import StacksView

        return StacksView(
            shared_request_handler(self._shell.user_ns), found, cell_names_of(self._shell)
        ).bundle()

    def _report_pauses(self, cells: Cells, router: OutputRouter, undo: ExitStack) -> None:
        notices = PauseNotices(partial(self._show_pauses, cells, router), lambda: cells.newest)
        undo.callback(notices.close)
        self._on("pre_run_cell", notices.begin, undo)
        self._on("post_run_cell", notices.end, undo)

    def _show_pauses(
        self, cells: Cells, router: OutputRouter, waits: Groups, line: str, cell: int
    ) -> PauseView | None:
        """Show paused ranks in the cell that runs or ran last, since it may wait for them."""
        if not hasattr(self._shell, "kernel"):
            router.advise(line)
            return None
        from monarch_jupyter.widgets.breakpoints import Breakpoints

        shown = Breakpoints(shared_request_handler(self._shell.user_ns), waits, line)
        cells.publish(shown.bundle(), cell)
        return shown

    def _on(self, event: str, call: Callable[[], None], undo: ExitStack) -> None:
        def called(*_: object) -> None:
            call()

        self._shell.events.register(event, called)
        undo.callback(self._shell.events.unregister, event, called)

    def _flush_before_values(
        self, router: OutputRouter, flush: Callable[[], None], undo: ExitStack
    ) -> None:
        """Put the output and displays of ranks above the value of the cell."""
        trap = self._shell.display_trap
        show = trap.hook

        def show_after_output(value: object) -> None:
            flush()
            router.cell_ended()
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
        status = KernelStatus(self._shell.kernel)
        status.install()
        undo.callback(status.restore)
        replies = ShellReplies(self._shell.kernel)
        replies.install()
        undo.callback(replies.restore)
        undo.callback(close_publisher)
        publisher = shared_publisher()
        undo.callback(close_request_handler)
        request_handler = shared_request_handler(self._shell.user_ns)
        self._on("pre_run_cell", publisher.wake, undo)
        self._on("post_run_cell", publisher.wake, undo)
        undo.callback(observe.on_change(lambda _: publisher.wake()))
        undo.callback(PanelLink(publisher, request_handler).close)


def _nothing(origin: int) -> None:
    """Do nothing: a terminal shows each line as it arrives and has no clickable output."""


def _import_ahead() -> None:
    try:
        import_ahead()
    except Exception as error:  # the first spawn meets the same, and raises it
        log.debug("nothing is imported ahead: %s", error)


def _debug_the_kernel() -> None:
    """Return JupyterLab's debugger to the kernel, if ranks have it."""
    module = sys.modules.get("monarch_jupyter.debugger.lab")
    if module is not None:
        module.stop_debugging_in_lab()
