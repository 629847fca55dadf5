"""Missing rows of many ranks are told in one line."""

from __future__ import annotations

from monarch._src.telemetry.sql.missing_rows import (
    DroppedRows,
    MissingRows,
    dropped_lines,
    missing_lines,
)


def test_ranks_with_one_reason_share_a_line() -> None:
    slow, gone = "no answer within 2 s", "its process has ended"
    missing = [
        *(MissingRows("actors", f"workers[gpus={rank}] on h", slow) for rank in (0, 1, 2, 5)),
        MissingRows("actors", "workers[gpus=3] on h", gone),
        MissingRows("actors", "workers[gpus=4] on other", slow),
        MissingRows("calls", "workers[gpus=4] on h", slow),
        *(MissingRows("actors", f"w[hosts={h}, gpus={g}]", slow) for h in (0, 1) for g in (2, 3)),
        MissingRows("actors", "client", slow),
        MissingRows("actors", "single on h", slow),
        MissingRows("procs", "h", "its host agent does not answer"),
    ]
    assert missing_lines(missing) == [
        f"missing rows of actors: workers[gpus=0..2,5] on h: {slow}",
        f"missing rows of actors: workers[gpus=3] on h: {gone}",
        f"missing rows of actors: workers[gpus=4] on other: {slow}",
        f"missing rows of calls: workers[gpus=4] on h: {slow}",
        f"missing rows of actors: w[hosts=0..1 gpus=2..3]: {slow}",
        f"missing rows of actors: client: {slow}",
        f"missing rows of actors: single on h: {slow}",
        "missing rows of procs: h: its host agent does not answer",
    ]


def since(time: str) -> str:
    return f"complete since 1970-01-01 {time} UTC"


def test_dropped_rows_of_ranks_are_added_up_with_the_latest_of_their_times() -> None:
    second = 1_000_000
    dropped = [
        DroppedRows("messages", "w[gpus=0] on h", 10, 60 * second),
        DroppedRows("messages", "w[gpus=1] on h", 5, 90 * second),
        DroppedRows("torch_events", "w[gpus=1] on h", 7, 0),
        DroppedRows("log_lines", "h", 3, 3600 * second),
    ]
    made_room = "made room for newer ones"
    assert dropped_lines(dropped) == [
        f"dropped rows of messages: w[gpus=0..1] on h: 15 {made_room}; {since('00:01:30')}",
        f"dropped rows of torch_events: w[gpus=1] on h: 7 {made_room}",
        f"dropped rows of log_lines: h: 3 {made_room}; {since('01:00:00')}",
    ]
    assert str(dropped[2]) == "torch_events: w[gpus=1] on h: 7 made room for newer ones"
