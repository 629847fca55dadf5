"""One rank in place of all: it runs instructions on tensors that have shapes and no values.

Runs in: the client. All ranks of a mesh run the same instructions on the same shapes, so one is
enough. torch computes shapes and aliases, as in real ranks; operations whose shapes depend on
values fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from monarch._src.tensor.opaque import OpaqueRef
from monarch._src.tensor.operations.operation import overload_of
from monarch._src.tensor.ranks.compiled_kinds import Call, filled, leaves_of
from monarch._src.tensor.ranks.runner import Runner
from monarch._src.tensor.ranks.streams import RankState
from monarch._src.tensor.simulation.costs import Machine, MemoryUse, SimulatedTimeline, sent_bytes
from monarch._src.tensor.state.instructions import Batch, Failure, Kind
from monarch._src.tensor.torch_modules import TorchTensor, torch

NO_FUNCTIONS = (
    "a simulated mesh does not run functions of the program. Give monarch.remote a propagate "
    "that tells the shapes of the result, and call it without .call"
)
UNCHANGED = ("aten::empty", "aten::new_empty", "aten::detach")  # write no values
COUNTED_WITHIN = (
    "monarch::region", "monarch::reduce", "monarch::reduce_together", "monarch::receive",
)  # fmt: skip
active_meta: ContextVar[tuple[Any, ...]] = ContextVar("active_meta", default=())


class SimulatedRank(Runner):
    """Runs each instruction once for all ranks of a region, and counts its cost."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(RankState(0))
        self._machine = machine
        self.timeline = SimulatedTimeline()
        self.memory = MemoryUse()
        self._device = torch.device("meta")
        self._sizes: dict[int, int] = {}  # of groups
        self._ranks: Sequence[int] = ()
        self._stream = ""
        self._own.update(
            {
                "monarch::select": _select,
                "monarch::make_group": self._make_group,
                "monarch::process_group": self._process_group,
                "monarch::reduce": self._reduce,
                "monarch::reduce_together": self._reduce_together,
                "monarch::send": self._send,
                "monarch::receive": self._receive,
            }
        )

    def run_on(self, ranks: Sequence[int], stream: str, batch: Batch) -> None:
        """Run instructions on these ranks."""
        self._ranks, self._stream = ranks, stream
        for kind in batch.kinds:
            self._kinds[kind.number] = kind
        self._run_code(batch.code, self.values)
        for number in batch.dead:
            self.values.pop(number, None)

    def _compile(self, number: int) -> Call:
        call = super()._compile(number)
        kind = self._kinds[number]
        flops_of = None if kind.operation in self._own else _flops_of(kind)

        def run(inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
            result = call(inputs, scalars)
            self._count(kind, inputs, scalars, result, flops_of)
            return result

        self._calls[number] = run
        return run

    def _laid_out(self, kind: Kind, call: Call) -> Call:
        """The same function: the client has its layouts from the same kernels."""
        return call

    def _count(
        self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...], result: Any,
        flops_of: Callable[..., int] | None,
    ) -> None:  # fmt: skip
        """Add an operation to the memory and to the timeline."""
        if kind.operation in COUNTED_WITHIN:
            return
        made = [one for one in leaves_of(result) if isinstance(one, TorchTensor)]
        is_new = [self.memory.storage_of(one) is None for one in made]
        known = {id(one) for one in inputs}
        storages = [
            self.memory.follow(one, self._ranks) for one in made if id(one) not in known
        ]  # fmt: skip
        if kind.operation in self._own:
            return
        written = [inputs[slot] for slot in kind.mutated]
        if kind.operation.startswith(UNCHANGED) or not (written or any(is_new)):
            return
        read = [one for one in inputs if isinstance(one, TorchTensor)]
        nbytes = sum(map(_nbytes, [*read, *made]))
        flops = 0
        if flops_of is not None:
            args = filled(kind.args, inputs, scalars)
            kwargs = {name: filled([one], inputs, scalars)[0] for name, one in kind.kwargs}
            flops = flops_of(*args, **kwargs, out_val=result)
        end_s = self.timeline.add(
            kind.operation.removeprefix("aten::"), self._ranks, self._stream,
            self._ready(read), self._machine.operation_s(flops, nbytes), flops=flops,
            nbytes=nbytes, meta=active_meta.get(),
        )  # fmt: skip
        for one in written:
            storage = self.memory.storage_of(one)
            if storage is not None:
                storages.append(storage)
        for storage in storages:
            storage.ready_s = end_s

    def _ready(self, tensors: Sequence[Any]) -> list[float]:
        found = (self.memory.storage_of(one) for one in tensors)
        return [storage.ready_s for storage in found if storage is not None]

    # --- instructions that run otherwise ----------------------------------------------------------

    def _run_function(self, number: int, packed: bytes, inputs: list[Any]) -> Any:
        raise RuntimeError(NO_FUNCTIONS)

    def _remote(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
        _, _, told, places = scalars
        return [
            OpaqueRef() if told[place] is None else self._empty(*told[place]) for place in places
        ]

    def _broadcast(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> None:
        """A function without a result has no effect here."""

    def _empty(self, shape: Sequence[int], dtype: Any) -> Any:
        return torch.empty(tuple(shape), dtype=dtype, device=self._device)

    def _make_group(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> None:
        number, _, layout = scalars
        self._sizes[number] = max(size for _, _, size in layout.values())

    def _process_group(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
        return OpaqueRef()

    def _reduce(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
        number, reduction, scatter = kind.args
        value, size = inputs[0], self._sizes[number]
        shape = list(value.shape)
        if reduction == "stack":
            shape = shape if scatter else [size, *shape]
        elif scatter:
            shape = shape[1:]
        result = self._empty(shape, value.dtype)
        self._transfer(
            f"reduce {reduction}", [value], [result],
            sent_bytes(_nbytes(value), size, reduction, scatter),
        )  # fmt: skip
        return result

    def _reduce_together(
        self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]
    ) -> list[Any]:
        number, reduction = kind.args
        made = [self._empty(one.shape, one.dtype) for one in inputs]
        sent = sent_bytes(sum(map(_nbytes, inputs)), self._sizes[number], reduction, False)
        self._transfer(f"reduce {reduction}", inputs, made, sent)
        return made

    def _send(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> None:
        """The `receive` that follows has the costs of both."""

    def _receive(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
        _, dtype, shape = kind.args
        pairs, number, _ = scalars
        sent = self.values[number]
        if isinstance(sent, Failure):
            raise RuntimeError(sent.message)
        result = self._empty(shape, dtype)
        moved = any(rank != origin for rank, origin in pairs.items())
        self._transfer("to_mesh", [sent], [result], float(_nbytes(sent)) if moved else 0.0)
        return result

    def _transfer(self, name: str, read: Sequence[Any], made: Sequence[Any], sent: float) -> None:
        storages = [self.memory.follow(one, self._ranks) for one in made]
        end_s = self.timeline.add(
            name, self._ranks, self._stream, self._ready(read), self._machine.transfer_s(sent),
            nbytes=sent, is_transfer=True, meta=active_meta.get(),
        )  # fmt: skip
        for storage in storages:
            storage.ready_s = end_s


def _select(kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
    """A view of the first place along an axis: all places have one shape."""
    return inputs[0].select(kind.args[0], 0)


def _nbytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _flops_of(kind: Kind) -> Callable[..., int] | None:
    """torch's own count of the arithmetic of an operation; None for one that it does not count."""
    counted: Any = import_module("torch.utils.flop_counter").flop_registry
    return counted.get(overload_of(kind.operation)._overloadpacket)
