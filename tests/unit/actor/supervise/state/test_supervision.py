"""The supervision tree: each rule of one life, and every interleaving on trees of up to four.

`MONARCH_MISCHIEF` says how much goes wrong in the deepest of them.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest

from monarch._src.actor.supervise.state.supervision import (
    TRANSITIONS,
    AskSupervisor,
    Finalize,
    OwnerLifecycle,
    ReportFailure,
    RunCleanup,
    Stage,
    StopMesh,
)

pytestmark = pytest.mark.slow

DEEP = int(os.environ.get("MONARCH_MISCHIEF", "1"))

# --- one life -------------------------------------------------------------------------------------


EVENTS = {
    "own", "released", "mesh_gone", "mesh_failed", "judge", "judged", "told_to_stop", "failed",
    "had_its_time", "cleaned_up", "tell_now",
}  # fmt: skip


class Checked(OwnerLifecycle[str]):
    """A life that is validated after every event."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in EVENTS:

            def checked(*args: Any) -> Any:
                result = found(*args)
                self.validate()
                return result

            return checked
        return found


def owner_of(*uids: int) -> Checked:
    life = Checked()
    for uid in uids:
        assert life.own(uid)
    return life


def test_without_meshes_it_cleans_up_as_soon_as_it_is_to_end() -> None:
    life = Checked()
    assert life.on_stop_requested() == [RunCleanup()]
    assert life.on_cleaned_up() == [Finalize()]
    assert [stage for _, stage in life.story] == [Stage.ENDING, Stage.CLEANING, Stage.GONE]


def test_it_cleans_up_when_nothing_is_left_of_what_it_owns() -> None:
    life = owner_of(1, 2)
    assert life.on_stop_requested() == [StopMesh(1), StopMesh(2)]
    assert life.on_mesh_gone(2) == []
    assert life.on_mesh_gone(1) == [RunCleanup()]


def test_what_stands_on_a_mesh_of_its_own_goes_with_that() -> None:
    life = owner_of(1)
    life.own(2, 1)
    life.own(3, 77)  # on procs of somebody else
    assert life.on_stop_requested() == [StopMesh(1), StopMesh(3)]
    assert life.on_mesh_gone(1) == []
    assert life.on_mesh_gone(3) == [RunCleanup()]


def test_it_waits_for_a_mesh_that_was_stopped_before_and_does_not_stop_it_again() -> None:
    life = owner_of(1, 2)
    assert life.on_mesh_stopping(1) == []
    assert life.on_failed("ill") == [StopMesh(2)]
    assert life.on_mesh_gone(2) == []
    assert life.on_mesh_gone(1) == [RunCleanup()]
    assert life.on_cleaned_up() == [ReportFailure("ill"), Finalize()]


def test_it_waits_no_longer_than_it_may() -> None:
    life = owner_of(1)
    life.on_failed("ill")
    assert life.on_grace_expired() == [RunCleanup()]
    assert life.on_grace_expired() == []
    assert life.on_mesh_gone(1) == []
    assert life.on_cleaned_up() == [ReportFailure("ill"), Finalize()]


def test_its_owner_is_told_once_though_clean_up_takes_long() -> None:
    life = Checked()
    life.on_failed("ill")
    assert life.on_report_due() == [ReportFailure("ill")]
    assert life.on_report_due() == []
    assert life.on_cleaned_up() == [Finalize()]


def test_an_owner_that_ends_makes_nothing_new() -> None:
    life = owner_of(1)
    life.on_stop_requested()
    assert not life.own(2)
    life.on_mesh_gone(1)
    assert not life.own(2)
    life.on_cleaned_up()
    assert not life.own(2)


def test_failures_are_judged_one_mesh_at_a_time_and_those_of_a_mesh_together() -> None:
    life = owner_of(1, 2)
    assert life.on_mesh_failed(1, ["a"]) == [AskSupervisor()]
    assert life.on_mesh_failed(2, ["b"]) == []
    assert life.on_mesh_failed(1, ["c"]) == []
    assert life.next_failure() == (1, ["a", "c"])
    assert life.next_failure() is None, "never inside itself"
    assert life.on_mesh_failed(2, ["d"]) == []
    assert life.on_verdict(None) == [AskSupervisor()]
    assert life.next_failure() == (2, ["b", "d"])
    assert life.on_verdict(None) == []
    assert life.next_failure() is None


