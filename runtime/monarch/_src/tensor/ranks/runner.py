"""Runs instructions on a rank, and keeps its tensors.

Runs in: a rank, on the thread of one stream's `TensorWorker`.
Owns: the tensors of the stream, by their numbers.
Invariants: an instruction that fails, or has an input without a value, leaves a `Failure` in place
of its outputs and of each tensor that it writes to. Then the next instruction runs.
"""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from monarch._src.actor.errors.traceback_frames import IN_RUNTIME
from monarch._src.spmd.rank_watch import reason_of
from monarch._src.tensor.opaque import OpaqueRef
from monarch._src.tensor.packing import unpacked
from monarch._src.tensor.ranks.collectives import Collectives
from monarch._src.tensor.ranks.compiled_kinds import Call, call_of, laid_out, leaves_of
from monarch._src.tensor.ranks.streams import Borrows, RankState
from monarch._src.tensor.state.instructions import (
    MAIN,
    MANY,
    ONE,
    Batch,
    Failure,
    Instruction,
    Kind,
    Poisoned,
    Slot,
)
from monarch._src.tensor.state.regions import RecordedRegion
from monarch._src.tensor.torch_modules import (
    TorchTensor,
    map_tree,
    plain_values,
    pytree,
    torch,
)

log = logging.getLogger("monarch.tensor")
LONGEST_TEXT = 1 << 14  # characters
GIVES = ("monarch::lend", "monarch::give_back")  # another stream waits for these
OF_PROGRAM = ("monarch::remote", "monarch::remote_unknown")  # instructions that run a function


KEPT = (TorchTensor, OpaqueRef)
"""The results of functions that stay on the rank."""


class Result(NamedTuple):
    """The result of a function: its tensors and objects, and the tree with a `Slot` for each."""

    tensors: list[Any]
    tree: Any


