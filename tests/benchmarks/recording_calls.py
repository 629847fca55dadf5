"""The cost for a rank of noting a call for a timeline, and of being ready to: `python -m ...`.

Prints nanoseconds for the begin and end of a call on the status board: in a process that was never
asked for a timeline, while one is read, and after the recording has ended. Runs one process.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from monarch._src.host.status_board import Board, Slot
from monarch._src.observe.timeline.rank_part import CallRecorder

CALLS = 5_000
ROUNDS = 40


class Process:
    """The part of a rank's runtime that has the slot."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot


def per_call_ns(process: Process) -> float:
    """Nanoseconds of one call, in the best of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            process.slot.end(process.slot.begin(b"Trainer", b"step"))
        best = min(best, (time.perf_counter_ns() - began) / CALLS)
    return best


def main() -> None:
    """Print the three figures."""
    with tempfile.TemporaryDirectory() as folder:
        board = Board(Path(folder) / "board", 1)
        process = Process(Slot(str(board.path), 0))
        recorder = CallRecorder(process)
        per_call_ns(process)  # the processor warms up
        print(f"never asked     {per_call_ns(process):6.0f} ns")
        recorder.read(0, 10)
        print(f"while recording {per_call_ns(process):6.0f} ns")
        recorder.stop()
        print(f"afterwards      {per_call_ns(process):6.0f} ns")
        board.close()


if __name__ == "__main__":
    main()
