"""Equal lines of many ranks are said once, and nothing is lost or moved."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch.frontend import Fold, OutputFolder
from monarch_jupyter.lines.log_store import LogStore
from monarch_jupyter.rendering.lines import fold_tag, unfolded_html
from tests.notebook.samples import line

WRITTEN = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.sampled_from(["stdout", "stderr"])),
    max_size=40,
)


def folded(*lines: tuple[int, str]) -> list[tuple[str, list[int]]]:
    folder = OutputFolder()
    folder.add(line(rank, text) for rank, text in lines)
    return told(folder.take_all())


def told(folds: list[Fold]) -> list[tuple[str, list[int]]]:
    return [(fold.text, sorted(point["gpus"] for point in fold.points)) for fold in folds]


def test_the_same_line_of_many_ranks_is_one_fold() -> None:
    assert folded((0, "x"), (2, "x"), (1, "x")) == [("x", [0, 1, 2])]


def test_lines_that_differ_at_all_stay_apart() -> None:
    assert folded((0, "x"), (1, "x ")) == [("x", [0]), ("x ", [1])]


def test_a_line_that_one_rank_writes_twice_is_said_twice() -> None:
    assert folded((0, "x"), (0, "x"), (1, "x")) == [("x", [0, 1]), ("x", [0])]


def test_streams_and_meshes_stay_apart() -> None:
    folder = OutputFolder()
    folder.add([line(0, "x"), line(0, "x", "stderr"), line(0, "x", uid="u2")])
    assert len(folder.take_all()) == 3


def test_each_rank_keeps_its_order_when_ranks_disagree() -> None:
    assert folded((0, "a"), (0, "b"), (1, "b"), (1, "a")) == [("a", [0]), ("b", [0, 1]), ("a", [1])]


def test_lines_of_single_ranks_stand_in_the_order_of_ranks_and_stretches_stay_apart() -> None:
    wrote = [(2, "c"), (0, "a"), (2, "d"), (1, "all"), (0, "all"), (1, "z"), (0, "y")]
    assert folded(*wrote) == [
        ("a", [0]), ("c", [2]), ("d", [2]), ("all", [0, 1]), ("y", [0]), ("z", [1]),
    ]  # fmt: skip


def test_a_fold_that_every_rank_has_joined_does_not_wait() -> None:
    folder = OutputFolder()
    folder.add([line(0, "x"), line(0, "y"), line(1, "x")])
    assert told(folder.take_complete(lambda uid: 2)) == [("x", [0, 1])]
    folder.add([line(1, "y"), line(1, "x")])
    assert told(folder.take_complete(lambda uid: 2)) == [("y", [0, 1])]
    assert told(folder.take_all()) == [("x", [1])]


def test_a_complete_fold_does_not_overtake_one_that_waits() -> None:
    folder = OutputFolder()
    folder.add([line(0, "first"), line(0, "x"), line(1, "x")])
    assert folder.take_complete(lambda uid: 2) == []
    assert told(folder.take_all()) == [("first", [0]), ("x", [0, 1])]


def test_folds_of_a_mesh_of_unknown_size_wait() -> None:
    folder = OutputFolder()
    folder.add([line(0, "x")])
    assert folder.take_complete(lambda uid: None) == []
    assert len(folder) == 1


@given(st.lists(WRITTEN, max_size=4), st.booleans())
def test_every_line_comes_out_once_and_in_its_ranks_order(
    rounds: list[list[tuple[int, str, str]]], eager: bool
) -> None:
    folder = OutputFolder()
    folds: list[Fold] = []
    for written in rounds:
        folder.add(line(rank, text, stream) for rank, text, stream in written)
        folds += folder.take_complete(lambda uid: 4) if eager else folder.take_all()
    folds += folder.take_all()
    for rank in range(4):
        wrote = [(text, stream) for written in rounds for r, text, stream in written if r == rank]
        read = [(f.text, f.stream) for f in folds for p in f.points if p["gpus"] == rank]
        assert read == wrote


def test_a_tag_names_the_ranks_and_the_mesh_only_where_there_are_several() -> None:
    fold = Fold("workers", "u1", "stdout", "x", points=[{"gpus": 0}, {"gpus": 1}])
    assert fold_tag(fold, several=False) == "[gpus=0..1]"
    assert fold_tag(fold, several=True) == "[workers gpus=0..1]"
    assert fold_tag(Fold("solo", "u2", "stdout", "x", points=[{}]), several=False) == "[solo]"


def test_lines_that_were_folded_are_there_rank_by_rank_behind_a_click() -> None:
    store = LogStore()
    store.add([line(rank, "load\x1b[31ming\x1b[0m <x>", origin=7) for rank in range(2)])
    store.add([line(1, "only me", "stderr", origin=7), line(0, "elsewhere", origin=8)])
    page = store.page(None, cell=7, page=1, length=2)
    markup = unfolded_html(page)
    assert "<summary" in markup
    assert "3 lines by rank" in markup
    assert "1 later lines: %monarch logs workers" in markup
    whole = unfolded_html(store.page(None, cell=7, page=1, length=10))
    assert whole.count("loading &lt;x&gt;") == 2
    assert whole.index("<strong>gpus=0<") < whole.index("<strong>gpus=1<") < whole.index("only me")
    assert "stderr only me" in whole
    assert "elsewhere" not in whole
    assert "later lines" not in whole
    store.close()
