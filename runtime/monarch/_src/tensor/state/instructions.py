"""Instructions: the operations that a client has the ranks of a mesh run. Plain data, pickled.

An `Instruction` is a tuple, since programs make tens of thousands of them in a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

Instruction: TypeAlias = "tuple[int, tuple[int, ...], int, tuple[Any, ...], int]"
"""Kind; numbers of the input tensors; number of the first output; scalars; call site."""

NOTHING, ONE, MANY = 0, 1, 2


@dataclass(frozen=True)
class Slot:
    """Stands for an input tensor: the one at that place."""

    place: int


@dataclass(frozen=True)
class Value:
    """Stands for a scalar that each instruction carries itself: the one at that place."""

    place: int


class Layout(NamedTuple):
    """The place of the elements of a tensor in its memory. `bits`: as of its `Meta`."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    bits: int


@dataclass(frozen=True)
class Kind:
    """An operation with its arguments, except tensors and scalars. Sent to a rank once.

    `operation`: `aten::add.Tensor`, or a name of the runner. `stores`: NOTHING, ONE, or MANY
    outputs; of many, `kept` has the places of the new tensors. `mutated`: the inputs, by slot, that
    the operation writes to. `default_dtype`: torch's default dtype in the client, if the dtype of
    the result comes from it. `layouts`: of each output, as the client has it; None for one that
    shares memory with another tensor.
    """

    number: int
    operation: str
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    stores: int = ONE
    kept: tuple[int, ...] = ()
    mutated: tuple[int, ...] = ()
    default_dtype: Any = None
    layouts: tuple[Layout | None, ...] = ()

    @property
    def outputs(self) -> int:
        """The count of numbers that an instruction of this kind takes for its outputs."""
        return len(self.kept) if self.stores == MANY else self.stores


@dataclass(frozen=True)
class Batch:
    """Instructions in order, the kinds that are new to the ranks, and the tensors to free.

    `device`: where the tensors are, `"cpu"` or `"cuda"`.
    """

    kinds: list[Kind]
    code: list[Instruction]
    dead: list[int]
    device: str


@dataclass(frozen=True)
class Failure:
    """The reason why a tensor has no value on a rank: the first operation that failed.

    `site`: the number of the call site in the client. `rank`: of the procs that were spawned.
    `function`: the name of the program's function that raised, if it was one.
    """

    site: int
    operation: str
    rank: int
    error: str
    message: str
    traceback: str
    exception: bytes = b""
    function: str = ""
