"""How meshes and values read, as text and as HTML, and what all that is shown keeps to."""

from __future__ import annotations

import math
import re

import numpy
import pytest

from monarch.observe import Metrics, MissingProcess
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.failures import failures_html, no_cells
from monarch_jupyter.rendering.grid import grid_of
from monarch_jupyter.rendering.meshes import listing_html, listing_text, mesh_html, mesh_text
from monarch_jupyter.rendering.metrics import endpoints_html
from monarch_jupyter.rendering.telemetry import measured_html
from monarch_jupyter.rendering.values import values_html, values_text
from tests.notebook.reader import Reader
from tests.notebook.samples import counted, death, failure, instrument, measured, mesh, process, row


class Tensor:
    """The part of a torch tensor that is looked at."""

    def __init__(self, shape: tuple[int, ...], device: str = "cpu", value: float = 0.0) -> None:
        self.shape = shape
        self.dtype = "float32"
        self.device = device
        self._value = value

    def item(self) -> float:
        return self._value


class TestMarkup:
    def test_a_figure_keeps_its_unit_on_its_line(self) -> None:
        assert "white-space: nowrap" in html.cell("gpus=2 221 µs")
        assert "white-space: nowrap" not in html.cell("a long explanation of what went wrong here")

    def test_what_comes_from_outside_is_escaped(self) -> None:
        sign = "<script>alert('&')</script>"
        bad = row(0, state="failed", failure=sign, actor=sign)
        pictures = [
            mesh_html(mesh([bad], name=sign, host=sign, actors=(sign,), sizes={"gpus": 1})),
            values_html({"gpus": 1}, [sign]),
            failures_html([failure(0, message=sign, traceback=sign)], no_cells),
            listing_html([mesh(name=sign)]),
            endpoints_html(
                Metrics(
                    (counted(sign, mesh=sign, actor=sign, actor_class=sign),),
                    (MissingProcess(process(1), sign),),
                ),
                {"u1"},
                every=True,
            ),
            measured_html(
                Metrics(
                    (), (), (measured(sign, actor=sign),),
                    (instrument(sign, unit=sign, attributes={sign: sign}),),
                ),
                {"u1"},
            ),
        ]  # fmt: skip
        for picture in pictures:
            assert "script" not in Reader(picture).tags
            assert sign in Reader(picture).text

    def test_it_needs_no_style_sheet_and_no_script(self) -> None:
        pictures = mesh_html(mesh()) + values_html({"gpus": 2}, [1, 2])
        assert not {"style", "script", "link"} & set(Reader(pictures).tags)

    def test_every_theme_colour_has_a_fallback(self) -> None:
        pictures = mesh_html(mesh([row(0, state="failed")])) + failures_html([death(0)], no_cells)
        assert "var(--" in pictures
        for use in pictures.split("var(--")[1:]:
            assert "," in use.partition(")")[0]

    def test_attributes_are_escaped(self) -> None:
        assert html.element("i", title='a"b<') == '<i title="a&quot;b&lt;"></i>'


class TestLayout:
    def test_one_dim_is_a_row_and_a_long_one_is_broken(self) -> None:
        assert [row.ranks for row in grid_of({"gpus": 8}).rows] == [range(8)]
        grid = grid_of({"gpus": 40})
        assert [row.label for row in grid.rows] == ["gpus=0..15", "gpus=16..31", "gpus=32..39"]

    def test_the_last_dim_runs_across_and_the_others_down(self) -> None:
        grid = grid_of({"a": 2, "b": 2, "c": 3})
        assert grid.columns == ("c=0", "c=1", "c=2")
        assert [row.label for row in grid.rows] == ["a=0 b=0", "a=0 b=1", "a=1 b=0", "a=1 b=1"]
        assert [rank for row in grid.rows for rank in row.ranks] == list(range(12))

    def test_a_mesh_without_dims_is_one_cell(self) -> None:
        assert [row.ranks for row in grid_of({}).rows] == [range(1)]


class TestMesh:
    def test_a_mesh_whose_ranks_do_the_same_is_one_line(self) -> None:
        assert mesh_text(mesh()) == "workers {gpus: 8} on here, ready: 8 ranks, 8 idle"

    def test_ranks_that_do_the_same_share_a_line(self) -> None:
        rows = [row(rank) for rank in range(8)]
        rows[3] = row(3, state="busy", actor="Trainer", endpoint="step")
        rows[5] = row(5, state="failed", failure="killed by SIGKILL")
        assert mesh_text(mesh(rows, actors=("trainers",))).splitlines() == [
            "workers {gpus: 8} on here, ready: 8 ranks, 6 idle, 1 busy, 1 failed",
            "  actors: trainers",
            "  gpus=0..2,4,6..7  idle",
            "  gpus=3            busy in Trainer.step",
            "  gpus=5            failed: killed by SIGKILL",
        ]

    def test_html_shows_every_rank_with_its_state_in_words(self) -> None:
        rows = [row(rank) for rank in range(8)]
        rows[3] = row(3, state="busy", actor="Trainer", endpoint="step")
        read = Reader(mesh_html(mesh(rows)))
        assert "workers gpus=3: busy in Trainer.step" in read.titles
        assert len(read.titles) == 8
        assert read.text.count("○ idle") == 2 * 7  # in the grid, and in the table of processes

    def test_html_of_a_large_mesh_says_once_what_its_icons_mean(self) -> None:
        rows = [row(rank) for rank in range(256)]
        rows[19] = row(19, state="busy", actor="Trainer", endpoint="step")
        read = Reader(mesh_html(mesh(rows, sizes={"gpus": 256})))
        assert len(read.titles) == 256
        assert "workers gpus=19: busy in Trainer.step" in read.titles
        # Once below the grid, and for each rank in the table of processes.
        assert (read.text.count("○ idle"), read.text.count("● busy")) == (1 + 255, 1 + 1)
        for head in ("+15", "gpus=16..31"):
            assert head in read.text

    def test_a_mesh_of_thousands_is_told_and_not_drawn(self) -> None:
        rows = [row(rank) for rank in range(2000)]
        read = Reader(mesh_html(mesh(rows, sizes={"gpus": 2000})))
        assert "2000 ranks" in read.text
        assert not read.titles

    def test_a_list_of_meshes_is_a_table_and_none_says_how_to_make_one(self) -> None:
        listed = listing_text([mesh(), mesh(name="others", sizes={"hosts": 2, "gpus": 4})])
        assert listed.splitlines() == [
            "mesh     dims                 state  ranks      actors  host  age",
            "workers  {gpus: 8}            ready  8: 8 idle  -       here  12 s",
            "others   {hosts: 2, gpus: 4}  ready  8: 8 idle  -       here  12 s",
        ]
        assert "%monarch spawn" in listing_text([])
        assert "%monarch spawn" in listing_html([])


