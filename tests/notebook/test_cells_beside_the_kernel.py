"""`%%monarch on w --noblock` leaves the kernel free; its future has the outcome of the cell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.notebook.kernel import PATIENCE, Kernel
from tests.notebook.test_interrupts import told

PASSES = "import os\nwith open(fifo, 'rb', buffering=0) as pipe:\n    pipe.read(1)\n"
WAITS = "%%monarch on workers --noblock --out waiting\nimport time\nprint('begun')\ntime.sleep(600)"


@pytest.fixture
def workers(kernel: Kernel, tmp_path: Path) -> Kernel:
    """A kernel with two ranks that can wait for a byte in `fifo`; `let_go(n)` writes some."""
    os.mkfifo(tmp_path / "fifo")
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok(
        f"import os\nfifo = {str(tmp_path / 'fifo')!r}\nkept = os.open(fifo, os.O_RDWR)\n"
        "def let_go(ranks): os.write(kept, b'.' * ranks)"
    )
    kernel.ok("workers.push(fifo=fifo)")
    return kernel


def wait_for(kernel: Kernel, request: str, text: str) -> None:
    """Return when the cell of that request has begun on its ranks, and another one may run."""
    kernel.wait_until_written(request, text)
    kernel.ok("None")


def test_the_kernel_is_free_while_the_cell_runs_and_has_its_values_later(workers: Kernel) -> None:
    shown = workers.ok(f"%%monarch on workers --noblock --out training\n{PASSES}\nrank * 10")
    assert shown.result["text/plain"] == (
        "Future, pending, cell on workers: 0 of 2 ranks have ended; `.get()` or `await` waits for "
        "it"
    )
    assert "◌ pending" in shown.result["text/html"]
    assert workers.value("training.done") == "False"
    workers.ok("from monarch import observe")
    assert workers.value("[call.awaited for call in observe.open_calls()]") == "[False]"
    workers.ok("let_go(2)")
    assert workers.value("list(training.get(60).values())") == "[0, 10]"
    assert workers.ok("(await training)[1]").result["text/plain"] == "10"
    done = workers.ok("training").result
    assert done["text/plain"].startswith("Future, done, cell on workers: ")
    assert "● done" in done["text/html"]
    workers.ok("from monarch.actor import as_completed\nassert [*as_completed([training])]")


def test_output_and_the_end_are_told_in_the_cell_that_began(workers: Kernel) -> None:
    request = workers.client.execute(
        f"%%monarch on workers --noblock\n{PASSES}\nprint('passed')", store_history=True
    )
    workers.wait_until_busy(request)
    other = workers.client.execute("let_go(2)\n_.get(60)")
    said = {request: "", other: ""}
    while "is done after" not in said[request]:
        message = workers.client.get_iopub_msg(timeout=PATIENCE)
        if message["msg_type"] == "stream":
            said[message["parent_header"]["msg_id"]] += message["content"]["text"]
    assert said[request].startswith(
        "[gpus=0..1] passed\nmonarch: the cell on workers is done after"
    )
    assert said[other] == ""


def test_it_raises_what_the_cell_would_have_raised(workers: Kernel) -> None:
    cell = "\nif rank == 1:\n    raise ValueError('no data')"
    request = workers.client.execute(f"%%monarch on workers --noblock --out failing{cell}")
    workers.wait_until_written(request, "has failed after")
    blocking = workers.run(f"%%monarch on workers{cell}")
    later = workers.run("failing.get()")
    assert (later.error_name, blocking.error_name) == ("ActorError", "ActorError")
    assert later.traceback.splitlines()[0] == blocking.traceback.splitlines()[0]
    assert "raise ValueError('no data')" in later.traceback
    assert "monarch/_src" not in later.traceback
    shown = workers.ok("failing").result
    assert shown["text/plain"].startswith("Future, failed, cell on workers: ")


def test_an_error_is_told_once_though_nothing_reads_it(workers: Kernel) -> None:
    request = workers.client.execute("%%monarch on workers --noblock\n1 / 0;")
    workers.wait_until_written(request, "has failed after")
    shown = workers.ok("import gc\ngc.collect();")
    assert shown.stderr == ""


def test_names_go_along_and_come_back_at_its_end(workers: Kernel) -> None:
    workers.ok("x, rows = 5, [1, 2, 3, 4]")
    workers.ok(
        "%%monarch on workers --noblock --out cell --push x --scatter rows --gather total\n"
        f"{PASSES}\ntotal = x + sum(rows)"
    )
    workers.ok("x = 1000\nassert 'total' not in globals()\nlet_go(2)\nassert cell.get(60) is None")
    assert workers.value("list(total.values())") == "[8, 12]"


def test_a_time_limit_cancels_it(workers: Kernel) -> None:
    request = workers.client.execute(WAITS.replace("--out", "--timeout 0.5 --out"))
    workers.wait_until_written(request, "has not ended within 0.5 s on gpus=0..1 of workers")
    assert workers.run("waiting.get()").error_name == "CommandError"


def test_cancel_ends_it_and_ranks_keep_their_names(workers: Kernel) -> None:
    workers.ok("%%monarch on workers\nkept = rank")
    wait_for(workers, workers.client.execute(WAITS), "begun")
    workers.ok("assert waiting.cancel() and waiting.exception(60) and waiting.cancelled")
    assert workers.ok("%%monarch on workers\nkept;").status == "ok"


def test_the_stop_button_ends_it_if_no_cell_runs(workers: Kernel) -> None:
    request = workers.client.execute(WAITS)
    wait_for(workers, request, "begun")
    workers.manager.interrupt_kernel()
    workers.ok("assert waiting.exception(60) and waiting.cancelled")


def test_the_stop_button_of_another_cell_leaves_it_alone(workers: Kernel) -> None:
    workers.ok(f"%%monarch on workers --noblock --out training\n{PASSES}\nrank")
    shown = workers.interrupt_when("import time\nprint('x', flush=True)\ntime.sleep(600)", "x")
    assert (shown.error_name, shown.stdout) == ("KeyboardInterrupt", "x\n")
    workers.ok("let_go(2)\nassert list(training.get(60).values()) == [0, 1]")


def test_the_stop_button_of_a_cell_that_waits_for_it_ends_it(workers: Kernel) -> None:
    wait_for(workers, workers.client.execute(WAITS), "begun")
    shown = workers.interrupt_when(
        "import threading\ndef tell():\n    while not waiting.awaited: pass\n"
        "    print('waits', flush=True)\nthreading.Thread(target=tell).start()\nwaiting.get()",
        "waits",
    )
    assert shown.error_name == "KeyboardInterrupt"
    assert told(shown) == "interrupted; cancelled the cell on 2 ranks"


def test_it_ends_with_its_mesh(workers: Kernel) -> None:
    wait_for(workers, workers.client.execute(WAITS), "begun")
    workers.ok("%monarch stop workers\nassert waiting.exception(60) and waiting.cancelled")


def test_it_ends_with_its_kernel(fresh_kernel: Kernel) -> None:
    fresh_kernel.ok("%monarch spawn workers gpus=2")
    wait_for(fresh_kernel, fresh_kernel.client.execute(WAITS), "begun")
    fresh_kernel.manager.restart_kernel()
    fresh_kernel.client.wait_for_ready(timeout=PATIENCE)
    fresh_kernel.ok("%load_ext monarch_jupyter")
    fresh_kernel.ok("%monarch spawn workers gpus=2\nassert workers.map(abs, [-1]) == [1]")


def test_options_are_checked_and_completed(workers: Kernel) -> None:
    assert workers.refused("%%monarch on workers --out x\n1") == (
        "--out x: it binds the future of a cell with --noblock"
    )
    assert workers.refused("%%monarch on workers --noblock --out 1x\n1") == (
        "--out 1x: '1x' is not the name of a variable"
    )
    assert "--noblock" in workers.complete("%%monarch on workers --no")
