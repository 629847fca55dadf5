"""A plugin of pytest that records what happens to each test, for `scripts/run_tests.py`.

    python -m pytest -p scripts.record_results --record FILE [--done FILE] ...

Runs in: the process of pytest.
Writes one JSON object a line into the file of `--record`, as soon as it happens, so that the file
tells in which test a process was when it crashed:

    {"collected": [node ids]}
    {"uncollected": node id, "why": ...}                    a module that failed to import
    {"skipped": node id, "why": ...}                        a module that skips itself
    {"started": node id}
    {"test": node id, "phase": "setup" | "call" | "teardown", "outcome": ..., "seconds": ...,
     "why": the first line of a failure or the reason of a skip, "of_the_run": ...}
    {"ended": exit status}

`of_the_run`: the failure is of a fixture of the whole run, and no test of its own has it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

import pytest

OF_THE_RUN = "the test run left behind"  # as tests/conftest.py words it


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--record` and `--done`."""
    parser.addoption("--record", metavar="FILE", help="record the results of tests in FILE")
    parser.addoption("--done", metavar="FILE", help="leave out the tests of this JSON list")


def pytest_configure(config: pytest.Config) -> None:
    """Begin the record."""
    path = config.getoption("--record")
    if path:
        done = config.getoption("--done")
        left_out = frozenset(json.loads(Path(done).read_text())) if done else frozenset[str]()
        file = Path(path).open("a")  # noqa: SIM115, it is open until pytest ends
        config.pluginmanager.register(_Recorder(file, left_out))


class _Recorder:
    def __init__(self, file: IO[str], left_out: frozenset[str]) -> None:
        self._file = file
        self._left_out = left_out

    def _record(self, **facts: Any) -> None:
        json.dump(facts, self._file)
        self._file.write("\n")
        self._file.flush()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        left_out = [item for item in items if item.nodeid in self._left_out]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.nodeid not in self._left_out]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._record(collected=[item.nodeid for item in session.items])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._record(uncollected=report.nodeid, why=_first_line(report))
        elif report.skipped:
            self._record(skipped=report.nodeid, why=_reason(report))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._record(started=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        facts: dict[str, Any] = {"why": "", "of_the_run": False}
        if report.failed:
            facts["why"] = _first_line(report)
            facts["of_the_run"] = OF_THE_RUN in report.longreprtext
        elif report.skipped:
            facts["why"] = _reason(report)
        self._record(
            test=report.nodeid, phase=report.when, outcome=report.outcome,
            seconds=report.duration, **facts,
        )  # fmt: skip

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._record(ended=int(exitstatus))

    def pytest_unconfigure(self) -> None:
        self._file.close()


def _first_line(report: pytest.CollectReport | pytest.TestReport) -> str:
    """What went wrong, in one line: that of the exception, if pytest knows it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if isinstance(report, pytest.CollectReport):  # a traceback
        lines.reverse()
    if not lines:
        return "without a word"
    first = lines[0].removeprefix("Failed: ")
    return f"{first} {lines[1]}" if first.endswith(":") and len(lines) > 1 else first


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Why a test or a module is skipped."""
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ")
