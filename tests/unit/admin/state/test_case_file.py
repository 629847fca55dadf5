from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.admin.state.case_file import CaseFile, case_of, case_text
from monarch._src.admin.state.cycles import cycles_of
from monarch._src.admin.state.nodes import Missing

MESH, CLIENT, NOW_US = 0x1F, 0x7, 20_000_000


def proc(rank: int, state: str = "idle", **more: Any) -> dict[str, Any]:
    return {
        "mesh_id": MESH, "mesh": "workers", "rank": rank, "point_json": f'{{"gpus":{rank}}}',
        "state": state, "since_s": 1.0, "actor": None, "endpoint": None, "failure": None, **more,
    }  # fmt: skip


def actor(rank: int, running: str | None) -> dict[str, Any]:
    return {
        "proc_mesh_id": MESH, "proc_rank": rank, "class": "train.Trainer", "running": running,
        "status": "processing" if running else "idle", "proc_mesh": "workers", "name": "trainer",
    }  # fmt: skip


def call(caller: int | None, callee: int, number: int = 1, **more: Any) -> dict[str, Any]:
    """A call from a rank, or from the client."""
    place = (
        ("client", CLIENT, "client", 0)
        if caller is None
        else (f"n{caller}", MESH, "workers", caller)
    )
    names = ("caller", "caller_mesh_id", "caller_mesh", "caller_rank")
    return {
        **dict(zip(names, place, strict=True)), "call": number, "timestamp_us": NOW_US - 2_000_000,
        "mesh_id": MESH, "mesh": "workers", "rank": callee, "actor": "w", "class": "W",
        "endpoint": "step", "ranks": 1, "awaited": True, **more,
    }  # fmt: skip


def message(of: dict[str, Any], status: str) -> dict[str, Any]:
    return {
        "sender": of["caller"], "call": of["call"], "mesh_id": of["mesh_id"], "rank": of["rank"],
        "status": status,
    }  # fmt: skip


def frames(rank: int, *functions: str, activity: str = "in step") -> list[dict[str, Any]]:
    return [
        {
            "mesh_id": MESH, "mesh": "workers", "rank": rank, "activity": activity,
            "thread": "MainThread", "function": function, "file": "train.py", "line": 7,
        }
        for function in functions
    ]  # fmt: skip


def test_nothing_is_said_of_a_session_that_is_well() -> None:
    case = case_of(NOW_US, {"procs": [proc(0), proc(1)]})
    assert case.verdict == "nothing has failed, and no call is awaited"
    assert (case.failures, case.waits, case.cycles, case.blockers) == ([], [], [], [])


def test_the_first_failure_is_the_oldest() -> None:
    case = case_of(
        NOW_US,
        {
            "procs": [
                proc(0, "failed", since_s=1.0, failure="lost its peer"),
                proc(1, "failed", since_s=9.0, failure="killed by SIGKILL\nmore"),
            ]
        },
    )
    assert [one.where for one in case.failures] == ["workers[gpus=1]", "workers[gpus=0]"]
    assert case.verdict == (
        "workers[gpus=1] failed first: killed by SIGKILL; 1 more failure followed"
    )


def test_the_end_of_a_chain_of_waits_is_the_blocker() -> None:
    first, second = call(None, 0), call(0, 1, 5)
    case = case_of(
        NOW_US,
        {
            "procs": [proc(0, "busy"), proc(1, "busy", actor="W", endpoint="slow", since_s=12.0)],
            "calls": [first, second],
            "messages": [message(first, "active"), message(second, "active")],
        },
    )
    (blocker,) = case.blockers
    assert (blocker.where, blocker.waiting, blocker.doing) == ("workers[gpus=1]", 2, "W.slow")
    assert case.verdict == "2 procs wait for workers[gpus=1], which runs W.slow for 12.0 s"
    assert case.waits[0].for_s == 2.0


def test_a_constructor_that_runs_is_named_though_its_proc_counts_as_idle() -> None:
    waiting = call(None, 1)
    tables = {
        "procs": [proc(0), proc(1, since_s=900.0)],
        "actors": [actor(0, None), actor(1, "__init__")],
    }
    messages = [message(waiting, "queued")]
    case = case_of(NOW_US, {**tables, "calls": [waiting], "messages": messages})
    assert case.verdict == "1 proc waits for workers[gpus=1], which runs Trainer.__init__"
    assert case_of(NOW_US, tables).verdict == (
        "nothing has failed, and no call is awaited; workers[gpus=1] runs Trainer.__init__"
    )


def test_procs_that_wait_for_each_other_are_a_cycle() -> None:
    there, back = call(0, 1), call(1, 0)
    tables = {
        "procs": [proc(0, "busy"), proc(1, "busy")],
        "calls": [there, back],
        "messages": [message(there, "active"), message(back, "queued")],
    }
    case = case_of(NOW_US, tables)
    assert [one.procs for one in case.cycles] == [["workers[gpus=0]", "workers[gpus=1]"]]
    assert "wait for each other" in case.verdict
    assert "workers[gpus=0] -> workers[gpus=1] -> workers[gpus=0]" in str(case)


