"""`scripts/run_tests.py`: what it runs, what it runs again, and what its exit status is."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.packaging.building import ROOT, run

SCRIPTS = (
    "run_tests.py",
    "record_results.py",
    "results.py",
    "compare_outputs.py",
    "output_kinds.py",
)
# In place of nbmake, whose import takes seconds, and of pytest-timeout.
CONFTEST = """
import pytest

def pytest_addoption(parser):
    parser.addoption("--nbmake", action="store_true")
    parser.addoption("--nbmake-timeout")
    parser.addoption("--timeout", type=int)

@pytest.fixture(autouse=True)
def is_told_of_runs(request, pytestconfig):
    assert pytestconfig.getoption("--timeout") > 0, "what hangs would not fail"
    with open({ran!r}, "a") as file:
        print(request.node.nodeid, file=file)
"""
ONCE = """
import pathlib
def first_time(name):
    path = pathlib.Path({folder!r}, name)
    is_first = not path.exists()
    path.touch()
    return is_first
"""


class Checkout:
    """A made-up checkout, with the scripts of this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran_path = folder / "ran"
        (folder / "scripts").mkdir()
        (folder / "notebooks").mkdir()
        for name in SCRIPTS:
            shutil.copy(ROOT / "scripts" / name, folder / "scripts")
        (folder / "pyproject.toml").write_text(
            "[tool.pytest.ini_options]\n"
            "addopts = ['--import-mode=importlib', '-q']\n"
            "markers = ['slow: s', 'browser: b', 'quick: q']\n"
        )
        (folder / "conftest.py").write_text(CONFTEST.format(ran=str(self.ran_path)))
        self.write("tests/unit/test_leaks.py", "def test_leaks(): pass")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ONCE.format(folder=str(self.folder)) + text)

    def run(
        self, *arguments: str, cores: int = 2, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return run(
            *self.command(cores), *arguments,
            cwd=self.folder, env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        )  # fmt: skip

    def command(self, cores: int) -> list[str]:
        on_cores = (
            f"import os, runpy, sys; os.cpu_count = lambda: {cores}; "
            "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
        )
        return [sys.executable, "-c", on_cores, str(self.folder / "scripts" / "run_tests.py")]

    def ran(self) -> list[str]:
        """The tests that have begun, in order."""
        return self.ran_path.read_text().split()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def lines(done: subprocess.CompletedProcess[str], *words: str) -> list[str]:
    """The lines of the runner's own that begin with one of these words."""
    own = done.stdout[done.stdout.rindex("== seconds") :]
    return [line for line in own.splitlines() if line.startswith(words)]


@pytest.mark.parametrize("cores", [2, 4])
def test_every_test_is_run_once_and_what_fails_in_any_lane_is_told(
    checkout: Checkout, cores: int
) -> None:
    failing = {
        "tests/unit/core/test_a.py": "raise ValueError('a')",
        "tests/browser/test_b.py": "raise ValueError('b')",
        "tests/fault/test_f.py": "raise ValueError('f')",
        "notebooks/test_d.py": "raise KeyError('d')",
    }
    passing = dict.fromkeys(
        [
            "tests/integration/rdma/test_softroce.py",
            "tests/integration/rdma/test_e.py",
            "tests/new/deep/test_c.py",
        ],
        "pass",
    )
    for name, body in (failing | passing).items():
        checkout.write(name, f"def test_it():\n    {body}\n")
    done = checkout.run(cores=cores)
    names = [name.partition("::")[0] for name in checkout.ran()]
    first = names[: names.index("tests/unit/test_leaks.py") + 1]
    assert sorted(first) == sorted([*failing, *passing, "tests/unit/test_leaks.py"])
    assert done.returncode == 1
    assert sorted(lines(done, "FAILED")) == [
        "FAILED notebooks/test_d.py::test_it: KeyError: 'd'",
        "FAILED tests/browser/test_b.py::test_it: ValueError: b",
        "FAILED tests/fault/test_f.py::test_it: ValueError: f",
        "FAILED tests/unit/core/test_a.py::test_it: ValueError: a",
    ]
    assert done.stdout.splitlines()[-1] == "tests: 4 passed, 4 failed, 0 skipped"


def test_marked_tests_are_left_out_of_every_lane_when_asked_for(checkout: Checkout) -> None:
    text = "import pytest\n" + "".join(
        f"@pytest.mark.{marker}\ndef test_{marker}(): pass\n"
        for marker in ("slow", "browser", "quick")
    )
    for folder in ("unit", "fault", "browser"):
        checkout.write(f"tests/{folder}/test_it.py", text)
    checkout.write("notebooks/test_d.py", "def test_it(): pass\n")
    done = checkout.run("--leave-out", "slow", "--leave-out", "browser")
    assert done.returncode == 0
    assert sorted(checkout.ran()) == [
        "notebooks/test_d.py::test_it",
        "tests/browser/test_it.py::test_quick",
        "tests/fault/test_it.py::test_quick",
        "tests/unit/test_it.py::test_quick",
        "tests/unit/test_leaks.py::test_leaks",
    ]


def test_a_test_that_fails_the_first_time_only_is_flaky_and_nothing_is_red(
    checkout: Checkout,
) -> None:
    checkout.write(
        "tests/fault/test_it.py",
        "import pytest\n"
        "@pytest.mark.parametrize('word', ['a b', 'c::d[e]'])\n"
        "def test_once(word):\n    assert not first_time(word[0]), 'unlucky'\n"
        "def test_skipped():\n    pytest.skip('no card')\n",
    )
    done = checkout.run()
    assert done.returncode == 0, done.stdout
    assert lines(done, "FLAKY", "FAILED") == [
        "FLAKY tests/fault/test_it.py::test_once[a b]: AssertionError: unlucky",
        "FLAKY tests/fault/test_it.py::test_once[c::d[e]]: AssertionError: unlucky",
    ]
    assert "     1  no card" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1] == "tests: 3 passed, 0 failed, 1 skipped"
    again = checkout.ran()[-4:]
    assert [name.rpartition("test_once")[2] for name in again if "once" in name]
    assert re.search(r"== seconds: .*faults \d+.*again \d+", done.stdout)


