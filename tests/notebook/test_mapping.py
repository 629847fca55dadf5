"""`workers.map(...)` in a cell: errors by item, the stop button, the death of a rank."""

from __future__ import annotations

from pathlib import Path

from tests.notebook.kernel import Kernel
from tests.notebook.test_interrupts import told


def test_an_error_shows_the_item_the_rank_and_the_users_line(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=4")
    kernel.ok("def invert(x):\n    return 1 / x")
    shown = kernel.run("workers.map(invert, [4, 2, 0, 1], chunk_size=1)")
    assert shown.error_name == "ItemError"
    first = shown.traceback.splitlines()[0]
    assert first == (
        "ItemError: invert(item 2: 0) on workers[gpus=2] raised ZeroDivisionError: division by zero"
    )
    assert "----> 2     return 1 / x" in shown.traceback
    assert "worker.py" not in shown.traceback
    assert "driver.py" not in shown.traceback


def test_an_item_that_cannot_be_pickled_is_one_line_at_the_line_of_the_cell(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    shown = kernel.run("import threading\nworkers.map(str, [1, threading.Lock()])")
    last = shown.traceback.splitlines()[-1]
    assert last.startswith("TypeError: map: item 1, a lock, cannot be sent to another process: ")
    assert "monarch/_src" not in shown.traceback


def test_the_stop_button_cancels_a_map_and_the_ranks_go_on(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("import time\ndef wait(item):\n    print('begun', flush=True)\n    time.sleep(600)")
    shown = kernel.interrupt_when("workers.map(wait, range(8))", "begun")
    assert shown.error_name == "KeyboardInterrupt"
    assert told(shown) == "interrupted; cancelled the map on 2 ranks"
    assert "----> 1 workers.map(wait, range(8))" in shown.traceback
    assert "monarch/_src" not in shown.traceback
    kernel.ok("assert workers.map(abs, [-1, -2]) == [1, 2]")


def test_a_death_is_told_once_and_the_map_goes_on(kernel: Kernel, tmp_path: Path) -> None:
    kernel.ok("%monarch spawn workers gpus=3")
    kernel.ok(
        f"import os, signal\nmarker = {str(tmp_path / 'killed')!r}\n"
        "def step(item):\n"
        "    if item == 5 and not os.path.exists(marker):\n"
        "        open(marker, 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return item\n"
    )
    shown = kernel.ok("workers.map(step, range(10)) == list(range(10))")
    assert shown.result["text/plain"] == "True"
    (line,) = shown.stderr.splitlines()
    assert "died while it ran the map: killed by SIGKILL" in line
    assert line.endswith("run again on the other ranks, of which 2 are left")
    later = kernel.ok("len(workers.map(step, range(10)))")
    assert (later.stderr, later.result["text/plain"]) == ("", "10")


def test_a_function_finds_names_that_a_cell_has_bound_on_the_rank(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("%%monarch on workers\nonly_there = 40\nboth = 2")
    kernel.ok(
        "import numpy as np\nboth = 1\nX, weights = np.arange(8), np.ones(3)\n"
        "workers.scatter(X=X)\nworkers.push(weights=weights)\n"
        "def scaled(x): return x\n"
        "def sweep(item): return int(only_there + both + scaled(len(X)) + weights.sum() + item)"
    )
    mapped = "sorted(workers.map(sweep, [0, 0]))"
    first = kernel.ok(mapped)
    assert first.result["text/plain"] == "[49, 49]"
    (line,) = first.stderr.splitlines()
    assert line == (
        "sweep uses both and X of the ranks of workers, which differ from those of this program; "
        "to use this program's, call workers.push(both=both, X=X) or rename them here"
    )
    again = kernel.ok(mapped)
    assert (again.result["text/plain"], again.stderr) == ("[49, 49]", ""), "it is said once"
    # The helpers of a function are those of the notebook, though a cell on ranks was run before.
    kernel.ok("%%monarch on workers\ndef scaled(x): return -x")
    kernel.ok("def scaled(x): return 100 * x")
    helper = kernel.ok(mapped)
    assert helper.result["text/plain"] == "[445, 445]"
    assert helper.stderr.startswith("sweep uses scaled of this program, which differs from")
    # The remedies: the notebook's value is pushed, and another name is used.
    kernel.ok("workers.push(both=both, X=X)\ndel weights")
    assert kernel.ok(mapped).result["text/plain"] == "[844, 844]"
    assert kernel.ok(mapped).stderr == ""
