"""The choice of card, port and address; and what the kernel's files say of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch._src.rdma.verbs import sysfs
from monarch._src.rdma.verbs.device_choice import (
    ChosenPort,
    Device,
    Gid,
    LinkLayer,
    Port,
    choose,
    gid_of,
    mtu_of,
    why_not_together,
)

V4 = "00000000000000000000ffff" + "c0a84d01"
V6 = "20010db8000000000000000000000001"
LINK = "fe80000000000000b22044fffe034ad4"
EMPTY = "0" * 32


def roce(*gids: Gid, number: int = 1, state: str = "ACTIVE", gbps: float = 100) -> Port:
    return Port(number, state, "Ethernet", 0, gbps, gids or (Gid(3, V4, "RoCE v2"),))


def infiniband(*, number: int = 1, lid: int = 7, gbps: float = 200) -> Port:
    return Port(number, "ACTIVE", "InfiniBand", lid, gbps, (Gid(0, LINK, "IB"),))


def card(name: str, *ports: Port, driver: str = "mlx5_core", unusable: str = "") -> Device:
    return Device(name, driver, ports, unusable)


def chosen(*devices: Device) -> tuple[str, int]:
    place, reason = choose(devices)
    assert place is not None, reason
    return place.device, place.port


@pytest.mark.parametrize(
    ("gids", "index"),
    [
        ([(0, LINK, "RoCE v1"), (1, LINK, "RoCE v2"), (2, V4, "RoCE v1"), (3, V4, "RoCE v2")], 3),
        ([(0, LINK, "RoCE v2"), (1, V6, "RoCE v2")], 1),
        ([(0, V6, "RoCE v2"), (1, V4, "RoCE v2")], 1),
        ([(0, V4, "RoCE v1"), (1, LINK, "RoCE v2")], 1),
        ([(0, LINK, "RoCE v1"), (1, V4, "RoCE v1")], 1),
        ([(0, EMPTY, "RoCE v2"), (5, LINK, "RoCE v2")], 5),
        ([(4, V4, "RoCE v2"), (2, V4, "RoCE v2")], 2),
    ],
)
def test_routable_addresses_come_first(gids: list[tuple[int, str, str]], index: int) -> None:
    found, _ = gid_of(roce(*(Gid(n, value, kind) for n, value, kind in gids)))  # type: ignore[arg-type]
    assert found is not None
    assert found.index == index


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([card("a", roce(state="DOWN"), roce(number=2))], ("a", 2)),
        ([card("a", roce(gbps=100)), card("b", roce(gbps=400))], ("b", 1)),
        ([card("b", roce()), card("a", roce())], ("a", 1)),
        ([card("a", roce(gbps=400)), card("b", infiniband(gbps=100))], ("b", 1)),
        ([card("a", infiniband(lid=0)), card("b", roce())], ("b", 1)),
        ([card("a", roce(), unusable="cannot be opened"), card("b", roce(gbps=1))], ("b", 1)),
        ([card("efa_0", roce(gbps=400), driver="efa"), card("rxe0", roce(), driver="rxe")],
         ("rxe0", 1)),
        ([card("bnxt_re0", roce(), driver="bnxt_en")], ("bnxt_re0", 1)),
    ],
)  # fmt: skip
def test_an_active_port_is_chosen_infiniband_first_then_by_rate_then_by_name(
    devices: list[Device], expected: tuple[str, int]
) -> None:
    assert chosen(*devices) == expected
    assert chosen(*reversed(devices)) == expected


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        ([], "no RDMA device in this kernel"),
        ([card("a", roce(state="DOWN"))], "a port 1: its state is DOWN"),
        (
            [card("a", infiniband(lid=0))],
            "a port 1: it has no LID: no subnet manager has configured",
        ),
        ([card("a", roce(Gid(0, EMPTY, "RoCE v2")))], "a port 1: it has no address (GID)"),
        ([card("a", roce(), unusable="pass it on")], "a: pass it on"),
        ([card("efa_0", roce(), driver="efa")], "efa_0: an Elastic Fabric Adapter has reliable"),
        ([card("a", roce(state="INIT")), card("b", roce(state="DOWN"))], "is INIT; b port 1"),
    ],
)
def test_what_cannot_be_used_says_why(devices: list[Device], reason: str) -> None:
    place, why = choose(devices)
    assert place is None
    assert reason in why


@pytest.mark.parametrize(
    ("layer", "kind", "reason"),
    [
        ("Ethernet", "RoCE v2", ""),
        ("Ethernet", "RoCE v1", "our card speaks RoCE v2, theirs RoCE v1"),
        ("InfiniBand", "IB", "our card is on Ethernet, theirs on InfiniBand"),
    ],
)
def test_cards_that_cannot_reach_each_other_are_told(
    layer: LinkLayer, kind: str, reason: str
) -> None:
    ours = ChosenPort("a", 1, "Ethernet", 0, Gid(0, V4, "RoCE v2"))
    assert why_not_together(ours, layer, kind) == reason


def test_packets_are_as_large_as_both_take() -> None:
    assert mtu_of((4096, 1024)) == 1024
    assert mtu_of((4096, 4096)) == 4096
    assert mtu_of((1500, 4096)) == 1024


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_the_kernels_files_are_read_as_they_are(tmp_path: Path) -> None:
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    for name, text in (
        ("state", "4: ACTIVE"), ("link_layer", "Ethernet"), ("lid", "0x0"),
        ("rate", "100 Gb/sec (4X EDR)"),
        ("gids/0", "fe80:0000:0000:0000:b220:44ff:fe03:4ad4"),
        ("gids/1", "0000:0000:0000:0000:0000:ffff:c0a8:4d01"),
        ("gids/2", "0000:0000:0000:0000:0000:0000:0000:0000"),
        ("gid_attrs/types/0", "IB/RoCE v1"), ("gid_attrs/types/1", "RoCE v2"),
    ):  # fmt: skip
        write(port / name, text)
    driver = tmp_path / "drivers/mlx5_core"
    driver.mkdir(parents=True)
    (tmp_path / "class/infiniband/mlx5_0/device").mkdir()
    (tmp_path / "class/infiniband/mlx5_0/device/driver").symlink_to(driver)
    write(tmp_path / "class/infiniband_verbs/uverbs3/ibdev", "mlx5_0")
    write(tmp_path / "nodes/uverbs3", "")
    write(tmp_path / "class/infiniband/ib0/ports/1/state", "1: DOWN")
    found = sysfs.devices(tmp_path / "class", tmp_path / "nodes")
    assert found == [
        Device("ib0", "ib", (Port(1, "DOWN", "Unspecified", 0, 0.0),), "the kernel module "
               "ib_uverbs is not loaded"),
        Device("mlx5_0", "mlx5_core", (
            Port(1, "ACTIVE", "Ethernet", 0, 100.0, (Gid(0, LINK, "RoCE v1"),
                                                     Gid(1, V4, "RoCE v2"))),
        )),
    ]  # fmt: skip
    assert sysfs.present(tmp_path / "class")
    assert not sysfs.present(tmp_path / "nothing")
    assert sysfs.devices(tmp_path / "nothing") == []


def test_a_card_whose_node_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    write(tmp_path / "class/infiniband/rxe0/ports/1/state", "4: ACTIVE")
    write(tmp_path / "class/infiniband_verbs/uverbs0/ibdev", "rxe0")
    (found,) = sysfs.devices(tmp_path / "class", tmp_path / "nodes")
    assert "uverbs0 cannot be opened; in a container pass it on with --device" in found.unusable
