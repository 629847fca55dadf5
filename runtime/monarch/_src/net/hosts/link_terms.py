"""The terms of links: the versions of this process, and its time-outs.

Runs in: any process that listens or dials beyond its host.
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

from monarch._src.net.interfaces import platform_text
from monarch._src.net.state.link_actions import Bounds
from monarch._src.version import VERSION
from monarch._src.wire.link_protocol import LINK_PROTOCOL
from monarch._src.wire.messages import PROTOCOL


def link_versions() -> dict[str, str]:
    """The versions in which both ends of a link have to agree."""
    found = {
        "protocol": str(PROTOCOL),
        "link": str(LINK_PROTOCOL),
        "monarch": VERSION,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "cloudpickle": metadata.version("cloudpickle"),
        "platform": platform_text(),
    }
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__).partition("+")[0]
    return found


def bounds_of(liveness_s: float, *, prompt: bool = False) -> Bounds:
    """Bounds under which a host is lost within that time.

    The transport takes up to a fifth of it to notice a dead connection. `prompt`: the other end
    runs no user code, and has to answer pings itself. It listens as long as it runs, so that an
    address that refuses connections means its end.
    """
    return Bounds(
        patience_s=0.8 * liveness_s,
        ping_s=liveness_s / 30,
        silence_s=liveness_s if prompt else None,
        refused_s=liveness_s / 15 if prompt else None,
    )
