"""The text of a recovery."""

from __future__ import annotations

from typing import Any

import pytest

from monarch._src.spmd.elastic.driver import Recovery

WHY = "0.61 s after this: trainers[gpus=1] died"


def recovery(**changes: Any) -> Recovery:
    fields: dict[str, Any] = {
        "generation": 2, "why": "trainers[gpus=1] died", "seconds": 0.614, "step": 5, "ranks": 3,
        "from_peers": 1, "from_checkpoint": False,
    }  # fmt: skip
    return Recovery(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, f"the training goes on with 3 ranks from step 5, {WHY}"),
        (
            {"ranks": 1, "from_checkpoint": True, "from_peers": 0},
            f"the training goes on with 1 rank from the checkpoint of step 5, {WHY}",
        ),
        (
            {"generation": 1, "why": "", "seconds": 0.0, "step": 0},
            "the training begins with 3 ranks at step 0",
        ),
    ],
)
def test_a_recovery_is_told_in_one_line(changes: dict[str, Any], text: str) -> None:
    assert str(recovery(**changes)) == text
