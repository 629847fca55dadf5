"""Policies for processes that die: see `Restart`."""

from monarch._src.errors import RestartedError
from monarch._src.mesh.restart_policy import Restart

__all__ = ["Restart", "RestartedError"]