def test_what_is_not_handled_is_its_own_failure() -> None:
    life = owner_of(1, 2)
    life.on_mesh_failed(1, ["a"])
    life.on_mesh_failed(2, ["b"])
    life.next_failure()
    assert life.unhandled() == ["a", "b"]
    assert life.on_verdict("not handled") == [StopMesh(1), StopMesh(2)]
    assert life.unhandled() == []


def test_it_is_stopped_behind_what_it_has_to_judge() -> None:
    life = owner_of(1)
    life.on_mesh_failed(1, ["a"])
    assert life.on_stop_requested() == []
    life.next_failure()
    assert life.stage is Stage.LIVING
    assert life.on_verdict(None) == [StopMesh(1)]
    assert life.failure is None


def test_it_fails_though_it_was_to_stop_if_what_it_has_to_judge_is_not_handled() -> None:
    life = owner_of(1)
    life.on_mesh_failed(1, ["a"])
    life.on_stop_requested()
    life.next_failure()
    assert life.on_verdict("not handled") == [StopMesh(1)]
    assert life.failure == "not handled"


def test_a_mesh_that_is_stopped_has_no_failures_to_judge() -> None:
    life = owner_of(1)
    life.on_mesh_failed(1, ["a"])
    assert life.on_mesh_stopping(1) == []
    assert life.next_failure() is None
    assert life.on_mesh_failed(1, ["b"]) == []
    assert life.on_mesh_gone(1) == []
    assert life.meshes == {}


def test_stopping_what_was_to_be_judged_lets_a_stop_go_on() -> None:
    life = owner_of(1, 2)
    life.on_mesh_failed(1, ["a"])
    assert life.on_stop_requested() == []
    assert life.on_mesh_stopping(1) == [StopMesh(2)]


def test_a_verdict_that_comes_after_its_end_changes_nothing() -> None:
    life = owner_of(1)
    life.on_mesh_failed(1, ["a"])
    life.next_failure()
    assert life.on_failed("by itself") == [StopMesh(1)]
    assert life.on_verdict("not handled") == []
    assert life.failure == "by itself"


def test_a_failure_while_it_stops_makes_that_a_failure() -> None:
    life = owner_of(1)
    life.on_stop_requested()
    assert life.on_failed("gave up") == []
    assert life.on_failed("again") == []
    life.on_mesh_gone(1)
    assert life.on_cleaned_up("in clean-up") == [ReportFailure("gave up"), Finalize()]


def test_every_stage_is_reached_and_left_as_the_table_says() -> None:
    assert set(TRANSITIONS) == set(Stage)
    assert [stage for stage, after in TRANSITIONS.items() if not after] == [Stage.GONE]


# --- every interleaving ---------------------------------------------------------------------------

# A failure: who failed, in what way, and of what that came.
Fault: TypeAlias = "tuple[int, str, tuple[Any, ...]]"


@dataclass
class Node:
    """An actor: its life, the messages to it and from it, and what its process still is."""

    life: OwnerLifecycle[Fault]
    down: list[str] = field(default_factory=list[str])
    up: list[Any] = field(default_factory=list[Any])
    wanted: bool = False  # somebody waits for its end
    cleans: bool = False
    crashed: bool = False

    @property
    def over(self) -> bool:
        return self.crashed or self.life.stage is Stage.GONE

    def clone(self) -> Node:
        old = self.life
        life = copy.copy(old)
        life.meshes = {uid: copy.copy(mesh) for uid, mesh in old.meshes.items()}
        life.faults = {uid: list(faults) for uid, faults in old.faults.items()}
        life.story = list(old.story)
        return Node(life, list(self.down), list(self.up), self.wanted, self.cleans, self.crashed)

    def key(self) -> tuple[Any, ...]:
        life = self.life
        judging = (
            None
            if life.under_review is None
            else (life.under_review[0], tuple(life.under_review[1]))
        )
        return (
            life.stage, tuple((u, m.stopping) for u, m in life.meshes.items()),
            tuple((u, tuple(f)) for u, f in life.faults.items()), life.ask_pending, judging,
            life.to_stop, life.failure, life.reported, life.overdue, tuple(self.down),
            tuple(self.up), self.wanted, self.cleans, self.crashed,
        )  # fmt: skip


