"""Log on every rank of the active mesh."""

from monarch._src.tensor.remote.builtins import log_remote, set_logging_level_remote
from monarch.actor import context as _context  # registers this process as a client

del _context

__all__ = ["log_remote", "set_logging_level_remote"]
