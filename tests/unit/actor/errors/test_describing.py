"""What is told of an exception whose story is too long to be told in full."""

from __future__ import annotations

import traceback

import pytest

from monarch._src.actor.errors.remote import MOST_IN_CHAIN, describe
from monarch._src.failures.report import RankFailure

LEVELS = 800


def told(error: BaseException) -> RankFailure:
    return describe(
        error, mesh_name="workers", rank=0, point={}, actor_class="A", endpoint="step", host="h",
        kind="endpoint",
    )  # fmt: skip


def raised_from(level: int) -> None:
    if not level:
        raise KeyError("the bottom")
    try:
        raised_from(level - 1)
    except Exception as error:
        raise ValueError(f"level {level}") from error


def raised_during(level: int) -> None:
    if not level:
        raise KeyError("the bottom")
    try:
        raised_during(level - 1)
    except Exception:
        raise ValueError(f"level {level}")  # noqa: B904


def chain_of(error: BaseException) -> list[BaseException]:
    chain, one = list[BaseException](), error
    while one is not None:
        chain.append(one)
        one = one.__cause__ or one.__context__
    return chain


def test_of_exceptions_raised_by_every_level_of_a_recursion_both_ends_are_told() -> None:
    for dive in (raised_from, raised_during):
        try:
            dive(LEVELS)
        except ValueError as error:
            found = told(error)
            chain = chain_of(error)
        assert len(chain) == MOST_IN_CHAIN
        assert [str(one) for one in chain[:2]] == [f"level {LEVELS}", f"level {LEVELS - 1}"]
        assert isinstance(chain[-1], KeyError)
        assert found.message == f"level {LEVELS}"
        assert "KeyError: 'the bottom'" in found.traceback
        assert found.traceback == "".join(traceback.format_exception(chain[0]))


def test_a_chain_that_can_be_told_stays_as_it_is() -> None:
    with pytest.raises(ValueError, match="level 50") as caught:
        raised_from(50)
    before = chain_of(caught.value)
    told(caught.value)
    assert chain_of(caught.value) == before
