"""The roles of an AppDef, by its shape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch._src.job.state.roles import RoleRequest, common_resource, requests_of


def role(name: str, **fields: Any) -> Any:
    given = {"entrypoint": "torchrun", "args": ["train.py", 4], "env": None, **fields}
    return SimpleNamespace(name=name, **given)


def resource(cpu: int = -1, gpu: int = -1, memory: int = -1) -> Any:
    return SimpleNamespace(cpu=cpu, gpu=gpu, memMB=memory)


def test_the_only_role_needs_no_name() -> None:
    for name in ("", "my-trainer"):
        found = requests_of(SimpleNamespace(roles=[role(name)]))
        assert found == [RoleRequest("", ["torchrun", "train.py", "4"])]


def test_each_of_several_roles_has_the_name_of_a_mesh() -> None:
    app = SimpleNamespace(roles=[role("trainer", num_replicas=2), role("reader", env={"A": 1})])
    words = ["torchrun", "train.py", "4"]
    assert requests_of(app) == [
        RoleRequest("trainer", words, replicas=2), RoleRequest("reader", words, {"A": "1"}),
    ]  # fmt: skip


def test_a_resource_without_wishes_asks_for_nothing() -> None:
    found = requests_of(SimpleNamespace(roles=[role("a", resource=resource())]))
    assert common_resource(found, {}) == {}


def test_what_all_roles_ask_for_is_an_option_of_slurm_unless_one_is_given() -> None:
    both = [role(name, resource=resource(4, 8, 2048)) for name in ("a", "b")]
    found = requests_of(SimpleNamespace(roles=both))
    asked = {"cpus_per_task": 4, "gpus_per_node": 8, "mem": "2048M"}
    assert common_resource(found, {}) == asked
    assert common_resource(found, {"mem": "1G"}) == {"cpus_per_task": 4, "gpus_per_node": 8}


def test_different_wishes_are_refused_unless_the_option_is_given() -> None:
    roles = [role("a", resource=resource(gpu=8)), role("b", resource=resource(gpu=0))]
    found = requests_of(SimpleNamespace(roles=roles))
    with pytest.raises(ValueError, match=r"different gpus_per_node \(a: 8, b: any\)"):
        common_resource(found, {})
    assert common_resource(found, {"gpus_per_node": 8}) == {}
