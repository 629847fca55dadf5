"""Values of the program with tensors of a mesh among them."""

from __future__ import annotations

from typing import Any, NamedTuple

from monarch._src.tensor.channels.channel import Channel, two_channels
from monarch._src.tensor.opaque import OpaqueRef
from monarch._src.tensor.regions.recording import active
from monarch._src.tensor.state.instructions import Slot
from monarch._src.tensor.state.metas import Handle
from monarch._src.tensor.tensor import Tensor
from monarch._src.tensor.tensor_errors import object_in_region, unusable
from monarch._src.tensor.torch_modules import map_tree


class Tree(NamedTuple):
    """A value with a `Slot` in place of each tensor of a mesh, and of each OpaqueRef."""

    tree: Any
    handles: list[Handle]

    @property
    def channel(self) -> Channel | None:
        """The channel of the tensors; None without tensors.

        Raises:
            ValueError: the tensors are on several meshes, or one was dropped.
        """
        if not self.handles:
            return None
        channel: Channel = self.handles[0].channel
        for handle in self.handles:
            other: Channel = handle.channel
            if other is not channel:
                raise two_channels(channel, other)
            if handle.storage.unusable:
                raise unusable(handle)
        return channel


def taken_apart(value: Any) -> Tree:
    """Replace each tensor of a mesh, and each OpaqueRef, in a value by a `Slot`."""
    handles: list[Handle] = []
    watch = active()

    def replaced(one: Any) -> Any:
        if type(one) is Tensor:
            if watch is not None:
                watch.note(one)
        elif not isinstance(one, OpaqueRef) or one.monarch_handle is None:
            return one
        elif watch is not None:
            raise object_in_region(watch.name)
        handle: Any = one.monarch_handle
        handles.append(handle)
        return Slot(len(handles) - 1)

    return Tree(map_tree(replaced, value), handles)


def put_together(tree: Any, tensors: list[Any]) -> Any:
    """Replace each `Slot` of a tree by its tensor."""
    return map_tree(lambda one: tensors[one.place] if type(one) is Slot else one, tree)
