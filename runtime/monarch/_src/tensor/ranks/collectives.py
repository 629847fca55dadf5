"""Process groups of tensors on a rank, and the operations that combine values of several ranks.

Runs in: a rank, on the thread of its `TensorWorker`. Another thread ends waits when a peer is gone.
Owns: gloo groups, by numbers that the client gives them.
Invariants: every rank of a group takes part in each of its operations, also with an input that has
no value: before they exchange values, ranks tell each other whether they have one.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any, NamedTuple

from monarch._src.spmd import rank_watch
from monarch._src.spmd.rendezvous import FilePlace, TcpPlace, remove_file, store_at
from monarch._src.spmd.stores import abortable
from monarch._src.spmd.torch_modules import distributed_c10d
from monarch._src.tensor.state.instructions import Failure, Kind
from monarch._src.tensor.torch_modules import plain_values, torch

log = logging.getLogger("monarch.tensor")
TIMEOUT = timedelta(seconds=1800)
TOLD_BYTES = 4096  # of a failure


class Poisoned(Exception):
    """An input has no value, here or on a peer."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Member(NamedTuple):
    """The group of this rank, its place in it, and its size."""

    group: Any
    place: int
    size: int


class Collectives:
    """The groups of one rank."""

    def __init__(self, rank: int, values: dict[int, Any]) -> None:
        """`values`: the tensors of the rank."""
        self._rank = rank
        self._values = values
        self._sent: list[tuple[Any, Any]] = []  # sends under way, each with its memory
        self._places: dict[int, dict[int, int]] = {}
        self._members: dict[int, Member] = {}
        self.device: Any = None  # the GPU that tensors are on; None: the CPU

    def make_group(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> None:
        """Join a group. `layout`: each rank's part, its place in the part, and the part's size."""
        number, _, layout = scalars
        if number in self._members:
            return  # this rank is on both meshes of a move
        part, index, size = layout[self._rank]
        self._places[number] = {
            rank: at for rank, (other, at, _) in layout.items() if other == part
        }
        group = None if size == 1 else self._joined(scalars, TIMEOUT)[1]
        self._members[number] = Member(group, index, size)

    def process_group(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
        """Join a group, and return it for functions of the program, as torch.distributed takes it.

        It has connections of its own, which collectives of this runtime do not use.
        """
        *joined, timeout_s = scalars
        store, gloo = self._joined(joined, timedelta(seconds=timeout_s))
        c10d = distributed_c10d()
        made = c10d.ProcessGroup(store, gloo.rank(), gloo.size())
        for device in ("cpu",) if self.device is None else ("cpu", "cuda"):
            made._register_backend(torch.device(device), c10d.ProcessGroup.BackendType.GLOO, gloo)
        made._set_default_backend(c10d.ProcessGroup.BackendType.GLOO)
        return made

    def _joined(self, scalars: Sequence[Any], timeout: timedelta) -> tuple[Any, Any]:
        """The store of this rank's part of a group, and the gloo group."""
        number, place, layout = scalars
        part, index, size = layout[self._rank]
        c10d = distributed_c10d()
        if size == 1:
            alone = import_module("torch.distributed").HashStore()
            return alone, c10d.ProcessGroupGloo(alone, 0, 1, timeout=timeout)
        watch = rank_watch.active()
        ended = threading.Event() if watch is None else watch.reason_known
        own: FilePlace | TcpPlace = place
        if isinstance(place, FilePlace):
            own = FilePlace(f"{place.name}.{part}")
        store = abortable(store_at(own, size, TIMEOUT), ended, TIMEOUT)
        made = c10d.PrefixStore(f"{number}/{part}", store)
        group = c10d.ProcessGroupGloo(made, index, size, timeout=timeout)
        _exchange(group, torch.zeros(1, dtype=torch.int32))
        if index == 0 and isinstance(own, FilePlace):
            remove_file(own)
        return made, group

    def _member(self, number: int) -> Member:
        found = self._members.get(number)
        if found is None:
            raise RuntimeError("this rank has no process group, since making the group failed here")
        return found

    # --- reduce -----------------------------------------------------------------------------------

    def reduce(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
        """Combine the values of the ranks of a group."""
        number, reduction, scatter = kind.args
        value = inputs[0]
        member = self._member(number)
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
        member = self._member(number)
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
        before the next `send`, so ranks cannot wait for each other in a cycle.
        """
        (number,) = kind.args
        targets: list[int] = scalars[0].get(self._rank, [])
        sent, self._sent = self._sent, []
        for work, _ in sent:
            try:
                work.wait()
            except RuntimeError as error:  # its receiver has died, which ends that group only
                log.debug("rank %d: an earlier send has failed: %s", self._rank, error)
        if not targets:
            return
        group, places = self._member(number).group, self._places[number]
        value = inputs[0]
        failed = isinstance(value, Failure)
        flag = torch.tensor([int(failed)], dtype=torch.int32)
        data = _told(value) if failed else _bytes_of(value.cpu()).clone()
        for rank in targets:
            for one in (flag, data):
                self._sent.append((group.send([one], places[rank], number), one))

    def receive(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
        """Receive the value of another rank, or copy this rank's own."""
        number, dtype, shape = kind.args
        pairs, own = scalars
        origin: int = pairs[self._rank]
        if origin == self._rank:
            value = self._values[own]
            if isinstance(value, Failure):
                raise Poisoned(value)
            return value.clone(memory_format=torch.contiguous_format)
        group, source = self._member(number).group, self._places[number][origin]
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


def _bytes_of(value: Any) -> Any:
    """The bytes of a tensor, which every backend can send; a view if it is contiguous."""
    # An axis of size 1 may have any stride, which reshape(-1) keeps and view refuses.
    return plain_values(value).contiguous().as_strided((value.numel(),), (1,)).view(torch.uint8)


def _exchange(group: Any, flag: Any) -> None:
    """Replace the flag by the greatest flag of all ranks."""
    c10d = distributed_c10d()
    options = c10d.AllreduceOptions()
    options.reduceOp = c10d.ReduceOp.MAX
    group.allreduce([flag], options).wait()


def _failures(member: Member, inputs: list[Any]) -> dict[int, Failure]:
    """The inputs that have no value on some rank of the group, by their places. On all ranks."""
    failed = [isinstance(one, Failure) for one in inputs]
    flags = torch.tensor(failed, dtype=torch.int32)
    _exchange(member.group, flags)
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
    group, place, size = member
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
