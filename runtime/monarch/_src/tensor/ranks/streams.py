"""The streams of tensors on a rank, and the values that one hands over to another.

A rank has a `TensorWorker` for each stream, with a thread and values of its own. So streams run
side by side, and wait for each other in handovers only. The client gives each handover a number.
It has one stream give the values, and another one take them, later in the order of the program. So
streams cannot wait for each other in a cycle.

Runs in: a rank, on the threads of its streams. Owns: the values that are given and not taken yet.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from monarch._src.tensor.ranks.groups import Groups
from monarch._src.tensor.state.instructions import Failure, Handover, Kind, Poisoned
from monarch._src.tensor.torch_modules import TorchTensor, torch


class Given(NamedTuple):
    """Values on their way to another stream. `computed`: an event of the GPU; None: on the CPU."""

    values: list[Any]
    computed: Any


class Handovers:
    """The values that streams of this rank have given, by the numbers of the client."""

    def __init__(self) -> None:
        self._given: dict[int, Given] = {}
        self._changed = threading.Condition()

    def give(self, number: int, given: Given) -> None:
        """Leave values for the stream that takes them."""
        with self._changed:
            self._given[number] = given
            self._changed.notify_all()

    def take(self, number: int) -> Given:
        """Wait for the values of that number, and remove them."""
        with self._changed:
            while number not in self._given:
                self._changed.wait()
            return self._given.pop(number)

    @property
    def waiting(self) -> int:
        """How many handovers are given and not taken."""
        return len(self._given)


class RankState:
    """What the streams of one rank share."""

    def __init__(self, rank: int, incarnation: int = 0) -> None:
        """`rank`: among the procs that were spawned. `incarnation`: of the process."""
        self.rank = rank
        self.incarnation = incarnation
        self.handovers = Handovers()
        self.groups = Groups(rank)


class Borrows:
    """The instructions by which one stream lends values to another.

    A borrow takes two handovers: its begin gives the values to the borrower, and its end tells the
    lender that the borrower has run all that uses them.
    """

    def __init__(self, state: RankState) -> None:
        self._state = state
        self.device: Any = None  # the GPU that tensors are on; None: the CPU

    def give_tensors(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> None:
        """Lend tensors, or give them back. One without a value is given as its failure."""
        self.give(scalars[0].number, inputs)

    def borrow(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> list[Any]:
        """Take tensors that another stream has lent; they have the memory of the lender's."""
        return self.take(scalars[0])

    def take_back(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> None:
        """Go on once the borrower is done. If a write there has failed, the tensors have no value.

        Raises:
            Poisoned: a tensor comes back as a failure.
        """
        for one in self.take(scalars[0]):
            if isinstance(one, Failure):
                raise Poisoned(one)

    def give(self, number: int, values: Sequence[Any]) -> None:
        """Leave values of this stream for another one."""
        computed = None
        if self.device is not None:
            computed = torch.cuda.Event()
            computed.record()
        self._state.handovers.give(number, Given(list(values), computed))

    def take(self, handover: Handover) -> list[Any]:
        """Wait for values of another stream.

        Raises:
            KeyError: the handover was recorded for an earlier process of this rank, so that no
                stream of this one gives the values.
        """
        known = handover.incarnations.get(self._state.rank, 0)
        if known is not None and known != self._state.incarnation:
            raise KeyError(handover.number)
        values, computed = self._state.handovers.take(handover.number)
        if computed is not None:
            own = torch.cuda.current_stream()
            own.wait_event(computed)
            for one in values:
                if isinstance(one, TorchTensor):
                    one.record_stream(own)  # or the GPU's memory could be used again too early
        return values


_states: WeakValueDictionary[int, RankState] = WeakValueDictionary()
_making = threading.Lock()


def rank_state(key: int, rank: int, incarnation: int) -> RankState:
    """The state that the streams with this key share in this process; the first one makes it."""
    with _making:
        found = _states.get(key)
        if found is None:
            found = _states[key] = RankState(rank, incarnation)
        return found
