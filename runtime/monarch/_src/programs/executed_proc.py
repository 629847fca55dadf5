"""`python -m monarch._src.programs.executed_proc`: what every bootstrap command has to end in.

Runs in: a proc, as its main module. The rest is in `execute`, so that nothing is loaded twice.
"""

from __future__ import annotations

from monarch._src.host.exec_proc import main

main()
