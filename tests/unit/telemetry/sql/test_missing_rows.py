"""Missing rows of many ranks are told in one line."""

from __future__ import annotations

from monarch._src.telemetry.sql.missing_rows import MissingRows, missing_lines


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
