"""A child process of the host agent that reads its ranks with py-spy, and answers by its output.

Runs in: the host agent, on its one thread. The agent must not wait for py-spy, nor for a full pipe:
the order is in a file, and the output is read as the selector says that there is some.
Owns: the child until its end, which its `main` has to bound.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import monarch

_CHUNK = 1 << 20
_ROOT = str(Path(monarch.__file__).parent.parent)
_PROGRAM = (
    "import sys, importlib; sys.path[:] = [p for p in sys.path if p]; "
    "root, name = sys.argv[1:]; root in sys.path or sys.path.append(root); "
    "importlib.import_module(name).main()"
)


def start_reader(
    selector: selectors.BaseSelector,
    module: str,
    order: bytes,
    ended: Callable[[bytes, int], None],
) -> None:
    """Run `main` of a module in a child, with the order as its standard input.

    `ended` is called with its output and its exit status.

    Raises:
        OSError: the process could not be started.
    """
    with tempfile.TemporaryFile() as file:
        file.write(order)
        file.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, _ROOT, module],
            stdin=file,
            stdout=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
    assert child.stdout is not None
    out = child.stdout
    os.set_blocking(out.fileno(), False)
    output = bytearray()
    selector.register(out, selectors.EVENT_READ, lambda: _read(selector, child, out, output, ended))


def _read(
    selector: selectors.BaseSelector,
    child: subprocess.Popen[bytes],
    out: IO[bytes],
    output: bytearray,
    ended: Callable[[bytes, int], None],
) -> None:
    try:
        while data := os.read(out.fileno(), _CHUNK):
            output += data
    except BlockingIOError:
        return
    selector.unregister(out)
    out.close()
    ended(bytes(output), child.wait())  # end-of-file came from its exit
