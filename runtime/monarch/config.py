"""Settings of the runtime: see `configure`."""

from typing import TYPE_CHECKING, Any

from monarch._src.config import (
    Settings,
    clear_runtime_config,
    configure,
    configured,
    get_global_config,
    get_runtime_config,
)

if TYPE_CHECKING:
    from monarch._src.mesh.channel_transport import ChannelTransport

__all__ = [
    "ChannelTransport",
    "Settings",
    "clear_runtime_config",
    "configure",
    "configured",
    "get_global_config",
    "get_runtime_config",
]


def __getattr__(name: str) -> Any:
    # Loaded on demand: settings are read by processes that have no meshes.
    if name == "ChannelTransport":
        from monarch._src.mesh.channel_transport import ChannelTransport

        return ChannelTransport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
