"""The only place that imports torch, and the error where it is not installed.

Modules of torch are typed as Any: torch's own annotations are partial, and some of the names
used here are private.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from monarch._src.system.imports import is_imported, turn_to_import

REMEDY = "install it where the ranks run, with `pip install 'monarch-jupyter[torch]'`"


def torch_distributed() -> Any:
    """`torch.distributed`, which takes seconds to import unless it was preloaded.

    Raises:
        ModuleNotFoundError: torch is not installed here, or was built without it.
    """
    try:
        # A module that imports this one may have been begun without the turn.
        if is_imported("torch") and is_imported("torch.distributed"):
            found: Any = import_module("torch.distributed")
        else:
            with turn_to_import():
                found = import_module("torch.distributed")
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "torch.distributed"):
            raise
        raise ModuleNotFoundError(
            f"torch is not installed on {os.uname().nodename}; {REMEDY}", name="torch"
        ) from None
    if not found.is_available():
        raise ModuleNotFoundError(
            f"the torch on {os.uname().nodename} was built without torch.distributed; {REMEDY}",
            name="torch.distributed",
        )
    return found


def distributed_c10d() -> Any:
    """`torch.distributed.distributed_c10d`. Raises as `torch_distributed` does."""
    return torch_distributed().distributed_c10d


def torch() -> Any:
    """`torch` itself. Raises as `torch_distributed` does."""
    torch_distributed()
    return import_module("torch")


def device_mesh_module() -> Any:
    """`torch.distributed.device_mesh`. Raises as `torch_distributed` does."""
    torch_distributed()
    return import_module("torch.distributed.device_mesh")
