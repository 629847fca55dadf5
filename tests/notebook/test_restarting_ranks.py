"""A rank that has died is brought back in its place by the line that its death shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.notebook.kernel import Kernel
from tests.notebook.test_restarting_meshes import FRAIL

pytestmark = pytest.mark.slow


def test_the_line_of_a_death_brings_the_rank_back_with_its_actors_and_names(
    kernel: Kernel,
) -> None:
    kernel.ok("%monarch spawn workers gpus=3")
    kernel.ok(f"{FRAIL}\nfrail = workers.spawn('frail', Frail)\nrate = 0.1\nrows = [1, 2, 3]")
    kernel.ok("%%monarch on workers --push rate --scatter rows\nloss = rank * rate")
    before = kernel.value("frail.pid.call().get().values()")
    text = kernel.run("frail.slice(gpus=1).die.call_one().get()").traceback
    line = "%monarch restart workers[gpus=1]"
    assert f"in its place, and makes the actors there anew:\n{line}\n" in f"{text}\n"
    assert "workers[gpus=1]" in kernel.complete("%monarch restart wor")
    assert kernel.ok(line).stdout == (
        "restarted workers[gpus=1]: 1 new process, with its actors: frail\n"
        "names lost on gpus=1: loss (bound by a cell)\n"
    )
    after = kernel.value("frail.pid.call().get().values()")
    assert before.split(",")[0] == after.split(",")[0]
    assert before.split(",")[1] != after.split(",")[1]
    kernel.ok("%%monarch on workers\n(rate, rows, rank)")
    assert kernel.value("_.values()") == "[(0.1, [1], 0), (0.1, [2], 1), (0.1, [3], 2)]"
    assert "1 restart" in kernel.ok("workers").result["text/plain"]
    assert kernel.complete("%monarch restart workers[") == ["gpus="]
    kernel.ok("%monarch restart workers[gpus=0:2]")
    assert kernel.value("len(set(frail.pid.call().get().values()))") == "3"
    kernel.ok("%monarch stop workers")


def test_a_mesh_that_code_has_spawned_restarts_ranks_too_and_says_which_did_not_come_back(
    kernel: Kernel, tmp_path: Path
) -> None:
    kernel.ok(f"import os\nos.chdir({str(tmp_path)!r})")
    kernel.ok(
        "from monarch.actor import this_host\n"
        "def boot():\n    import os\n    if os.path.exists('BAD'): 1/0\n"
        "w = this_host().spawn_procs({'gpus': 2}, name='w', bootstrap=boot)"
    )
    kernel.ok(f"{FRAIL}\nfrail = w.spawn('frail', Frail)")
    text = kernel.run("frail.slice(gpus=1).die.call_one().get()").traceback
    assert "\n%monarch restart w[gpus=1]\n" in f"{text}\n"
    assert kernel.refused("%monarch restart w[gpus=5]").startswith("gpus=5 is outside w")
    kernel.ok("open('BAD', 'w').close()")
    failed = kernel.run("%monarch restart w[gpus=1]")
    assert failed.error_name == "SupervisionError"
    assert "ZeroDivisionError" in failed.traceback
    assert "w[gpus=1] has not come back" in failed.traceback
    kernel.ok("os.unlink('BAD')")
    kernel.ok("%monarch restart w[gpus=1]")
    assert kernel.value("len(frail.pid.call().get())") == "2"
    kernel.ok("%monarch stop w")


def test_a_kept_mesh_is_not_offered_a_restart_of_its_ranks(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn k gpus=2 --keep")
    kernel.ok(f"{FRAIL}\nfrail = k.spawn('frail', Frail)")
    text = kernel.run("frail.slice(gpus=1).die.call_one().get()").traceback
    assert "%monarch restart" not in text
    assert kernel.refused("%monarch restart k[gpus=1]").startswith("'k' is kept, so its ranks")
    kernel.ok("%monarch stop k")
