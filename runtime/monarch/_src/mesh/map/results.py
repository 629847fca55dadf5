"""The iterators over the results of a map.

Runs in: the calling process, on the thread that takes the results.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from monarch._src.mesh.map.driver import Failed, MapRun, Result

R = TypeVar("R")
ENDING = "monarch-map-end"
"""The name of the thread that ends a map whose results are no longer wanted."""


class MapResults(Iterator[R]):
    """The results of `imap_unordered`, in the order in which they arrive. `close` ends the map."""

    def __init__(self, run: MapRun | None) -> None:
        """`run`: the map, whose first chunks are sent; None: it has no items."""
        self._run = run
        self._ready: deque[Any] = deque()  # values to yield, in order
        self._error: Exception | None = None  # to raise after them

    def __iter__(self) -> MapResults[R]:
        return self

    def __next__(self) -> R:
        try:
            while not self._ready:
                self._wait()
            value = self._ready.popleft()
            run = self._run
            if run is not None:
                run.on_yielded()
                if run.has_news and not isinstance(value, Failed):
                    self._look(run)  # the ranks go on while the caller uses the value
            if isinstance(value, Failed):
                raise value.error
        except StopIteration:
            raise
        except BaseException:  # also an interrupt: after any error, the iterator has ended
            self.close()
            raise
        return value

    def close(self) -> None:
        """End the map: running items are cancelled, and the others are not run. Idempotent."""
        self._ready.clear()
        self._error = None
        self._finish(cancel=True)

    def _wait(self) -> None:
        """Wait for results.

        Raises:
            StopIteration: there are no others. BaseException: the error that ends the map.
        """
        run = self._run
        if run is not None and not run.is_complete:
            self._put(run.next_results())
            return
        if run is not None:
            self._error = run.error
            self._finish(cancel=False)
        error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def _look(self, run: MapRun) -> None:
        """Add the results that have arrived. An error is raised after the results before it."""
        try:
            self._put(run.news())
        except Exception as error:
            self._error = error
            self._finish(cancel=True)

    def _put(self, results: Sequence[Result]) -> None:
        """Add results. After the first that is an error, no other is yielded."""
        for _, value in results:
            self._ready.append(value)
            if isinstance(value, Failed):
                self._finish(cancel=True)
                return

    def _finish(self, *, cancel: bool) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.end(cancel=cancel)

    def __del__(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        run.drop_items()  # on this thread, since the end of a generator runs its code
        try:
            # Not here: the garbage collector may run in code that holds the locks of the runtime.
            threading.Thread(
                target=run.end, kwargs={"cancel": True}, name=ENDING, daemon=True
            ).start()
        except RuntimeError:
            pass  # the program ends, and its meshes with it


class OrderedMapResults(MapResults[R]):
    """The results of `imap`, in the order of the items."""

    def __init__(self, run: MapRun | None) -> None:
        super().__init__(run)
        self._early: dict[int, Any] = {}  # by item, those that come after one that is missing
        self._next = 0

    def close(self) -> None:
        self._early.clear()
        super().close()

    def _put(self, results: Sequence[Result]) -> None:
        """Add results. An error ends the map once the items before it have results."""
        for index, value in results:
            self._early[index] = value
            if isinstance(value, Failed) and self._run is not None:
                self._run.cut(index)
        early = self._early
        while self._next in early:
            self._ready.append(early.pop(self._next))
            self._next += 1
