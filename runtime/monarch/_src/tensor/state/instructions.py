"""Instructions: the operations that a client has the ranks of a mesh run. Plain data, pickled.

An `Instruction` is a tuple, since programs make tens of thousands of them in a second.

Instructions wait for a full batch. A channel belongs to one stream on one mesh or slice. At most
one channel of the procs has instructions that wait, since the driver sends them before it uses
another. So ranks get the instructions of several channels in the order of the program, and each
stream of a rank runs its own in that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

Instruction: TypeAlias = "tuple[int, tuple[int, ...], int, tuple[Any, ...], int]"
"""Kind; numbers of the input tensors; number of the first output; scalars; call site."""

MAIN = "main"  # the stream of tensors that name none
NOTHING, ONE, MANY = 0, 1, 2
MOST_INSTRUCTIONS = 128
MOST_BYTES = 1 << 16


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


class Handover(NamedTuple):
    """Values that one stream of a rank hands over to another.

    `incarnations`: of the ranks that were restarted, as far as the client knew when it recorded the
    handover; None for a rank of which it did not know. `ranks`: those that hand something over;
    empty for all of the channel.
    """

    number: int
    incarnations: dict[int, int | None]
    ranks: frozenset[int] = frozenset()


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


class Poisoned(Exception):
    """An input of an instruction has no value, on this rank or on a peer."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


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
