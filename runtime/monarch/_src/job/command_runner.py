"""The actor that runs a command of the operating system on a rank.

Runs in: ranks of the procs that `exec_command` spawns. Owns: the command's process group, until the
command ends or the call is cancelled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from monarch._src.actor.current import current_rank
from monarch._src.actor.endpoint import Actor, endpoint
from monarch._src.system.process import BY_SIGNAL

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as shells report them
PYTHON = "\0python"  # stands for the interpreter of the rank; no program has such a name
GRACE_S = 5.0  # between SIGTERM and SIGKILL for a command whose call is cancelled


class CommandRunner(Actor):
    """Runs commands, one after another. Their output is that of the rank."""

    __monarch_label__ = "the command"

    def __init__(self) -> None:
        # Its place among all ranks; in a call to a slice `current_rank` is the place in the slice.
        self._point = current_rank()

    @endpoint
    def run(
        self, words: Sequence[str], env: Mapping[str, str], workdir: str | None,
        output_dir: str | None,
    ) -> int:  # fmt: skip
        """Run a command to its end and return its exit status; 128 + N if signal N ended it."""
        point = self._point
        sizes = dict(zip(point.extent.labels, point.extent.sizes, strict=True))
        with ExitStack() as stack:
            output: IO[bytes] | None = None
            if output_dir is not None:
                Path(output_dir).mkdir(parents=True, exist_ok=True)
                output = stack.enter_context(Path(output_dir, f"rank_{point.rank}.log").open("wb"))
            try:
                process = subprocess.Popen(
                    [sys.executable if word == PYTHON else word for word in words],
                    env={**os.environ, **rank_env(dict(point), sizes), **env},
                    cwd=workdir, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=None if output is None else subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                text = f"{error.filename or words[0]}: {error.strerror}\n"
                if output is None:
                    sys.stderr.write(text)
                else:
                    output.write(text.encode())
                return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            try:
                status = process.wait()
            except BaseException:
                _end(process)
                raise
        return status if status >= 0 else BY_SIGNAL - status


def rank_env(point: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, str]:
    """The variables that tell a command its place: `MONARCH_RANK_<DIM>`, `MONARCH_SIZE_<DIM>`."""
    return {
        **{f"MONARCH_RANK_{dim.upper()}": str(index) for dim, index in point.items()},
        **{f"MONARCH_SIZE_{dim.upper()}": str(size) for dim, size in sizes.items()},
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process group of a command, by SIGKILL if SIGTERM is not enough."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
            return