class TestValues:
    def test_numbers_lie_over_their_dims(self) -> None:
        text = values_text({"hosts": 2, "gpus": 3}, [1, 2, 3, 4.5, 5, 1 / 3])
        assert text.splitlines() == [
            "ValueMesh {hosts: 2, gpus: 3}",
            "           gpus=0  gpus=1  gpus=2",
            "  hosts=0  1       2       3",
            "  hosts=1  4.5     5       0.3333",
        ]

    def test_a_heat_map_says_the_numbers_and_shades_from_low_to_high(self) -> None:
        markup = values_html({"gpus": 3}, [0.0, 5.0, 10.0])
        assert [word for word in ("0", "5", "10") if f">{word}<" in markup] == ["0", "5", "10"]
        strengths = [float(part.split(")")[0]) for part in markup.split("210, ")[1:]]
        assert strengths == sorted(strengths)
        assert strengths[0] < 0.1 < 0.5 < strengths[-1] <= 0.6

    @pytest.mark.parametrize("values", [[1, 1], [math.nan, math.nan], [math.inf, 1.0]])
    def test_numbers_without_a_spread_are_not_shaded(self, values: list[float]) -> None:
        markup = values_html({"gpus": 2}, values)
        assert "rgba" not in markup
        assert Reader(markup).tags.count("td") == 2

    def test_equal_values_share_a_line(self) -> None:
        text = values_text({"gpus": 4}, ["ok", "ok", None, "ok"])
        assert text.splitlines() == [
            "ValueMesh {gpus: 4}",
            "  gpus=0..1,3  'ok'",
            "  gpus=2       None",
        ]

    def test_truth_values_are_words_and_no_numbers(self) -> None:
        assert "gpus=0..1  True" in values_text({"gpus": 2}, [True, True])

    def test_tensors_are_told_by_kind_and_shape(self) -> None:
        text = values_text({"gpus": 2}, [Tensor((3, 4)), Tensor((3, 4), "cuda:1")])
        assert "gpus=0  Tensor float32 [3, 4]" in text
        assert "gpus=1  Tensor float32 [3, 4] on cuda:1" in text

    def test_different_tensors_never_share_a_line(self) -> None:
        small = [numpy.full(3, rank) for rank in range(2)]
        assert values_text({"gpus": 2}, small).splitlines()[1:] == [
            "  gpus=0  ndarray int64 [3] = [0, 0, 0]",
            "  gpus=1  ndarray int64 [3] = [1, 1, 1]",
        ]
        large = [numpy.full(1000, rank // 2) for rank in range(3)]
        (_, equal, other) = values_text({"gpus": 3}, large).splitlines()
        assert re.fullmatch(r"  gpus=0..1  ndarray int64 \[1000\], contents \w{8}", equal)
        assert re.fullmatch(r"  gpus=2     ndarray int64 \[1000\], contents \w{8}", other)

    def test_a_tensor_of_one_element_tells_it(self) -> None:
        assert "= 0.25" in values_text({"gpus": 1}, [Tensor((), value=0.25)])

    def test_values_of_many_lines_keep_them(self) -> None:
        class Table:
            def __repr__(self) -> str:
                return "a b\n1 2"

        assert values_text({"gpus": 1}, [Table()]).splitlines()[1:] == [
            "  gpus=0",
            "    a b",
            "    1 2",
        ]

    def test_a_long_value_is_whole_behind_a_click(self) -> None:
        read = Reader(values_html({"gpus": 1}, ["x" * 5000]))
        assert "details" in read.tags
        assert "x" * 5000 in read.text

    def test_a_single_value_without_dims_needs_no_rank(self) -> None:
        assert values_text({}, ["ok"]).splitlines() == ["ValueMesh {}", "  value  'ok'"]


def test_restarts_are_counted_where_there_were_any_and_only_there() -> None:
    meshes = (mesh(), mesh([row(0, restarts=2), row(1, restarts=1)]))
    first, second = listing_text(meshes).splitlines()[1:]
    assert "restart" not in first
    assert "2: 2 idle, 3 restarts" in second
    assert "restart" not in str(listing_html(meshes[:1]))
    assert "restarts" in str(listing_html(meshes[1:]))
    again = mesh([row(0, state="starting", failure="killed by SIGKILL", restarts=1), row(1)])
    assert "gpus=0  starting again: killed by SIGKILL" in mesh_text(again)
