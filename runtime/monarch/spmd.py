"""SPMD programs on a mesh: see `docs/how-to/train_with_ddp.md`.

Importing this needs no torch; the ranks do.
"""

from monarch._src.errors import CollectiveError, RecoveryError
from monarch._src.mesh.process_group_methods import DeviceMeshRef
from monarch._src.spmd.actor import SPMDActor
from monarch._src.spmd.elastic.actor import ElasticActor, World
from monarch._src.spmd.elastic.driver import Recovery
from monarch._src.spmd.elastic.mesh import ElasticMesh
from monarch._src.spmd.elastic.script_training import ElasticTraining, Stateful
from monarch._src.spmd.elastic.step_reader import Hang
from monarch._src.spmd.elastic_setup import setup_torch_elastic_env, setup_torch_elastic_env_async
from monarch._src.spmd.process_group import device_mesh_async, init_process_group_async
from monarch._src.spmd.script import ScriptError
from monarch._src.spmd.torchrun import torchrun
from monarch._src.spmd.torchrun_arguments import torchrun_options
from monarch.actor import context as _context  # registers this process as a client

del _context

__all__ = [
    "CollectiveError",
    "DeviceMeshRef",
    "ElasticActor",
    "ElasticMesh",
    "ElasticTraining",
    "Hang",
    "Recovery",
    "RecoveryError",
    "SPMDActor",
    "ScriptError",
    "Stateful",
    "World",
    "device_mesh_async",
    "init_process_group_async",
    "setup_torch_elastic_env",
    "setup_torch_elastic_env_async",
    "torchrun",
    "torchrun_options",
]