def test_a_test_that_fails_in_one_of_two_runs_alone_is_red(checkout: Checkout) -> None:
    checkout.write(
        "tests/fault/test_it.py",
        "def test_it():\n    assert not first_time('a')\n    assert first_time('b')\n",
    )
    done = checkout.run()
    assert done.returncode == 1
    assert len(lines(done, "FAILED tests/fault/test_it.py::test_it: ")) == 1


@pytest.mark.parametrize("first_only", [True, False])
def test_a_crash_costs_its_test_only_and_the_rest_is_run(
    checkout: Checkout, first_only: bool
) -> None:
    condition = "first_time('crash')" if first_only else "True"
    checkout.write(
        "tests/fault/test_a.py",
        "import os\n"
        "def test_before(): pass\n"
        f"def test_it():\n    if {condition}:\n        os.abort()\n"
        "def test_after(): pass\n",
    )
    checkout.write("tests/fault/test_b.py", "def test_later(): pass\n")
    done = checkout.run()
    why = "tests/fault/test_a.py::test_it: pytest ended in it by SIGABRT"
    assert lines(done, "FLAKY", "FAILED") == [("FLAKY " if first_only else "FAILED ") + why]
    assert done.returncode == (0 if first_only else 1)
    ran = [name.rpartition("::")[2] for name in checkout.ran()]
    begun = ["test_before", "test_it", "test_after", "test_later", "test_leaks", "test_it"]
    assert ran[: len(begun)] == begun


@pytest.mark.slow
def test_a_test_that_hangs_in_c_is_ended_with_all_stacks_and_the_rest_is_run(
    checkout: Checkout,
) -> None:
    checkout.write(
        "tests/fault/test_a.py",
        "import time\n"
        "def test_it():\n    while first_time('hang'):\n        time.sleep(1000)\n"
        "def test_after(): pass\n",
    )
    done = checkout.run(MONARCH_TEST_SILENCE="20")
    assert done.returncode == 0, done.stdout
    why = "pytest ended in it by SIGABRT"
    assert lines(done, "FLAKY") == [f"FLAKY tests/fault/test_a.py::test_it: {why}"]
    assert "test_a.py" in done.stdout[done.stdout.index("Fatal Python error: Aborted") :]
    assert checkout.ran().count("tests/fault/test_a.py::test_after") == 1


