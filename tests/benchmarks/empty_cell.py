"""What `%%monarch on` costs above the call that it makes: an empty cell on eight ranks.

    python -m tests.benchmarks.empty_cell [ROUNDS]

In a real kernel, the two in turn, so that both see the same machine. The magic is timed inside the
cell that uses it, from its line to its end, which is what a user could save by calling an actor.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.notebook.kernel import running_kernel

PROGRAM = """
import statistics, time
from monarch.actor import Actor, endpoint

class Empty(Actor):
    @endpoint
    def run(self, source, filename):
        return None

empty = workers.spawn("empty", Empty)
shell = get_ipython()

def magic():
    shell.run_cell_magic("monarch", "on workers", "None")

def bare():
    empty.run.call("None", "a cell").get()

def milliseconds(what):
    began = time.perf_counter()
    what()
    return 1e3 * (time.perf_counter() - began)

for what in (magic, bare):
    for _ in range(20):
        what()
pairs = [(milliseconds(magic), milliseconds(bare)) for _ in range(ROUNDS)]
for name, times in zip(("%%monarch on", "bare call"), zip(*pairs)):
    print(f"{name:14} median {statistics.median(times):.2f} ms, best {min(times):.2f} ms")
print(f"difference     median {statistics.median(a - b for a, b in pairs):.2f} ms")
"""


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder, running_kernel(Path(folder)) as kernel:
        kernel.ok("%monarch spawn workers gpus=8")
        sys.stdout.write(kernel.ok(f"ROUNDS = {rounds}\n{PROGRAM}").stdout)
        kernel.ok("%monarch stop --all")


if __name__ == "__main__":
    main()
