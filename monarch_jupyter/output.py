"""What ranks print, brought into the running cell.

Runs in: the kernel. Lines arrive on the runtime's IO thread, which only queues them; one thread of
ours folds equal lines of different ranks and writes them, with the cell that runs as their parent.
A line waits for its like from other ranks for `HOLD` seconds at most.
Owns: that thread, and the subscription to the runtime, from `start` until `close`.
Invariants: every line is written exactly once, those of one rank in its order.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from monarch import observe
from monarch.observe import OutputLine
from monarch_jupyter.folding import Fold, OutputFolder
from monarch_jupyter.rank_names import name_ranks

HOLD = 0.15
"""Seconds that a line waits for its like from other ranks; longer folds more, but shows later."""
FLUSH_TIMEOUT = 5.0


class CellOutput(Protocol):
    """Where lines go: the streams of the cell that runs, or of the last one that did."""

    def write(self, stream: str, text: str) -> None:
        """Append text to `stdout` or `stderr` of that cell; called on the output thread only."""
        ...


class StandardStreams:
    """Lines go to this process's own streams, as they do outside a notebook."""

    def write(self, stream: str, text: str) -> None:
        target = sys.stderr if stream == "stderr" else sys.stdout
        target.write(text)
        target.flush()


class OutputRouter:
    """Writes what ranks print, tagged by rank."""

    def __init__(self, target: CellOutput) -> None:
        self._target = target
        # Lines of ranks, a line of the notebook's own, or the event that a flush waits for; None
        # ends the thread.
        self._arrived: queue.SimpleQueue[Sequence[OutputLine] | str | threading.Event | None] = (
            queue.SimpleQueue()
        )
        self._folder = OutputFolder()
        self._thread = threading.Thread(target=self._run, name="monarch-output", daemon=True)
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        """Take lines from now on."""
        self._thread.start()
        self._unsubscribe = observe.on_output(self._arrived.put)

    def say(self, text: str) -> None:
        """Write a line of the notebook's own on stderr, after what ranks wrote; any thread."""
        self._arrived.put(text)

    def flush(self) -> None:
        """Return when all that ranks wrote before the answers received so far stands in the cell.

        Bounded by `FLUSH_TIMEOUT` seconds: a rank that can't be asked must not hold the cell.
        """
        try:
            observe.flush_output(timeout=FLUSH_TIMEOUT)
        except TimeoutError as error:
            self.say(f"monarch: what ranks wrote may come late: {error}")
        self.drain()

    def drain(self) -> None:
        """Return when all lines that have arrived are written."""
        written = threading.Event()
        self._arrived.put(written)
        if self._thread.is_alive():
            written.wait(FLUSH_TIMEOUT)

    def close(self) -> None:
        """Write what is held, take no more lines, end the thread. Idempotent."""
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
                self._write(self._folder.take_all())
                deadline = None
                continue
            if item is None or isinstance(item, str | threading.Event):
                self._write(self._folder.take_all())
                deadline = None
                if item is None:
                    return
                if isinstance(item, str):
                    self._target.write("stderr", f"{item}\n")
                else:
                    item.set()
                continue
            self._folder.add(item)
            self._write(self._folder.take_complete(_ranks_of))
            if not len(self._folder):
                deadline = None
            elif deadline is None:
                deadline = time.monotonic() + HOLD

    def _write(self, folds: Sequence[Fold]) -> None:
        several = len(observe.meshes()) > 1 if folds else False
        # Neighbours on one stream go out together: one message to the page in place of many.
        pending: list[str] = []
        for number, fold in enumerate(folds):
            pending.append(f"{tag(fold, several)} {fold.text}\n")
            if number + 1 == len(folds) or folds[number + 1].stream != fold.stream:
                self._target.write(fold.stream, "".join(pending))
                pending.clear()


def tag(fold: Fold, several: bool) -> str:
    """`[gpus=0..7]`; with the name of the mesh where that is not clear."""
    ranks = name_ranks(fold.points)
    named = fold.mesh if several or not ranks else ""
    return f"[{' '.join(part for part in (named, ranks) if part)}]"


def _ranks_of(mesh_uid: str) -> int | None:
    return next((len(mesh) for mesh in observe.meshes() if mesh.uid == mesh_uid), None)