class Tree:
    """Actors that own each other, each in a process of its own, and the messages on their way."""

    def __init__(self, owners: tuple[int, ...], mischief: int) -> None:
        self.owners = owners  # of actor n + 1; actor 0 belongs to the client
        self.nodes = [Node(OwnerLifecycle()) for _ in range(len(owners) + 1)]
        self.left = mischief  # how much may still go wrong
        self.stop_left = True
        self.top: list[Fault] = []  # what the client was told
        self.settled: frozenset[tuple[int, Fault]] = frozenset()  # failures that got their verdict
        self.causes_made: frozenset[Fault] = frozenset()  # every failure that there ever was
        for actor, owner in enumerate(owners, 1):
            assert self.nodes[owner].life.own(actor)

    def clone(self) -> Tree:
        tree = copy.copy(self)
        tree.nodes = [node.clone() for node in self.nodes]
        tree.top = list(self.top)
        return tree

    def key(self) -> tuple[Any, ...]:
        return (*(node.key() for node in self.nodes), self.left, self.stop_left, tuple(self.top),
                self.settled)  # fmt: skip

    def children(self, actor: int) -> list[int]:
        return [child for child, owner in enumerate(self.owners, 1) if owner == actor]

    # --- what can happen next ---------------------------------------------------------------------

    def steps(self) -> Iterator[tuple[Any, ...]]:
        if self.stop_left:
            yield ("client stops", 0)
        for actor, node in enumerate(self.nodes):
            if node.up:
                yield ("goes up", actor)
            if node.over:
                if node.down:
                    yield ("comes down", actor)
                continue
            life = node.life
            if node.down:
                yield ("comes down", actor)
            if life.ask_pending:
                yield ("is asked", actor)
            if life.under_review is not None:
                yield ("handles", actor)
                yield ("does not handle", actor)
            if node.cleans:
                yield ("cleans up", actor)
            if not self.left:
                continue
            yield ("crashes", actor)
            if life.stage is Stage.ENDING:
                yield ("had its time", actor)
            if node.cleans:
                yield ("fails to clean up", actor)
            if life.failure is None and life.stage is not Stage.CLEANING:
                yield ("fails", actor)
            if life.stage is Stage.LIVING:
                yield ("stops itself", actor)
                for child in self.children(actor):
                    if child in life.meshes and not life.meshes[child].stopping:
                        yield ("stops its child", actor, child)

    def step(self, what: str, actor: int, child: int = -1) -> None:
        node = self.nodes[actor]
        life = node.life
        match what:
            case "client stops":
                self.stop_left = False
                node.down.append("stop")
            case "comes down":
                node.down.pop(0)
                node.wanted = True
                if node.over:
                    node.up.append("gone")
                else:
                    self.do(actor, life.on_stop_requested())
            case "goes up":
                self.goes_up(actor, node.up.pop(0))
            case "is asked":
                assert life.next_failure() is not None
            case "handles":
                assert life.under_review is not None
                self.settle(actor, life.under_review[1])
                self.do(actor, life.on_verdict(None))
            case "does not handle":
                causes = life.unhandled()
                assert causes
                self.settle(actor, causes)
                self.do(actor, life.on_verdict(self.made(actor, "not handled", tuple(causes))))
            case "cleans up":
                node.cleans = False
                self.do(actor, life.on_cleaned_up())
            case _:
                self.left -= 1
                self.mischief(what, actor, child)
        for other in self.nodes:
            other.life.validate()

    def mischief(self, what: str, actor: int, child: int) -> None:
        node = self.nodes[actor]
        life = node.life
        match what:
            case "fails":
                causes = life.unhandled()
                self.settle(actor, causes)
                self.do(actor, life.on_failed(self.made(actor, "fails", tuple(causes))))
            case "fails to clean up":
                node.cleans = False
                self.do(actor, life.on_cleaned_up(self.made(actor, "clean-up", ())))
            case "stops itself":
                self.do(actor, life.on_stop_requested())
            case "had its time":
                self.do(actor, life.on_grace_expired())
            case "stops its child":
                self.settle(actor, life.faults.get(child, []))
                self.nodes[child].down.append("stop")
                self.do(actor, life.on_mesh_stopping(child))
            case _:
                # Its host agent tells its owner, and stops what it owned.
                node.crashed = True
                node.up.append((actor, "died", ()))
                if node.wanted:
                    node.up.append("gone")
                for below in self.children(actor):
                    self.nodes[below].down.append("stop")

    def do(self, actor: int, actions: list[Any]) -> None:
        node = self.nodes[actor]
        for action in actions:
            match action:
                case StopMesh(uid):
                    self.nodes[uid].down.append("stop")
                case RunCleanup():
                    if not node.life.overdue:
                        assert all(self.nodes[child].over for child in self.children(actor)), (
                            "it cleans up before what it owns is gone"
                        )
                    node.cleans = True
                case ReportFailure(failure):
                    node.up.append(failure)
                case Finalize():
                    if node.wanted:
                        node.up.append("gone")
                case _:
                    assert action == AskSupervisor()
                    assert node.life.ask_pending

    def goes_up(self, actor: int, message: Any) -> None:
        if actor == 0:
            if message != "gone":
                self.top.append(message)
            return
        owner = self.owners[actor - 1]
        above = self.nodes[owner]
        life = above.life
        if above.over:
            return
        if message == "gone":
            self.do(owner, life.on_mesh_gone(actor))
            return
        judges = life.stage is Stage.LIVING and not life.meshes[actor].stopping
        self.do(owner, life.on_mesh_failed(actor, [message]))
        assert (message in life.unhandled()) == judges

    def made(self, *fault: Any) -> Fault:
        self.causes_made |= {fault}
        return fault  # pyright: ignore[reportReturnType]

    def settle(self, owner: int, faults: list[Fault]) -> None:
        for fault in faults:
            assert (owner, fault) not in self.settled, "judged twice"
            self.settled |= {(owner, fault)}

    # --- what must hold ---------------------------------------------------------------------------

    def check(self) -> None:
        for actor, owner in enumerate(self.owners, 1):
            above, node = self.nodes[owner], self.nodes[actor]
            if above.life.stage is Stage.GONE and not above.life.overdue and not above.crashed:
                assert node.over, "it outlives its owner"
        for fault in self.top:
            self.check_told(fault)

    def check_told(self, fault: Fault) -> None:
        actor, kind, causes = fault
        assert bool(causes) or kind != "not handled", "a failure without its first cause"
        for cause in causes:
            assert self.owners[cause[0] - 1] == actor, "told past its owner"
            self.check_told(cause)

    def check_end(self) -> None:
        """Nothing can happen any more but mischief."""
        for actor, node in enumerate(self.nodes):
            assert not node.life.ask_pending or node.crashed
            assert node.life.under_review is None or node.crashed
            over = self.nodes[0].over or not self.stop_left
            assert node.over or not over, f"{actor} never ends"
            failed = node.life.failure
            assert failed is None or failed in self.causes_made, "a stop that is told as a failure"
            if failed is None or node.crashed or actor == 0:
                continue
            if self.nodes[self.owners[actor - 1]].crashed:
                continue
            above = self.nodes[self.owners[actor - 1]].life
            told = [*self.top, *(fault for _, fault in self.settled)]
            carried = any(failed in (fault, *fault[2]) for fault in told)
            assert carried or above.stage is not Stage.LIVING or actor not in above.meshes or (
                above.meshes[actor].stopping
            ), "a failure that nobody heard of"  # fmt: skip


