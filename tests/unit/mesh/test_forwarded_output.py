"""Which states of a progress bar a script shows."""

from __future__ import annotations

import pytest

from monarch._src.events import OutputLine
from monarch._src.mesh.forwarded_output import EVERY_S, OverwrittenLines, rendered


def line(text: str, *, whole: bool = True, answered: bool = False, rank: int = 0) -> OutputLine:
    return OutputLine(
        "w", "1", rank, {"gpus": rank}, "stderr", text, whole=whole, written_over=not whole,
        answered=answered,
    )  # fmt: skip


def state(text: str, rank: int = 0) -> OutputLine:
    return line(text, whole=False, rank=rank)


def answered(text: str, rank: int = 0) -> OutputLine:
    return line(text, whole=False, answered=True, rank=rank)


@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        ([line("a"), line("a")], ["a", "a"]),
        ([state("10%"), state("20%"), line("\r 10%\r100%")], ["100%"]),
        ([state("10%"), answered("20%"), line("\r10%\r20%"), line("20%")], ["20%", "20%"]),
        ([answered("10%"), answered("20%"), answered("30%"), line("\r100%")], ["10%", "100%"]),
        ([answered("10%"), answered("10%", 1), line("\r10%", rank=1)], ["10%", "10%"]),
        ([answered("10%"), answered("  "), line("a")], ["10%", "a"]),
    ],
)
def test_a_bar_is_written_at_its_first_answer_and_at_its_end(
    lines: list[OutputLine], texts: list[str]
) -> None:
    bars = OverwrittenLines(lambda: 0.0)
    assert [one.text for one in map(rendered, lines) if bars.is_news(one)] == texts


def test_a_bar_that_goes_on_is_written_from_time_to_time() -> None:
    now = 0.0
    bars = OverwrittenLines(lambda: now)
    assert not bars.is_news(state("10%"))
    now += EVERY_S - 1
    assert not bars.is_news(state("20%"))
    now += 1
    assert bars.is_news(state("30%"))
    assert not bars.is_news(answered("40%"))
    now += EVERY_S
    assert bars.is_news(answered("50%"))
    now += EVERY_S
    assert not bars.is_news(answered("50%"))
