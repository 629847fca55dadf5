"""What is done about processes that die: started again, by a policy."""

from monarch._src.errors import RestartedError
from monarch._src.mesh.restart_policy import Restart

__all__ = ["Restart", "RestartedError"]
