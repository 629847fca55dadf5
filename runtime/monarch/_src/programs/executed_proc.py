"""`python -m monarch._src.programs.executed_proc`: the end of every bootstrap command.

Runs in: a proc, as its main module. `host.exec_proc` has what this process remembers, since other
modules would import this one a second time.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

from monarch._src.host.exec_proc import begin, take_boot
from monarch._src.system.process import die_with_parent


def main() -> NoReturn:
    """The main program of a proc that was executed. Ends the process."""
    boot, lifeline = take_boot()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(  # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType]
            encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
    # The parent may be a program of the command: it dies with the zygote, and this process with it.
    die_with_parent(os.getppid())
    if sys.path[:1] == [os.getcwd()]:
        del sys.path[0]  # added by `python -m`
    for name in boot.spec.preload:
        importlib.import_module(name)
    status = begin(boot, lifeline)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
