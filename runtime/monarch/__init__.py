"""Monarch: meshes of processes and actors, driven from one Python program.

Names of distributed tensors (`monarch.Tensor`, `monarch.remote`, `monarch.fetch_shard`, ...) are
attributes of this package that import torch when a program first uses one.

Layout rule: everything private lives in `monarch._src`, in layers named for what they know
(`docs/explanation/packages.md` lists them). The public modules beside this file (`monarch.actor`,
`monarch.observe`, `monarch.config`, ...) only re-export. Importing any of them starts nothing:
no process, no thread, no socket.
"""

from typing import TYPE_CHECKING, Any

from monarch._src.install_check import warn_of_rival_install
from monarch._src.monarch_paths import install as serve_monarchs_paths
from monarch._src.version import VERSION as __version__

if TYPE_CHECKING:
    from monarch.actor import Extent as Extent
    from monarch.actor import Future as Future
    from monarch.actor import NDSlice as NDSlice
    from monarch.actor import Shape as Shape
    from monarch.config import clear_runtime_config as clear_runtime_config
    from monarch.config import configure as configure
    from monarch.config import configured as configured
    from monarch.config import get_global_config as get_global_config
    from monarch.config import get_runtime_config as get_runtime_config
    from monarch.tensors import *  # noqa: F403

_OF_TENSORS = (
    "OpaqueObject",
    "OpaqueRef",
    "RemoteException",
    "RemoteProcessGroup",
    "Stream",
    "Tensor",
    "call_on_shard_and_fetch",
    "coalescing",
    "compile",
    "fetch_shard",
    "get_active_mesh",
    "get_active_stream",
    "grad_function",
    "grad_generator",
    "inspect",
    "no_mesh",
    "opaque_method",
    "reduce",
    "reduce_",
    "remote",
    "show",
    "slice_mesh",
    "to_mesh",
)

_MODULES_OF_TENSORS = ("builtins", "timer")
"""Modules that are attributes here, as Monarch has them, before a program imports them."""

__all__ = ["__version__"]

warn_of_rival_install()


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES_OF_TENSORS:
        return import_module(f"monarch.{name}")
    if name not in _OF_TENSORS:
        raise AttributeError(f"module 'monarch' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module("monarch.tensors"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_TENSORS, *_MODULES_OF_TENSORS})


serve_monarchs_paths()  # also names of this package that Monarch has, such as `configure`
