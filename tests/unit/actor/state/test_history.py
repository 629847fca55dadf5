"""History is bounded in rows and in bytes, and tells what it dropped."""

from __future__ import annotations

import threading

from monarch._src.actor.state.history import History, LogRecord, Ring, TextRing


def log(time_ns: int, text: str = "text") -> LogRecord:
    return LogRecord(time_ns, "logger", 20, text, 0, 1, "MainThread", "m", "m.py", 1, "")


def test_a_full_ring_drops_the_oldest_rows_and_counts_them() -> None:
    ring: Ring[tuple[int]] = Ring(3)
    for number in range(5):
        ring.add((number,))
    assert ring.all() == [(2,), (3,), (4,)]
    assert (ring.added, ring.dropped) == (5, 2)


def test_rows_that_expire_are_not_counted_as_dropped() -> None:
    ring: Ring[tuple[int]] = Ring(3)
    for number in range(4):
        ring.add((number,))
    ring.expire(3)
    assert ring.all() == [(3,)]
    assert (ring.expired, ring.dropped) == (2, 1)
    ring.add((7,))
    ring.expire(100)
    assert (ring.all(), ring.expired, ring.dropped) == ([], 4, 1)


def test_dropped_rows_that_would_have_expired_are_not_lost() -> None:
    ring: Ring[tuple[int]] = Ring(3)
    assert (ring.lost, ring.oldest_ns) == (0, None)
    for number in range(5):
        ring.add((number,))
    assert (ring.lost, ring.oldest_ns) == (2, 2)
    ring.expire(2)
    assert ring.lost == 2, "rows 0 and 1 may be younger than the retention"
    ring.expire(3)
    assert (ring.lost, ring.oldest_ns) == (0, 3), "they are older than row 2, which has expired"
    for number in range(5, 8):
        ring.add((number,))
    assert (ring.dropped, ring.lost) == (4, 2)


def test_texts_are_bounded_in_bytes_and_in_rows() -> None:
    ring: TextRing[LogRecord] = TextRing(4, text_bytes=25)
    for number in range(3):
        ring.add_text(log(number), 40)
    assert [row.time_ns for row in ring.all()] == [1, 2]
    assert (ring.nbytes, ring.dropped) == (80, 1)
    for number in range(3, 9):
        ring.add_text(log(number), 5)
    assert [row.time_ns for row in ring.all()] == [5, 6, 7, 8]
    assert (ring.nbytes, ring.dropped) == (20, 5)
    ring.expire(7)
    assert (ring.nbytes, ring.expired, ring.dropped) == (10, 2, 5)


def test_one_text_over_the_bound_is_kept_alone() -> None:
    ring: TextRing[LogRecord] = TextRing(4, text_bytes=25)
    ring.add_text(log(1), 10)
    ring.add_text(log(2), 1000)
    assert [row.time_ns for row in ring.all()] == [2]


def test_threads_that_add_at_the_same_time_lose_no_row() -> None:
    ring: Ring[tuple[int]] = Ring(100_000)

    def add() -> None:
        for number in range(5_000):
            ring.add((number,))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ring.all()) == 20_000


def test_switching_on_again_keeps_the_rows() -> None:
    history = History()
    assert history.rings() == {"actor_status_events": history.actors}
    history.switch_on(10, 5)
    assert history.handled is not None
    history.handled.add((1,))
    history.switch_on(20, 5)
    assert history.handled.added == 1
    assert history.retention_ns == 20
    assert history.events is not None
    for number in range(5):
        history.handled.add((number,))
        history.events.add_text(log(number), 10)
    history.switch_on(20, 9)
    assert [row[0] for row in history.handled.all()] == [0, 1, 2, 3, 4]
    history.switch_on(20, 2)
    assert [row[0] for row in history.handled.all()] == [3, 4]
    assert [row.time_ns for row in history.events.all()] == [3, 4]
    assert (history.handled.dropped, history.events.dropped, history.events.nbytes) == (4, 3, 20)
    history.events.add_text(log(9), 7)
    assert history.events.nbytes == 17
    history.switch_off()
    assert history.handled is history.sent is history.spans is history.events is None


def test_events_of_actors_outlive_the_retention() -> None:
    history = History()
    history.switch_on(10, 5)
    assert history.spans is not None
    history.actors.add((1,))
    history.spans.add((1,))
    history.expire(1000)
    assert (len(history.actors.rows), len(history.spans.rows)) == (1, 0)
