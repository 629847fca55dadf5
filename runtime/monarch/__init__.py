"""Monarch: meshes of processes and actors, driven from one Python program.

Layout rule: everything private lives in `monarch._src`, in a package for each feature. The public
modules beside this file (`monarch.actor`, `monarch.observe`, `monarch.config`, ...) only
re-export. Importing any of them starts no process, no thread and no socket.
"""

from monarch._src.install_check import warn_of_rival_install
from monarch._src.monarch_paths import install as serve_monarchs_paths
from monarch._src.version import VERSION as __version__

__all__ = ["__version__"]

warn_of_rival_install()
serve_monarchs_paths()
