"""The result of a run of tests, by the records of `scripts.record_results`. No I/O.

A test that has failed runs again, alone, when the machine is quiet. That tells a test that always
fails from one that fails now and then, because of what else runs. A failure in the setup or
teardown of a test may be its module's, such as that of the guard against leaks: the module runs
again.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

MOST_FAILURES = 25  # with more, something is broken, and nothing is run again
SLOWEST = 20
INTERRUPTED = 2  # pytest's exit status, as the next two
NONE_FAILED = 0
NO_TESTS = 5
PYTEST_STATUSES = range(6)


@dataclass
class Results:
    """The results of one process of pytest, or of several.

    done: all and only the tests that have ended, and those that crashed their process.
    failed: the first line of the first failure of each failed test.
    again: what is to run again, a test or its module, with the first line of the failure.
    broken: what cannot be run again, and so is a failure.
    """

    done: set[str] = field(default_factory=set[str])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    again: dict[str, str] = field(default_factory=dict[str, str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    seconds: Counter[str] = field(default_factory=Counter[str])
    broken: list[str] = field(default_factory=list[str])
    interrupted: bool = False
    crashed: bool = False

    def add(self, other: Results) -> None:
        """Count the results of another process too."""
        self.done |= other.done
        for own, added in ((self.failed, other.failed), (self.again, other.again)):
            for name, why in added.items():
                own.setdefault(name, why)
        self.skipped |= other.skipped
        self.seconds += other.seconds
        self.broken += other.broken
        self.interrupted |= other.interrupted
        self.crashed |= other.crashed

    @property
    def passed(self) -> int:
        """How many tests have passed."""
        return len(self.done - self.failed.keys() - self.skipped.keys())

    def fail(self, unit: str, test: str, why: str) -> None:
        """Note the failure of a test; `unit` is to run again for it."""
        self.failed.setdefault(test, why)
        self.again.setdefault(unit, why)


def results_of(records: Iterable[dict[str, Any]], status: int, command: str) -> Results:
    """The results of a process of pytest with that exit status, which was started as `command`."""
    results = Results()
    current = ""
    ended: int | None = None
    for record in records:
        if "started" in record:
            current = record["started"]
        elif "test" in record:
            _note(results, record)
            if record["phase"] == "teardown":
                results.done.add(current)
                current = ""
        elif "uncollected" in record:
            results.broken.append(f"{record['uncollected']}: {record['why']}")
        elif "skipped" in record:
            results.skipped[record["skipped"]] = record["why"]
        elif "ended" in record:
            ended = record["ended"]
    if status == INTERRUPTED and not results.broken:
        results.interrupted = True
    elif current and ended is None:
        results.crashed = True
        results.done.add(current)
        results.fail(current, current, f"pytest ended in it by {end_of(status)}")
    elif ended is None or status not in PYTEST_STATUSES:
        results.broken.append(f"{command}: ended outside of a test by {end_of(status)}")
    elif status not in (NONE_FAILED, NO_TESTS) and not (results.failed or results.broken):
        results.broken.append(f"{command}: {end_of(status)}")
    return results


def _note(results: Results, record: dict[str, Any]) -> None:
    test, why = record["test"], record["why"]
    results.seconds[test] += record["seconds"]
    if record["outcome"] == "skipped":
        results.skipped[test] = why
    elif record["of_the_run"]:
        results.failed.setdefault(test, why)
        results.broken.append(f"{test}: {why}")
    elif record["outcome"] == "failed":
        unit = test if record["phase"] == "call" else module_of(test)
        results.fail(unit, test, why)


def module_of(test: str) -> str:
    """The file of a test."""
    return test.partition("::")[0]


def end_of(status: int) -> str:
    """The end of a process with that exit status, in words."""
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


@dataclass
class Verdict:
    """The results of all runs, and of the second and third ones of tests that had failed.

    flaky: what has failed and then passed twice, alone, with the first line of the failure.
    lasting: tests that have failed again, or were not run again.
    """

    results: Results
    flaky: dict[str, str] = field(default_factory=dict[str, str])
    lasting: dict[str, str] = field(default_factory=dict[str, str])
    seconds: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    @property
    def status(self) -> int:
        """The exit status: 0 if nothing has failed for good."""
        if self.results.interrupted:
            return 128 + signal.SIGINT
        return 1 if self.lasting or self.results.broken or not self.results.done else 0

    @property
    def failures(self) -> int:
        """How many tests have failed for good."""
        again = self.results.again.keys()
        units = {test: again & {test, module_of(test)} for test in self.results.failed}
        return sum(not of_test or bool(of_test - self.flaky.keys()) for of_test in units.values())

    def closing_lines(self) -> Iterator[str]:
        """What the runner prints at its end."""
        results = self.results
        slowest = results.seconds.most_common(SLOWEST)
        if slowest:
            yield "== the slowest tests"
            yield from (f"{seconds:8.1f} s  {test}" for test, seconds in slowest)
        if results.skipped:
            yield "== skipped"
            reasons = Counter(results.skipped.values())
            yield from (f"{count:6}  {why}" for why, count in reasons.most_common())
        yield "== seconds: " + ", ".join(f"{name} {s:.0f}" for name, s in self.seconds)
        yield from (f"FLAKY {unit}: {why}" for unit, why in self.flaky.items())
        yield from (f"FAILED {unit}: {why}" for unit, why in self.lasting.items())
        yield from (f"FAILED {why}" for why in results.broken)
        if results.interrupted:
            yield "interrupted: some tests have not run"
        elif len(results.failed) > MOST_FAILURES:
            yield f"more than {MOST_FAILURES} tests have failed: none is run again"
        if self.flaky:
            yield f"{len(self.flaky)} flaky: mend what each shows, or note it in tests/FLAKY.md"
        passed = results.passed + len(results.failed) - self.failures
        yield f"tests: {passed} passed, {self.failures} failed, {len(results.skipped)} skipped"


def to_run_again(results: Results) -> list[str]:
    """The tests and modules that are to run again: none if too many have failed."""
    if results.interrupted or len(results.failed) > MOST_FAILURES:
        return []
    return list(results.again)
