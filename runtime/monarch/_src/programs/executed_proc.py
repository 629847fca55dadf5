"""`python -m monarch._src.programs.executed_proc`: the end of every bootstrap command.

Runs in: a proc, as its main module. `host.exec_proc` has the rest, so that no module is loaded
twice.
"""

from __future__ import annotations

from monarch._src.host.exec_proc import main

main()
