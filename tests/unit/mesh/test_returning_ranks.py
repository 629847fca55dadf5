"""Ranks that are restarted by request: done when each is up, or has failed."""

from __future__ import annotations

import pytest

from monarch._src.actor.future import Future
from monarch._src.failures.report import Death, RankFailure
from monarch._src.mesh.returning_ranks import ReturningRanks

DEATH = Death(None, "SIGKILL", (), None, 0.0, "killed by SIGKILL")


def failure(rank: int, death: Death | None = DEATH) -> RankFailure:
    return RankFailure(
        "mesh", rank, {"gpus": rank}, "", None, "host", 1, "proc died", "", "died", death=death
    )


def returning(*ranks: int, bootstraps: bool = False) -> ReturningRanks:
    return ReturningRanks(ranks, Future[None](None, None), bootstraps=bootstraps)  # pyright: ignore[reportArgumentType]


def test_a_rank_is_up_in_the_incarnation_that_was_asked_for_and_in_none_before() -> None:
    ranks = returning(0, 1)
    ranks.on_up(0, 2)  # news may come before the answer of the agent
    ranks.expect({0: 2, 1: 3})
    ranks.on_up(1, 2)
    assert not ranks.done.done
    ranks.on_up(1, 3)
    assert ranks.done.done


def test_nothing_is_awaited_where_the_agent_starts_no_rank() -> None:
    ranks = returning(0)
    ranks.expect({})
    assert ranks.done.done


def test_with_a_bootstrap_function_a_rank_is_up_when_that_has_returned() -> None:
    ranks = returning(0, bootstraps=True)
    ranks.expect({0: 1})
    ranks.on_up(0, 1)
    assert not ranks.done.done
    ranks.on_bootstrapped(0)
    assert ranks.done.done


def test_a_rank_that_fails_is_awaited_no_longer_and_others_are_not_taken() -> None:
    ranks = returning(0, 1)
    ranks.expect({0: 1, 1: 1})
    assert not ranks.on_failed(failure(2))
    assert ranks.on_failed(failure(1))
    assert not ranks.done.done
    ranks.on_up(0, 1)
    assert ranks.done.done
    assert list(ranks.failures) == [1]


def test_processes_that_are_ended_are_awaited_until_they_have_died() -> None:
    ranks, ended = returning(0), Future[None](None, None)  # pyright: ignore[reportArgumentType]
    ranks.expect({0: 1})
    ranks.on_failed(failure(0, None))
    ranks.expect_ends([0], ended)
    assert ranks.done.done
    assert not ended.done
    ranks.on_failed(failure(0))
    assert ended.done


def test_the_end_of_the_mesh_ends_the_wait() -> None:
    ranks = returning(0)
    ranks.expect({0: 1})
    ranks.end(ValueError("stopped"))
    with pytest.raises(ValueError, match="stopped"):
        ranks.done.get(timeout=0)
