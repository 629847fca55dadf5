"""Run the tests of this checkout, in lanes side by side as far as there are cores for that.

    run_tests.py [--leave-out MARKER]... [PYTEST ARGUMENTS]

`make test-all` runs every test, `make test` leaves out those that are marked `slow`, and the
notebooks.

Runs in: the process of `make`; a thread runs each lane but the first. Every pytest gets the
arguments. The first lane is shown as it goes, the others when all have ended. The tests of the leak
guard want a machine without other tests: they come last. Ctrl-C ends each pytest in order, since
the terminal tells it as well.

Meshes of eight processes and a browser keep two cores busy: there the first two lanes follow each
other, which takes half as long again and leaves each test the machine that it was written for. What
is in the lane beside them is one process at work most of the time, or an emulator, and holds
however long it takes: it has what the others leave.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
SECOND = ("fault",)
BESIDE = ("unit", "contract", "notebook", "packaging", "fuzz", "integration/data")  # and notebooks
LEAKS = TESTS / "unit" / "test_leaks.py"
IN_THE_BACKGROUND = ("nice", "-n", "10")
CORES_FOR_TWO = 4
NO_CACHE = ("-p", "no:cacheprovider")  # its files are the first lane's
NO_HANG = "--timeout=900"  # seconds: what hangs fails, with all stacks, and the rest is run
NO_NOTEBOOKS = ("-p", "no:nbmake")  # it takes seconds to load


def first_lane() -> list[list[str]]:
    """All that is in no other."""
    elsewhere = [TESTS / name for name in (*SECOND, *BESIDE)]
    folders = sorted(path for path in TESTS.iterdir() if path not in elsewhere)
    return [
        [
            *NO_NOTEBOOKS,
            *(f"--ignore={path}" for path in elsewhere),
            *(str(path) for path in folders if any(path.glob("**/test_*.py"))),
        ]
    ]


def second_lane() -> list[list[str]]:
    """About half of the rest."""
    folders = [str(path) for name in SECOND if (path := TESTS / name).is_dir()]
    return [[*NO_CACHE, *NO_NOTEBOOKS, *folders]]


def lane_beside(*, notebooks: bool) -> list[list[str]]:
    """What goes on in the background."""
    there = [str(path) for name in BESIDE if (path := TESTS / name).exists()]
    lane = [[*NO_CACHE, *NO_NOTEBOOKS, f"--ignore={LEAKS}", *there]]
    if notebooks:
        lane.append([*NO_CACHE, "--nbmake", "--nbmake-timeout=120", "notebooks"])
    return lane


def run(
    lane: Sequence[Sequence[str]],
    given: Sequence[str],
    failed: list[str],
    out: IO[str],
    before: Sequence[str] = (),
) -> None:
    """Run each of these after the other, whatever comes of them; note those that fail."""
    for arguments in lane:
        said = " ".join(arguments)
        out.write(f"== pytest {said}\n")
        out.flush()
        done = subprocess.run(
            [*before, sys.executable, "-m", "pytest", NO_HANG, *arguments, *given],
            cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        if done.returncode:
            failed.append(f"pytest {said}: status {done.returncode}")


@contextmanager
def running(
    lane: Sequence[Sequence[str]],
    given: Sequence[str],
    failed: list[str],
    before: Sequence[str] = (),
) -> Iterator[None]:
    """Run a lane meanwhile; what it said is shown at the end."""
    with tempfile.TemporaryFile("w+") as aside:
        thread = threading.Thread(target=run, args=(lane, given, failed, aside, before))
        thread.start()
        yield
        thread.join()
        aside.seek(0)
        sys.stdout.writelines(aside)


def main(arguments: Sequence[str]) -> int:
    """1 if a test failed in any lane."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--leave-out", action="append", default=[], metavar="MARKER")
    options, given = parser.parse_known_args(arguments)
    if options.leave_out:
        given += ["-m", f"not ({' or '.join(options.leave_out)})"]
    signal.signal(signal.SIGINT, lambda *_: None)  # which no pytest inherits
    failed: list[str] = []
    beside = lane_beside(notebooks="slow" not in options.leave_out)
    with running(beside, given, failed, IN_THE_BACKGROUND):
        if (os.cpu_count() or 1) >= CORES_FOR_TWO:
            with running(second_lane(), given, failed):
                run(first_lane(), given, failed, sys.stdout)
        else:
            run([*first_lane(), *second_lane()], given, failed, sys.stdout)
    run([[*NO_NOTEBOOKS, str(LEAKS)]], given, failed, sys.stdout)
    for line in failed:
        print(f"FAILED {line}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
