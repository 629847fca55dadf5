"""torchrun programs on hosts that are reserved once.

from monarch.job.spmd import serve

job = serve(["torchrun", "--nproc-per-node", "4", "train.py"], scheduler="local_cwd")
job.run_spmd()             # again and again, on the same hosts
job.kill()

A later program: `job_load(".monarch/job_state.pkl").run_spmd()`.
"""

from monarch._src.job.spmd import SPMDJob, serve
from monarch._src.job.store_job import StoreJob
from monarch._src.job.trait import job_load

__all__ = ["SPMDJob", "StoreJob", "job_load", "serve"]
