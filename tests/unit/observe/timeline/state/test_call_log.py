"""The calls of one process that ended last."""

from __future__ import annotations

from monarch._src.observe.timeline.state.call_log import CallLog

OFFSET = 1_000_000


def logged(number: int, most: int = 10) -> CallLog:
    """`number` calls of 5 ns, one every 10 ns, the first from 10 on."""
    log = CallLog(most)
    for at in range(1, number + 1):
        log.add((at * 10, b"Trainer", b"step"), 5)
    return log


def began(log: CallLog, after: int, most: int = 100) -> list[int]:
    return [one.began_ns - OFFSET for one in log.read([], after, most, OFFSET).calls]


def test_calls_are_read_in_the_order_of_their_ends_with_times_since_1970() -> None:
    log = CallLog()
    log.add((10, b"Trainer", b"step"), 30)
    log.add((20, b"Reader", b"next"), 40)
    read = log.read([], 0, 100, OFFSET)
    assert read.names == (("Trainer", "step"), ("Reader", "next"))
    assert [(one.name, one.began_ns, one.took_ns) for one in read.calls] == [
        (0, OFFSET + 10, 30),
        (1, OFFSET + 20, 40),
    ]


def test_a_reader_gets_only_calls_that_ended_after_its_time() -> None:
    assert began(logged(4), after=25) == [30, 40]
    assert began(logged(4), after=24) == [20, 30, 40]
    assert began(logged(4), after=45) == []


def test_running_calls_follow_those_that_have_ended() -> None:
    read = logged(1).read([(50, b"Trainer", b"save")], 0, 100, OFFSET)
    assert [(read.names[one.name][1], one.took_ns) for one in read.calls] == [
        ("step", 5),
        ("save", None),
    ]


def test_the_call_that_ended_last_is_marked_as_failed() -> None:
    log = logged(2)
    log.mark_failed()
    assert [one.failed for one in log.read([], 0, 100, 0).calls] == [False, True]
    CallLog().mark_failed()  # of a call that ended before the log began


def test_an_answer_says_that_it_is_cut_where_calls_are_missing_and_only_there() -> None:
    assert not logged(10).read([], 0, 100, 0).is_cut
    full = logged(12)  # two have been dropped, which ended at 15 and at 25
    assert full.read([], 0, 100, 0).is_cut
    assert full.read([], 24, 100, 0).is_cut
    assert not full.read([], 25, 100, 0).is_cut
    assert began(full, after=0, most=2) == [110, 120]
    assert full.read([], 25, 2, 0).is_cut
    assert not full.read([], 105, 2, 0).is_cut