def test_a_call_that_is_at_no_rank_makes_no_cycle() -> None:
    there, back = call(0, 1), call(1, 0)
    tables = {
        "procs": [proc(0), proc(1)],
        "calls": [there, back],
        "messages": [message(there, "active")],
    }
    assert case_of(NOW_US, tables).cycles == []


def test_a_call_that_nobody_awaits_blocks_nobody() -> None:
    one = call(None, 0, awaited=False)
    tables = {"procs": [proc(0)], "calls": [one], "messages": [message(one, "active")]}
    case = case_of(NOW_US, tables)
    assert case.blockers == []
    assert not case.waits[0].awaited
    assert "client called 2.0 s ago and does not wait: w.step on workers[gpus=0]" in str(case)


def test_the_rank_whose_stack_differs_is_odd() -> None:
    rows = [row for rank in range(4) for row in frames(rank, "loop", "all_reduce")]
    rows += frames(4, "loop", "read_file", activity="in read_file")
    case = case_of(NOW_US, {"procs": [proc(rank) for rank in range(5)], "frames": rows})
    odd = [group for group in case.stacks if group.odd]
    assert [group.procs for group in odd] == [["workers[gpus=4]"]]
    assert odd[0].frames == ["loop (train.py:7)", "read_file (train.py:7)"]
    assert "the stack of workers[gpus=4] differs from the others': in read_file" in case.verdict


def test_no_rank_of_a_group_is_left_out_of_the_text() -> None:
    rows = [row for rank in range(40) for row in frames(rank, "loop")]
    rows += [row for rank in range(40, 46) for row in frames(rank, "read", activity="in read")]
    waits = [call(None, rank, ranks=46, awaited=False) for rank in range(46)]
    tables = {"procs": [proc(rank) for rank in range(46)], "frames": rows, "calls": waits}
    case = case_of(NOW_US, tables)
    assert "the stack of workers[gpus=40..45] differs from the others'" in str(case)
    assert "  odd: workers[gpus=40..45]: in read" in str(case)
    assert "  workers[gpus=0..39]: in step" in str(case)
    assert "w.step on workers[gpus=0..45] (46 of 46 ranks owe an answer)" in str(case)


def test_of_two_ranks_with_different_stacks_neither_is_odd() -> None:
    rows = [*frames(0, "a"), *frames(1, "b")]
    case = case_of(NOW_US, {"procs": [proc(0), proc(1)], "frames": rows})
    assert [group.odd for group in case.stacks] == [False, False]


def test_the_last_lines_are_those_of_the_concerned() -> None:
    lines = [
        {"mesh_id": MESH, "mesh": "workers", "rank": rank, "number": at, "timestamp_us": at,
         "text": f"line {at}"}
        for at in range(9) for rank in (0, 1)
    ]  # fmt: skip
    failed = case_of(NOW_US, {"procs": [proc(0, "failed"), proc(1)], "log_lines": lines})
    assert [one.where for one in failed.last_lines] == ["workers[gpus=0]"]
    assert failed.last_lines[0].lines == [f"line {at}" for at in range(4, 9)]
    well = case_of(NOW_US, {"procs": [proc(0), proc(1)], "log_lines": lines})
    assert len(well.last_lines) == 2


def test_a_host_that_does_not_answer_is_named() -> None:
    case = case_of(NOW_US, {}, [Missing("procs", "session abc", "its host agent does not answer")])
    assert case.verdict.startswith("a host does not answer: session abc")
    assert "MISSING" in str(case)


def test_a_case_is_the_same_after_it_was_json() -> None:
    one = call(None, 0)
    tables = {"procs": [proc(0, "failed")], "calls": [one], "messages": [message(one, "queued")],
              "frames": frames(0, "f")}  # fmt: skip
    case = case_of(NOW_US, tables)
    data = msgspec.json.encode(case)
    assert msgspec.json.decode(data, type=CaseFile) == case
    assert json.loads(data)["verdict"] == case.verdict


def test_text_of_ranks_cannot_obey_the_terminal() -> None:
    case = case_of(NOW_US, {"procs": [proc(0, "failed", failure="\x1b]0;owned\x07")]})
    assert all(line.isprintable() for line in case_text(case).splitlines())


EDGES = st.dictionaries(
    st.tuples(st.just(0), st.integers(0, 7)),
    st.sets(st.tuples(st.just(0), st.integers(0, 7)), max_size=3),
    max_size=8,
)


@given(EDGES)
def test_cycles_are_ways_along_edges_and_are_found_if_there_are_any(
    edges: dict[tuple[int, int], set[tuple[int, int]]],
) -> None:
    cycles = cycles_of(edges)
    for cycle in cycles:
        assert len(set(cycle)) == len(cycle)
        for node, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            assert following in edges[node]
    left = {node: set(targets) for node, targets in edges.items()}
    while ends := [n for n, ts in left.items() if not any(t in left for t in ts)]:
        for node in ends:
            del left[node]
    assert bool(cycles) == bool(left)  # what remains when all ends are taken away has a cycle
