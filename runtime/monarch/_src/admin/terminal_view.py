"""The terminal view: hosts, procs and actors as a tree that follows the cluster.

Runs in: `monarch tui`; the event loop of Textual draws, worker threads ask agents or a server. One
question is open at a time, and a cell is written only if it has changed.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import DataTable, Footer, Header, Input, Static

from monarch._src.admin.state.case_file import CaseFile, case_text
from monarch._src.admin.state.nodes import Cluster, printable
from monarch._src.admin.state.openapi import StacksAnswer
from monarch._src.admin.state.outline import Outline, OutlineRow

COLUMNS = (("state", "STATE"), ("node", "NODE"))


class NodeSource(Protocol):
    """Where the view gets its data from; called on worker threads."""

    def cluster(self) -> Cluster:
        """A snapshot."""
        ...

    def stacks(self, reference: str) -> StacksAnswer:
        """The stacks of a proc."""
        ...

    def case(self) -> CaseFile:
        """The case file."""
        ...


class TerminalView(App[None]):
    """The application. `refresh_s`: seconds between two snapshots."""

    TITLE = "monarch"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #tree { width: 2fr; }
    #details { width: 1fr; border-left: solid $primary; padding: 0 1; }
    #search { display: none; dock: bottom; }
    #search.open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "down", "Down", show=False),
        Binding("k", "up", "Up", show=False),
        Binding("g", "top", "Top", show=False),
        Binding("G", "bottom", "Bottom", show=False),
        Binding("tab", "expand", "Expand", priority=True),
        Binding("c", "collapse", "Collapse"),
        Binding("s", "system", "System actors"),
        Binding("h", "stopped", "Stopped actors"),
        Binding("d", "diagnose", "Diagnose"),
        Binding("p", "stacks", "Stacks"),
        Binding("slash", "search", "Search"),
        Binding("ctrl+l", "update", "Refresh"),
        Binding("escape", "clear", "Back"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, source: NodeSource, refresh_s: float = 2.0) -> None:
        super().__init__()
        self._source = source
        self._refresh_s = refresh_s
        self._cluster: Cluster | None = None
        self._rows: list[OutlineRow] = []
        self._is_reading = False
        self.outline = Outline()

    def compose(self) -> ComposeResult:
        """The parts of the screen."""
        yield Header(icon="")
        with Horizontal():
            yield DataTable[Text](id="tree", cursor_type="row", zebra_stripes=False)
            with VerticalScroll(id="details"):
                yield Static(id="text", markup=False)
        yield Input(placeholder="search", id="search")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to follow the cluster."""
        for key, title in COLUMNS:
            self._table.add_column(title, key=key)
        self._table.focus()
        self.action_update()
        self.set_interval(self._refresh_s, self.action_update)

    @property
    def _table(self) -> DataTable[Text]:
        found: DataTable[Text] = self.query_one("#tree", DataTable)  # pyright: ignore[reportUnknownVariableType]
        return found

    @property
    def selected(self) -> str:
        """The reference of the node under the cursor; empty before the first snapshot."""
        at = self._table.cursor_row
        return self._rows[at].identity if 0 <= at < len(self._rows) else ""

    # --- data -------------------------------------------------------------------------------------

    def action_update(self) -> None:
        """Read a snapshot, unless one is being read."""
        if not self._is_reading:
            self._is_reading = True
            self._read()

    @work(thread=True)
    def _read(self) -> None:
        try:
            cluster = self._source.cluster()
        except Exception as error:
            self.call_from_thread(self._on_problem, str(error))
        else:
            self.call_from_thread(self._on_cluster, cluster)

    def _on_problem(self, problem: str) -> None:
        self._is_reading = False
        self._say(problem)

    def _on_cluster(self, cluster: Cluster) -> None:
        self._is_reading = False
        self._cluster = cluster
        self._draw()
        missing = f"; {len(cluster.missing)} answers missing" if cluster.missing else ""
        self._say(f"snapshot {cluster.number}{missing}")

    def _say(self, text: str) -> None:
        self.sub_title = printable(text)

    def _draw(self) -> None:
        """Show the rows: write only changed rows, and keep the cursor on its node."""
        if self._cluster is None:
            return
        table, selected = self._table, self.selected
        before, self._rows = self._rows, self.outline.rows(self._cluster)
        if [row.identity for row in before] == [row.identity for row in self._rows]:
            for old, new in zip(before, self._rows, strict=True):
                if old != new:
                    for (key, _), cell in zip(COLUMNS, _cells(new), strict=True):
                        table.update_cell(new.identity, key, cell)
            return
        table.clear()
        for row in self._rows:
            table.add_row(*_cells(row), key=row.identity)
        places = [at for at, row in enumerate(self._rows) if row.identity == selected]
        table.move_cursor(row=places[0] if places else 0)

    # --- keys -------------------------------------------------------------------------------------

    def action_down(self) -> None:
        """Go to the next row."""
        self._table.action_cursor_down()

    def action_up(self) -> None:
        """Go to the previous row."""
        self._table.action_cursor_up()

    def action_top(self) -> None:
        """Go to the first row."""
        self._table.move_cursor(row=0)

    def action_bottom(self) -> None:
        """Go to the last row."""
        self._table.move_cursor(row=len(self._rows) - 1)

    def action_expand(self) -> None:
        """Expand the node under the cursor, or collapse it."""
        if self.selected:
            self.outline.toggle(self.selected)
            self._draw()

    def action_collapse(self) -> None:
        """Show hosts only."""
        self.outline.collapse_all()
        self._draw()

    def action_system(self) -> None:
        """Show or hide actors of the runtime."""
        self.outline.shows_system = not self.outline.shows_system
        self._draw()

    def action_stopped(self) -> None:
        """Show or hide actors that have stopped."""
        self.outline.shows_stopped = not self.outline.shows_stopped
        self._draw()

    def action_search(self) -> None:
        """Type a text to search for."""
        field = self.query_one("#search", Input)
        field.add_class("open")
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while the text is typed."""
        self.outline.search = event.value
        self._draw()

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        """Go back to the tree; the search stays until Escape."""
        self._table.focus()

    def action_clear(self) -> None:
        """End the search and clear the details."""
        field = self.query_one("#search", Input)
        field.value = ""
        field.remove_class("open")
        self.outline.search = ""
        self._show("")
        self._table.focus()
        self._draw()

    def action_stacks(self) -> None:
        """Read the stacks of the proc under the cursor, or of the proc of that actor."""
        reference = self.selected
        if reference.startswith("actor:"):
            reference = reference.replace("actor:", "proc:", 1).rpartition(":")[0]
        if not reference.startswith("proc:"):
            self._show("move to a proc or an actor to read its stacks")
            return
        self._show(f"reading the stacks of {reference} ...")
        self._read_stacks(reference)

    @work(thread=True, exclusive=True, group="details")
    def _read_stacks(self, reference: str) -> None:
        try:
            text = stacks_text(self._source.stacks(reference))
        except Exception as error:
            text = str(error)
        self.call_from_thread(self._show, text)

    def action_diagnose(self) -> None:
        """Show the case file."""
        self._show("diagnosing ...")
        self._diagnose()

    @work(thread=True, exclusive=True, group="details")
    def _diagnose(self) -> None:
        try:
            text = case_text(self._source.case())
        except Exception as error:
            text = str(error)
        self.call_from_thread(self._show, text)

    def _show(self, text: str) -> None:
        self.query_one("#text", Static).update("\n".join(map(printable, text.split("\n"))))


def _cells(row: OutlineRow) -> tuple[Text, Text]:
    style = "bold red" if row.is_failed else ""
    node = Text(f"{'  ' * row.depth}{row.marker} {row.text}", style)
    return Text(row.state, style), node


def stacks_text(found: StacksAnswer) -> str:
    """The stacks of a proc as in a traceback."""
    lines = [f"{found.proc}: {found.activity}"]
    for thread in found.threads:
        lines += ["", f"thread {thread.name}"]
        lines += [f'  File "{f.filename}", line {f.line}, in {f.name}' for f in thread.frames]
        if thread.waits:
            lines.append("  waits for an answer")
    return "\n".join(lines)
