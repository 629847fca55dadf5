"""Tensors of a mesh in a notebook: what a cell shows of them, and of their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.notebook.kernel import Kernel

pytest.importorskip("torch", reason="the kernel and the ranks need it")
pytestmark = pytest.mark.slow

FAILS = """with w.activate():
    x = torch.ones(3)
    bad = x[torch.tensor([5])]
"""


def test_a_tensor_tells_its_mesh_and_an_error_the_cell_that_issued_it(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn w gpus=2 --preload torch")
    kernel.ok("import monarch, torch")
    issued = kernel.ok(FAILS + "x").result["text/plain"]
    assert issued == "<monarch.Tensor [3] float32 on w {gpus: 2}>"
    number = kernel.value("len(In) - 2")
    failed = kernel.run("monarch.inspect(bad)")
    assert failed.status == "error"
    assert "IndexError: index 5 is out of bounds" in failed.traceback
    assert f"issued by line 3 of Cell In[{number}]" in failed.traceback
    assert "bad = x[torch.tensor([5])]" in failed.traceback
    assert kernel.value("monarch.inspect(x).tolist()") == "[1.0, 1.0, 1.0]"
    kernel.ok("%monarch stop --all")


def test_show_draws_the_shards_of_a_tensor(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn w gpus=2 --preload torch")
    kernel.ok("import monarch, torch")
    kernel.ok("with w.activate():\n    t = torch.ones(20, 30) * w.rank_tensor('gpus')")
    shown = kernel.ok("%monarch show t").result
    assert shown["text/plain"].splitlines() == [
        "monarch.Tensor [20, 30] float32 on w {gpus: 2}",
        "  ranks   lowest  mean  highest  not finite",
        "  gpus=0  0       0     0        0",
        "  gpus=1  1       1     1        0",
    ]
    assert shown["text/html"].count("<img") == 2
    assert "t" in kernel.complete("%monarch show ")
    kernel.ok(FAILS)
    assert "IndexError: index 5 is out of bounds" in kernel.run("%monarch show bad").traceback
    kernel.ok("%monarch stop --all")


def test_the_stop_button_ends_a_wait_and_loses_no_tensor(kernel: Kernel, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    kernel.ok("%monarch spawn w gpus=2 --preload torch")
    kernel.ok("import monarch, torch")
    kernel.ok(
        "def wait(x, gate):\n"
        "    import os, threading\n"
        "    print('waits', flush=True)\n"
        "    while not os.path.exists(gate):\n"
        "        threading.Event().wait(0.02)\n"
        "    return x\n"
        "with w.activate():\n"
        "    x = torch.ones(2)\n"
    )
    stopped = kernel.interrupt_when(
        f"held = monarch.remote(wait, propagate=lambda x, gate: x)(x, {str(gate)!r})\n"
        "y = x * 5 - 2\n"
        "monarch.inspect(held)",
        "waits",
    )
    gate.touch()
    assert stopped.status == "error"
    assert kernel.value("monarch.inspect(held).tolist()") == "[1.0, 1.0]"
    assert kernel.value("monarch.inspect(x + 1).tolist()") == "[2.0, 2.0]"
    assert kernel.value("monarch.inspect(y, gpus=1).tolist()") == "[3.0, 3.0]"
    kernel.ok("%monarch stop --all")
