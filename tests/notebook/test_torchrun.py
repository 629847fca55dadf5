"""`%monarch torchrun` and `%%monarch torchrun`: scripts and cells on ranks of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.notebook.kernel import Kernel

pytest.importorskip("torch", reason="the ranks need it")

CELL = """%%monarch torchrun --nproc-per-node 2 {words}
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1 << 18)
dist.all_reduce(total)
print("total", total[0].item(), sys.argv[1:])
if {fails} and dist.get_rank() == 1:
    raise ValueError("a bad batch")
dist.all_reduce(total)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_cell_runs_on_ranks_again_and_again_with_their_output_below_it(kernel: Kernel) -> None:
    for _ in range(2):
        shown = kernel.ok(CELL.format(words="-- x --lr=1", fails=False))
        assert "total 2.0 ['x', '--lr=1']" in shown.stdout
    assert kernel.ok("%monarch ls").stdout.count("torchrun") == 0


def test_the_error_of_a_cell_is_told_once_at_the_line_that_raised(kernel: Kernel) -> None:
    shown = kernel.run(CELL.format(words="", fails=True))
    assert shown.status == "error"
    told, where, line = [text.strip() for text in shown.traceback.splitlines() if text.strip()]
    assert told == "ActorError: the script on torchrun[ranks=1] raised ValueError: a bad batch"
    assert re.fullmatch(r"Cell In\[\d+\] on torchrun, line 9", where)
    assert line == '----> 9 raise ValueError("a bad batch")'
    assert "Traceback" not in shown.stderr


def test_a_script_runs_with_its_arguments(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print('ran with', sys.argv[1:])")
    shown = kernel.ok(f"%monarch torchrun {tmp_path}/train.py --lr 1")
    assert "ran with ['--lr', '1']" in shown.stdout


def test_bad_input_is_one_line(kernel: Kernel) -> None:
    assert "there is no script 'absent.py' in " in kernel.refused("%monarch torchrun absent.py")
    assert "unrecognized arguments: --bogus" in kernel.refused("%monarch torchrun --bogus x.py")
    assert "torchrun needs a script" in kernel.refused("%monarch torchrun")
    assert "there is no job absent" in kernel.refused("%monarch torchrun --job absent train.py")
    assert "--nnodes 2 does not fit" in kernel.refused(f"%monarch torchrun --nnodes 2 {__file__}")


def test_a_rank_that_dies_ends_the_run_with_what_can_be_done(kernel: Kernel) -> None:
    shown = kernel.run("%%monarch torchrun --nproc-per-node 1\nimport os; os._exit(3)")
    assert "died while it ran the script: exited with status 3" in shown.traceback
    assert "\nthe run has ended on all ranks; --max-restarts N begins it again" in shown.traceback
    assert "slice" not in shown.traceback


def test_a_cell_that_is_no_python_starts_nothing(kernel: Kernel) -> None:
    shown = kernel.run("%%monarch torchrun --nproc-per-node 1\nx = (")
    assert shown.error_name == "SyntaxError"
    assert "on torchrun>:2" in shown.traceback
    assert "ranks=" not in shown.traceback


def test_tab_offers_the_options_of_torchrun_up_to_the_script(kernel: Kernel) -> None:
    for magic in ("%monarch", "%%monarch"):
        found = kernel.complete(f"{magic} torchrun --n")
        assert found == ["--nnodes", "--no-python", "--nproc-per-node"]
    assert "--job" in kernel.complete("%monarch torchrun --")
    assert "--standalone" in kernel.complete("%monarch torchrun --nproc-per-node 2 --s")
    assert "--local-addr" not in kernel.complete("%monarch torchrun --l"), "it is refused"
    assert "--nnodes" not in kernel.complete("%monarch torchrun train.py --n")


def test_the_stop_button_ends_a_run_and_its_ranks(kernel: Kernel) -> None:
    cell = (
        "%%monarch torchrun --nproc-per-node 2\nimport time\nprint('begun')\n"
        "try: time.sleep(600)\nfinally: print('saved')"
    )
    shown = kernel.interrupt_when(cell, "begun")
    assert "[ranks=0..1] saved\n" in shown.stdout
    assert "monarch: interrupted; cancelled the script on 2 ranks\n" in shown.stdout
    assert (shown.status, shown.error_name) == ("error", "KeyboardInterrupt")
    assert shown.traceback.strip() == "KeyboardInterrupt in %%monarch torchrun --nproc-per-node 2"
    assert kernel.value("__import__('monarch.observe').observe.meshes()") == "[]"
