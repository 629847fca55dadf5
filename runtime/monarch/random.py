"""Random numbers on the ranks of a mesh: the same each run, and different on each rank if wanted.

import monarch.random

with workers.activate():
    monarch.random.manual_seed(7 + workers.rank_tensor("gpus"))
    noise = torch.randn(3)                 # other numbers on each rank, the same in each run
    state = monarch.random.get_state()     # stays on the ranks
    monarch.random.set_state(state)

Importing this imports torch.
"""

from monarch._src.tensor.remote.random_state import (
    State,
    get_state,
    make_deterministic,
    manual_seed,
    new_state,
    set_state,
)
from monarch.actor import context as _context  # registers this process as a client

del _context

__all__ = [
    "State",
    "get_state",
    "make_deterministic",
    "manual_seed",
    "new_state",
    "set_state",
]
