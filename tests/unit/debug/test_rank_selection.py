"""Which ranks somebody means: numbers, lists, slices, dims; and what is said where it is none."""

from __future__ import annotations

import pytest

from monarch._src.debug.rank_selection import Selection, parse_named, parse_ranks
from monarch._src.errors import DebugError

SIZES = {"hosts": 2, "gpus": 4}


def taken(selection: Selection) -> list[int]:
    return [
        rank
        for rank in range(8)
        if selection.takes({"hosts": rank // 4, "gpus": rank % 4}, SIZES, rank)
    ]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("", list(range(8))),
        (":", list(range(8))),
        ("ranks()", list(range(8))),
        ("3", [3]),
        ("ranks(3)", [3]),
        ("ranks(1, 4,6)", [1, 4, 6]),
        ("ranks(1:6:2)", [1, 3, 5]),
        ("ranks(:2)", [0, 1]),
        ("ranks(gpus=2)", [2, 6]),
        ("gpus=1:3, hosts=0", [1, 2]),
        ("ranks(gpus=(0,3), hosts=1)", [4, 7]),
        ("ranks(9)", []),
    ],
)
def test_ranks_are_named_as_in_monarch(text: str, ranks: list[int]) -> None:
    assert taken(parse_ranks(text)) == ranks


def test_a_name_with_dims_is_that_of_a_slice() -> None:
    selection = parse_named(" workers[gpus=1:3, hosts=1] ")
    assert (selection.name, taken(selection)) == ("workers", [5, 6])
    assert taken(parse_named("workers")) == list(range(8))


@pytest.mark.parametrize("text", ["ranks(x)", "ranks(gpus=)", "ranks(gpus=a)", "1,b", "gpus=(1"])
def test_what_names_no_ranks_is_refused_with_the_way_to_write_it(text: str) -> None:
    with pytest.raises(DebugError, match=r"selects n.*; write 3, 1,4,6, 0:8:2, or dims"):
        parse_ranks(text)


def test_a_dim_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(DebugError, match="workers has no dim 'cpus'; it has hosts, gpus"):
        taken(parse_named("workers[cpus=1]"))
    with pytest.raises(DebugError, match="selects no ranks"):
        parse_named("two words")
