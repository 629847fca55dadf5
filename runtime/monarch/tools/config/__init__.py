"""The directories of a program that hosts get copies of.

from monarch.tools.config import Workspace

hosts.sync_workspace(Workspace("~/project", exclude=["data"])).get()
"""

from monarch._src.mesh.workspaces import Workspace, WorkspaceSync

__all__ = ["Workspace", "WorkspaceSync"]
