"""pyverbs as it is in Debian 12 and as it is on the registry: the same constants, found in both."""

from __future__ import annotations

import enum
import sys
from types import ModuleType

import pytest

from monarch._src.rdma.transports.base import TransportFailed
from monarch._src.rdma.verbs import pyverbs

FLAT = {
    "IBV_QPT_RC": 2, "IBV_WR_RDMA_READ": 4, "IBV_WR_RDMA_WRITE": 0, "IBV_SEND_SIGNALED": 2,
    "IBV_ACCESS_LOCAL_WRITE": 1, "IBV_ACCESS_REMOTE_WRITE": 2, "IBV_ACCESS_REMOTE_READ": 4,
}  # fmt: skip
SCOPED: dict[str, type[enum.IntEnum]] = {
    "ibv_qp_type": enum.IntEnum("ibv_qp_type", {"IBV_QPT_RC": 2}),
    "ibv_wr_opcode": enum.IntEnum("ibv_wr_opcode", {"IBV_WR_RDMA_READ": 4, "IBV_WR_RDMA_WRITE": 0}),
    "ibv_send_flags": enum.IntEnum("ibv_send_flags", {"IBV_SEND_SIGNALED": 2}),
    "ibv_access_flags": enum.IntEnum(
        "ibv_access_flags",
        {"IBV_ACCESS_LOCAL_WRITE": 1, "IBV_ACCESS_REMOTE_WRITE": 2, "IBV_ACCESS_REMOTE_READ": 4},
    ),
}


def module(name: str, **names: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(names)
    return made


@pytest.fixture(params=["44, flat", "59, scoped"])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Modules that have the names of pyverbs, and the constants where that version has them."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "pyverbs":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyverbs", module("pyverbs", __path__=[]))
    for name in ("device", "pd", "cq", "qp", "mr", "wr", "addr"):
        monkeypatch.setitem(sys.modules, f"pyverbs.{name}", module(f"pyverbs.{name}"))
    errors = module("pyverbs.pyverbs_error", PyverbsError=type("PyverbsError", (Exception,), {}))
    monkeypatch.setitem(sys.modules, "pyverbs.pyverbs_error", errors)
    if request.param.startswith("44"):
        monkeypatch.setitem(sys.modules, "pyverbs.enums", module("pyverbs.enums", **FLAT))
        monkeypatch.setitem(sys.modules, "pyverbs.libibverbs_enums", None)
    else:
        scoped = module("pyverbs.libibverbs_enums", **SCOPED)
        monkeypatch.setitem(sys.modules, "pyverbs.libibverbs_enums", scoped)
        monkeypatch.setitem(sys.modules, "pyverbs.enums", None)
    return request.param


def test_constants_are_found_where_each_version_has_them(installed: str) -> None:
    found = pyverbs.enums()
    scopes = {name: scope for scope, kind in SCOPED.items() for name in kind.__members__}
    assert {name: found(scopes[name], name) for name in FLAT} == FLAT
    assert all(type(found(scopes[name], name)) is int for name in FLAT)
    pyverbs.Verbs()


def test_what_cannot_be_imported_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    with pytest.raises(TransportFailed) as raised:
        pyverbs.Verbs()
    assert "pip install 'monarch-jupyter[verbs]'" in raised.value.why.remedy


def test_a_completion_says_what_its_number_means() -> None:
    said = pyverbs.Completion(7, pyverbs.REMOTE_ACCESS, 3).text
    assert "no access to that memory" in said
    assert "status 10" in said
    assert "vendor's code 3" in said
    assert "status 99" in pyverbs.Completion(7, 99, 0).text
