"""Which zygote a mesh is forked from, what is imported when, and what is given up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from monarch._src.host.state.zygotes import (
    FIRST,
    LONGEST_IMPORT_S,
    Action,
    AssignMesh,
    Make,
    StopZygote,
    Zygotes,
)
from monarch._src.wire.messages import Imports

ENVIRONMENT = {"HOME": "/home/a", "OMP_NUM_THREADS": "1"}
WAIT_S = 30.0


def same_paths(_modules: Collection[str], one: Sequence[str], other: Sequence[str]) -> bool:
    return list(one) == list(other)


def new() -> Zygotes:
    return Zygotes(ENVIRONMENT, same_paths)


def imports(
    *modules: str,
    needed: Sequence[str] = (),
    path: Sequence[str] = ("/lib",),
    env: Mapping[str, str | None] = {},
) -> Imports:
    return Imports(list(modules), list(needed), list(path), dict(env))


def spawned(
    zygotes: Zygotes,
    mesh: int,
    asked: Imports | None,
    *envs: Mapping[str, str | None],
    now: float = 0,
) -> list[Action]:
    return zygotes.mesh_spawned(mesh, asked, envs, now, WAIT_S)


def with_torch(reads: Sequence[str] = ()) -> Zygotes:
    """Zygotes of which the first made one has imported torch."""
    zygotes = new()
    zygotes.imports_asked(imports("torch"), 0)
    zygotes.import_began(1, "torch", 1)
    assert zygotes.import_ended(1, reads, 2) == []
    return zygotes


def made(modules: Sequence[str], zygote: int = 1, parent: int = FIRST) -> Make:
    return Make(parent, zygote, tuple(modules), ["/lib"], {})


def test_a_client_without_libraries_is_served_by_the_first_zygote() -> None:
    zygotes = new()
    assert spawned(zygotes, 7, None) == [AssignMesh(7, FIRST)]
    assert zygotes.zygote_of(7) == FIRST
    assert zygotes.next_deadline() is None


def test_imports_ahead_are_there_for_the_mesh_that_follows() -> None:
    zygotes = with_torch()
    assert spawned(zygotes, 7, imports("torch", needed=["torch"])) == [AssignMesh(7, 1)]
    assert zygotes.zygote_of(7) == 1
    assert zygotes.has_meshes(1)


def test_a_mesh_waits_for_what_its_program_names_and_gets_the_rest_later() -> None:
    zygotes = new()
    asked = imports("numpy", "torch", "torch._dynamo", needed=["torch"])
    assert spawned(zygotes, 7, asked) == [made(["torch"])]
    assert zygotes.zygote_of(7) is None
    zygotes.import_began(1, "torch", 1)
    assert zygotes.importing == "torch"
    assert zygotes.import_ended(1, (), 2) == [
        AssignMesh(7, 1),
        made(["numpy", "torch._dynamo"], 2, parent=1),
    ]
    assert spawned(zygotes, 8, asked) == [AssignMesh(8, 1)]
    assert zygotes.import_ended(2, (), 5) == []
    assert spawned(zygotes, 9, asked) == [AssignMesh(9, 2)]


def test_a_mesh_does_not_wait_for_what_only_a_library_has_imported() -> None:
    zygotes = new()
    assert spawned(zygotes, 7, imports("torch")) == [AssignMesh(7, FIRST), made(["torch"])]
    assert spawned(zygotes, 8, imports("torch")) == [AssignMesh(8, FIRST)]


def test_a_mesh_waits_for_an_import_that_is_on_its_way() -> None:
    zygotes = new()
    zygotes.imports_asked(imports("numpy", "torch"), 0)
    assert spawned(zygotes, 7, imports("numpy", "torch", needed=["torch"])) == []
    assert zygotes.import_ended(1, (), 2) == [AssignMesh(7, 1)]


def test_a_mesh_waits_no_longer_than_it_may() -> None:
    zygotes = new()
    spawned(zygotes, 7, imports("torch", needed=["torch"]), now=100)
    assert zygotes.next_deadline() == 100 + WAIT_S
    assert zygotes.time_passed(100 + WAIT_S - 1) == []
    assert zygotes.time_passed(100 + WAIT_S) == [AssignMesh(7, FIRST)]


def test_a_mesh_that_is_being_stopped_waits_no_longer() -> None:
    zygotes = new()
    spawned(zygotes, 7, imports("torch", needed=["torch"]))
    assert zygotes.waited_enough(7, 1) == [AssignMesh(7, FIRST)]
    assert zygotes.waited_enough(8, 2) == []


def test_an_import_that_hangs_is_ended_and_given_up() -> None:
    zygotes = new()
    zygotes.imports_asked(imports("numpy", "torch"), 0)
    zygotes.import_began(1, "numpy", 5)
    zygotes.import_began(1, "torch", 6)
    assert zygotes.next_deadline() == 6 + LONGEST_IMPORT_S
    assert zygotes.time_passed(6 + LONGEST_IMPORT_S) == [StopZygote(FIRST, 1), made(["numpy"], 2)]
    assert list(zygotes.given_up) == ["torch"]
    assert "had not ended after 120 s" in zygotes.given_up["torch"]


def test_a_module_that_spoils_its_zygote_is_given_up_with_its_submodules() -> None:
    zygotes = new()
    asked = imports("bad", "bad.part", "badly", needed=["bad", "bad.part"])
    spawned(zygotes, 7, asked)
    zygotes.import_began(1, "bad", 1)
    assert zygotes.zygote_lost(1, "it starts a thread", 2) == [
        AssignMesh(7, FIRST),
        made(["badly"], 2),
    ]
    assert zygotes.given_up == {"bad": "it starts a thread"}
    zygotes.import_ended(2, (), 3)
    assert spawned(zygotes, 8, asked) == [AssignMesh(8, 2)]


def test_a_zygote_that_cannot_be_made_is_not_tried_again() -> None:
    zygotes = new()
    zygotes.imports_asked(imports("numpy", "torch"), 0)
    assert zygotes.zygote_lost(1, "fork failed", 1) == []
    assert zygotes.given_up == {"numpy": "fork failed", "torch": "fork failed"}


def test_a_zygote_that_is_killed_once_it_is_ready_is_not_made_for_ever() -> None:
    zygotes = with_torch()
    assert zygotes.zygote_lost(1, "killed", 3) == []
    assert list(zygotes.given_up) == ["torch"]


@pytest.mark.parametrize(
    ("env", "zygote"),
    [
        ({"OMP_NUM_THREADS": "4"}, FIRST),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": None}, FIRST),
        ({"MKL_DYNAMIC": "FALSE"}, FIRST),
        ({"READ_BY_TORCH": "1"}, FIRST),
        ({"READ_BY_TORCH": None}, 1),
        ({"ANOTHER": "1"}, 1),
        ({"LANGUAGE": "de"}, 1),
        ({"LANG": "de"}, FIRST),
        ({"CUDA_VISIBLE_DEVICES": "3"}, 1),
        ({"MONARCH_LIVENESS": "3.000000000s"}, 1),
    ],
)
def test_a_mesh_that_sets_what_a_module_has_read_imports_for_itself(
    env: Mapping[str, str | None], zygote: int
) -> None:
    zygotes = with_torch(["READ_BY_TORCH", "CUDA_VISIBLE_DEVICES"])
    assert spawned(zygotes, 7, imports("torch", needed=["torch"]), env) == [AssignMesh(7, zygote)]
    ranks = ({"RANK": "0"}, {"RANK": "1", **env})
    assert spawned(zygotes, 8, imports("torch", needed=["torch"]), *ranks) == [
        AssignMesh(8, zygote)
    ]


def test_no_mesh_waits_for_an_import_that_would_not_suit_it() -> None:
    zygotes = new()
    asked = imports("torch", needed=["torch"])
    assert spawned(zygotes, 7, asked, {"OMP_NUM_THREADS": "4"}) == [
        AssignMesh(7, FIRST),
        made(["torch"]),
    ]


def test_a_client_that_has_changed_what_a_module_reads_gets_a_zygote_anew() -> None:
    zygotes = with_torch()
    changed = imports("torch", needed=["torch"], env={"OMP_NUM_THREADS": "4"})
    order = Make(FIRST, 2, ("torch",), ["/lib"], {"OMP_NUM_THREADS": "4"})
    assert spawned(zygotes, 7, changed, {"OMP_NUM_THREADS": "4"}) == [order]
    assert zygotes.import_ended(2, (), 5) == [AssignMesh(7, 2), StopZygote(FIRST, 1)]


def test_a_variable_that_no_module_reads_changes_nothing() -> None:
    zygotes = with_torch()
    changed = imports("torch", needed=["torch"], env={"MY_NAME": "x"})
    assert spawned(zygotes, 7, changed, {"MY_NAME": "x"}) == [AssignMesh(7, 1)]


def test_modules_of_another_place_are_not_given_to_a_mesh() -> None:
    zygotes = with_torch()
    elsewhere = imports("torch", path=["/other", "/lib"])
    order = Make(FIRST, 2, ("torch",), ["/other", "/lib"], {})
    assert spawned(zygotes, 7, elsewhere) == [AssignMesh(7, FIRST), order]


def test_zygotes_end_once_nothing_is_forked_from_them() -> None:
    zygotes = with_torch()
    spawned(zygotes, 7, imports("torch"))
    elsewhere = imports("torch", path=["/other"])
    zygotes.imports_asked(elsewhere, 3)
    assert zygotes.import_ended(2, (), 5) == []  # the mesh lives
    assert zygotes.mesh_freed(7, 6) == [StopZygote(FIRST, 1)]
    assert zygotes.mesh_freed(7, 7) == []


def test_a_parent_lives_as_long_as_its_zygotes() -> None:
    zygotes = with_torch()
    zygotes.imports_asked(imports("torch", "numpy"), 3)
    assert zygotes.import_ended(2, (), 5) == []
    assert [end.zygote for end in zygotes.all_made()] == [2, 1]


def test_a_mesh_that_is_stopped_while_it_waits_is_forgotten() -> None:
    zygotes = new()
    spawned(zygotes, 7, imports("torch", needed=["torch"]))
    assert zygotes.mesh_freed(7, 1) == []
    assert zygotes.import_ended(1, (), 2) == []
    assert not zygotes.has_meshes(1)


MODULES = ("a", "b", "a.c", "d")
PATHS = (["/lib"], ["/other"])
ENVS: tuple[dict[str, str | None], ...] = ({}, {"OMP_NUM_THREADS": "4"}, {"READ": "1"})


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens: each mesh is placed once, on a zygote that is ready, suits and lives on."""

    def __init__(self) -> None:
        super().__init__()
        self.zygotes = new()
        self.now = 0.0
        self.meshes: dict[int, int | None] = {}
        self.ready = {FIRST}
        self.busy: set[int] = set()
        self.parents: dict[int, int] = {}
        self.orders: dict[int, Make] = {}
        self.envs: dict[int, Mapping[str, str | None]] = {}
        self.last = 0

    def carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Make(parent, zygote):
                    assert parent in self.ready
                    assert not self.busy
                    self.busy.add(zygote)
                    self.parents[zygote], self.orders[zygote] = parent, action
                    assert not set(action.modules) & self.zygotes.given_up.keys()
                case StopZygote(parent, zygote):
                    assert self.parents.pop(zygote) == parent
                    self.ready.discard(zygote)
                    self.busy.discard(zygote)
                    assert zygote not in self.meshes.values()
                    assert zygote not in self.parents.values()
                case AssignMesh(mesh, zygote):
                    assert zygote in self.ready
                    assert self.meshes[mesh] is None
                    self.meshes[mesh] = zygote
                    if zygote != FIRST:
                        assert self.orders[zygote].env.get("OMP_NUM_THREADS") == self.envs[
                            mesh
                        ].get("OMP_NUM_THREADS")

    @rule(
        modules=st.sets(st.sampled_from(MODULES)),
        needed=st.sets(st.sampled_from(MODULES)),
        path=st.sampled_from(PATHS),
        env=st.sampled_from(ENVS),
        own=st.sampled_from(ENVS),
    )
    def spawn(
        self, modules: set[str], needed: set[str], path: list[str],
        env: Mapping[str, str | None], own: Mapping[str, str | None],
    ) -> None:  # fmt: skip
        self.last += 1
        self.meshes[self.last] = None
        self.envs[self.last] = {**env, **own}
        listed = [module for module in MODULES if module in modules]
        asked = imports(*listed, needed=[m for m in listed if m in needed], path=path, env=env)
        self.carry_out(spawned(self.zygotes, self.last, asked, {**env, **own}, now=self.now))

    @rule(reads=st.sets(st.sampled_from(["READ"])))
    def imported(self, reads: set[str]) -> None:
        for zygote in list(self.busy):
            self.busy.discard(zygote)
            self.ready.add(zygote)
            self.carry_out(self.zygotes.import_ended(zygote, reads, self.now))

    @rule(data=st.data())
    def begins(self, data: st.DataObject) -> None:
        for zygote in self.busy:
            modules = self.orders[zygote].modules
            self.zygotes.import_began(zygote, data.draw(st.sampled_from(modules)), self.now)

    @rule()
    def spoiled(self) -> None:
        for zygote in list(self.busy):
            self.busy.discard(zygote)
            del self.parents[zygote]
            self.carry_out(self.zygotes.zygote_lost(zygote, "it starts a thread", self.now))

    @rule(passed=st.sampled_from([1.0, 20.0, 130.0]))
    def time_passes(self, passed: float) -> None:
        self.now += passed
        self.carry_out(self.zygotes.time_passed(self.now))

    @rule(data=st.data())
    def frees(self, data: st.DataObject) -> None:
        if self.meshes:
            mesh = data.draw(st.sampled_from(sorted(self.meshes)))
            del self.meshes[mesh]
            self.carry_out(self.zygotes.mesh_freed(mesh, self.now))

    @invariant()
    def agrees(self) -> None:
        for mesh, zygote in self.meshes.items():
            assert self.zygotes.zygote_of(mesh) == zygote
        if any(zygote is None for zygote in self.meshes.values()):
            assert self.busy  # a mesh waits only for an import on its way
            assert self.zygotes.next_deadline() is not None


TestAnyOrder = AnyOrder.TestCase
