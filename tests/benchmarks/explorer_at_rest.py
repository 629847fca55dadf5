"""What an explorer of very many ranks costs the kernel while nothing happens.

    python -m tests.benchmarks.explorer_at_rest [RANKS] [SECONDS]

In a real kernel: the processor time that it takes between two cells, without and with an explorer
whose page has asked for its ranks; and that of the host agent, which is asked what they do.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.notebook.kernel import Kernel, running_kernel

PROGRAM = """
import os, time
from monarch import session

AGENT = next(s.agent_pid for s in session.sessions() if s.client_pid == os.getpid())

def spent():
    fields = open(f"/proc/{AGENT}/stat").read().rpartition(")")[2].split()
    agent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    print(time.monotonic(), time.process_time(), agent)
"""


def measured(kernel: Kernel, seconds: float) -> tuple[float, float]:
    """The share of a core that the kernel and the agent take, in per cent."""
    began = [float(word) for word in kernel.ok("spent()").stdout.split()]
    time.sleep(seconds)
    ended = [float(word) for word in kernel.ok("spent()").stdout.split()]
    wall, kernel_s, agent_s = (b - a for a, b in zip(began, ended, strict=True))
    return 100 * kernel_s / wall, 100 * agent_s / wall


def main() -> None:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
    with tempfile.TemporaryDirectory() as folder, running_kernel(Path(folder)) as kernel:
        kernel.ok(f"%monarch spawn workers gpus={ranks}")
        kernel.ok(PROGRAM)
        time.sleep(5)  # what spawning leaves to do is not what is asked about
        for name, cell in (("no explorer", "None"), ("an explorer", "e = %monarch show workers")):
            kernel.ok(cell)
            if "show" in cell:
                kernel.ok("e.on_sync()")  # as a page does that shows it
            time.sleep(3)  # as long as it looks more often, because a cell has just run
            of_kernel, of_agent = measured(kernel, seconds)
            sys.stdout.write(
                f"{ranks} ranks, {name:12} kernel {of_kernel:5.2f} %, host agent {of_agent:5.2f} % "
                "of a core\n"
            )
        kernel.ok("%monarch stop --all")


if __name__ == "__main__":
    main()
