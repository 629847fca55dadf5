"""The advice in the error of a run of torchrun."""

from __future__ import annotations

from typing import Any

import pytest

from monarch._src.failures.report import RankFailure
from monarch._src.spmd.torchrun import ENDED, LOST, remedy_after


def failure(kind: Any) -> RankFailure:
    return RankFailure("torchrun", 0, {}, "", None, "h1", 1, kind, "", "")


@pytest.mark.parametrize("kind", ["host lost", "link lost", "out of reach"])
def test_a_run_that_has_lost_a_host_is_not_said_to_begin_again_there(kind: str) -> None:
    assert remedy_after([failure("proc died"), failure(kind)]) == LOST


def test_a_run_whose_ranks_have_died_may_begin_again_on_its_hosts() -> None:
    assert remedy_after([failure("proc died")]) == ENDED
