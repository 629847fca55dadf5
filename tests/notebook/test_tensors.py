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
    again = kernel.ok("import monarch_jupyter as mj\nmj.show(t)").result
    assert again["text/plain"] == shown["text/plain"]
    kernel.ok(
        "with w.activate():\n"
        "    parts = torch.stack([torch.eye(200)[0::2], torch.eye(200)[1::2]])\n"
        "    mixed = parts[w.rank_tensor('gpus').reshape(1)]\n"
    )
    told_apart = kernel.ok("%monarch show mixed").result["text/plain"].splitlines()
    assert told_apart[1].endswith("not finite  contents")
    assert [line.split()[0] for line in told_apart[2:]] == ["gpus=0", "gpus=1"]
    kernel.ok(FAILS)
    number = kernel.value("len(In) - 2")
    kernel.ok("part = bad.slice_mesh(gpus=1)")
    for line in ("%monarch show bad", "mj.show(bad)", "%monarch show part"):
        failed = kernel.run(line)
        assert failed.traceback.startswith("RemoteException"), failed.traceback
        assert "IndexError: index 5 is out of bounds" in failed.traceback
        assert f"issued by line 3 of Cell In[{number}]" in failed.traceback
    assert "not a Linear" in kernel.run("mj.show(torch.nn.Linear(1, 1))").traceback
    kernel.ok("%monarch stop --all")


REFUSED = {
    "torch.ones(3, 4) @ torch.ones(5, 6)": "must have same reduction dim",
    "torch.ones(3, 4).sum(7)": "Dimension out of range",
    "x + large": "only those of up to 65,536 bytes are sent along",
    "float(whole[0])": "item(), float() or an index",
    "step(torch.ones(2, 3))": "must have same reduction dim",
}


def test_a_refused_operation_is_shown_at_its_line_without_inner_frames(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn w gpus=2 --preload torch")
    kernel.ok("import monarch, torch")
    kernel.ok("large = torch.ones(100, 1000)")
    kernel.ok("@monarch.compile\ndef step(x):\n    return x @ x")
    kernel.ok("with w.activate():\n    x, whole = torch.ones(1000), torch.ones(2)")
    for source, text in REFUSED.items():
        cell = f"with w.activate():\n    {source}"
        shown = kernel.run(cell).traceback
        assert text in shown
        assert source in shown
        assert "File " not in shown, shown
        assert "During handling" not in shown, shown
        assert ("return x @ x" in shown) == source.startswith("step")
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
