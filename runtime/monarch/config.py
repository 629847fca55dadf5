"""Settings of the runtime: see `configure`."""

from monarch._src.config import (
    Settings,
    clear_runtime_config,
    configure,
    configured,
    get_global_config,
    get_runtime_config,
)

__all__ = [
    "Settings",
    "clear_runtime_config",
    "configure",
    "configured",
    "get_global_config",
    "get_runtime_config",
]
