"""The main programs of processes, by name, and the commands that execute them.

The programs are in `monarch._src.programs`, above all packages that start them. Those packages know
only the names in this module: no other module outside of `programs` names one.

Runs in: any process that starts another one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import monarch

AGENT = "monarch._src.programs.agent"
WORKER = "monarch._src.programs.worker"
TUNNEL_CLIENT = "monarch._src.programs.tunnel_client"
RELEASE_SESSION = "monarch._src.programs.release_session"
EXECUTED_PROC = "monarch._src.programs.executed_proc"
PROC_ENTRY = "monarch._src.programs.proc:prepare"
"""The function that the zygote calls; its result runs a proc that was forked."""

_ROOT = str(Path(monarch.__file__).parent.parent)
_LINE = (
    "sys.path[:] = [p for p in sys.path if p]; "
    "root = sys.argv.pop(); root in sys.path or sys.path.append(root); "
    "from {program} import main; main()"
)


def command(program: str, arguments: Sequence[str], *, collects: bool = True) -> list[str]:
    """The command that calls `main` of that module, with these arguments in `sys.argv`.

    `collects`: whether Python's garbage collector is on; the program may switch it on later.
    """
    begin = "import sys; " if collects else "import gc, sys; gc.disable(); "
    line = begin + _LINE.format(program=program)
    return [sys.executable, "-c", line, *arguments, _ROOT]
