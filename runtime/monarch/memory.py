"""The memory of the GPUs of ranks, recorded by torch. It imports torch."""

from monarch._src.tensor.remote.memory_history import dump_memory_snapshot, record_memory_history
from monarch.actor import context as _context  # registers this process as a client

del _context

__all__ = ["dump_memory_snapshot", "record_memory_history"]
