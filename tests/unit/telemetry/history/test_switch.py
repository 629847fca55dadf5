"""Switching history on records what `logging` makes, and changes nothing else about it."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator

import pytest

from monarch._src.actor.state.history import HISTORY, LONGEST_TEXT, EndedSpan
from monarch._src.telemetry.history.switch import (
    COLLECTOR_TRACK,
    LEAST_COLLECTION_NS,
    CollectorSpans,
    follow_collector,
    keep,
)
from monarch._src.telemetry.spans import span

log = logging.getLogger("tests.switch")


@pytest.fixture(autouse=True)
def off_afterwards() -> Iterator[None]:
    yield
    keep(0.0, 0)


def texts() -> list[str]:
    assert HISTORY.events is not None
    return [row.text for row in HISTORY.events.all()]


def test_records_are_kept_while_it_is_on_and_loggers_stay_as_they_are() -> None:
    root = logging.getLogger()
    before = (logging.getLogRecordFactory(), list(root.handlers), root.level)
    keep(60.0, 10)
    keep(60.0, 10)
    log.warning("one %s", "two")
    log.debug("below the level of the logger")
    assert texts() == ["one two"]
    assert list(root.handlers) == before[1]
    keep(0.0, 0)
    assert (logging.getLogRecordFactory(), list(root.handlers), root.level) == before
    log.warning("not kept")
    assert HISTORY.events is None


def test_a_factory_that_the_program_sets_meanwhile_stays() -> None:
    keep(60.0, 10)
    wrapped = logging.getLogRecordFactory()

    def factory(*args: object, **kwargs: object) -> logging.LogRecord:
        return wrapped(*args, **kwargs)

    logging.setLogRecordFactory(factory)
    try:
        log.warning("through both")
        assert texts() == ["through both"]
        keep(0.0, 0)
        assert logging.getLogRecordFactory() is factory
        log.warning("it works while history is off")
    finally:
        logging.setLogRecordFactory(logging.LogRecord)


def test_a_value_that_logs_while_it_is_formatted_is_recorded_once() -> None:
    class Talkative:
        def __str__(self) -> str:
            log.warning("inner")
            return "outer"

    keep(60.0, 10)
    log.warning("%s", Talkative())
    assert [text for text in texts() if text == "outer"] == ["outer"]


def test_long_texts_are_cut() -> None:
    keep(60.0, 10)
    log.warning("x" * (LONGEST_TEXT + 1))
    assert texts() == ["x" * LONGEST_TEXT]


def test_spans_have_their_parents_and_open_ones_are_known() -> None:
    keep(60.0, 10)
    with span("outer"):
        with span("inner"):
            assert [one.name for one in HISTORY.open_spans.values()] == ["outer", "inner"]
        log.warning("here")
    assert HISTORY.spans is not None
    inner, outer = [
        one
        for one in map(EndedSpan._make, HISTORY.spans.all())
        if one.thread_name != COLLECTOR_TRACK
    ]
    assert (inner[3], outer[3], inner[2], outer[2]) == ("inner", "outer", outer[1], 0)
    assert not HISTORY.open_spans
    assert HISTORY.events is not None
    assert HISTORY.events.all()[0].span == outer[1]


def test_a_span_that_was_entered_before_it_was_on_may_end_while_it_is() -> None:
    with span("early"):
        keep(60.0, 10)
    assert HISTORY.spans is not None
    assert HISTORY.spans.all() == []
    with span("late"):
        keep(0.0, 0)
    assert HISTORY.spans is None


def test_a_long_run_of_the_collector_is_a_span_and_an_end_without_a_begin_is_none() -> None:
    keep(60.0, 10)
    follow_collector(False)  # the collector itself may run here at any time
    assert HISTORY.spans is not None
    before = len(HISTORY.spans.all())
    remember = CollectorSpans()
    remember("stop", {"generation": 2})
    assert len(HISTORY.spans.all()) == before
    remember("start", {"generation": 1})
    until = time.monotonic_ns() + LEAST_COLLECTION_NS
    while time.monotonic_ns() <= until:
        pass
    remember("stop", {"generation": 1})
    names = [one.name for one in map(EndedSpan._make, HISTORY.spans.all())]
    assert names[before:] == ["gc of generation 1"]


def test_the_collector_is_followed_once_and_only_while_history_is_kept() -> None:
    def followed() -> int:
        return sum(isinstance(one, CollectorSpans) for one in gc.callbacks)

    keep(60.0, 10)
    keep(60.0, 20)
    assert followed() == 1
    keep(0.0, 0)
    assert followed() == 0
