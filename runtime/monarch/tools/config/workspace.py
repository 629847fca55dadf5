"""Monarch's path of `monarch.tools.config`."""

from monarch._src.mesh.workspaces import Workspace

__all__ = ["Workspace"]
