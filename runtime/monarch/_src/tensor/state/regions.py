"""A recorded region: operations of a function, with registers in place of the numbers of tensors.

A `Recording` follows one call of the function. Its inputs are the tensor arguments of the call; a
tensor that comes from elsewhere, such as a weight that the function refers to, is captured.
`RecordedRegion` is what ranks keep. Each later call binds inputs and captured tensors to registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from monarch._src.tensor.state.instructions import Instruction, Kind

CHUNK = 16  # instructions, after which a rank frees values without further use
_ANY = 0


@dataclass(frozen=True)
class Chunk:
    """Instructions in order, and the registers that no later one reads."""

    code: tuple[Instruction, ...]
    dead: tuple[int, ...]


@dataclass(frozen=True)
class RecordedRegion:
    """What ranks keep of a region. `bound`: the registers of what a call binds, in its order."""

    bound: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    outputs: tuple[int, ...]


class Step(NamedTuple):
    """One operation of a recording. `inputs` and `first` are registers."""

    kind: Kind
    inputs: tuple[int, ...]
    first: int
    scalars: tuple[Any, ...]
    site: int

    def is_same(self, other: Step) -> bool:
        """Whether it does the same with the same registers, wherever its line is."""
        mine, its = replace(self.kind, number=_ANY), replace(other.kind, number=_ANY)
        if (self.inputs, self.first) != (other.inputs, other.first):
            return False
        # As text: NaN is the same as NaN here, and 0.0 is not -0.0.
        return repr((mine, self.scalars)) == repr((its, other.scalars))


class Recording:
    """The operations of one call. See the module."""

    def __init__(self, inputs: Sequence[int]) -> None:
        """`inputs`: the numbers of the tensor arguments; one may occur twice."""
        self.inputs = tuple(inputs)
        self.captured: list[int] = []
        self.steps: list[Step] = []
        self._registers: dict[int, int] = {}
        for place, number in enumerate(self.inputs):
            self._registers.setdefault(number, place)
        self._next = len(self.inputs)
        self._made: set[int] = set()

    def has_made(self, number: int) -> bool:
        """Whether an operation of the region has made the tensor of that number."""
        return number in self._made

    def add(
        self, kind: Kind, inputs: Sequence[int], first: int, scalars: tuple[Any, ...], site: int
    ) -> None:
        """Record an operation whose results have the numbers from `first` on."""
        registers = tuple([self._register(number) for number in inputs])
        start = self._next
        self._next += kind.outputs
        for place in range(kind.outputs):
            self._registers[first + place] = start + place
            self._made.add(first + place)
        self.steps.append(Step(kind, registers, start, scalars, site))

    def _register(self, number: int) -> int:
        found = self._registers.get(number)
        if found is None:
            found = self._registers[number] = self._next
            self._next += 1
            self.captured.append(number)
        return found

    def finish(self, outputs: Sequence[int]) -> RecordedRegion:
        """What ranks keep. `outputs`: numbers of tensors that the region has made."""
        results = tuple([self._registers[number] for number in outputs])
        bound = (*range(len(self.inputs)), *(self._registers[one] for one in self.captured))
        last: dict[int, int] = {}
        for place, step in enumerate(self.steps):
            made = range(step.first, step.first + step.kind.outputs)
            last.update(dict.fromkeys((*step.inputs, *made), place // CHUNK))
        keep = {*results, *bound}
        dead: dict[int, list[int]] = {}
        for register, chunk in last.items():
            if register not in keep:
                dead.setdefault(chunk, []).append(register)
        code = [
            (step.kind.number, step.inputs, step.first, step.scalars, step.site)
            for step in self.steps
        ]
        chunks = tuple(
            Chunk(tuple(code[start : start + CHUNK]), tuple(dead.get(start // CHUNK, ())))
            for start in range(0, len(code), CHUNK)
        )
        return RecordedRegion(bound, chunks, results)

    def difference(self, other: Recording) -> int:
        """The first place at which another recording does something else; -1: none.

        It is the number of steps if both agree so far and one goes on, or captures something else.
        """
        for place, (mine, its) in enumerate(zip(self.steps, other.steps, strict=False)):
            if not mine.is_same(its):
                return place
        if len(self.steps) != len(other.steps):
            return min(len(self.steps), len(other.steps))
        return -1 if self.captured == other.captured else len(self.steps)
