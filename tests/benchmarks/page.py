"""Run all commands of docs/explanation/benchmarks.md, one after another, on a quiet machine.

    python -m tests.benchmarks.page FOLDER [--torchmonarch PYTHON] [--ray PYTHON] [--only NAME ...]

FOLDER, which must be new, gets the output of each command in a file of its name. A command that
compares with torchmonarch or Ray runs without them if no PYTHON is given. Each command waits until
the processes of the one before have ended. The list at the end has seconds, exit status and how
many processes could run when the command began, so that a figure of a busy machine can be told.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "benchmarks.md"
COMMAND = re.compile(r"`python -m (tests\.benchmarks\.[^`]+)`")
PEERS = {"PYTHON": "torchmonarch", "PEER_PYTHON": "torchmonarch", "RAY_PYTHON": "ray"}
OPTION_OF_RAY = "--ray"
LONGEST_S = 1800
QUIET_S, PATIENCE_S = 3, 120
"""How long no other process may run before a command begins, and how long to wait for that."""


def commands(page: str, peers: Mapping[str, str | None]) -> list[list[str]]:
    """The arguments of Python for each command of the page, without absent peers."""
    found: list[list[str]] = []
    for text in COMMAND.findall(page):
        words = shlex.split(text)
        if words[0] == "tests.benchmarks.page":  # this program, which the page names too
            continue
        made = ["-m", words.pop(0)]
        while words:
            word = words.pop(0)
            if not words or words[0] not in PEERS:
                made.append(word)
                continue
            peer = peers["ray" if word == OPTION_OF_RAY else PEERS[words[0]]]
            words.pop(0)
            made += [] if peer is None else [word, peer]
        found.append(made)
    return found


def runnable() -> int:
    """How many processes can run now, this one included (proc_loadavg(5))."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])


def await_quiet() -> None:
    """Return when no other process has run for a while, or after `PATIENCE_S`."""
    quiet, deadline = 0, time.monotonic() + PATIENCE_S
    while quiet < QUIET_S and time.monotonic() < deadline:
        time.sleep(1)
        quiet = quiet + 1 if runnable() <= 1 else 0


def main() -> int:
    """Run them, and return 1 if one has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torchmonarch", metavar="PYTHON")
    parser.add_argument("--ray", metavar="PYTHON")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[])
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    failed = False
    peers = {"torchmonarch": given.torchmonarch, "ray": given.ray}
    for arguments in commands(PAGE.read_text(), peers):
        name = arguments[1].rpartition(".")[2]
        if given.only and name not in given.only:
            continue
        await_quiet()
        others, begin = runnable() - 1, time.monotonic()
        known = len([*given.folder.glob(f"{name}.txt"), *given.folder.glob(f"{name}.*.txt")])
        file = given.folder / (f"{name}.{known + 1}.txt" if known else f"{name}.txt")
        with open(file, "w") as output:
            try:
                status = subprocess.run(
                    [sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT,
                    timeout=LONGEST_S, check=False,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                status = -1
        failed = failed or status != 0
        took_s = time.monotonic() - begin
        print(f"{name}: {took_s:.0f} s, status {status}, beside {others} others", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
