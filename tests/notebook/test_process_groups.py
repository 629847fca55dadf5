"""Process groups of a mesh in a notebook: one line makes them, and cells on ranks use them."""

from __future__ import annotations

import pytest

from tests.notebook.kernel import Kernel

pytest.importorskip("torch", reason="the ranks need it")

SUM = """%%monarch on w
import torch, torch.distributed as dist
total = torch.ones(1 << 18)
{first}
dist.all_reduce(total)
total[0].item()
"""


@pytest.mark.slow
def test_cells_on_ranks_sum_after_one_line_and_a_rank_that_raises_is_named(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn w gpus=2 --preload torch --preload torch.distributed")
    unknown = kernel.run("w.init_process_group('mpi')").traceback
    assert "has no mpi; it has " in unknown
    assert "undefined" not in unknown
    lacking = kernel.run(SUM.format(first="")).traceback
    assert lacking.endswith("makes a process group of its ranks:\nw.init_process_group()\n")
    kernel.ok("w.init_process_group()")
    kernel.ok(SUM.format(first=""))
    assert kernel.value("list(_.values())") == "[2.0, 2.0]"
    failed = kernel.run(SUM.format(first="if rank == 1: raise ValueError('a bad batch')"))
    assert failed.status == "error"
    assert "a bad batch" in failed.traceback
    raised_at = failed.traceback[failed.traceback.index("raised CollectiveError") :]
    assert "raised ValueError: a bad batch (Cell In[" in raised_at
    assert " on w, line 4), and did not come to collective 2" in raised_at
    assert "and did not come to collective 2" in kernel.ok("%monarch error").stdout
    kernel.ok("w.init_process_group()")
    kernel.ok(SUM.format(first=""))
    assert kernel.value("list(_.values())") == "[2.0, 2.0]"
    listed = kernel.ok("%monarch ls").result["text/plain"]
    assert listed.count("the process group") == 1
    assert kernel.ok("%monarch restart w").stdout == (
        "restarted w: 2 new processes; make its process group again: w.init_process_group()\n"
    )
    kernel.ok("w.init_process_group()")
    kernel.ok("%monarch stop --all")


def test_a_device_mesh_goes_to_ranks_as_an_argument(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn w dp=1 tp=2 --preload torch --preload torch.distributed")
    kernel.ok(
        "from monarch.actor import Actor, endpoint\n"
        "class Sharded(Actor):\n"
        "    @endpoint\n"
        "    def dims(self, mesh):\n"
        "        return type(mesh).__name__, mesh.mesh_dim_names\n"
        "sharded = w.spawn('sharded', Sharded)"
    )
    kernel.ok("dims = sharded.dims.call(w.device_mesh()).get()")
    assert kernel.value("set(dims.values())") == "{('DeviceMesh', ('dp', 'tp'))}"
    kernel.ok("%monarch stop --all")
