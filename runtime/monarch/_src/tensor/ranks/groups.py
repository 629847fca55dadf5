"""The process groups of tensors on a rank.

Runs in: a rank, on the threads of its streams. Another thread ends waits when a peer is gone.
Owns: gloo groups, by numbers that the client gives them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any, NamedTuple

from monarch._src.spmd import rank_watch
from monarch._src.spmd.rendezvous import FilePlace, TcpPlace, remove_file, store_at
from monarch._src.spmd.stores import abortable
from monarch._src.spmd.torch_modules import distributed_c10d
from monarch._src.tensor.torch_modules import torch

TIMEOUT = timedelta(seconds=1800)


class Member(NamedTuple):
    """The group of this rank; its place in it and its size; the places of all, by their ranks."""

    group: Any
    place: int
    size: int
    places: dict[int, int]


class Groups:
    """The groups of one rank, for all of its streams."""

    def __init__(self, rank: int) -> None:
        """`rank`: among the procs that were spawned."""
        self._rank = rank
        self._members: dict[int, Member] = {}
        self._joining: dict[int, threading.Lock] = {}

    def join(self, number: int, place: FilePlace | TcpPlace, layout: Any) -> None:
        """Join a group. `layout`: each rank's part, its place in the part, and the part's size.

        A rank on both meshes of a move is asked twice, perhaps by two streams, and joins once.
        """
        with self._joining.setdefault(number, threading.Lock()):
            if number in self._members:
                return
            part, index, size = layout[self._rank]
            places = {rank: at for rank, (other, at, _) in layout.items() if other == part}
            group = None if size == 1 else self._joined((number, place, layout), TIMEOUT)[1]
            self._members[number] = Member(group, index, size, places)

    def member(self, number: int) -> Member:
        """The group of that number. RuntimeError if this rank could not join it."""
        found = self._members.get(number)
        if found is None:
            raise RuntimeError("this rank has no process group, since making the group failed here")
        return found

    def process_group(self, scalars: tuple[Any, ...], device: Any) -> Any:
        """Join a group, and return it for functions of the program, as torch.distributed takes it.

        It has connections of its own, which collectives of this runtime do not use.
        """
        *joined, timeout_s = scalars
        store, gloo = self._joined(joined, timedelta(seconds=timeout_s))
        c10d = distributed_c10d()
        made = c10d.ProcessGroup(store, gloo.rank(), gloo.size())
        for kind in ("cpu",) if device is None else ("cpu", "cuda"):
            made._register_backend(torch.device(kind), c10d.ProcessGroup.BackendType.GLOO, gloo)
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
        exchange(group, torch.zeros(1, dtype=torch.int32))
        if index == 0 and isinstance(own, FilePlace):
            remove_file(own)
        return made, group


def exchange(group: Any, flag: Any) -> None:
    """Replace the flag by the greatest flag of all ranks."""
    c10d = distributed_c10d()
    options = c10d.AllreduceOptions()
    options.reduceOp = c10d.ReduceOp.MAX
    group.allreduce([flag], options).wait()