def test_with_26_failures_nothing_is_run_again(checkout: Checkout) -> None:
    checkout.write(
        "tests/fault/test_a.py",
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(26))\n"
        "def test_it(n):\n    assert not first_time(str(n))\n",
    )
    done = checkout.run()
    assert done.returncode == 1
    assert len(lines(done, "FAILED")) == 26
    assert len(checkout.ran()) == 27
    assert "more than 25 tests have failed: none is run again" in done.stdout


GUARD = """
import pytest
@pytest.fixture(autouse=True, scope="module")
def guard():
    yield
    if {condition}:
        pytest.fail("{whose} left behind:\\n  a process", pytrace=False)
def test_a(): pass
def test_b(): pass
"""


@pytest.mark.parametrize("first_only", [True, False])
def test_a_module_whose_teardown_fails_is_run_again_as_a_whole(
    checkout: Checkout, first_only: bool
) -> None:
    condition = "first_time('x')" if first_only else "True"
    checkout.write("tests/fault/test_a.py", GUARD.format(condition=condition, whose="it"))
    done = checkout.run()
    word = "FLAKY" if first_only else "FAILED"
    assert lines(done, "FLAKY", "FAILED") == [
        f"{word} tests/fault/test_a.py: it left behind: a process"
    ]
    assert done.returncode == (0 if first_only else 1)
    assert checkout.ran().count("tests/fault/test_a.py::test_a") == (3 if first_only else 2)


def test_a_leak_of_the_whole_run_is_red_since_no_test_shows_it_alone(checkout: Checkout) -> None:
    checkout.write(
        "tests/fault/test_a.py", GUARD.format(condition="first_time('x')", whose="the test run")
    )
    done = checkout.run()
    assert done.returncode == 1
    assert lines(done, "FLAKY", "FAILED") == [
        "FAILED tests/fault/test_a.py::test_b: the test run left behind: a process"
    ]
    assert done.stdout.splitlines()[-1] == "tests: 2 passed, 1 failed, 0 skipped"


def test_a_module_that_cannot_be_imported_is_red(checkout: Checkout) -> None:
    checkout.write("tests/fault/test_a.py", "import no_such_module\ndef test_it(): pass\n")
    done = checkout.run()
    assert done.returncode == 1
    assert lines(done, "FAILED") == [
        "FAILED tests/fault/test_a.py: E   ModuleNotFoundError: No module named 'no_such_module'"
    ]


def test_a_run_without_tests_is_red(checkout: Checkout) -> None:
    done = checkout.run("-k", "no_test_has_this_name")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "tests: 0 passed, 0 failed, 0 skipped"


@pytest.fixture
def started(checkout: Checkout) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts the runner in a process group of its own, as a terminal does."""
    processes: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        processes.append(
            subprocess.Popen(
                checkout.command(2), cwd=checkout.folder, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, start_new_session=True,
            )
        )  # fmt: skip
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


def test_ctrl_c_ends_all_and_nothing_is_run_again(
    checkout: Checkout, started: Callable[[], subprocess.Popen[str]]
) -> None:
    os.mkfifo(checkout.folder / "begun")
    checkout.write(
        "tests/fault/test_a.py",
        "import pathlib, time\n"
        "def test_a():\n    assert False\n"
        "def test_b():\n"
        f"    pathlib.Path({str(checkout.folder / 'begun')!r}).write_text('yes')\n"
        "    time.sleep(1000)\n",
    )
    process = started()
    assert (checkout.folder / "begun").read_text() == "yes"
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "interrupted: some tests have not run" in output
    assert checkout.ran().count("tests/fault/test_a.py::test_a") == 1
    assert "tests/unit/test_leaks.py::test_leaks" not in checkout.ran()
