"""Routes output of ranks into cells.

Runs in: the kernel. The runtime's I/O thread queues lines; the output thread folds equal lines of
different ranks and writes them into the cell that caused them. A line waits for equal lines of
other ranks for at most `HOLD` seconds. Owns: that thread, and the subscription to the runtime, from
`start` until `close`. Invariants: every line goes to the store, and then to its cell, exactly once,
the lines of a rank in order. A cell that has shown `MOST` lines shows no more, and says how many
more there are.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from monarch import frontend, observe
from monarch.frontend import Fold, OutputFolder
from monarch.observe import OutputLine
from monarch_jupyter.lines.log_store import LogStore
from monarch_jupyter.lines.rewritten import UnfinishedLines
from monarch_jupyter.rendering.lines import fold_tag, reset_colours

HOLD = 0.15
"""Seconds that a line waits for equal lines; longer folds more, but shows lines later."""
FLUSH_TIMEOUT = 5.0
MOST = 200
"""Lines that one cell shows; a page with many more is slow to scroll, and slow to load again."""


class CellOutput(Protocol):
    """The streams of cells, told apart by origin. Called on the output thread only."""

    def write(self, stream: str, text: str, origin: int) -> None:
        """Append text to `stdout` or `stderr` of that cell."""
        ...

    def show(self, what: str, text: str, origin: int) -> None:
        """Replace the text that the cell shows under this name; "" removes it."""
        ...


@dataclass(frozen=True)
class Notice:
    """A line of the notebook itself."""

    text: str
    origin: int
    stream: str = "stderr"


@dataclass(frozen=True)
class CellEnded:
    """The cell with this number has ended; queued behind its lines."""

    origin: int


class OutputRouter:
    """Writes lines of ranks, tagged by rank."""

    def __init__(
        self,
        target: CellOutput,
        store: LogStore | None = None,
        most: int | None = None,
        origin_now: Callable[[], int] = lambda: 0,
        overflow: Callable[[int], None] = lambda origin: None,
        unfold: Callable[[int], None] = lambda origin: None,
        fold_again: Callable[[int], None] = lambda origin: None,
    ) -> None:
        """`most`: the number of lines that a cell shows, or None; `origin_now`: the current cell.

        On the output thread: `overflow` is called once with the origin of a cell that may show no
        more, `unfold` when a cell has ended in which lines of several ranks were shown as one, and
        when more of them came late.
        """
        self._target = target
        self._store = store
        self._most = most
        self.origin_now = origin_now
        self._overflow = overflow
        self._unfold = unfold
        self._fold_again = fold_again
        # Origins with lines folded since they were last unfolded, and origins of ended cells: an
        # unfolded view of a running cell would close at each update.
        self._folded: set[int] = set()
        self._ended: set[int] = set()
        self._unfinished = UnfinishedLines()
        # By origin: the number of shown lines; the number of hidden ones, and the mesh of the last.
        self._shown: dict[int, int] = {}
        self._hidden: dict[int, tuple[int, str]] = {}
        self._hidden_news: set[int] = set()
        self._to_fold_again: set[int] = set()
        self._overflown: set[int] = set()
        # Lines of ranks, a notice, the end of a cell, or a function to call once everything before
        # it is written; None ends the thread.
        self._arrived: queue.SimpleQueue[
            Sequence[OutputLine] | Notice | CellEnded | Callable[[], None] | None
        ] = queue.SimpleQueue()
        self._folder = OutputFolder()
        self._thread = threading.Thread(target=self._run, name="monarch-output", daemon=True)
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        """Take lines from now on."""
        self._thread.start()
        self._unsubscribe = observe.on_output(self._arrived.put, self._arrived.put)

    def say(self, text: str, origin: int | None = None) -> None:
        """Write a notice about a failure on stderr, after the queued lines of ranks. Any thread.

        `origin`: the cell; None: the one that runs.
        """
        self._arrived.put(Notice(text, self.origin_now() if origin is None else origin))

    def advise(self, text: str, origin: int | None = None) -> None:
        """Write a notice that is no failure, like `say`.

        It goes to stdout, since front ends show stderr in red.
        """
        origin = self.origin_now() if origin is None else origin
        self._arrived.put(Notice(text, origin, "stdout"))

    def flush(self) -> None:
        """Return when the cell shows all lines that ranks wrote before the answers received so far.

        Bounded by `FLUSH_TIMEOUT` seconds: an unreachable rank must not block the cell.
        """
        try:
            observe.flush_output(timeout=FLUSH_TIMEOUT)
        except TimeoutError as error:
            self.say(f"monarch: output of ranks may arrive late: {error}")
        self.drain()

    def drain(self) -> None:
        """Return when all lines that have arrived are written."""
        written = threading.Event()
        self._arrived.put(written.set)
        if self._thread.is_alive():
            written.wait(FLUSH_TIMEOUT)

    def cell_ended(self) -> None:
        """Mark the end of the running cell; return when its lines are unfolded."""
        self._arrived.put(CellEnded(self.origin_now()))
        self.drain()

    def close(self) -> None:
        """Write the held lines, take no more, end the thread. Idempotent."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
            self._arrived.put(None)
            self._thread.join()

    def _run(self) -> None:
        deadline: float | None = None
        while True:
            try:
                wait = None if deadline is None else max(0.0, deadline - time.monotonic())
                item = self._arrived.get(timeout=wait)
            except queue.Empty:
                self._write_all()
                deadline = None
                continue
            if not (item is None or callable(item) or isinstance(item, Notice | CellEnded)):
                self._take(item)
                if not (len(self._folder) or self._unfinished.changed or self._hidden_news):
                    deadline = None
                elif deadline is None:
                    deadline = time.monotonic() + HOLD
                continue
            if isinstance(item, CellEnded):
                self._ended.add(item.origin)
                self._end_lines(lambda origin, ended=item.origin: origin == ended)
            # A state of an unfinished line waits for its time, since most such lines end soon.
            is_end = item is None or isinstance(item, CellEnded)
            if is_end or deadline is None or time.monotonic() >= deadline:
                self._write_all()
                deadline = None
            else:
                self._write_held()
                deadline = deadline if self._unfinished.changed else None
            if item is None:
                return
            if isinstance(item, Notice):
                self._target.write(item.stream, f"{item.text}\n", item.origin)
            elif not isinstance(item, CellEnded):
                item()

    def _take(self, lines: Sequence[OutputLine]) -> None:
        rendered = [_as_shown(line) if line.whole else line for line in lines]
        whole: list[OutputLine] = []
        for line in rendered:
            whole += self._unfinished.add([line]) if line.shown else [line] if line.whole else []
        self._add(whole)
        if any(line.answered for line in lines):
            # Without numbers of cells, an ended cell has the number of the one that runs.
            self._end_lines(lambda origin: origin > 0 and origin in self._ended)

    def _end_lines(self, has_ended: Callable[[int], bool]) -> None:
        """End the unfinished lines of ended cells."""
        self._add(self._unfinished.end_cells(has_ended))

    def _add(self, whole: Sequence[OutputLine]) -> None:
        if self._store is not None:
            self._store.add(whole)
        self._folder.add(line for line in whole if line.shown)
        self._write(self._folder.take_complete(ranks_of))

    def _write_held(self) -> None:
        """Write the lines that wait for their like, and the counts of hidden ones."""
        self._write(self._folder.take_all())
        for origin in sorted(self._hidden_news):
            self._target.show("hidden", hidden_text(*self._hidden[origin]), origin)
            if origin not in self._overflown:
                self._overflown.add(origin)
                self._overflow(origin)
        self._to_fold_again |= self._hidden_news
        self._hidden_news.clear()
        self._unfold_ended()

    def _write_all(self) -> None:
        """Write the lines that wait, and show the states of lines that are overwritten."""
        self._write(self._folder.take_all())
        self._unfinished.end(mesh.uid for mesh in observe.meshes())
        several = len(observe.meshes()) > 1
        for origin, folds in self._unfinished.take_changed().items():
            lines = [f"{fold_tag(fold, several)} {fold.text}" for fold in folds]
            self._target.show("unfinished", "\n".join(lines), origin)
        self._write_held()

    def _unfold_ended(self) -> None:
        for origin in sorted(self._folded & self._ended):
            self._folded.discard(origin)
            # A cell above its limit has a view of all lines, which unfolds them itself.
            if origin not in self._overflown:
                self._unfold(origin)
        for origin in sorted(self._to_fold_again & self._ended):
            self._to_fold_again.discard(origin)
            self._fold_again(origin)

    def _write(self, folds: Sequence[Fold]) -> None:
        several = len(observe.meshes()) > 1 if folds else False
        # Neighbours on one stream go out together: one message to the page in place of many.
        pending: list[str] = []
        for number, fold in enumerate(folds):
            if self._may_show(fold):
                pending.append(f"{fold_tag(fold, several)} {reset_colours(fold.text)}\n")
                if len(fold.points) > 1:
                    self._folded.add(fold.origin)
            after = folds[number + 1] if number + 1 < len(folds) else None
            if pending and (after is None or _place(after) != _place(fold)):
                self._target.write(fold.stream, "".join(pending), fold.origin)
                pending.clear()

    def _may_show(self, fold: Fold) -> bool:
        shown = self._shown.get(fold.origin, 0)
        if self._most is None or shown < self._most:
            self._shown[fold.origin] = shown + 1
            return True
        before, _ = self._hidden.get(fold.origin, (0, ""))
        self._hidden[fold.origin] = (before + len(fold.points), fold.mesh)
        self._hidden_news.add(fold.origin)
        return False


def _as_shown(line: OutputLine) -> OutputLine:
    if "\r" not in line.text and "\x1b" not in line.text:
        return line
    return OutputLine(
        line.mesh, line.mesh_uid, line.rank, line.point, line.stream, frontend.as_shown(line.text),
        line.origin, shown=line.shown,
    )  # fmt: skip


def _place(fold: Fold) -> tuple[str, int]:
    return fold.stream, fold.origin


def hidden_text(number: int, mesh: str) -> str:
    """The notice of a cell that has reached its limit."""
    return (
        f"monarch: {number:,} more lines are not shown here; `%monarch logs {mesh}` has every one"
    )


def ranks_of(mesh_uid: str) -> int | None:
    """The number of ranks of a live mesh; None for any other."""
    return next((len(mesh) for mesh in observe.meshes() if mesh.uid == mesh_uid), None)


_shared: OutputRouter | None = None


def shared_output() -> OutputRouter | None:
    """The router of the loaded extension; None if it is not loaded."""
    return _shared


def share_output(router: OutputRouter | None) -> None:
    """Make this the router that notices of cells go through."""
    global _shared
    _shared = router
