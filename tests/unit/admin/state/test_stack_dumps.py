"""Stored stacks: the last dumps, as columns of a table."""

from __future__ import annotations

from monarch._src.admin.state.stack_dumps import StackDumps
from monarch._src.wire.messages import Condition


def frame(dump: str, depth: int) -> dict[str, object]:
    return {"dump_id": dump, "depth": depth, "file": None}


def test_the_last_dumps_are_kept_in_their_order() -> None:
    dumps = StackDumps(most=2)
    for name in ("a", "b", "c"):
        dumps.add([frame(name, 0), frame(name, 1)])
    found = dumps.columns(["depth", "dump_id"], [])
    assert found == {"depth": [0, 1, 0, 1], "dump_id": ["b", "b", "c", "c"]}


def test_only_frames_that_meet_the_conditions_are_given() -> None:
    dumps = StackDumps()
    dumps.add([frame("a", 0), frame("a", 1)])
    dumps.add([frame("b", 0)])
    conditions = [Condition("dump_id", "=", ["a"]), Condition("depth", ">", [0])]
    assert dumps.columns(["depth"], conditions) == {"depth": [1]}
    assert dumps.columns(["depth"], [Condition("file", "=", ["x"])]) == {"depth": []}
