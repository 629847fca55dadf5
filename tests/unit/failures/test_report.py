"""How failures word themselves: who, where, why; the user's frames; equal stories told once."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.errors import death_error
from monarch._src.failures.report import (
    as_causes,
    at_text,
    failures_text,
    first_reported,
    fold,
    for_later_call,
    ranks_text,
)
from monarch._src.wire.msgpack_text import pack, unpacker
from monarch.actor import (
    ActorError,
    Behind,
    DeadlockError,
    Death,
    Frame,
    MeshFailure,
    OutOfMemory,
    RankFailure,
    RestartedError,
    SupervisionError,
)
from tests.rank_failures import CELL, HELPER, OURS, died, failed, not_handled


def test_an_endpoint_that_raised_on_one_rank() -> None:
    assert str(ActorError(failures=[failed()])) == (
        "Trainer.step on workers[gpus=3] raised ZeroDivisionError: division by zero\n"
        '  File "<cell 3>", line 7, in step\n'
        "    loss = self.loss / self.count\n"
        '  File "/home/me/train.py", line 12, in mean\n'
        "    return total / count"
    )


def test_an_endpoint_that_raised_alike_on_some_ranks() -> None:
    ranks = [3, 0, 1, 2, 6]
    assert str(ActorError(failures=[failed(rank, frames=(CELL,)) for rank in ranks])) == (
        "Trainer.step on workers[gpus=0] raised ZeroDivisionError: division by zero\n"
        '  File "<cell 3>", line 7, in step\n'
        "    loss = self.loss / self.count\n"
        "and on 4 more ranks: gpus=1..3, gpus=6"
    )


def test_what_an_error_came_of_is_told_behind_it_with_its_own_frames() -> None:
    behind = (
        Behind("from", "KeyError", "'lr'", (OURS, HELPER)),
        Behind("during", "OSError", "", ()),
    )
    known = failed(frames=(CELL,), behind=behind)
    assert str(ActorError(failures=[known, failed(0, frames=(CELL,), behind=behind)])) == (
        "Trainer.step on workers[gpus=0] raised ZeroDivisionError: division by zero\n"
        '  File "<cell 3>", line 7, in step\n'
        "    loss = self.loss / self.count\n"
        "because of KeyError: 'lr'\n"
        '  File "/home/me/train.py", line 12, in mean\n'
        "    return total / count\n"
        "while it handled OSError\n"
        "and on 1 more rank: gpus=3"
    )


def test_what_a_group_of_exceptions_holds_is_told_and_a_place_once() -> None:
    behind = [Behind("in", "ValueError", f"shard {at}", (HELPER,)) for at in range(2)]
    lines = failed(frames=(), behind=(*behind, Behind("in", "KeyError", "1", (CELL,)))).text()
    assert lines.splitlines()[1:] == [
        "in it: ValueError: shard 0",
        '  File "/home/me/train.py", line 12, in mean',
        "    return total / count",
        "in it: ValueError: shard 1",
        "in it: KeyError: 1",
        '  File "<cell 3>", line 7, in step',
        "    loss = self.loss / self.count",
    ]


def test_failures_that_came_of_others_are_others_and_travel_with_them() -> None:
    one, other = (failed(behind=(Behind("from", kind, "x", (CELL,)),)) for kind in ("A", "B"))
    assert one.story != other.story
    assert one.place != other.place
    assert one.place == failed(behind=(Behind("from", "A", "y", (CELL,)),)).place
    assert unpacker(RankFailure)(pack(one)) == one


def test_an_endpoint_that_raised_alike_on_two_ranks() -> None:
    text = str(ActorError(failures=[failed(0, frames=()), failed(5, frames=())]))
    assert text.splitlines()[1:] == ["and on 1 more rank: gpus=5"]


def test_ranks_that_failed_each_in_its_own_way() -> None:
    failures = [
        failed(0, frames=()),
        failed(1, frames=(), exception_type="KeyError", message="'weights'"),
        failed(2, frames=()),
    ]
    assert str(ActorError(failures=failures)) == (
        "Trainer.step on workers[gpus=0] raised ZeroDivisionError: division by zero\n"
        "and on 1 more rank: gpus=2\n"
        "Trainer.step on workers[gpus=1] raised KeyError: 'weights'"
    )


def test_ranks_that_name_themselves_in_what_they_say_are_told_once() -> None:
    ranks = [3, 0, 1, 2, 6, 7]
    failures = [failed(n, frames=(CELL,), message=f"no batch\nfor rank {n}") for n in ranks]
    failures.append(failed(8, frames=(CELL,), message="no batch\nfor rank 3"))
    assert str(ActorError(failures=failures)) == (
        "Trainer.step on workers[gpus=0] raised ZeroDivisionError: no batch\nfor rank 0\n"
        '  File "<cell 3>", line 7, in step\n'
        "    loss = self.loss / self.count\n"
        "and on 6 more ranks, in other words:\n"
        "  gpus=1: no batch for rank 1\n"
        "  gpus=2: no batch for rank 2\n"
        "  gpus=3, gpus=8: no batch for rank 3\n"
        "  2 more: gpus=6..7"
    )


@given(st.permutations(range(6)))
def test_the_lowest_rank_of_one_place_is_named_in_whatever_order_ranks_fail(
    order: list[int],
) -> None:
    alike = [failed(rank, message=f"bad shard {rank % 2}") for rank in order]
    assert str(ActorError(failures=alike)) == str(
        ActorError(failures=sorted(alike, key=lambda failure: failure.rank))
    )
    assert alike[first_reported(alike)].rank == 0


def test_the_place_that_failed_first_is_named_first_and_the_lowest_rank_of_it() -> None:
    failures = [
        failed(5, exception_type="KeyError"),
        failed(0),
        failed(3, exception_type="KeyError"),
        failed(1),
    ]
    text = str(ActorError(failures=failures))
    heads = [line for line in text.splitlines() if line.startswith(("Trainer", "and on"))]
    assert heads == [
        "Trainer.step on workers[gpus=3] raised KeyError: division by zero",
        "and on 1 more rank: gpus=5",
        "Trainer.step on workers[gpus=0] raised ZeroDivisionError: division by zero",
        "and on 1 more rank: gpus=1",
    ]
    assert failures[first_reported(failures)].rank == 3


def test_another_reason_among_many_that_differ_in_numbers_is_seen() -> None:
    said = [f"rank {rank} timed out after {rank / 7} s" for rank in range(128)]
    said[77], said[90], said[91] = "no space left", "rank 90 is stuck", "rank 91 is stuck"
    failures = [failed(n, frames=(CELL,), message=text) for n, text in enumerate(said)]
    lines = str(ActorError(failures=failures)).splitlines()
    assert lines[-5:] == [
        "and on 127 more ranks, in other words:",
        "  gpus=77: no space left",
        "  gpus=90: rank 90 is stuck",
        f"  gpus=1: {said[1]}",
        "  124 more: gpus=2..76, gpus=78..89, gpus=91..127",
    ]


def test_words_that_are_long_are_cut_where_they_are_those_of_other_ranks() -> None:
    long = "x" * 1000
    failures = [failed(n, frames=(CELL,), message=f"{n} {long}") for n in range(2)]
    text = str(ActorError(failures=failures))
    assert f"0 {long}" in text
    assert text.splitlines()[-1] == f"  gpus=1: 1 {'x' * 198}..."


def test_another_place_or_another_error_is_another_failure_whatever_it_says() -> None:
    failures = [
        failed(0, frames=(CELL,), message="a"),
        failed(1, frames=(CELL, CELL), message="b"),
        failed(2, frames=(CELL,), message="c", exception_type="KeyError"),
        failed(3, frames=(), message="d"),
        failed(4, frames=(), message="e"),
    ]
    assert "in other words" not in str(ActorError(failures=failures))


def test_of_owners_that_failed_alike_what_their_causes_said_is_told() -> None:
    failures = [
        failed(n, kind="not handled", message="a child failed", frames=(),
               causes=(failed(n, frames=(CELL,), message=f"bad shard {n}"),))
        for n in range(3)
    ]  # fmt: skip
    text = str(SupervisionError(failures=failures))
    assert text.count('File "<cell 3>"') == 1
    assert text.endswith("in other words:\n  gpus=1: bad shard 1\n  gpus=2: bad shard 2")


def test_a_constructor_that_raised() -> None:
    failure = failed(kind="constructor", endpoint=None, frames=(CELL,))
    assert str(SupervisionError(failures=[failure])) == (
        "Trainer.__init__ on workers[gpus=3] raised ZeroDivisionError: division by zero\n"
        '  File "<cell 3>", line 7, in step\n'
        "    loss = self.loss / self.count"
    )


def test_what_runs_before_any_actor_and_raised() -> None:
    failure = failed(kind="constructor", actor_class="", endpoint="bootstrap", frames=())
    assert failure.what == (
        "bootstrap on workers[gpus=3] raised ZeroDivisionError: division by zero"
    )


def test_an_actor_that_died() -> None:
    failure = failed(kind="actor died", exception_type="SystemExit", message="", frames=())
    assert failure.what == "Trainer.step on workers[gpus=3] died of SystemExit"


def test_a_proc_that_died_busy_with_its_last_words() -> None:
    assert str(SupervisionError(failures=[died()])) == (
        "workers[gpus=3] (pid 4003) died while it ran Trainer.step: killed by SIGKILL\n"
        "  last lines on its stderr:\n"
        "    line 12\n    line 13\n    line 14\n    line 15\n"
        "    line 16\n    line 17\n    line 18\n    line 19"
    )


def test_a_proc_that_died_idle_without_a_word() -> None:
    death = Death(3, None, (), None, 1.0, "exited with status 3")
    failure = died(death=death, message=death.reason)
    assert str(SupervisionError(failures=[failure])) == (
        "workers[gpus=3] (pid 4003) died: exited with status 3"
    )


def test_procs_that_died_alike() -> None:
    death = Death(None, "SIGKILL", (), None, 1.0, "killed by SIGKILL")
    assert str(SupervisionError(failures=[died(rank, death=death) for rank in range(4)])) == (
        "workers[gpus=0] (pid 4000) died: killed by SIGKILL\nand on 3 more ranks: gpus=1..3"
    )


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("host lost", "the host agent of workers[gpus=3] is gone: it was killed"),
        ("link lost", "the link to workers[gpus=3] on here is lost: it was killed"),
        ("never started", "workers[gpus=3] never started: it was killed"),
        ("stopped", "workers[gpus=3] was stopped: it was killed"),
    ],
)
def test_what_else_can_become_of_a_rank(kind: Any, text: str) -> None:
    assert died(kind=kind, message="it was killed", death=None).text() == text


def test_a_later_call_is_told_that_the_rank_died_earlier() -> None:
    now, later = died(), for_later_call(died())
    assert later.what == (
        "workers[gpus=3] (pid 4003) died earlier, while it ran Trainer.step: killed by SIGKILL"
    )
    assert len(fold([now, later])) == 2
    idle = died(death=Death(None, "SIGKILL", (), None, 99.0, "killed by SIGKILL"))
    assert for_later_call(idle).what == idle.what, "no endpoint is to blame"


def test_what_had_run_for_long_is_told_with_its_time() -> None:
    death = Death(None, "SIGKILL", (), "Trainer.step", 99.0, "killed by SIGKILL", 61.7)
    assert died(death=death).what == (
        "workers[gpus=3] (pid 4003) died while it ran Trainer.step for 62 s: killed by SIGKILL"
    )


MIB = 1 << 20


COUNT = "the kernel's count of kills for memory"
MEMORY = [
    (
        OutOfMemory("cgroup", 48 * MIB, 47 * MIB + MIB // 2, "/job/7", 1),
        (
            f"out of memory: {COUNT} in its cgroup /job/7, which may hold 48.0 MiB, rose by 1; "
            "it held 47.5 MiB at most"
        ),
    ),
    (
        OutOfMemory("cgroup", None, 3 << 30, "/", 2, shared=True),
        (
            f"probably out of memory: {COUNT} in its cgroup / rose by 2 since the last check; "
            "it held 3.0 GiB at most"
        ),
    ),
    (
        OutOfMemory("host", None, 900, "", 1, shared=True),
        (
            f"probably out of memory: {COUNT} on this host rose by 1 since the last check; "
            "it held 900 bytes at most"
        ),
    ),
    (
        OutOfMemory("python", 2 << 30, 1 << 30),
        "out of memory: it held 1.0 GiB and may have 2.0 GiB",
    ),
    (OutOfMemory("python", None, 2048), "out of memory: it held 2.0 KiB"),
    (OutOfMemory("python"), "out of memory"),
    (OutOfMemory("cuda"), "out of GPU memory"),
]


@pytest.mark.parametrize(("memory", "text"), MEMORY)
def test_want_of_memory_is_told_as_what_is_known_of_it(memory: OutOfMemory, text: str) -> None:
    assert memory.text() == text
    failure = failed(kind="actor died", exception_type="MemoryError", message="", memory=memory)
    assert failure.what == f"Trainer.step on workers[gpus=3] died of MemoryError ({text})"


def test_a_rank_that_is_started_again() -> None:
    failure = died(restarted=2, death=Death(3, None, (), None, 1.0, "exited with status 3"),
                   message="exited with status 3")  # fmt: skip
    assert str(RestartedError(failures=[failure])) == (
        "workers[gpus=3] (pid 4003) died: exited with status 3\n"
        "  the process is being restarted, and its state in memory is lost; this call may have "
        "been done in part: call again"
    )


def test_a_rank_that_is_started_again_no_more_has_a_story() -> None:
    exits = Death(3, None, (), "Trainer.step", 1.25, "exited with status 3")
    killed = Death(None, "SIGKILL", (), None, 40.0, "killed by SIGKILL")
    failure = died(earlier=(exits, killed), death=killed)
    assert str(SupervisionError(failures=[failure])) == (
        "workers[gpus=3] (pid 4003) died: killed by SIGKILL\n"
        "  it was restarted 2 times before, after:\n"
        "    exited with status 3 while it ran Trainer.step, 1.2 s after its start\n"
        "    killed by SIGKILL, 40.0 s after its start\n"
        "  its policy allows no further restart: find the cause, then spawn anew"
    )
    assert "restarted once before" in died(earlier=(exits,)).text()


def test_which_error_is_raised_tells_whether_it_is_worth_to_call_again() -> None:
    assert type(death_error([died(restarted=1), died()])) is RestartedError
    assert type(death_error([died(), died(restarted=1)])) is SupervisionError
    assert type(death_error([])) is SupervisionError


def test_what_came_of_a_failure_is_told_behind_it_each_owner_once() -> None:
    leaf = failed(kind="nobody waited", frames=(CELL,))
    top = not_handled("top", not_handled("middle", leaf))
    assert top.text() == (
        "Trainer.step on workers[gpus=3] died of ZeroDivisionError: division by zero "
        "(no caller waited for its answer)\n"
        '  File "<cell 3>", line 7, in step\n'
        "    loss = self.loss / self.count\n"
        "so Middle on middle, its owner, failed: it has no __supervise__\n"
        "so Top on top, its owner, failed: it has no __supervise__"
    )
    assert top.first_cause is leaf
    assert top.what == (
        "Trainer.step on workers[gpus=3] died of ZeroDivisionError: division by zero "
        "(no caller waited for its answer); so Middle on middle, its owner, failed: it has no "
        "__supervise__; so Top on top, its owner, failed: it has no __supervise__"
    )


def test_a_supervisor_that_raised_is_told_with_its_own_frames_behind_the_first_cause() -> None:
    top = not_handled(
        "top", died(), kind="actor died", endpoint="__supervise__", exception_type="KeyError",
        message="'plan'", frames=(HELPER,),
    )  # fmt: skip
    text = top.text()
    assert text.startswith("workers[gpus=3] (pid 4003) died while it ran Trainer.step: killed by")
    assert text.endswith(
        "    line 19\nso Top.__supervise__ on top died of KeyError: 'plan'\n"
        '  File "/home/me/train.py", line 12, in mean\n    return total / count'
    )


def test_owners_that_failed_of_the_same_are_told_as_one() -> None:
    told = [not_handled("top", failed(rank), rank=rank, point={"gpus": rank}) for rank in range(4)]
    text = failures_text(told)
    assert text.count("division by zero") == 1
    assert text.endswith("and on 3 more ranks: gpus=1..3")


def test_what_came_of_failures_travels_and_is_bounded_however_many_there_were() -> None:
    many = [failed(rank, message="x" * 10_000, frames=(CELL,) * 500) for rank in range(1000)]
    failure = failed(causes=as_causes(many))
    for level in range(20):
        failure = not_handled(f"level_{level}", *as_causes([failure, *many]))
    packed = pack(failure)
    assert len(packed) < 4 << 20
    assert unpacker(RankFailure)(packed) == failure
    assert failure.first_cause.rank == 0


def test_a_mesh_without_dims_has_no_place_to_name() -> None:
    assert failed(point={}, frames=()).what.startswith("Trainer.step on workers raised")


def test_a_frame_whose_source_is_unknown_is_one_line() -> None:
    failure = failed(frames=(Frame("<string>", 1, "<module>", ""),))
    assert failure.text().splitlines()[1:] == ['  File "<string>", line 1, in <module>']


def test_a_failed_mesh_says_who_it_is() -> None:
    fault = MeshFailure("workers", (failed(0, frames=()), failed(1, frames=())), object())
    assert str(fault) == (
        "workers has failed: Trainer.step on workers[gpus=0] raised ZeroDivisionError: division by "
        "zero\nand on 1 more rank: gpus=1"
    )
    assert fault == MeshFailure(fault.mesh_name, fault.failures), "whatever the mesh"


def test_actors_that_wait_for_each_other() -> None:
    assert str(DeadlockError(["A.f on m[gpus=0]", "B.g on m[gpus=1]"])).startswith(
        "A.f on m[gpus=0] waits for B.g on m[gpus=1], which waits for A.f on m[gpus=0]: none can"
    )


# --- places ---------------------------------------------------------------------------------------


def test_a_place_is_written_like_a_slice() -> None:
    assert at_text({"hosts": 1, "gpus": 3}) == "[hosts=1, gpus=3]"
    assert at_text({}) == ""


def test_places_in_two_dims_are_listed_up_to_a_bound() -> None:
    failures = [failed(rank, point={"hosts": rank, "gpus": 0}) for rank in range(11)]
    assert ranks_text(failures[:2]) == "[hosts=0, gpus=0], [hosts=1, gpus=0]"
    assert ranks_text(failures).endswith("[hosts=7, gpus=0] and 3 more")


def test_places_in_meshes_of_different_dims_can_be_listed() -> None:
    assert ranks_text([failed(point={"gpus": 1}), failed(point={"hosts": 0})]) == (
        "[gpus=1], [hosts=0]"
    )
    assert ranks_text([failed(point={}), failed(point={"hosts": 0})]) == "workers, [hosts=0]"


@given(st.lists(st.integers(0, 30), min_size=1, unique=True))
def test_runs_of_places_name_every_place_and_no_other(places: list[int]) -> None:
    text = ranks_text([failed(place) for place in places])
    runs = [re.fullmatch(r"gpus=(\d+)(?:\.\.(\d+))?", run) for run in text.split(", ")]
    named = [n for run in runs if run for n in range(int(run[1]), int(run[2] or run[1]) + 1)]
    assert named == sorted(places)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", "c"])), max_size=12))
def test_folding_keeps_every_failure_once_and_stories_in_order(told: list[tuple[int, str]]) -> None:
    failures = [failed(rank, message=message) for rank, message in told]
    groups = fold(failures)
    assert sorted(f.message for group in groups for f in group) == sorted(m for _, m in told)
    assert [group[0].message for group in groups] == list(dict.fromkeys(m for _, m in told))
    for group in groups:
        assert len({f.story for f in group}) == 1
        assert [f.rank for f in group] == sorted(f.rank for f in group)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_where_it_happened_is_no_part_of_the_story(ranks: list[int]) -> None:
    failures = [failed(rank, host=f"host{rank}", mesh_name=f"m{rank}") for rank in ranks]
    assert len(fold(failures)) == 1
    assert failures_text(failures)


@pytest.mark.parametrize("own", ["monarch/_src/actor/run/sync_loop", "monarch_jupyter/ranks/cell"])
def test_a_crash_of_c_code_shows_the_users_stack_in_place_of_the_last_lines(own: str) -> None:
    stack = (
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f2b (most recent call first):",
        '  File "/home/me/train.py", line 7 in step',
    )
    rest = tuple(f'  File "/env/{own}.py", line {n} in x' for n in range(9))
    tail = ("loading", *stack, *rest, "", "Extension modules: numpy (total: 1)")
    death = Death(None, "SIGSEGV", tail, "Trainer.step", 1.0, "killed by SIGSEGV")
    assert death.last_lines == (stack[0], *stack[2:])
    quiet = Death(3, None, tuple("abcdefghij"), None, 1.0, "exited with status 3")
    assert quiet.last_lines == tuple("cdefghij")
