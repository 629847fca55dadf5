"""The operations that combine or move values of several ranks.

Runs in: a rank, on the threads of its streams. Another thread ends waits when a peer is gone.
Invariants: every rank of a group takes part in each of its operations, also with an input that has
no value: before they exchange values, ranks tell each other whether they have one.
"""

from __future__ import annotations

import logging
import pickle
from typing import Any

from monarch._src.spmd.torch_modules import distributed_c10d
from monarch._src.tensor.ranks.groups import Member, exchange
from monarch._src.tensor.ranks.streams import Borrows, RankState
from monarch._src.tensor.state.instructions import Failure, Kind, Poisoned
from monarch._src.tensor.torch_modules import plain_values, torch

log = logging.getLogger("monarch.tensor")
TOLD_BYTES = 4096  # of a failure


class Collectives:
    """The collectives of one stream of a rank."""

    def __init__(self, state: RankState, borrows: Borrows, values: dict[int, Any]) -> None:
        """`values`: the tensors of the stream."""
        self._rank = state.rank
        self._groups = state.groups
        self._borrows = borrows
        self._values = values
        self._sent: list[tuple[Any, Any]] = []  # sends under way, each with its memory
        self.device: Any = None  # the GPU that tensors are on; None: the CPU

    # --- reduce -----------------------------------------------------------------------------------

    def reduce(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
        """Combine the values of the ranks of a group."""
        number, reduction, scatter = kind.args
        value = inputs[0]
        member = self._groups.member(number)
        if member.group is None:
            if isinstance(value, Failure):
                raise Poisoned(value)
            return _of_one(value, reduction, scatter)
        failures = _failures(member, inputs)
        if failures:
            raise Poisoned(failures[0])
        # Gloo combines values in memory of the host.
        return self._placed(_combined(member, value.cpu(), reduction, scatter))

    def reduce_together(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> list[Any]:
        """Combine the values of several tensors of one dtype in one exchange.

        A tensor that has no value on a rank has none afterwards, on all ranks; the others do.
        """
        number, reduction = kind.args
        member = self._groups.member(number)
        if member.group is None:
            return [
                one if isinstance(one, Failure) else _of_one(one, reduction, scatter=False)
                for one in inputs
            ]
        failures = _failures(member, inputs)
        whole = [one.cpu() for at, one in enumerate(inputs) if at not in failures]
        found = iter(_combined_together(member, whole, reduction) if whole else [])
        return [
            failures[at] if at in failures else self._placed(next(found))
            for at in range(len(inputs))
        ]

    def _placed(self, found: Any) -> Any:
        return found if self.device is None else found.to(self.device)

    # --- from mesh to mesh ------------------------------------------------------------------------

    def send(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> None:
        """Send this rank's value to other ranks. Returns before they have the value.

        The next `send` waits for this one. The program issues the `receive` of the other ranks
        before the next `send`, so ranks cannot wait for each other in a cycle. If the copies belong
        to another stream, `handover` has the ranks that keep their own value, and its number.
        """
        (number,) = kind.args
        targets: list[int] = scalars[0].get(self._rank, [])
        handover = scalars[1]
        if handover is not None and self._rank in handover.ranks:
            self._borrows.give(handover.number, [_copied(inputs[0])])
        sent, self._sent = self._sent, []
        for work, _ in sent:
            try:
                work.wait()
            except RuntimeError as error:  # its receiver has died, which ends that group only
                log.debug("rank %d: an earlier send has failed: %s", self._rank, error)
        if not targets:
            return
        member = self._groups.member(number)
        value = inputs[0]
        failed = isinstance(value, Failure)
        flag = torch.tensor([int(failed)], dtype=torch.int32)
        data = _told(value) if failed else _bytes_of(value.cpu()).clone()
        for rank in targets:
            for one in (flag, data):
                self._sent.append((member.group.send([one], member.places[rank], number), one))

    def receive(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
        """Receive the value of another rank, or copy this rank's own."""
        number, dtype, shape = kind.args
        pairs, own, handover = scalars
        origin: int = pairs[self._rank]
        if origin == self._rank:
            if handover is None:
                value = _copied(self._values[own])
            else:
                (value,) = self._borrows.take(handover)
            if isinstance(value, Failure):
                raise Poisoned(value)
            return value
        member = self._groups.member(number)
        group, source = member.group, member.places[origin]
        flag = torch.zeros(1, dtype=torch.int32)
        group.recv([flag], source, number).wait()
        if flag.item():
            told = torch.zeros(TOLD_BYTES, dtype=torch.uint8)
            group.recv([told], source, number).wait()
            raise Poisoned(_first_told([told]))
        result = torch.empty(shape, dtype=dtype)
        if result.numel():
            data = _bytes_of(result)
            group.recv([data], source, number).wait()
        return self._placed(result)


def _copied(value: Any) -> Any:
    """A copy of a tensor; a failure is itself."""
    if isinstance(value, Failure):
        return value
    return value.clone(memory_format=torch.contiguous_format)


def _bytes_of(value: Any) -> Any:
    """The bytes of a tensor, which every backend can send; a view if it is contiguous."""
    # An axis of size 1 may have any stride, which reshape(-1) keeps and view refuses.
    return plain_values(value).contiguous().as_strided((value.numel(),), (1,)).view(torch.uint8)


def _failures(member: Member, inputs: list[Any]) -> dict[int, Failure]:
    """The inputs that have no value on some rank of the group, by their places. On all ranks."""
    failed = [isinstance(one, Failure) for one in inputs]
    flags = torch.tensor(failed, dtype=torch.int32)
    exchange(member.group, flags)
    found: dict[int, Failure] = {}
    for at in flags.nonzero().flatten().tolist():
        told = torch.zeros(TOLD_BYTES, dtype=torch.uint8)
        if failed[at]:
            told[:] = _told(inputs[at])
        every = [torch.zeros(TOLD_BYTES, dtype=torch.uint8) for _ in range(member.size)]
        member.group.allgather([every], [told]).wait()
        found[at] = inputs[at] if failed[at] else _first_told(every)
    return found


def _operation(operations: Any, reduction: str) -> Any:
    return {
        "sum": operations.SUM, "avg": operations.SUM, "product": operations.PRODUCT,
        "min": operations.MIN, "max": operations.MAX, "band": operations.BAND,
        "bor": operations.BOR, "bxor": operations.BXOR,
    }[reduction]  # fmt: skip


def _combined(member: Member, value: Any, reduction: str, scatter: bool) -> Any:
    """The combination of the values of a group's ranks, for this one. `value`: on the CPU."""
    group, place, size, _ = member
    if reduction == "stack":
        return _exchanged(group, size, value) if scatter else _stacked(group, size, value)
    found = value.clone(memory_format=torch.contiguous_format)
    c10d = distributed_c10d()
    options = c10d.AllreduceOptions()
    options.reduceOp = _operation(c10d.ReduceOp, reduction)
    group.allreduce([found], options).wait()
    if reduction == "avg":
        found = found / size
    return found[place].clone() if scatter else found


def _combined_together(member: Member, values: list[Any], reduction: str) -> list[Any]:
    """The combinations of several tensors of one dtype, each with memory of its own."""
    joined = torch.cat([value.reshape(-1) for value in values])
    parts = _combined(member, joined, reduction, scatter=False).split(
        [one.numel() for one in values]
    )
    return [part.view(one.shape).clone() for part, one in zip(parts, values, strict=True)]


def _of_one(value: Any, reduction: str, scatter: bool) -> Any:
    own = value.clone(memory_format=torch.contiguous_format)
    if reduction == "stack":
        return own if scatter else own[None]
    return own[0].clone() if scatter else own


def _stacked(group: Any, size: int, value: Any) -> Any:
    stacked = torch.empty((size, *value.shape), dtype=value.dtype)
    if stacked.numel():
        rows = list(_bytes_of(stacked).view(size, -1).unbind(0))
        group.allgather([rows], [_bytes_of(value)]).wait()
    return stacked


def _exchanged(group: Any, size: int, value: Any) -> Any:
    """Send row i to rank i, and stack the rows that arrive."""
    found = torch.empty(value.shape, dtype=value.dtype)
    if found.numel():
        c10d = distributed_c10d()
        options = c10d.AllToAllOptions()
        group.alltoall_base(_bytes_of(found), _bytes_of(value), [], [], options).wait()
    return found


def _told(failure: Failure) -> Any:
    short = Failure(
        failure.site, failure.operation, failure.rank, failure.error[:100], failure.message[:1000],
        failure.traceback[-2000:],
    )  # fmt: skip
    data = pickle.dumps(short)
    if len(data) > TOLD_BYTES - 4:  # the text has characters of several bytes
        data = pickle.dumps(
            Failure(short.site, short.operation, short.rank, short.error, short.message[:100], "")
        )
    framed = len(data).to_bytes(4, "little") + data
    return torch.frombuffer(bytearray(framed.ljust(TOLD_BYTES, b"\0")), dtype=torch.uint8)


def _first_told(every: list[Any]) -> Failure:
    for one in every:
        data = bytes(one.numpy())
        length = int.from_bytes(data[:4], "little")
        if length:
            found: Failure = pickle.loads(data[4 : 4 + length])
            return found
    return Failure(0, "reduce", -1, "RuntimeError", "an input has no value on another rank", "")
