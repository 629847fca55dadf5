"""Run the tests of this checkout, in lanes side by side as far as there are cores for that.

    run_tests.py [--leave-out MARKER]... [PYTEST ARGUMENTS]

`make test-all` runs every test, `make test` leaves out those that are marked `slow`. Both execute
each notebook, and compare its outputs with the stored ones by their kinds
(`scripts/output_kinds.py`), which takes four minutes in the background.

Runs in: the process of `make`; a thread runs each lane but the first. Every pytest gets the
arguments. The first lane is shown as it goes, the others when all have ended. The tests of the leak
guard want a machine without other tests: they come last. Ctrl-C ends each pytest in order, since
the terminal tells it as well.

Meshes of eight processes and a browser keep two cores busy: there the first two lanes follow each
other, which takes half as long again and leaves each test the machine that it was written for. What
is in the lane beside them is one process at work most of the time, or an emulator, and holds
however long it takes: it has what the others leave.

When all lanes have ended, each test that has failed runs again, alone, twice
(`scripts/results.py`). If both runs pass, it is reported as flaky and does not fail the whole. If a
pytest crashes or hangs, the test that it was in counts as failed, and another pytest runs the rest.

Exit status: 0 if no test has failed for good, 130 after Ctrl-C, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

if __name__ == "__main__":  # as a program, it has its own folder on the path
    sys.path[0] = str(Path(__file__).parents[1])

from scripts.results import MOST_FAILURES, Results, Verdict, results_of, to_run_again

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
SECOND = ("fault",)
BESIDE = ("unit", "contract", "notebook", "packaging", "fuzz", "integration/rdma")
LEAKS = TESTS / "unit" / "test_leaks.py"
IN_THE_BACKGROUND = ("nice", "-n", "10")
CORES_FOR_TWO = 4
NO_CACHE = ("-p", "no:cacheprovider")  # its files are the first lane's
NO_HANG = "--timeout=900"  # seconds: what hangs fails, with all stacks, and the rest is run
# Seconds without a result after which a pytest counts as hanging, in code that no timeout ends.
SILENCE_S = float(os.environ.get("MONARCH_TEST_SILENCE", "1200"))
STACKS_S = 10.0  # for the stacks that SIGABRT makes pytest print
COMPARED = ("-p", "scripts.compare_outputs")  # the outputs of notebooks with the stored ones
NO_NOTEBOOKS = ("-p", "no:nbmake")  # it takes seconds to load


@dataclass(frozen=True)
class Run:
    """A run of pytest. A test of it runs again with the same options, in place of the paths."""

    name: str
    options: tuple[str, ...]
    paths: tuple[str, ...]
    before: tuple[str, ...] = ()  # the command that starts it


@dataclass
class Outcome:
    """What the runs of all lanes have given. Threads add to it."""

    results: Results = field(default_factory=Results)
    options: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    seconds: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, run: Run, results: Results, seconds: float) -> None:
        """Count a run."""
        with self._lock:
            self.results.add(results)
            self.options |= dict.fromkeys(results.again, run.options)
            self.seconds.append((run.name, seconds))


def first_lane() -> list[Run]:
    """All that is in no other."""
    elsewhere = [TESTS / name for name in (*SECOND, *BESIDE)]
    folders = sorted(path for path in TESTS.iterdir() if path not in elsewhere)
    paths = [str(path) for path in folders if any(path.glob("**/test_*.py"))]
    ignored = [f"--ignore={path}" for path in elsewhere]
    return [Run("processes and browser", NO_NOTEBOOKS, (*ignored, *paths))] if paths else []


def second_lane() -> list[Run]:
    """About half of the rest."""
    folders = [str(path) for name in SECOND if (path := TESTS / name).is_dir()]
    return [Run("faults", (*NO_CACHE, *NO_NOTEBOOKS), tuple(folders))] if folders else []


def lane_beside() -> list[Run]:
    """What goes on in the background."""
    there = tuple(str(path) for name in BESIDE if (path := TESTS / name).exists())
    paths = (f"--ignore={LEAKS}", *there)
    executed = (*NO_CACHE, *COMPARED, "--nbmake", "--nbmake-timeout=120")
    return [
        Run("beside", (*NO_CACHE, *NO_NOTEBOOKS), paths, IN_THE_BACKGROUND),
        Run("notebooks", executed, ("notebooks",), IN_THE_BACKGROUND),
    ]


# --- one process of pytest ------------------------------------------------------------------------


def run_pytest(run: Run, given: Sequence[str], done: frozenset[str], out: IO[str]) -> Results:
    """Run one pytest without the tests in `done`; stop it if it hangs."""
    shown = " ".join(["pytest", *run.options, *run.paths])
    out.write(f"== {shown}\n")
    out.flush()
    with tempfile.TemporaryDirectory(prefix="tests-") as folder:
        record, left_out = Path(folder, "record"), Path(folder, "done")
        record.touch()
        left_out.write_text(json.dumps(sorted(done)))
        command = [
            *run.before, sys.executable, "-m", "pytest",
            "-p", "scripts.record_results", "--record", str(record), "--done", str(left_out),
            NO_HANG, *run.options, *run.paths, *given,
        ]  # fmt: skip
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        status = _end_of(process, record)
        records = [json.loads(line) for line in record.read_text().splitlines() if _is_whole(line)]
        return results_of(records, status, shown)


def _is_whole(line: str) -> bool:
    """Whether the process was not ended in the middle of that line of its record."""
    return line.endswith("}")


def _end_of(process: subprocess.Popen[bytes], record: Path) -> int:
    """Wait for the end of a pytest, and end it if its record does not grow."""
    size, since = 0, time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(5.0, SILENCE_S))
        if record.stat().st_size != size:
            size, since = record.stat().st_size, time.monotonic()
        elif time.monotonic() - since > SILENCE_S:
            process.send_signal(signal.SIGABRT)  # pytest's fault handler prints all stacks
            with suppress(subprocess.TimeoutExpired):
                return process.wait(STACKS_S)
            process.kill()
            return process.wait()


def run_to_the_end(run: Run, given: Sequence[str], out: IO[str]) -> Results:
    """Run pytest, and after each crash another one for the tests that have not run."""
    results = run_pytest(run, given, frozenset(), out)
    latest = results
    while latest.crashed and len(results.failed) <= MOST_FAILURES:
        latest = run_pytest(run, given, frozenset(results.done), out)
        results.add(latest)
    return results


# --- lanes ----------------------------------------------------------------------------------------


def run_lane(lane: Sequence[Run], given: Sequence[str], outcome: Outcome, out: IO[str]) -> None:
    """Run each of these after the other, whatever comes of them, until Ctrl-C."""
    for run in lane:
        if outcome.results.interrupted:
            return
        begun = time.monotonic()
        results = run_to_the_end(run, given, out)
        outcome.add(run, results, time.monotonic() - begun)


@contextmanager
def running(lane: Sequence[Run], given: Sequence[str], outcome: Outcome) -> Iterator[None]:
    """Run a lane meanwhile; its output is shown at the end."""
    with tempfile.TemporaryFile("w+") as aside:
        thread = threading.Thread(target=run_lane, args=(lane, given, outcome, aside))
        thread.start()
        yield
        thread.join()
        aside.seek(0)
        sys.stdout.writelines(aside)


def run_again(outcome: Outcome, given: Sequence[str]) -> Verdict:
    """Run the failed tests again, each alone, twice."""
    begun = time.monotonic()
    verdict = Verdict(outcome.results, seconds=outcome.seconds)
    chosen = to_run_again(outcome.results)
    for unit, why in outcome.results.again.items():
        # A notebook has one test, without a name.
        path = unit.removesuffix("::")
        alone = Run("again", outcome.options[unit], (path,))
        if unit in chosen and all(_passes(alone, given, outcome.results) for _ in range(2)):
            verdict.flaky[unit] = why
        else:
            verdict.lasting[unit] = why
    if chosen:
        verdict.seconds.append(("again", time.monotonic() - begun))
    return verdict


def _passes(run: Run, given: Sequence[str], all_results: Results) -> bool:
    if all_results.interrupted:
        return False
    results = run_pytest(run, given, frozenset(), sys.stdout)
    all_results.interrupted |= results.interrupted
    return bool(results.done) and not (results.failed or results.broken or results.interrupted)


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--leave-out", action="append", default=[], metavar="MARKER")
    options, given = parser.parse_known_args(arguments)
    if options.leave_out:
        given += ["-m", f"not ({' or '.join(options.leave_out)})"]
    signal.signal(signal.SIGINT, lambda *_: None)  # which no pytest inherits
    # A shell's background job ignores it, and every program that the tests start would do so.
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    outcome = Outcome()
    with running(lane_beside(), given, outcome):
        if (os.cpu_count() or 1) >= CORES_FOR_TWO:
            with running(second_lane(), given, outcome):
                run_lane(first_lane(), given, outcome, sys.stdout)
        else:
            run_lane([*first_lane(), *second_lane()], given, outcome, sys.stdout)
    run_lane([Run("leaks", NO_NOTEBOOKS, (str(LEAKS),))], given, outcome, sys.stdout)
    verdict = run_again(outcome, given)
    for line in verdict.closing_lines():
        print(line, flush=True)
    return verdict.status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
