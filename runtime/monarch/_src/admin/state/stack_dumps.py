"""Stacks of ranks that an admin server has stored, as rows of `stored_frames`. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from monarch._src.telemetry.sql.state.rows import meets
from monarch._src.wire.messages import Condition

MOST_DUMPS = 64
"""The number of dumps that are kept; then each new one takes the place of the oldest."""

Row = Mapping[str, Any]


class StackDumps:
    """The last dumps of one server. Any thread: appending to a deque is atomic."""

    def __init__(self, most: int = MOST_DUMPS) -> None:
        self._dumps: deque[Sequence[Row]] = deque(maxlen=most)

    def add(self, frames: Sequence[Row]) -> None:
        """Keep the frames of one dump, each with the columns of `stored_frames`."""
        self._dumps.append(tuple(frames))

    def columns(
        self, names: Sequence[str], conditions: Sequence[Condition]
    ) -> dict[str, list[Any]]:
        """These columns of the frames that meet the conditions, of the oldest dump first."""
        rows = [
            row
            for frames in self._dumps.copy()
            for row in frames
            if all(meets(row[condition.column], condition) for condition in conditions)
        ]
        return {name: [row[name] for row in rows] for name in names}
