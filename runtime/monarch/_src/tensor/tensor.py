"""`Tensor`: a tensor on every rank of a mesh. The client has everything of it but the values.

Runs in: the client, on any thread.
"""

from __future__ import annotations

import copy
import sys
from typing import Any, NoReturn

from monarch._src.actor.call.on_ranks import OnRanksError
from monarch._src.tensor.active_mesh import for_backward
from monarch._src.tensor.devices import check_move
from monarch._src.tensor.regions.recording import refuse, refuse_grad
from monarch._src.tensor.state.instructions import MAIN
from monarch._src.tensor.state.metas import Handle
from monarch._src.tensor.tensor_errors import (
    DROPPED,
    memory_of_ranks,
    place_text,
    without_length,
)
from monarch._src.tensor.torch_modules import TorchTensor, never_compiled, torch, with_bits

_make: Any = TorchTensor._make_wrapper_subclass
# The memory of a tensor is on the ranks; torch's C++ would read from address 0 for `to_dlpack`.
_refuse_memory: Any = torch._C._set_throw_on_mutable_data_ptr


class Tensor(TorchTensor):
    """A torch tensor on every rank of a mesh. Each rank has values of its own.

    Torch operations on the tensor run on the ranks, and return at once. Torch's functions make such
    tensors within `mesh.activate()`. `monarch.fetch_shard` gets the values of one rank.
    """

    monarch_handle: Handle  # its number on the ranks, its meta and storage
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: Any, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "a Tensor of a mesh is made by torch's functions within `with mesh.activate():`, or "
            "from a local tensor by monarch.to_mesh(tensor, mesh)"
        )

    @classmethod
    @never_compiled
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _dispatch(func, args, kwargs)

    @property
    def mesh(self) -> Any:
        """The ProcMesh that the tensor is on."""
        return self.monarch_handle.channel.mesh

    @property
    def dropped(self) -> bool:
        """Whether the program has dropped this tensor, or a tensor that shares its memory."""
        return self.monarch_handle.storage.unusable == DROPPED

    @property
    def data(self) -> Any:
        """As of torch.Tensor. An assignment gives this tensor the memory of another one.

        A local tensor is sent to the ranks. Refused in a compiled function, whose calls would not
        repeat it.
        """
        return TorchTensor.data.__get__(self)

    @data.setter
    def data(self, value: Any) -> None:
        refuse("an assignment to .data", "write into the tensor with tensor.copy_(value)")
        if type(value) is not Tensor:
            value = _methods.to_mesh(value, self.mesh)
        TorchTensor.data.__set__(self, value)
        self.monarch_handle = value.monarch_handle

    @property
    def _own_grad(self) -> Any:
        return TorchTensor.grad.__get__(self)

    @property
    def grad(self) -> Any:
        """As of torch.Tensor. Refused in a compiled function, whose calls would not see it."""
        refuse_grad()
        return TorchTensor.grad.__get__(self)

    @grad.setter
    def grad(self, value: Any) -> None:
        refuse_grad()
        TorchTensor.grad.__set__(self, value)

    @grad.deleter
    def grad(self) -> None:
        refuse_grad()
        TorchTensor.grad.__delete__(self)

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """As of torch.Tensor. Refused in a compiled function, since it sets `.grad`."""
        refuse_grad()
        with for_backward():
            TorchTensor.backward(self, *args, **kwargs)

    # --- the device -------------------------------------------------------------------------------

    @property
    def device(self) -> Any:
        """Where the ranks have the tensor: `cpu`, or `cuda`, a GPU of each rank's own."""
        return torch.device(self.monarch_handle.channel.driver.device)

    @property
    def is_cuda(self) -> bool:
        """Whether the ranks have the tensor on their GPUs."""
        return self.monarch_handle.channel.driver.device == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Whether the ranks have the tensor on their CPUs."""
        return not self.is_cuda

    def get_device(self) -> int:
        """The number of the device: 0, the only GPU of a rank, or -1 for a CPU."""
        return 0 if self.is_cuda else -1

    def cuda(self, *_: Any, **__: Any) -> Tensor:
        """The tensor itself, on a mesh whose tensors are on GPUs."""
        return self.to("cuda")

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        """The tensor itself, on a mesh whose tensors are on CPUs."""
        return self.to("cpu")

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """As of torch.Tensor. The device has to be the one that the tensors of the mesh are on."""
        named = kwargs.pop("device", None)
        if args and isinstance(args[0], (str, torch.device)):
            named, args = args[0], args[1:]
        if named is not None and not _is_torchs(named, sys._getframe(1)):  # pyright: ignore[reportPrivateUsage]
            check_move(self.monarch_handle.channel, named)
        kwargs.update(zip(("dtype", "non_blocking", "copy"), args, strict=False))
        if isinstance(kwargs.get("dtype"), TorchTensor):
            kwargs["dtype"] = kwargs["dtype"].dtype
        kwargs.pop("non_blocking", None)  # operations on the ranks never block
        if not any(kwargs.values()):
            return self
        return TorchTensor.to(self, **kwargs)

    # --- its mesh ---------------------------------------------------------------------------------

    def drop(self) -> None:
        """Free the tensor and all tensors that share its memory on the ranks now. Idempotent.

        Without `drop`, the ranks free the memory once the program has no reference left.
        """
        _methods.drop(self)

    def reduce(
        self,
        dims: Any = (),
        reduction: str = "sum",
        scatter: bool = False,
        mesh: Any = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Combine the values of ranks along dims of the mesh. See `monarch.reduce`."""
        return _methods.reduce(self, dims, reduction, scatter, mesh, out)

    def reduce_(
        self, dims: Any = (), reduction: str = "sum", scatter: bool = False, mesh: Any = None
    ) -> Tensor:
        """`reduce`, and write the result into this tensor, whose shape has to fit."""
        return _methods.reduce_(self, dims, reduction, scatter, mesh)

    def to_mesh(self, mesh: Any, stream: Any = None) -> Tensor:
        """Copy this tensor to the ranks of another mesh, or to another stream.

        See `monarch.to_mesh`.
        """
        return _methods.to_mesh(self, mesh, stream)

    def slice_mesh(self, **dims: Any) -> Tensor:
        """The same tensor on a part of its mesh, selected as `mesh.slice` does. Nothing is sent."""
        return _methods.slice_mesh(self, **dims)

    def numpy(self, *_: Any, **__: Any) -> Any:
        """The values of the first rank; refused without `configure(tensor_item="fetch")`."""
        return _methods.values_of_first_rank(self, "numpy()").numpy()

    def tolist(self) -> Any:
        """The values of the first rank; refused without `configure(tensor_item="fetch")`."""
        return _methods.values_of_first_rank(self, "tolist()").tolist()

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """The values of the first rank; refused without `configure(tensor_item="fetch")`."""
        return _methods.values_of_first_rank(self, "__dlpack__()").__dlpack__(*args, **kwargs)

    def __bool__(self) -> bool:
        return bool(_methods.values_of_first_rank(self, "bool()"))

    # --- indices ----------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        if _methods.has_number(index):
            return _methods.part(self, index)
        return TorchTensor.__getitem__(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        _methods.write(self, index, value)

    def __len__(self) -> int:
        if not self.dim():
            raise without_length()
        return int(self.shape[0])

    # --- copies -----------------------------------------------------------------------------------

    def __copy__(self) -> Tensor:
        made = self.detach().requires_grad_(self.requires_grad)
        made.__dict__.update(self._own_attributes())
        return made

    def __deepcopy__(self, memo: dict[Any, Any]) -> Tensor:
        if not self.is_leaf:
            raise RuntimeError(
                "copy.deepcopy copies no tensor that has a gradient function, as torch's does not; "
                "copy tensor.detach(), or keep the graph with tensor.clone()"
            )
        made = _methods.copied(self, memo).requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            made._is_param = True  # torch copies neither gradients nor attributes of parameters
        else:
            if self._own_grad is not None:
                made.grad = copy.deepcopy(self._own_grad, memo)
            made.__dict__.update(copy.deepcopy(self._own_attributes(), memo))
        memo[id(self)] = made
        return made

    def _own_attributes(self) -> dict[str, Any]:
        """The attributes that the program, or torch, has set: it marks parameters by one."""
        return {name: one for name, one in vars(self).items() if name != "monarch_handle"}

    def pin_memory(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: the memory is that of the ranks."""
        raise memory_of_ranks("pin_memory()")

    def data_ptr(self) -> NoReturn:
        """Refused: the memory is that of the ranks."""
        raise memory_of_ranks("data_ptr()")

    def as_subclass(self, cls: type) -> NoReturn:
        """Refused: the operations of this class are those that run on the ranks."""
        raise TypeError(
            f"as_subclass({cls.__name__}): a tensor of a mesh has the class monarch.Tensor, whose "
            "operations run on the ranks; keep what the subclass adds in an object that has the "
            "tensor as an attribute"
        )

    def is_pinned(self, *_: Any, **__: Any) -> bool:
        """False: no memory of the ranks is pinned."""
        return False

    def share_memory_(self) -> NoReturn:
        """Refused: the memory is that of the ranks."""
        raise memory_of_ranks("share_memory_()")

    def is_shared(self) -> bool:
        """False: no process shares the memory of the ranks."""
        return False

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise OnRanksError(
            "a Tensor of a mesh cannot be pickled: its values are on the ranks; pass "
            "monarch.fetch_shard(tensor).get(), or use monarch.remote(function)(tensor). To save a "
            "module: torch.save(monarch.inspect(module.state_dict()), path)"
        )

    def __format__(self, spec: str) -> str:
        if spec:
            return format(_methods.values_of_first_rank(self, f"format(tensor, {spec!r})"), spec)
        return repr(self)

    def __repr__(self, **_: Any) -> str:
        handle = self.monarch_handle
        meta, channel = handle.meta, handle.channel
        dtype = str(meta.dtype).removeprefix("torch.")
        extra = ", on GPUs" if self.is_cuda else ""
        extra += ", requires_grad" if self.requires_grad else ""
        extra += "" if channel.stream == MAIN else f", stream {channel.stream!r}"
        extra += ", dropped" if self.dropped else ""
        extra += ", which was stopped" if channel.driver.stopped is not None else ""
        where = place_text(channel.name, channel.region)
        return f"<monarch.Tensor {list(meta.shape)} {dtype} on {where}{extra}>"


def _is_torchs(device: Any, frame: Any) -> bool:
    """Whether torch's own code names the device that torch sees, a CPU, and not the program's."""
    name = str(frame.f_globals.get("__name__", ""))
    of_torch = name.startswith("torch.") and not name.startswith("torch.nn.modules.")
    return of_torch and torch.device(device).type == "cpu"


def wrap(handle: Handle) -> Tensor:
    """The tensor of a handle."""
    meta = handle.meta
    made = _make(
        Tensor, meta.shape, meta.strides, meta.offset, dtype=meta.dtype, device=meta.device
    )
    made.monarch_handle = handle
    _refuse_memory(made)
    return with_bits(made, meta.bits) if meta.bits else made


def _unset(*_: Any) -> NoReturn:
    raise RuntimeError("no dispatcher")


_dispatch: Any = _unset
_methods: Any = _unset


def connect(dispatch: Any, methods: Any) -> None:
    """Set the dispatcher of operations and the module of methods. Called by `dispatch`.

    This module cannot import them: both import this module.
    """
    global _dispatch, _methods
    _dispatch, _methods = dispatch, methods
