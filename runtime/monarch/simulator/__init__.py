"""Run a program of tensors on a mesh without processes, to learn its time and memory. See
`docs/how-to/plan_a_run.md`. It imports torch.
"""

from monarch._src.tensor.simulation.costs import Machine, SimulatedTask
from monarch._src.tensor.simulation.simulator import (
    OperationTotal,
    SimulatedMesh,
    SimulationReport,
    Simulator,
    set_meta,
)
from monarch.actor import context as _context  # registers this process as a client

del _context

__all__ = [
    "Machine",
    "OperationTotal",
    "SimulatedMesh",
    "SimulatedTask",
    "SimulationReport",
    "Simulator",
    "set_meta",
]
