"""The instructions that wait for the ranks of one mesh, and the size of a full batch.

A channel belongs to one mesh or slice. At most one channel of the procs has instructions that wait,
since the driver sends them before it uses another. So ranks of several channels run instructions in
the order of the program.
"""

from __future__ import annotations

from typing import Any

from monarch._src.tensor.state.instructions import Batch, Instruction, Kind

MOST_INSTRUCTIONS = 128
MOST_BYTES = 1 << 16


class Batches:
    """The instructions of one channel that are not sent yet."""

    def __init__(self, device: str = "cpu") -> None:
        """`device`: where the ranks have the tensors, `"cpu"` or `"cuda"`."""
        self.device = device
        self._known: set[int] = set()
        self._kinds: list[Kind] = []
        self._code: list[Instruction] = []
        self._dead: list[int] = []
        self._bytes = 0

    @property
    def has_work(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._code or self._dead)

    @property
    def has_dead(self) -> bool:
        """Whether the ranks hold tensors that the program has no reference to."""
        return bool(self._dead)

    def add(
        self, kind: Kind, inputs: tuple[int, ...], first: int, scalars: tuple[Any, ...], site: int,
        nbytes: int = 0,
    ) -> bool:  # fmt: skip
        """Add an instruction; returns whether the batch is full. `nbytes`: the size of its data."""
        number = kind.number
        if number not in self._known:
            self._known.add(number)
            self._kinds.append(kind)
        self._code.append((number, inputs, first, scalars, site))
        self._bytes += nbytes
        return len(self._code) >= MOST_INSTRUCTIONS or self._bytes >= MOST_BYTES

    def free(self, number: int) -> None:
        """Let the ranks free a tensor. Any thread, also during garbage collection."""
        self._dead.append(number)

    def forget_kinds(self) -> None:
        """Send all kinds again: a rank has restarted, so it has none."""
        self._known.clear()

    def take(self) -> Batch:
        """Remove all that waits. Ranks free a tensor after the instructions that use it."""
        kinds, code = self._kinds, self._code
        dead = self._dead[:]
        del self._dead[: len(dead)]
        self._kinds, self._code, self._bytes = [], [], 0
        return Batch(kinds, code, dead, self.device)
