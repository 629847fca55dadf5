"""Chooses the card, the port and its address (GID) for transfers. No I/O.

Both sides choose by the same rule, so two hosts with the same hardware make the same choice. A port
must be active. InfiniBand comes before Ethernet, a faster port before a slower one, then the names
decide. On Ethernet RoCE v2 comes before v1, which routers do not forward; of its GIDs the one of an
IPv4 address comes first, then one of a global IPv6 address, then the link-local one.

A `Nature` describes how to drive a kind of card. This package drives one kind: reliable connections
(RC), which InfiniBand, RoCE and iWARP cards of all makers have; ROCm uses them too, with memory of
its GPUs. EFA has reliable datagrams of its own (SRD), and older models no RDMA WRITE: such a card
is described, and refused with that reason.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

LinkLayer = Literal["InfiniBand", "Ethernet", "Unspecified"]
GidKind = Literal["IB", "RoCE v1", "RoCE v2"]


class Nature(msgspec.Struct, frozen=True):
    """How a kind of card is driven. `queue_pair`: RC or SRD. `driven`: whether we support it."""

    name: str
    queue_pair: str
    driven: bool
    why_not: str = ""


RC = Nature("a card with reliable connections", "RC", True)
EFA = Nature(
    "EFA", "SRD", False,
    "an Elastic Fabric Adapter has reliable datagrams (SRD) and no reliable "
    "connections, which this version needs",
)  # fmt: skip


class Gid(msgspec.Struct, frozen=True):
    """One address of a port: `value` is its 16 bytes as hexadecimal digits."""

    index: int
    value: str
    kind: GidKind

    @property
    def is_empty(self) -> bool:
        """Whether its place in the table is empty."""
        return not int(self.value, 16)

    @property
    def rank(self) -> tuple[int, int, int]:
        """The sort key; smaller is better."""
        address = ipaddress.IPv6Address(bytes.fromhex(self.value))
        reach = 0 if address.ipv4_mapped is not None else 2 if address.is_link_local else 1
        return (self.kind == "RoCE v1"), reach, self.index


class Port(msgspec.Struct, frozen=True):
    """A port of a card, as reported by the kernel; `gbps` is its rate."""

    number: int
    state: str  # ACTIVE, DOWN, INIT, ARMED
    link_layer: LinkLayer
    lid: int
    gbps: float
    gids: tuple[Gid, ...] = ()


class Device(msgspec.Struct, frozen=True):
    """A card. `unusable`: why this process may not open it, or empty."""

    name: str
    driver: str
    ports: tuple[Port, ...]
    unusable: str = ""

    @property
    def nature(self) -> Nature:
        """The kind of card, by its driver."""
        return EFA if self.driver == "efa" else RC


class ChosenPort(msgspec.Struct, frozen=True):
    """The chosen card, port and address."""

    device: str
    port: int
    link_layer: LinkLayer
    lid: int
    gid: Gid

    @property
    def text(self) -> str:
        """A description for reports."""
        how = self.gid.kind if self.link_layer == "Ethernet" else "InfiniBand"
        return f"{self.device} port {self.port} ({how})"


def choose(devices: Iterable[Device]) -> tuple[ChosenPort | None, str]:
    """The best place; or None, and the reasons against each card."""
    found: list[tuple[tuple[int, float, str, int], ChosenPort]] = []
    reasons: list[str] = []
    for device in devices:
        if not device.nature.driven:
            reasons.append(f"{device.name}: {device.nature.why_not}")
        elif device.unusable:
            reasons.append(f"{device.name}: {device.unusable}")
        else:
            for port in device.ports:
                gid, reason = gid_of(port)
                if gid is None:
                    reasons.append(f"{device.name} port {port.number}: {reason}")
                    continue
                place = ChosenPort(device.name, port.number, port.link_layer, port.lid, gid)
                ethernet = int(port.link_layer != "InfiniBand")
                found.append(((ethernet, -port.gbps, device.name, port.number), place))
    if found:
        return min(found, key=lambda entry: entry[0])[1], ""
    return None, "; ".join(reasons) or "no RDMA device in this kernel"


def gid_of(port: Port) -> tuple[Gid | None, str]:
    """The best address of a port; or None, and the reason."""
    if port.state != "ACTIVE":
        return None, f"its state is {port.state}"
    if port.link_layer == "InfiniBand" and not port.lid:
        return None, "it has no LID: no subnet manager has configured it"
    if port.link_layer == "Unspecified":
        return None, "its link layer is neither InfiniBand nor Ethernet"
    gids = [gid for gid in port.gids if not gid.is_empty]
    if port.link_layer == "InfiniBand":
        gids = [gid for gid in gids if gid.kind == "IB"]
    if not gids:
        return None, "it has no address (GID); has its network interface one?"
    return min(gids, key=lambda gid: gid.rank), ""


def why_not_together(ours: ChosenPort, link_layer: str, kind: str) -> str:
    """Why the local card cannot reach a port of that kind; empty if it can."""
    if ours.link_layer != link_layer:
        return f"our card is on {ours.link_layer}, theirs on {link_layer}"
    if link_layer == "Ethernet" and ours.gid.kind != kind:
        return f"our card speaks {ours.gid.kind}, theirs {kind}"
    return ""


def mtu_of(sizes: Sequence[int]) -> int:
    """The largest packet size that all of these allow."""
    return max((size for size in (256, 512, 1024, 2048, 4096) if size <= min(sizes)), default=256)
