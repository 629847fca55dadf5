"""Options of processes, spelled out by rank before anything is sent."""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import Any

import pytest

from monarch._src.mesh import spawn_options
from monarch._src.mesh.spawn_options import commands_for, env_for
from monarch.actor import BootstrapCommand, Extent, default_bootstrap_cmd

CUDA = "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with four NVIDIA devices, of which nobody has said anything."""
    monkeypatch.setattr(spawn_options, "nvidia_devices", lambda: 4)
    monkeypatch.delenv(CUDA, raising=False)


def gpus(count: int) -> Extent:
    return Extent(["gpus"], [count])


# --- devices --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("four_devices")
def test_a_mesh_of_gpus_gives_each_rank_its_own_device() -> None:
    assert env_for(None, gpus(4)) == [{CUDA: str(rank)} for rank in range(4)]
    assert env_for({"A": "1"}, gpus(2)) == [{CUDA: "0", "A": "1"}, {CUDA: "1", "A": "1"}]
    assert env_for(lambda p: {"A": str(p["gpus"])}, gpus(2)) == [
        {CUDA: "0", "A": "0"},
        {CUDA: "1", "A": "1"},
    ]


@pytest.mark.usefixtures("four_devices")
@pytest.mark.parametrize(
    "extent",
    [
        Extent([], []),
        Extent(["ranks"], [2]),
        Extent(["hosts", "gpus"], [2, 2]),
        Extent(["gpus"], [5]),
    ],
)
def test_no_device_is_given_where_it_is_not_clear_which(extent: Extent) -> None:
    assert env_for(None, extent) == []


@pytest.mark.usefixtures("four_devices")
def test_devices_that_the_user_names_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env_for({CUDA: "3"}, gpus(2)) == [{CUDA: "3"}] * 2
    some = env_for(lambda p: {CUDA: "3"} if p["gpus"] else {}, gpus(2))
    assert some == [{CUDA: "0"}, {CUDA: "3"}]
    monkeypatch.setenv(CUDA, "2,3")
    assert env_for(None, gpus(2)) == []


def test_without_devices_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn_options, "nvidia_devices", lambda: 0)
    assert env_for(None, gpus(1)) == []


# --- commands -------------------------------------------------------------------------------------


def test_a_command_needs_no_more_than_a_program() -> None:
    command = BootstrapCommand("true")
    assert (command.arg0, list(command.args), dict(command.env)) == (None, [], {})
    assert command.inherit_env


def test_the_default_command_is_this_python_with_the_whole_environment() -> None:
    command = default_bootstrap_cmd()
    assert command.program == sys.executable
    assert command.args
    assert command.env == {}
    assert command.inherit_env


def test_with_env_makes_a_copy_whose_later_values_win() -> None:
    command = BootstrapCommand("true", "name", ["x"], MappingProxyType({"A": "1", "B": "2"}), False)
    derived = command.with_env({"A": None, "C": "3"})
    assert derived.env == {"A": None, "B": "2", "C": "3"}
    assert (derived.program, derived.arg0, derived.args) == ("true", "name", ["x"])
    assert not derived.inherit_env
    assert command.env == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"args": "x y"}, "args='x y': give a list"),
        ({"args": [1]}, r"args=\[1\]: give a list"),
        ({"program": 1}, "program=1"),
        ({"arg0": 1}, "arg0=1"),
        ({"env": {"A": 1}}, "env of a BootstrapCommand 'A'=1"),
        ({"env": {"A=B": "1"}}, "'A=B'='1'"),
        ({"env": {"A": "\0"}}, "zero byte"),
        ({"env": ["A"]}, "give a mapping"),
    ],
)
def test_fields_of_the_wrong_type_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        BootstrapCommand(**{"program": "true", **fields})


def test_a_field_that_is_assigned_is_looked_at_when_it_is_used() -> None:
    command = BootstrapCommand("true")
    command.env = {"A": 1}  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="'A'=1"):
        commands_for(command, "", [], [], gpus(2))


def test_what_is_alike_on_all_ranks_is_said_once() -> None:
    assert commands_for(None, "", [{"A": "1"}], [], gpus(1000)) == []
    assert len(commands_for(BootstrapCommand("true"), "", [], [], gpus(1000))) == 1
    assert len(commands_for(lambda p: BootstrapCommand("true"), "", [], [], gpus(7))) == 7


def test_only_ranks_whose_start_is_different_are_executed() -> None:
    found = commands_for(None, "", [{}, {"PYTHONHASHSEED": "0"}, {"A": "1"}], [], gpus(3))
    assert [launch is not None for launch in found] == [False, True, False]


def test_a_name_of_its_own_and_numactl_exclude_each_other() -> None:
    command = BootstrapCommand(sys.executable, "worker")
    with pytest.raises(ValueError, match=r"rank 1: .*arg0='worker' cannot be started by numactl"):
        commands_for(command, "", [], [[], ["numactl", "--membind=0", "--"]], gpus(2))
