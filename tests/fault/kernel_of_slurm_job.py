"""A notebook's kernel on this host, which uses jobs of Slurm: `kernel_of_slurm_job.py GIVEN`.

GIVEN, as JSON: the `options` of its jobs, and the `script` that `serve` runs. Says what its cells
show, a line each.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.notebook.kernel import PATIENCE, Kernel, running_kernel


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def spawn(kernel: Kernel, options: dict[str, Any]) -> None:
    """`%monarch spawn --job` on nodes of Slurm, and the host names of its ranks."""
    kernel.ok("from monarch.job import SlurmJob, job_path")
    kernel.ok(f"job = SlurmJob({{'trainers': 2}}, **{options!r})")
    kernel.ok("job.reserve(job_path('cluster'))")
    kernel.ok("%monarch spawn workers gpus=1 --job cluster")
    kernel.ok("%%monarch on workers\nimport os\nos.uname().nodename")
    say(spawned=kernel.value("list(_.values())"), job=kernel.value("job.slurm_job_id"))


def restart(kernel: Kernel) -> None:
    """Kill the kernel, and run the cells again in its successor."""
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=PATIENCE)
    kernel.ok("%load_ext monarch_jupyter")
    kernel.hold_output(PATIENCE)


def stop(kernel: Kernel) -> None:
    kernel.ok("%monarch stop --all")
    kernel.ok("job.kill()\njob_path('cluster').unlink()")


def serve(kernel: Kernel, options: dict[str, Any], script: str) -> None:
    """`serve` on nodes of Slurm, and what the ranks print in the cell."""
    command = ["torchrun", "--nnodes=2", "--nproc-per-node=1", script]
    kernel.ok("from monarch.job.spmd import serve")
    kernel.ok(f"job = serve({command!r}, scheduler='slurm', scheduler_cfg={options!r})")
    say(served=kernel.ok("job.run_spmd()").stdout)
    kernel.ok("job.kill()")


def main() -> None:
    given = json.loads(sys.argv[1])
    # Names of sockets have to be short.
    with tempfile.TemporaryDirectory() as folder, running_kernel(Path(folder)) as kernel:
        for killed in (False, True):
            if killed:
                restart(kernel)
            spawn(kernel, given["options"])
        stop(kernel)
        serve(kernel, given["options"], given["script"])
    say(killed=True)


if __name__ == "__main__":
    main()
