"""Stacks: only the user's part of a thread is kept, equal ones are one, the odd ones are named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.observe.stacks.state import grouping
from monarch._src.observe.stacks.state.grouping import Look
from monarch._src.wire.messages import EndpointWait, StackFrame, ThreadStack

LIBRARY = "/usr/lib/python3.11/threading.py"
RUNTIME = "/venv/lib/python3.11/site-packages/monarch/_src/actor/worker.py"
NOTEBOOK = "/venv/lib/python3.11/site-packages/monarch_jupyter/ranks/cell_runner.py"
USER = "/home/me/train.py"
TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"

START = [("<module>", "<string>", 1), ("main", RUNTIME, 2), ("run", RUNTIME, 3)]
STEP = ("Trainer.step", USER, 10)
ALL_REDUCE = ("all_reduce", TORCH, 20)
LOCK = ("Condition.wait", LIBRARY, 30)
GET = ("Future.get", "/x/monarch/_src/actor/future.py", 40)
DECODE = ("Future._result", "/x/monarch/_src/actor/future.py", 50)
CALL = ("CallingMethod.call", "/x/monarch/_src/actor/call/call.py", 60)
SLEEP = ("sleep", "/x/monarch/_src/actor/run/interruptible_sleep.py", 70)


def frames(*given: tuple[str, str, int]) -> tuple[StackFrame, ...]:
    return tuple(StackFrame(*one) for one in given)


def thread(*given: tuple[str, str, int], name: str = "", waits: bool = False) -> ThreadStack:
    return ThreadStack(name, waits, frames(*given))


def dump(*threads: tuple[str | None, int, list[tuple[str, str, int]]]) -> bytes:
    """What py-spy prints of these: innermost frame first, with fields that nobody needs."""
    return json.dumps(
        [
            {
                "pid": 1, "thread_id": 7, "thread_name": name, "os_thread_id": number,
                "active": True, "owns_gil": False, "process_info": None,
                "frames": [
                    {"name": n, "filename": f, "line": at, "module": None, "short_filename": f,
                     "locals": None, "is_entry": True}
                    for n, f, at in reversed(found)
                ],
            }
            for name, number, found in threads
        ]
    ).encode()  # fmt: skip


def test_a_dump_is_read_outermost_first_and_the_main_thread_comes_first() -> None:
    found = grouping.parse(dump(("loader", 5, [LOCK]), ("MainThread", 9, [*START, STEP])))
    assert found == [thread(*START, STEP), thread(LOCK, name="loader")]


def test_a_thread_without_a_name_is_told_by_its_number() -> None:
    assert [t.name for t in grouping.parse(dump((None, 77, [STEP])))] == ["thread 77"]


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'[{"frames": [{"name": 1}]}]'])
def test_what_is_no_dump_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        grouping.parse(text)


@pytest.mark.parametrize(
    ("whole", "own", "waits"),
    [
        ([*START, STEP], [STEP], False),
        ([*START, STEP, ALL_REDUCE], [STEP, ALL_REDUCE], False),
        ([*START, STEP, LOCK], [STEP, LOCK], False),
        ([*START, STEP, GET, LOCK], [STEP], True),
        ([*START, STEP, GET, STEP, LOCK], [STEP, STEP, LOCK], False),
        ([*START, STEP, GET, DECODE], [STEP], False),
        ([*START, STEP, CALL], [STEP], False),
        ([*START, ("run", NOTEBOOK, 1), ("<module>", "<cell In[3] on w>", 2)],
         [("<module>", "<cell In[3] on w>", 2)], False),
        ([LOCK, STEP], [STEP], False),
    ],
)  # fmt: skip
def test_the_users_part_of_a_thread_is_what_is_kept(
    whole: list[tuple[str, str, int]], own: list[tuple[str, str, int]], waits: bool
) -> None:
    assert grouping.of_user([thread(*whole)]) == [thread(*own, waits=waits)]


@pytest.mark.parametrize("whole", [START, [*START, LOCK], [LOCK], []])
def test_a_thread_that_is_in_no_code_of_the_user_is_left_out(
    whole: list[tuple[str, str, int]],
) -> None:
    assert grouping.of_user([thread(*whole)]) == []


def test_the_io_thread_is_left_out_and_has_one_name_on_every_rank() -> None:
    names = {
        t.name
        for number in range(3)
        for t in grouping.parse(dump((f"monarch-io-3a.{number}", 5, [STEP])))
    }
    assert names == {"monarch-io"}
    assert grouping.of_user([thread(STEP, name="monarch-io")]) == []


@pytest.mark.parametrize(
    ("threads", "doing", "what"),
    [
        ([thread(*START, STEP)], "Trainer.step", "in Trainer.step"),
        ([thread(*START, STEP, ALL_REDUCE, LOCK)], "Trainer.step", "in all_reduce"),
        ([thread(*START, STEP, GET)], "Trainer.step", "in Trainer.step, waiting for an answer"),
        ([thread(*START, STEP, SLEEP)], "Trainer.step", "in Trainer.step, in time.sleep"),
        ([thread(*START, STEP, CALL)], "Trainer.step", "in Trainer.step"),
        ([thread(*START)], "Trainer.step", "otherwise"),
        ([thread(*START)], "", "otherwise"),
        ([thread(*START), thread(LOCK, STEP, name="loader")], "", "in Trainer.step"),
        ([thread(*START, ALL_REDUCE), thread(*START, STEP, name="a")], "Trainer.step",
         "in Trainer.step"),
        ([thread(*START, ("<module>", "/home/me/a.py", 4))], "bootstrap", "in a.py, line 4"),
    ],
)  # fmt: skip
def test_a_rank_is_told_by_the_innermost_frame_of_the_thread_that_runs_its_endpoint(
    threads: list[ThreadStack], doing: str, what: str
) -> None:
    assert grouping.look(3, threads, doing, "otherwise", full=False).what == what


def test_full_keeps_every_thread_and_frame_and_says_the_same() -> None:
    threads = [thread(*START, STEP, GET), thread(LOCK, name="monarch-io")]
    seen = grouping.look(0, threads, "Trainer.step", "", full=True)
    assert seen.threads == tuple(threads)
    assert seen.what == "in Trainer.step, waiting for an answer"


def test_a_deep_recursion_is_shown_by_its_ends() -> None:
    (cut,) = grouping.bounded([thread(*[("f", USER, at) for at in range(1000)])])
    assert len(cut.frames) == grouping.MOST_FRAMES + 1
    assert (cut.frames[0].line, cut.frames[-1].line) == (0, 999)
    assert grouping.thread_lines(cut)[50] == "... 900 more frames ..."


def wait(
    what: str,
    for_s: float,
    *at: tuple[str, str, int],
    behind: list[str] | None = None,
    queued: int = 1,
    is_local: bool = True,
    waited_s: float | None = None,
    name: str = "",
) -> EndpointWait:
    return EndpointWait(
        "Trainer", "step", for_s, what, frames(*at), behind or [], is_local, queued, waited_s, name
    )


def test_an_endpoint_that_awaits_is_told_with_its_lines_and_what_it_awaits() -> None:
    waits = [wait("asyncio.Lock.acquire of self.lock", 12.0, STEP), wait("a future", 3.0, STEP)]
    seen = grouping.look(0, [thread(*START)], "Trainer.step", "busy", full=False, waits=waits)
    assert seen.what == ("in Trainer.step, awaiting asyncio.Lock.acquire of self.lock, and 1 more")
    assert [one.awaits for one in seen.threads] == [
        "asyncio.Lock.acquire of self.lock", "a future",
    ]  # fmt: skip
    assert seen.for_s == 12.0
    assert grouping.thread_lines(seen.threads[0]) == [
        "task Trainer.step",
        'File "/home/me/train.py", line 10, in Trainer.step',
        "waits for asyncio.Lock.acquire of self.lock",
    ]


def test_a_thread_that_waits_for_an_answer_names_the_call() -> None:
    waits = [wait("an answer from Loader.next on loaders[gpus=1]", 1.0)]
    threads = [thread(*START, STEP, GET)]
    seen = grouping.look(0, threads, "Trainer.step", "busy", full=False, waits=waits)
    assert seen.what == "in Trainer.step, waiting for an answer"
    assert seen.threads[0].awaits == "an answer from Loader.next on loaders[gpus=1]"
    assert seen.queues == ()


@pytest.mark.parametrize(
    ("inner", "named", "what"),
    [
        (GET, "a message to a port", "waiting for a message to a port"),
        (SLEEP, "time.sleep(600)", "in time.sleep(600)"),
        (LOCK, "threading.Event.wait of self.full", "in threading.Event.wait of self.full"),
        (
            ALL_REDUCE,
            "threading.Lock.acquire of self.lock",
            "in threading.Lock.acquire of self.lock",
        ),
        # The rank was asked a moment before, and has gone on.
        (GET, "time.sleep(600)", "waiting for an answer"),
        (SLEEP, "threading.Event.wait", "in time.sleep"),
        (LOCK, "an answer", ""),
    ],
)
@pytest.mark.parametrize("name", ["", "actor-trainers"])
def test_a_thread_that_waits_is_told_with_its_wait(
    inner: tuple[str, str, int], named: str, what: str, name: str
) -> None:
    waits = [wait(named, 9.0, waited_s=2.0, name=name)]
    threads = [thread(*START, STEP, inner, name=name), thread(*START, STEP, LOCK, name="other")]
    seen = grouping.look(0, threads, "Trainer.step", "busy", full=False, waits=waits)
    function = "all_reduce" if inner is ALL_REDUCE else "Trainer.step"
    assert seen.what == ", ".join(filter(None, [f"in {function}", what]))
    fits = named in what
    assert seen.waited_s == (2.0 if fits else None, None)
    assert (seen.threads[0].awaits == named) is fits
    assert not seen.threads[1].awaits


DEADLOCK = (
    "The actor runs one call at a time: if put has to end this wait, it is a deadlock; "
    "@concurrent_endpoint on step lets them overlap (in an async actor)"
)
TWELVE = "an answer from A.b, for 12 s"


@pytest.mark.parametrize(
    ("waits", "named"),
    [
        ([wait("a future", 1.0, STEP, behind=["put"])],
         f"1 message (put) is queued behind Trainer.step, which waits for a future. {DEADLOCK}"),
        ([wait("an answer from A.b", 1.0, behind=["put", "set"], queued=3, is_local=False,
               waited_s=12.0)],
         f"3 messages (put and set) are queued behind Trainer.step, which waits for {TWELVE}"),
        ([wait("a future", 1.0, STEP)], ""),
        ([wait("", 1.0, behind=["put"])], ""),
    ],
)  # fmt: skip
def test_calls_behind_a_wait_are_told_and_a_deadlock_where_only_this_process_can_end_it(
    waits: list[EndpointWait], named: str
) -> None:
    seen = grouping.look(0, [thread(*START, STEP)], "Trainer.step", "", full=False, waits=waits)
    (group,) = grouping.group(1, "w", {"gpus": 1}, [seen]).groups
    assert group.notes == ((named,) if named else ())


@pytest.mark.parametrize(
    ("for_s", "text"),
    [([], ""), ([0.25], ", for 0.2 s"), ([3.0, 90.0], ", for 3.0 s to 90 s"),
     ([7200.0], ", for 2 h")],
)  # fmt: skip
def test_the_times_of_a_group_are_its_least_and_its_greatest(for_s: list[float], text: str) -> None:
    assert grouping.time_text(for_s) == text


def test_times_do_not_part_ranks_with_equal_stacks() -> None:
    looks = [Look(rank, "in f", (thread(STEP),), float(rank)) for rank in range(4)]
    mesh = grouping.group(1, "workers", {"gpus": 4}, looks)
    (group,) = mesh.groups
    assert group.for_s == [0.0, 1.0, 2.0, 3.0]
    assert "4 in f: gpus=0..3, for 0.0 s to 3.0 s" in grouping.text(mesh)


def test_neither_the_times_of_waits_nor_the_numbers_of_calls_part_ranks() -> None:
    seen = [
        grouping.look(
            rank, [thread(*START, STEP, SLEEP)], "Trainer.step", "", full=False,
            waits=[wait("time.sleep(600)", 9.0, behind=["put"], queued=rank + 1, is_local=False,
                        waited_s=float(rank))],
        )
        for rank in range(2)
    ]  # fmt: skip
    mesh = grouping.group(1, "workers", {"gpus": 2}, seen)
    (group,) = mesh.groups
    assert (group.what, group.waited_s) == ("in Trainer.step, in time.sleep(600)", [[0.0, 1.0]])
    text = grouping.text(mesh)
    assert "\n  waits for time.sleep(600), for 0.0 s to 1.0 s\n" in text
    assert "\n  1 to 2 messages (put) are queued behind Trainer.step, which waits for " in text


def looks(*given: tuple[list[int], str]) -> list[Look]:
    return [Look(rank, what, (thread(STEP),)) for ranks, what in given for rank in ranks]


def test_the_odd_ones_are_named() -> None:
    others = [rank for rank in range(64) if rank not in (3, 17)]
    mesh = grouping.group(
        1, "workers", {"gpus": 64}, looks((others, "in all_reduce"), ([17, 3], "in DataLoader"))
    )
    assert grouping.headline(mesh) == "62 in all_reduce, 2 in DataLoader: gpus=3, gpus=17"
    assert [len(group.ranks) for group in mesh.groups] == [62, 2]


@pytest.mark.parametrize(
    ("sizes", "given", "said"),
    [
        ({"gpus": 4}, [([0, 1, 2, 3], "idle")], "4 idle"),
        ({"gpus": 6}, [([0, 1, 2], "idle"), ([3, 4], "in f"), ([5], "in g")],
         "3 idle, 2 in f: gpus=3..4; 1 in g: gpus=5"),
        ({"hosts": 2, "gpus": 2}, [([0, 1, 2], "idle"), ([3], "in f")],
         "3 idle, 1 in f: [hosts=1, gpus=1]"),
        ({}, [([0], "in f")], "1 in f"),
        ({"gpus": 0}, [], "no ranks"),
    ],
)  # fmt: skip
def test_headlines(sizes: dict[str, int], given: list[tuple[list[int], str]], said: str) -> None:
    assert grouping.headline(grouping.group(1, "w", sizes, looks(*given))) == said


def test_many_odd_ones_are_named_within_bounds() -> None:
    odd = list(range(1, 1024, 4))
    rest = [rank for rank in range(1024) if rank not in odd]
    mesh = grouping.group(1, "w", {"gpus": 1024}, looks((rest, "in f"), (odd, "in g")))
    said = grouping.headline(mesh)
    assert said.endswith(f"and {len(odd) - grouping.MOST_PLACES} more")


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([STEP, ALL_REDUCE])), max_size=40)
)
def test_every_rank_is_in_one_group_of_ranks_that_are_in_the_same(
    given: list[tuple[str, tuple[str, str, int]]],
) -> None:
    seen = [Look(rank, what, (thread(at),)) for rank, (what, at) in enumerate(given)]
    mesh = grouping.group(1, "w", {"gpus": len(seen)}, seen)
    assert sorted(r for g in mesh.groups for r in g.ranks) == list(range(len(seen)))
    for group in mesh.groups:
        assert {(seen[r].what, seen[r].threads) for r in group.ranks} == {
            (group.what, group.threads)
        }
    keys = [(group.what, group.threads) for group in mesh.groups]
    assert len(set(keys)) == len(keys)


def test_the_text_shows_each_stack_once_as_a_traceback() -> None:
    seen = [Look(0, "in Trainer.step", (thread(STEP, waits=True),)), Look(1, "idle")]
    seen.append(Look(2, "in Trainer.step", (thread(STEP, waits=True),)))
    assert grouping.text(grouping.group(1, "workers", {"gpus": 3}, seen)) == (
        "workers, 3 ranks: 2 in Trainer.step, 1 idle: gpus=1\n"
        "\n"
        "2 in Trainer.step: gpus=0, gpus=2\n"
        '  File "/home/me/train.py", line 10, in Trainer.step\n'
        "  waits for an answer"
    )
