"""What becomes of lines that ranks write, by the rules of their mesh."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch._src.events import OutputLine
from monarch._src.logs.routing import Streaming, Streams


def line(mesh: int, rank: int, text: str, *, whole: bool = True) -> OutputLine:
    return OutputLine("m", f"{mesh:x}", rank, {"gpus": rank}, "stdout", text, whole=whole)


def test_lines_of_a_mesh_without_a_rule_go_on_at_once() -> None:
    assert Streams().on_lines(1, 0, [line(1, 0, "a")]) == ([line(1, 0, "a")], None)


def test_lines_that_are_not_to_be_shown_go_on_marked() -> None:
    streams = Streams()
    streams.set(1, [0], Streaming(shown=False))
    (hidden,), later = streams.on_lines(1, 0, [line(1, 0, "a")])
    assert (hidden.text, hidden.shown, later) == ("a", False, None)
    assert streams.on_lines(1, 1, [line(1, 1, "b")]) == ([line(1, 1, "b")], None)
    assert streams.on_lines(2, 0, [line(2, 0, "c")]) == ([line(2, 0, "c")], None)


def test_lines_are_held_for_one_window_and_what_is_written_over_ends_up_in_one() -> None:
    streams = Streams()
    streams.set(1, [0, 1], Streaming(window_s=3.0))
    assert streams.on_lines(1, 0, [line(1, 0, "50 %", whole=False)]) == ([], None)
    assert streams.on_lines(1, 0, [line(1, 0, "a")]) == ([], 3.0)
    assert streams.on_lines(1, 1, [line(1, 1, "a")]) == ([], None)
    assert streams.due(1) == [line(1, 0, "a"), line(1, 1, "a")]
    assert streams.due(1) == []
    assert streams.on_lines(1, 1, [line(1, 1, "b")]) == ([], 3.0)
    assert streams.forget(1) == [line(1, 1, "b")]
    assert streams.on_lines(1, 1, [line(1, 1, "c")]) == ([line(1, 1, "c")], None)


def test_of_a_line_that_is_written_over_a_window_has_the_last_state_behind_an_answer() -> None:
    streams = Streams()
    streams.set(1, [0, 1], Streaming(window_s=3.0))
    states = [
        OutputLine("m", "1", rank, {"gpus": rank}, "stdout", text, whole=False, answered=True)
        for rank, text in ((0, "10 %"), (1, "10 %"), (0, "20 %"))
    ]
    assert streams.on_lines(1, 0, states[:1]) == ([], 3.0)
    assert streams.on_lines(1, 1, states[1:2]) == ([], None)
    assert streams.on_lines(1, 0, states[2:]) == ([], None)
    assert streams.on_lines(1, 1, [line(1, 1, "100 %")]) == ([], None)
    assert streams.due(1) == [line(1, 1, "100 %"), states[2]]
    assert streams.due(1) == []


_RULES = st.sampled_from([Streaming(), Streaming(shown=False), Streaming(window_s=1.0)])
_PLACES = st.tuples(st.integers(1, 2), st.integers(0, 1))
_STEPS = st.lists(
    st.one_of(_PLACES, st.tuples(_PLACES, _RULES), st.sampled_from([1, 2, "all"])), max_size=40
)


@given(_STEPS)
def test_every_line_comes_out_once_and_in_the_order_of_its_rank_while_its_rule_lasts(
    steps: list[object],
) -> None:
    streams, written, seen = Streams(), 0, list[OutputLine]()
    for step in steps:
        match step:
            case (int(mesh), int(rank)):
                written += 1
                seen += streams.on_lines(mesh, rank, [line(mesh, rank, str(written))])[0]
            case ((int(mesh), int(rank)), Streaming() as rule):
                seen += streams.set(mesh, [rank], rule)
            case int(mesh):
                seen += streams.due(mesh)
            case _:
                seen += streams.take_all()
    seen += streams.take_all()
    assert sorted(int(one.text) for one in seen) == list(range(1, written + 1))
    for place in {(one.mesh_uid, one.rank) for one in seen}:
        numbers = [int(one.text) for one in seen if (one.mesh_uid, one.rank) == place]
        assert numbers == sorted(numbers)
