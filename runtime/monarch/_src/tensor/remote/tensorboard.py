"""Curves for TensorBoard that one rank writes, so that values need not come to the client.

Runs in: the client; the rank runs the functions that the client sends.
"""

from __future__ import annotations

import os
from typing import Any

from monarch._src.tensor.remote.functions import no_result
from monarch._src.tensor.remote.opaque_objects import OpaqueObject

WRITER = "torch.utils.tensorboard.SummaryWriter"


class Tensorboard:
    """A writer of TensorBoard's files on one rank.

    board = Tensorboard(workers.slice(gpus=0), "runs")
    board.log("loss", loss, step)        # a tensor of that rank, or a number
    board.close()
    """

    def __init__(
        self, coordinator: Any, path: str | os.PathLike[str], *args: Any, **kwargs: Any
    ) -> None:
        """Make the writer, and wait for it.

        Args:
            coordinator: a mesh of one rank.
            path: the folder of the files, on the host of that rank.
            args, kwargs: further ones of `torch.utils.tensorboard.SummaryWriter`.

        Raises:
            ValueError: the mesh has more than one rank, which would write the same files.
            ActorError: the rank has no tensorboard, or cannot write there.
        """
        if coordinator.size() != 1:
            raise ValueError(
                f"Tensorboard needs a mesh of one rank, and this one has {coordinator.size()}: "
                "all would write the same curves. Give a slice, as mesh.slice(gpus=0)"
            )
        self.path = os.fspath(path)
        self.coordinator = coordinator
        with coordinator.activate():
            self._writer = OpaqueObject(WRITER, self.path, *args, **kwargs)
            self._call("get_logdir")

    def log(self, name: str, data: Any, step: int) -> None:
        """Add a point to a curve. It returns at once.

        Args:
            data: a number, or a tensor of one element on this rank or on the CPU.
        """
        with self.coordinator.activate():
            self._writer.call_method(
                "add_scalar", no_result, name, data, global_step=step, new_style=True
            )

    def flush(self) -> None:
        """Write all points to the file, and wait for it. Raises ActorError if that fails."""
        self._call("flush")

    def close(self) -> None:
        """Write all points, close the file, and wait for it. Raises ActorError if that fails."""
        self._call("close")

    def _call(self, name: str) -> None:
        with self.coordinator.activate():
            self._writer.call_method_on_shard_and_fetch(name).get()
