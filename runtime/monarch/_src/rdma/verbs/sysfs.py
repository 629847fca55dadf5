"""The RDMA cards of this machine, as listed by the kernel under /sys. Opens no card.

Runs in: any process. It needs no pyverbs.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from monarch._src.rdma.verbs.device_choice import (
    ChosenPort,
    Device,
    Gid,
    GidKind,
    LinkLayer,
    Port,
    choose,
)

CLASS = Path("/sys/class")
INSTALL = "pip install 'monarch-jupyter[verbs]', or the package python3-pyverbs of Debian"
NODES = Path("/dev/infiniband")
_KINDS: dict[str, GidKind] = {"RoCE v2": "RoCE v2", "IB/RoCE v1": "RoCE v1"}
_LAYERS: dict[str, LinkLayer] = {"InfiniBand": "InfiniBand", "Ethernet": "Ethernet"}


def present(root: Path = CLASS) -> bool:
    """Whether this machine has an RDMA device."""
    try:
        return any((root / "infiniband").iterdir())
    except OSError:
        return False


def usable_here() -> tuple[ChosenPort | None, str, str]:
    """The port to use; or None, the reason and a remedy. Does not import pyverbs."""
    if not present():
        return None, "no RDMA device in this kernel", ""
    place, reason = choose(devices())
    if place is not None and importlib.util.find_spec("pyverbs") is None:
        return None, f"{place.text} is there, but pyverbs is not installed", INSTALL
    return place, reason, ""


def devices(root: Path = CLASS, nodes: Path = NODES) -> list[Device]:
    """All cards, by name."""
    try:
        names = sorted(path.name for path in (root / "infiniband").iterdir())
    except OSError:
        return []
    verbs = _nodes(root)
    return [
        Device(
            name,
            _driver(root / "infiniband" / name),
            tuple(_ports(root / "infiniband" / name / "ports")),
            _unusable(verbs.get(name), nodes),
        )
        for name in names
    ]


def _nodes(root: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        for path in (root / "infiniband_verbs").glob("uverbs*"):
            found[_read(path / "ibdev")] = path.name
    except OSError:
        pass  # without that folder no card can be opened; each card's `unusable` says so
    return found


def _unusable(node: str | None, nodes: Path) -> str:
    if node is None:
        return "the kernel module ib_uverbs is not loaded"
    if not os.access(nodes / node, os.R_OK | os.W_OK):
        return f"{nodes / node} cannot be opened; in a container pass it on with --device"
    return ""


def _driver(path: Path) -> str:
    try:
        return (path / "device" / "driver").resolve(strict=True).name
    except OSError:  # rxe and siw are not devices of a bus
        return path.name.rstrip("0123456789_")


def _ports(path: Path) -> list[Port]:
    found: list[Port] = []
    for folder in path.iterdir() if path.is_dir() else ():
        layer = _LAYERS.get(_read(folder / "link_layer"), "Unspecified")
        found.append(
            Port(
                int(folder.name),
                _read(folder / "state").partition(":")[2].strip() or "unknown",
                layer,
                int(_read(folder / "lid") or "0", 0),
                float(_read(folder / "rate").partition(" ")[0] or 0),
                tuple(_gids(folder, layer)),
            )
        )
    return sorted(found, key=lambda port: port.number)


def _gids(folder: Path, layer: LinkLayer) -> list[Gid]:
    found: list[Gid] = []
    table = folder / "gids"
    for entry in table.iterdir() if table.is_dir() else ():
        value = _read(entry).replace(":", "")
        if len(value) != 32 or not int(value, 16):
            continue
        kind: GidKind | None = "IB"
        if layer != "InfiniBand":
            kind = _KINDS.get(_read(folder / "gid_attrs" / "types" / entry.name))
        if kind is not None:
            found.append(Gid(int(entry.name), value, kind))
    return sorted(found, key=lambda gid: gid.index)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # the kernel raises EINVAL for an empty place of the table
        return ""