def explore(owners: tuple[int, ...], mischief: int) -> tuple[int, int]:
    """Take every step in every order; how many states and ends there are."""
    first = Tree(owners, mischief)
    seen = {first.key()}
    todo = [first]
    ends = 0
    while todo:
        tree = todo.pop()
        steps = list(tree.steps())
        quiet = True
        for what in steps:
            after = tree.clone()
            after.step(*what)
            after.check()
            quiet &= after.left < tree.left or what[0] == "client stops"
            key = after.key()
            if key not in seen:
                seen.add(key)
                todo.append(after)
        if quiet:
            ends += 1
            tree.check_end()
    return len(seen), ends


@pytest.mark.parametrize(
    ("owners", "mischief"),
    [
        ((), 4),
        ((0,), 3),
        ((0, 0), 2), ((0, 1), 2),
        ((0, 0, 0), 1), ((0, 0, 1), 1), ((0, 1, 1), 1), ((0, 1, 2), DEEP),
    ],
    ids=["one", "owner and child", "two children", "chain of three", "three children",
         "two children and a grandchild", "two grandchildren", "chain of four"],
)  # fmt: skip
def test_whatever_fails_stops_and_is_told_in_any_order(
    owners: tuple[int, ...], mischief: int
) -> None:
    states, ends = explore(owners, mischief)
    assert states > ends > 1
