"""The main program that ends the meshes that a kept session has on workers.

Runs in: a process that a host agent starts as it ends (`session.release`), on its main thread.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from monarch._src.session.worker_release import release

log = logging.getLogger("monarch.agent")


def main() -> None:
    """`python -c ... DIRECTORY`: end what the session of that directory keeps on workers."""
    for problem in release(Path(sys.argv[1])):
        log.warning("%s", problem)
