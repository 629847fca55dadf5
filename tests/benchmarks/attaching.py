"""How long it takes to take up a kept session after its client was killed in the middle of a call.

    python -m tests.benchmarks.attaching [--rounds 10] [--ranks 8]

For scripts: from the SIGKILL of the holder until `attach` has returned in a process that was
waiting, until the first answer came, and from the start of a new Python to that answer. For a
notebook, with --kernel: from the SIGKILL of the kernel until a new kernel (started then) shows the
first answer; and of that the cell with `%monarch attach` alone.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from monarch._src.session import directories, reap

HOLDER = """
import sys
from monarch.actor import Actor, endpoint, this_host
from monarch.session import keep

class Counter(Actor):
    def __init__(self):
        self.value = 0
    @endpoint
    def add(self, amount):
        self.value += amount
        return self.value
    @endpoint
    def sleep(self, seconds):
        import time
        time.sleep(seconds)

procs = this_host().spawn_procs({"gpus": int(sys.argv[2])}, name="workers")
counters = procs.spawn("counters", Counter)
counters.add.call(1).get()
keep(sys.argv[1])
counters.sleep.call(0.05)
print("ready", flush=True)
sys.stdin.readline()
"""
HEIR = """
import sys, time
from monarch.session import attach
print("ready", flush=True)
sys.stdin.readline()
begun = time.monotonic()
session = attach(sys.argv[1], take=True)
attached = time.monotonic()
values = session["counters"].add.call(1).get().values()
print(begun, attached, time.monotonic(), *values, flush=True)
sys.stdin.readline()
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, "a program has ended"
    return line


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def script(name: str, ranks: int, rounds: int) -> None:
    """Holders killed in turn, each followed by an heir that is the next holder."""
    attach_ms: list[float] = []
    answer_ms: list[float] = []
    cold_ms: list[float] = []
    holder = start(HOLDER, name, str(ranks))
    said(holder)
    for turn in range(rounds):
        heir = start(HEIR, name)
        said(heir)
        killed = time.monotonic()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        say(heir)
        begun, attached, answered, *values = map(float, said(heir).split())
        assert values == [turn + 2] * ranks, values
        del begun
        attach_ms.append(1e3 * (attached - killed))
        answer_ms.append(1e3 * (answered - killed))
        holder = heir
    for _ in range(3):
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        killed = time.monotonic()
        holder = start(HEIR, name)
        said(holder)
        say(holder)
        cold_ms.append(1e3 * (float(said(holder).split()[2]) - killed))
    holder.kill()
    holder.wait()
    for what, times in (
        ("SIGKILL to attached, in a process that waits", attach_ms),
        ("SIGKILL to the first answer of all ranks", answer_ms),
        ("the same, with the start of Python", cold_ms),
    ):
        print(f"{what:48} {statistics.median(times):7.1f} ms  (most {max(times):.1f})")


def notebook(name: str, ranks: int) -> None:
    """A kernel killed in a call, and the next one."""
    from tests.notebook.kernel import running_kernel

    with tempfile.TemporaryDirectory() as folder, running_kernel(Path(folder)) as first:
        first.ok(f"%monarch spawn {name} gpus={ranks} --keep")
        first.ok(
            "from tests.integration.sample_actors import Counter\n"
            f"counters = {name}.spawn('counters', Counter)\ncounters.add.call(1).get()"
        )
        pid = int(first.value("__import__('os').getpid()"))
        first.client.execute("import time\ntime.sleep(60)")
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with tempfile.TemporaryDirectory() as other, running_kernel(Path(other)) as second:
            up = time.monotonic()
            second.ok(f"%monarch attach {name}")
            attached = time.monotonic()
            second.ok("counters.add.call(1).get()")
            answered = time.monotonic()
            second.ok("%monarch stop --all")
    print(f"kernel: SIGKILL to the first answer in the next  {1e3 * (answered - killed):7.1f} ms")
    print(f"  of which the new kernel with the extension     {1e3 * (up - killed):7.1f} ms")
    print(f"  the cell with %monarch attach                  {1e3 * (attached - up):7.1f} ms")
    print(f"  the cell with the first call                   {1e3 * (answered - attached):7.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--kernel", action="store_true")
    arguments = parser.parse_args()
    name = f"bench_{os.getpid()}"
    try:
        script(name, arguments.ranks, arguments.rounds)
        if arguments.kernel:
            notebook(f"{name}_kernel", arguments.ranks)
    finally:
        found = directories.find_sessions(None)
        reap.end([s for s in found if s.kept is not None and s.kept.name.startswith(name)])


if __name__ == "__main__":
    main()
