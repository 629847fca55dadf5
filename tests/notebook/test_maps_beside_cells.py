"""A map whose future a cell has goes on while other cells run; the stop button tells them apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.notebook.kernel import PATIENCE, Kernel
from tests.notebook.test_interrupts import told

PASSES = """
import os, time
def passes(item):
    with open(fifo, "rb", buffering=0) as pipe:
        pipe.read(1)
    return item
def waits(item):
    print("begun", flush=True)
    time.sleep(600)
def invert(x):
    return 1 / x
"""


@pytest.fixture
def workers(kernel: Kernel, tmp_path: Path) -> Kernel:
    """A kernel with two ranks, and functions that wait for a byte in `fifo`, or for ten minutes."""
    os.mkfifo(tmp_path / "fifo")
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok(f"fifo = {str(tmp_path / 'fifo')!r}\n{PASSES}")
    return kernel


def test_cells_run_while_a_map_goes_on_and_get_its_values_later(workers: Kernel) -> None:
    shown = workers.ok("future = workers.map_async(passes, range(6))\nfuture")
    assert shown.result["text/plain"].startswith(
        "Future, pending, map of passes on workers: 0 of 6 items are done"
    )
    assert workers.value("future.done") == "False"
    workers.ok("pipe = os.open(fifo, os.O_RDWR)\nos.write(pipe, b'.' * 6);")
    assert workers.value("future.get(60)") == str(list(range(6)))
    assert workers.ok("os.close(pipe)\nawait future").result["text/plain"] == "[0, 1, 2, 3, 4, 5]"
    done = workers.ok("future").result["text/plain"]
    assert done.startswith("Future, done, map of passes on workers: [0, 1, 2")


def test_an_error_is_told_where_the_value_is_read_at_the_users_line(workers: Kernel) -> None:
    workers.ok("future = workers.map_async(invert, [4, 0])")
    for read in ("future.get()", "await future"):
        shown = workers.run(read)
        assert shown.error_name == "ItemError"
        assert "invert(item 1: 0) on workers[gpus=" in shown.traceback
        assert "    return 1 / x" in shown.traceback
        assert "monarch/_src" not in shown.traceback
    shown = workers.run("workers.map(lambda x, y: x / y, [1], [0])")
    assert "<lambda>(item 0: (1, 0)) on workers[gpus=" in shown.traceback
    assert "worker.py" not in shown.traceback


def test_an_error_that_nothing_reads_is_told_in_the_cell_that_began_the_map(
    workers: Kernel,
) -> None:
    shown = workers.ok(
        "import threading\nworkers.map_async(invert, [0]); None\n"
        "[t.join() for t in threading.enumerate() if t.name == 'monarch-work'];"
    )
    assert "invert(item 0: 0) on workers[gpus=" in shown.stderr
    assert shown.stderr.endswith(
        "Nothing has read this error: the future was dropped without .get() or await\n"
    )


def test_the_stop_button_cancels_the_map_that_a_cell_waits_for(workers: Kernel) -> None:
    workers.ok("future = workers.map_async(waits, range(8))")
    shown = workers.interrupt_when(
        "import threading\ndef tell():\n    while not (future.awaited and future.calls): pass\n"
        "    print('waits', flush=True)\nthreading.Thread(target=tell).start()\nfuture.get()",
        "waits",
    )
    assert shown.error_name == "KeyboardInterrupt"
    assert told(shown).startswith("interrupted; cancelled the map on ")
    assert workers.value("type(future.exception(60)).__name__") == "'ActorError'"
    workers.ok("assert future.cancelled and workers.map(abs, [-1, -2]) == [1, 2]")


def test_the_stop_button_leaves_the_map_of_another_cell_alone(workers: Kernel) -> None:
    workers.ok("future = workers.map_async(passes, range(6), chunk_size=1)")
    shown = workers.interrupt_when(
        # Items are handed out while this cell runs, and their calls are new.
        "pipe = os.open(fifo, os.O_RDWR)\nos.write(pipe, b'...')\n"
        "while future.progress != '3 of 6 items are done': pass\n"
        "print('waits', flush=True)\ntime.sleep(600)",
        "waits",
    )
    assert (shown.error_name, shown.stdout) == ("KeyboardInterrupt", "waits\n")
    workers.ok("os.write(pipe, b'...')\nassert future.get(60) == list(range(6))\nos.close(pipe)")


def test_the_stop_button_ends_the_map_if_no_cell_runs(workers: Kernel) -> None:
    request = workers.client.execute("future = workers.map_async(waits, [1, 2])")
    workers.wait_until_written(request, "begun")
    assert workers.value("future.done") == "False"
    workers.manager.interrupt_kernel()
    workers.ok(f"assert future.exception({PATIENCE}) is not None and future.cancelled")


def test_a_map_ends_with_its_mesh(workers: Kernel) -> None:
    request = workers.client.execute("future = workers.map_async(waits, [1, 2])")
    workers.wait_until_written(request, "begun")
    shown = workers.ok("%monarch stop workers\nfuture")
    assert "map of waits on workers was cancelled; 0 of 2 items are done" in str(shown.messages)


def test_submitted_functions_find_names_of_cells(workers: Kernel) -> None:
    workers.ok("%%monarch on workers\nonly_there = 40")
    workers.ok("here = 2\ndef total(x):\n    return only_there + here + x")
    shown = workers.ok("futures = [workers.submit(total, n) for n in range(3)]\nfutures[0].get()")
    assert shown.result["text/plain"] == "42"
    values = workers.ok("here = 5\n[future.get() for future in futures]")
    assert values.result["text/plain"] == "[42, 43, 44]"


def test_the_error_of_a_submitted_function_is_at_the_users_line(workers: Kernel) -> None:
    shown = workers.run("workers.submit(invert, 0).get()")
    assert shown.traceback.splitlines()[0].startswith("ItemError: invert(0) on workers[gpus=")
    assert "    return 1 / x" in shown.traceback
    assert "monarch/_src" not in shown.traceback


def test_the_stop_button_cancels_the_submitted_functions_that_a_cell_waits_for(
    workers: Kernel,
) -> None:
    shown = workers.interrupt_when(
        "futures = [workers.submit(waits, n) for n in range(2)]\nfutures[0].get()", "begun"
    )
    assert shown.error_name == "KeyboardInterrupt"
    assert told(shown) == "interrupted; cancelled the submitted function on 2 ranks"
    workers.ok("assert all(future.exception(60) and future.cancelled for future in futures)")
    workers.ok("assert workers.submit(abs, -3).get(60) == 3")


def test_the_stop_button_cancels_a_function_that_no_rank_has_begun(workers: Kernel) -> None:
    request = workers.client.execute(
        "running = [workers.submit(waits, n) for n in range(2)]\nqueued = workers.submit(abs, -3)"
    )
    workers.wait_until_written(request, "begun")
    shown = workers.interrupt_when(
        "import threading\ndef tell():\n    while not queued.awaited: pass\n"
        "    print('waits', flush=True)\nthreading.Thread(target=tell).start()\nqueued.get()",
        "waits",
    )
    assert shown.error_name == "KeyboardInterrupt"
    assert told(shown) == "interrupted before it began on a rank; cancelled abs on workers"
    workers.ok("assert queued.cancelled and not any(future.done for future in running)")
    workers.ok("[future.cancel() for future in running];")
