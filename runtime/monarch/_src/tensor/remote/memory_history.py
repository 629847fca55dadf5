"""The memory of the GPUs of ranks, recorded by torch, in files for its viewer.

Runs in: the client. `ranks.memory` is the part of the ranks.
"""

from __future__ import annotations

import os

from monarch._src.tensor.ranks import memory
from monarch._src.tensor.remote.functions import no_result, remote

_record = remote(memory.record, propagate=no_result)
_dump = remote(memory.dump, propagate=no_result)


def record_memory_history() -> None:
    """Have each rank of the active mesh record from now on what allocates memory of its GPU.

    Raises:
        ValueError: no mesh is active.
        ActorError: a rank has no GPU.
    """
    _record.call().get()


def dump_memory_snapshot(*, dir_snapshots: str | os.PathLike[str]) -> None:
    """Have each rank of the active mesh write `snapshot_<rank>.pickle`; return when all have.

    The files open at https://pytorch.org/memory_viz.

    Args:
        dir_snapshots: a folder, on the host of each rank.

    Raises:
        ValueError: no mesh is active.
        ActorError: a rank has no GPU, or cannot write there.
    """
    _dump.call(os.fspath(dir_snapshots)).get()