class Runner:
    """The tensors of one stream of a rank."""

    def __init__(self, state: RankState, stream: str = MAIN) -> None:
        """`state`: that of the rank."""
        self._state = state
        self._rank = state.rank
        self._stream = stream
        self.values: dict[int, Any] = {}
        self._kinds: dict[int, Kind] = {}
        self._calls: dict[int, Call] = {}
        self._functions: dict[int, Any] = {}
        self._function_names: dict[int, str] = {}
        self._device: Any = None  # the GPU of this rank; None: its CPU
        self._borrows = Borrows(state)
        self._collectives = Collectives(state, self._borrows, self.values)
        self._own: dict[str, Callable[[Kind, list[Any], tuple[Any, ...]], Any]] = {
            "monarch::lift": self._lift,
            "monarch::rank": self._rank_tensor,
            "monarch::select": _select,
            "monarch::drop": self._drop,
            "monarch::define": self._define,
            "monarch::define_region": _define_region,
            "monarch::region": self._region,
            "monarch::remote": self._remote,
            "monarch::remote_unknown": self._remote_unknown,
            "monarch::unpack": _unpack,
            "monarch::broadcast": self._broadcast,
            "monarch::make_group": self._make_group,
            "monarch::process_group": self._process_group,
            "monarch::reduce": self._collectives.reduce,
            "monarch::reduce_together": self._collectives.reduce_together,
            "monarch::send": self._collectives.send,
            "monarch::receive": self._collectives.receive,
            "monarch::lend": self._borrows.give_tensors,
            "monarch::give_back": self._borrows.give_tensors,
            "monarch::borrow": self._borrows.borrow,
            "monarch::take_back": self._borrows.take_back,
        }

    def run(self, batch: Batch) -> None:
        """Run instructions in order."""
        if batch.device != self.device_type:  # this rank has restarted
            self.use_device(batch.device)
        for kind in batch.kinds:
            self._kinds[kind.number] = kind
        self._run_code(batch.code, self.values)
        for number in batch.dead:
            self.values.pop(number, None)

    @property
    def device_type(self) -> str:
        """Where this rank has its tensors: `"cpu"` or `"cuda"`."""
        return "cpu" if self._device is None else "cuda"

    def use_device(self, device: str) -> None:
        """Have tensors on the CPU, or on the GPU of this rank, from here on.

        Ranks that see several GPUs take them in turn.

        Raises:
            RuntimeError: torch can use no GPU here.
        """
        self._device = None
        if device == "cuda":
            index = self._rank % usable_gpus()
            torch.cuda.set_device(index)  # for code of the program that names no number
            self._device = torch.device("cuda", index)
            if self._stream != MAIN:  # whose thread stays on the GPU's default stream
                torch.cuda.set_stream(torch.cuda.Stream(self._device))
        self._collectives.device = self._borrows.device = self._device

    def _placed(self, tensor: Any) -> Any:
        """A tensor on the device of this rank."""
        return tensor if self._device is None else tensor.to(self._device)

    def _run_code(self, code: Sequence[Instruction], values: dict[int, Any]) -> None:
        """Run instructions whose numbers are keys of `values`."""
        calls, kinds = self._calls, self._kinds
        for number, numbers, first, scalars, site in code:
            inputs: list[Any] = []
            try:
                call = calls.get(number) or self._compile(number)
                for one in numbers:
                    inputs.append(values[one])  # noqa: PERF401  `_fail` needs the inputs read so far
                result = call(inputs, scalars)
            except (Exception, KeyboardInterrupt) as error:
                if number not in kinds:
                    # Sent when the client did not know yet that this rank has restarted. It counts
                    # the results as lost.
                    continue
                failure = self._failure(kinds[number], inputs, scalars, site, error)
                self._fail(values, kinds[number], numbers, first, failure)
                if kinds[number].operation in GIVES:
                    self._borrows.give(scalars[0].number, [failure] * len(numbers))
                continue
            kind = kinds[number]
            if kind.stores == ONE:
                values[first] = result
            elif kind.stores == MANY:
                leaves = leaves_of(result)
                for place, at in enumerate(kind.kept):
                    values[first + place] = leaves[at]

    def _compile(self, number: int) -> Call:
        kind = self._kinds[number]
        own = self._own.get(kind.operation)
        if own is None:
            found = self._laid_out(kind, call_of(kind, self._device))
        else:
            run = own

            def run_own(inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
                return run(kind, inputs, scalars)

            found = run_own
        self._calls[number] = found
        return found

    def _laid_out(self, kind: Kind, call: Call) -> Call:
        """The function whose results lie in memory as the client has it.

        Strides of views come from the client. Torch's kernels for shapes give other strides than
        those for values here and there, for the same inputs always. So only the first run looks.
        """
        places = kind.kept if kind.stores == MANY else (0,)
        own = [(at, one) for at, one in zip(places, kind.layouts, strict=False) if one is not None]
        if not own:
            return call

        def again(inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
            return laid_out(call(inputs, scalars), own)

        def first(inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
            result = call(inputs, scalars)
            found = laid_out(result, own)
            self._calls[kind.number] = call if found is result else again
            return found

        return first

    def _failure(
        self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...], site: int,
        error: BaseException,
    ) -> Failure:  # fmt: skip
        """The failure of an instruction that has raised: its own, or that of an input."""
        failure = next((one for one in inputs if isinstance(one, Failure)), None)
        if failure is None and isinstance(error, Poisoned):
            failure = error.failure
        if failure is not None:
            return failure
        if isinstance(error, RuntimeError) and kind.operation.startswith("monarch::"):
            error = _explained(error)
        failure = self.failure(kind.operation, site, error)
        if kind.operation in OF_PROGRAM:
            failure = replace(failure, function=self._function_names.get(scalars[0], ""))
        return failure

    def _fail(
        self, values: dict[int, Any], kind: Kind, numbers: tuple[int, ...], first: int,
        failure: Failure,
    ) -> None:  # fmt: skip
        """Put a failure in place of the outputs, and of the tensors that were written to."""
        for number in range(first, first + kind.outputs):
            values[number] = failure
        for slot in kind.mutated:
            self._poison(values, numbers[slot], failure)

    def failure(self, operation: str, site: int, error: BaseException) -> Failure:
        """The description of an error that an operation has raised on this rank."""
        if isinstance(error, KeyError) and error.args and isinstance(error.args[0], int):
            error = RuntimeError(
                "an input has no value on this rank, as after its restart; make the tensor again"
            )
        frames = traceback.TracebackException.from_exception(error)
        own = [one for one in frames.stack if not one.filename.startswith(IN_RUNTIME)]
        frames.stack[:] = own
        text = "".join(frames.format())[-LONGEST_TEXT:]
        try:
            packed = pickle.dumps(error.with_traceback(None))
            pickle.loads(packed)
        except Exception:
            packed = b""
        message = str(error)[:LONGEST_TEXT]
        kind = type(error).__name__
        return Failure(site, operation, self._rank, kind, message, text, packed)

    def _poison(self, values: dict[int, Any], number: int, failure: Failure) -> None:
        """Put a failure in place of a tensor and of all tensors that share its memory."""
        written = values.get(number)
        values[number] = failure
        if not isinstance(written, TorchTensor):
            return
        for each in {id(one): one for one in (values, self.values)}.values():
            for other in self._sharing(written, each):
                each[other] = failure

    def _sharing(self, tensor: Any, values: dict[int, Any]) -> list[int]:
        storage = tensor.untyped_storage()._cdata
        return [
            number for number, one in values.items()
            if isinstance(one, TorchTensor) and one.untyped_storage()._cdata == storage
        ]  # fmt: skip

    # --- operations of this runtime ---------------------------------------------------------------

    def _rank_tensor(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
        """The coordinate of this rank."""
        coordinates: dict[int, int] = scalars[0]
        return torch.tensor(coordinates[self._rank], device=self._device)

    def _drop(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> None:
        if not isinstance(inputs[0], TorchTensor):
            return
        for number in self._sharing(inputs[0], self.values):
            del self.values[number]

    def _region(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> list[Any]:
        """Run a region with these tensors. What fails in it leaves failures among the results."""
        region: RecordedRegion = inputs[0]
        if isinstance(region, Failure):
            raise Poisoned(region)
        registers = dict(zip(region.bound, inputs[1:], strict=True))
        for chunk in region.chunks:
            self._run_code(chunk.code, registers)
            for register in chunk.dead:
                registers.pop(register, None)
        return [registers[one] for one in region.outputs]

    def _define(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> None:
        """Keep a function, which the client calls by number. The first call unpickles it."""
        number, packed, name = scalars
        self._functions[number] = packed
        self._function_names[number] = name

    def function(self, number: int) -> Any:
        """The function of a number."""
        found = self._functions[number]
        if isinstance(found, bytes):
            found = self._functions[number] = function_from(found)
        return found

    def _remote(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
        number, packed, told, places, layouts = scalars
        result = self._run_function(number, packed, inputs)
        leaves = [one for one in pytree.tree_leaves(result) if isinstance(one, KEPT)]
        found = [facts_of(one) for one in leaves]
        if found != list(told):
            raise TypeError(
                f"the function has returned {_texts(found)}, and its propagation said "
                f"{_texts(told)}; correct propagate=..., or use propagate='inspect'"
            )
        kept = [self._kept(leaves[place]) for place in places]
        return laid_out(kept, [(at, one) for at, one in enumerate(layouts) if one is not None])

    def _kept(self, leaf: Any) -> Any:
        """A tensor or object of a result, as this rank keeps it."""
        return leaf if isinstance(leaf, OpaqueRef) else self._placed(plain_values(leaf.detach()))

    def _remote_unknown(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Result:
        number, packed = scalars
        result = self._run_function(number, packed, inputs)
        leaves, spec = pytree.tree_flatten(result)
        return Result(
            [self._kept(one) for one in leaves if isinstance(one, KEPT)],
            pytree.tree_unflatten(
                [Slot(0) if isinstance(one, KEPT) else one for one in leaves], spec
            ),
        )

    def describe(self, number: int) -> Failure | tuple[Any, list[Any]]:
        """The result of `monarch::remote_unknown`, with facts in place of tensors."""
        result = self.values[number]
        if isinstance(result, Failure):
            return result
        facts = [
            None if isinstance(one, OpaqueRef) else
            (tuple(one.shape), tuple(one.stride()), one.storage_offset(), one.dtype,
             one.untyped_storage().nbytes())
            for one in result.tensors
        ]  # fmt: skip
        return result.tree, facts

    def _make_group(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> None:
        self._state.groups.join(*scalars)

    def _process_group(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
        return self._state.groups.process_group(scalars, self._device)

    def _lift(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
        """A local tensor of the client."""
        dtype, shape = kind.args
        data = bytearray(scalars[0])
        if not data:
            return torch.empty(shape, dtype=dtype, device=self._device)
        return self._placed(torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape))

    def _broadcast(self, kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> None:
        number, packed = scalars
        try:
            self._run_function(number, packed, inputs)
        except Exception:
            log.exception("a function that was broadcast has raised on rank %d", self._rank)

    def call(self, number: int, packed: bytes, numbers: list[int]) -> Any:
        """Call a function for a client that waits for its result."""
        try:
            result = self._run_function(number, packed, [self.values[one] for one in numbers])
        except Poisoned as error:
            failure = error.failure
            raise RuntimeError(
                f"an argument has no value: {failure.operation} has failed on rank "
                f"{failure.rank} before: {failure.error}: {failure.message}"
            ) from None
        return map_tree(
            lambda one: one.detach().cpu() if isinstance(one, TorchTensor) else one, result
        )

    def _run_function(self, number: int, packed: bytes, inputs: list[Any]) -> Any:
        """Call a function of the program with tensors of this rank among its arguments."""
        for one in inputs:
            if isinstance(one, Failure):
                raise Poisoned(one)
        function = self.function(number)
        args, kwargs = filled_tree(unpacked(packed), inputs)
        with torch.enable_grad():
            return function(*args, **kwargs)


def usable_gpus() -> int:
    """How many GPUs torch can use in this process. RuntimeError if there is none."""
    if not torch.backends.cuda.is_built():
        raise RuntimeError("its torch is built without CUDA; install one with CUDA there")
    if not torch.cuda.is_available():
        raise RuntimeError("torch.cuda.is_available() is False there")
    return int(torch.cuda.device_count())


def function_from(packed: bytes) -> Any:
    """The function of a pickle, or of the path that it holds."""
    found = unpacked(packed)
    if isinstance(found, str):
        from pkgutil import resolve_name  # for functions that are given as text

        module, _, name = found.rpartition(".")
        return resolve_name(f"{module}:{name}")
    return found


def _explained(error: RuntimeError) -> Exception:
    why = reason_of(error)
    if why is None:
        return error
    told = RuntimeError(
        f"{why}, so the operation has failed here; go on with a slice of the mesh without that "
        "rank: tensor.slice_mesh(...), or with new tensors once that rank has restarted"
    )
    return told.with_traceback(None)


def filled_tree(tree: Any, inputs: list[Any]) -> Any:
    """A tree with the tensors and objects of this rank in their places."""
    return map_tree(lambda one: inputs[one.place] if type(one) is Slot else one, tree)


def facts_of(leaf: Any) -> tuple[tuple[int, ...], Any] | None:
    """The shape and dtype of a tensor; None for an object."""
    return None if isinstance(leaf, OpaqueRef) else (tuple(leaf.shape), leaf.dtype)


def _texts(told: Any) -> str:
    if not told:
        return "no tensors"
    return ", ".join(
        "an OpaqueRef" if one is None else f"a tensor {list(one[0])} {one[1]!s}" for one in told
    )


def _select(kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
    """A view of one place along an axis, whose number is a tensor."""
    return inputs[0].select(kind.args[0], int(inputs[1]))


def _unpack(kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> list[Any]:
    if isinstance(inputs[0], Failure):
        raise Poisoned(inputs[0])
    (told,) = kind.args
    found = [facts_of(one) for one in inputs[0].tensors]
    if found != list(told):
        raise TypeError(
            f"the function has returned {_texts(found)} here and {_texts(told)} on the "
            "first rank; tensors of a mesh have one shape on all ranks"
        )
    return inputs[0].tensors


def _define_region(kind: Kind, inputs: list[Any], scalars: tuple[Any, ...]) -> Any:
    """A region is a value on the ranks, so it is freed as tensors are."""
    return scalars[0]
