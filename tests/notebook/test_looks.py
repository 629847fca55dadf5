"""How meshes, values and failures read, as text and as HTML."""

from __future__ import annotations

import linecache
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from monarch.actor import Frame
from monarch.observe import Metrics, MissingProcess
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.failures import (
    entry_lines,
    failures_html,
    failures_text,
    fold_failures,
    no_cells,
    whole_text,
)
from monarch_jupyter.rendering.frames import Place, place_lines, rank_cell_filename, story_lines
from monarch_jupyter.rendering.layout import grid_of, point_of
from monarch_jupyter.rendering.meshes import listing_html, listing_text, mesh_html, mesh_text
from monarch_jupyter.rendering.metrics import endpoints_html, endpoints_text
from monarch_jupyter.rendering.telemetry import measured_html, measured_text
from monarch_jupyter.rendering.values import values_html, values_text
from monarch_jupyter.rendering.words import byte_size, columns, count, duration, short_time
from tests.notebook.samples import counted, death, failure, instrument, measured, mesh, process, row

VOID = {"br", "hr"}


class Reader(HTMLParser):
    """Reads markup strictly: every element is closed, in order; gathers text, tags and titles."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.titles: list[str] = []
        self.feed(markup)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.titles += [value or "" for name, value in attrs if name == "title"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


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

    def test_points_are_row_major(self) -> None:
        points = [point_of(rank, {"a": 2, "b": 3}) for rank in range(6)]
        assert points == [{"a": a, "b": b} for a in range(2) for b in range(3)]


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


class TestEndpoints:
    def said(self, *rows: object, missing: tuple[MissingProcess, ...] = (), every: bool) -> str:
        """The table as text, after a look that the HTML says the same."""
        metrics = Metrics(rows, missing)  # type: ignore[arg-type]
        text = endpoints_text(metrics, {"u1"}, every=every)
        read = Reader(endpoints_html(metrics, {"u1"}, every=every)).text
        assert "".join(read.split()) == "".join(text.split())
        return text

    def test_each_endpoint_is_a_line_as_ranks_ran_it(self) -> None:
        rows = [
            counted("rest", calls=8, total_s=0.08, mean_s=0.01, p99_s=0.01, slowest=None),
            counted("step", errors=2, in_flight=8),
            counted("step", "call"),
        ]
        *table, note = self.said(*rows, every=False).splitlines()
        cells = [[cell.strip() for cell in line.split("  ") if cell] for line in table]
        head = ["mesh", "actor", "endpoint", "calls", "errors", "running", "mean", "p99"]
        assert cells == [
            [*head, "slowest", "in", "out"],
            ["workers", "trainers", "Trainer.step", "100", "2", "8", "12 ms", "31 ms",
             "gpus=3 15 ms", "2.0 KiB", "20 MiB"],
            ["workers", "trainers", "Trainer.rest", "8", "0", "0", "10 ms", "10 ms",
             "-", "2.0 KiB", "20 MiB"],
        ]  # fmt: skip
        assert note == "as ranks ran them; `%monarch ls --metrics` shows callers too"

    def test_in_full_there_are_all_figures_from_both_sides(self) -> None:
        rows = [
            counted(),
            counted(adverb="call", processes=2),
            counted(adverb="broadcast", mean_s=None, p50_s=None, p90_s=None, p99_s=None,
                    max_s=None, slowest=None),
        ]  # fmt: skip
        lines = [line.split("  ") for line in self.said(*rows, every=True).splitlines()]
        head, *cells = [[cell.strip() for cell in line if cell] for line in lines]
        assert head[3:] == [
            "by", "calls", "errors", "in flight", "calls/s", "mean", "p50", "p90", "p99", "longest",
            "waited", "slowest", "in", "out",
        ]  # fmt: skip
        assert [line[3:] for line in cells] == [
            ["ranks", "100", "0", "0", "12", "12 ms", "10 ms", "20 ms", "31 ms", "1.5 s", "3.7 µs",
             "gpus=3 15 ms", "2.0 KiB", "20 MiB"],
            ["call", "100", "0", "0", "12", "12 ms", "10 ms", "20 ms", "31 ms", "1.5 s", "-",
             "client 15 ms", "2.0 KiB", "20 MiB"],
            ["broadcast", "100", "0", "0", "12", "-", "-", "-", "-", "-", "-", "-", "2.0 KiB",
             "20 MiB"],
        ]  # fmt: skip

    def test_a_long_list_shows_where_most_time_goes_and_says_what_it_leaves_out(self) -> None:
        rows = [counted(f"e{number}", total_s=float(number)) for number in range(20)]
        *lines, note = self.said(*rows, every=False).splitlines()[1:]
        assert [line.split()[2] for line in lines] == [f"Trainer.e{n}" for n in range(19, 11, -1)]
        assert note == "and 12 more; `%monarch ls --metrics` shows all"
        assert len(self.said(*rows, every=True).splitlines()) == 21

    def test_who_did_not_answer_is_named_with_the_reason(self) -> None:
        busy = "busy in Trainer.step for 2.0 s; no answer within 1 s"
        missing = [MissingProcess(process(rank), "killed by SIGKILL") for rank in (1, 2, 3)]
        missing.append(MissingProcess(process(5), busy))
        said = self.said(missing=tuple(missing), every=False)
        assert said.splitlines() == [
            "no figures of workers gpus=1..3: killed by SIGKILL",
            f"no figures of workers gpus=5: {busy}",
        ]

    def test_meshes_that_are_not_listed_are_left_out_and_the_clients_own_actors_are_not(
        self,
    ) -> None:
        rows = [counted("theirs", mesh_uid="u2"), counted("ours", mesh="client", mesh_uid="0")]
        said = self.said(*rows, every=True)
        assert "Trainer.ours" in said
        assert "Trainer.theirs" not in said

    def test_where_nothing_was_called_nothing_is_said(self) -> None:
        assert self.said(every=False) == self.said(every=True) == ""


class TestMeasured:
    def said(self, spans: list[object], instruments: list[object]) -> list[list[str]]:
        """The cells of the tables, after a look that the HTML says the same."""
        metrics = Metrics((), (), tuple(spans), tuple(instruments))  # type: ignore[arg-type]
        text = measured_text(metrics, {"u1"})
        read = Reader(measured_html(metrics, {"u1"})).text
        assert "".join(read.split()) == "".join(text.split())
        return [re.split(r" {2,}", line.strip()) for line in text.splitlines() if line]

    def test_a_span_says_what_it_is_part_of(self) -> None:
        spans = [
            measured(),
            measured("decode", parent="load", errors=2, running=1, slowest=None),
            measured("mine", mesh="client", mesh_uid="0", actor="client", endpoint=None,
                     parent=None, mean_s=None, p50_s=None, p99_s=None, max_s=None, processes=1),
        ]  # fmt: skip
        times = ["12 ms", "10 ms", "31 ms", "1.5 s"]
        assert self.said([*spans, measured(mesh_uid="u2")], [])[1:] == [
            ["workers", "trainers", "load", "Trainer.step", "100", "0", "0", *times,
             "gpus=3 15 ms"],
            ["workers", "trainers", "decode", "load in Trainer.step", "100", "2", "1", *times, "-"],
            ["client", "client", "mine", "-", "100", "0", "0", "-", "-", "-", "-", "-"],
        ]  # fmt: skip

    def test_an_instrument_says_its_unit_its_attributes_and_what_was_no_number(self) -> None:
        none = {"mean": None, "p50": None, "p99": None, "min": None, "max": None}
        counter = instrument("tokens", kind="counter", unit="", attributes={}, total=2.5e6, **none)
        said = self.said([], [instrument(not_finite=1), counter, instrument(mesh_uid="u2")])
        assert said[1:] == [
            ["workers", "trainers", "loss (nats)", "phase=eval", "3, 1 not finite", "1.5", "0.5",
             "0.5", "1", "0", "1"],
            ["workers", "trainers", "tokens", "-", "3", "2,500,000", "-", "-", "-", "-", "-"],
        ]  # fmt: skip

    def test_where_nothing_was_measured_nothing_is_said(self) -> None:
        assert self.said([], []) == []


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


class TestFailures:
    def test_ranks_that_failed_alike_are_one_entry(self) -> None:
        failures = [failure(3), *(failure(rank) for rank in (1, 2, 4, 5, 6, 7))]
        text = failures_text(failures, no_cells)
        assert text.splitlines()[:2] == [
            "Trainer.step on workers[gpus=3] raised ValueError: the loss is not a number",
            "and on 6 more ranks: gpus=1..2,4..7",
        ]
        assert text.count("raised") == 1

    def test_ranks_that_failed_differently_are_entries_in_the_order_they_were_told(self) -> None:
        failures = [failure(2), failure(0, message="no data"), failure(1)]
        assert [len(group) for group in fold_failures(failures)] == [2, 1]

    def test_ranks_that_each_name_themselves_in_what_they_say_are_one_entry(self) -> None:
        failures = [failure(rank, message=f"rank {rank}") for rank in (3, 0, 1, 2, 4, 5)]
        lines = failures_text(failures, no_cells).splitlines()
        assert lines[:6] == [
            "Trainer.step on workers[gpus=3] raised ValueError: rank 3",
            "and on 5 more ranks, in other words:",
            "    gpus=0: rank 0",
            "    gpus=1: rank 1",
            "    gpus=2: rank 2",
            "    2 more: gpus=4..5",
        ]
        assert "\n".join(lines).count("train.py") == 1
        html = Reader(failures_html(failures, no_cells)).text
        assert all(f"raised ValueError: rank {rank}" in html for rank in range(6)), "a click away"

    def test_only_frames_of_the_user_are_shown(self) -> None:
        text = failures_text([failure(0)], no_cells)
        assert "File /home/user/train.py, line 7, in step" in text
        assert "dispatch.py" not in text

    def test_the_rest_is_whole_and_one_click_away(self) -> None:
        read = Reader(failures_html([failure(0), failure(1)], no_cells))
        assert "details" in read.tags
        assert "every frame" in read.text
        assert "workers[gpus=1]: pid 1001 on here" in whole_text([failure(0), failure(1)])

    def test_a_dead_rank_tells_its_last_words(self) -> None:
        lines = entry_lines([[death(2)]], no_cells)
        assert lines[0].startswith("workers[gpus=2] (pid 1002) died while it ran Trainer.step")
        assert lines[1:] == ["  its last lines on stderr:", "    step 41", "    step 42"]

    def test_a_cell_on_a_rank_is_called_a_cell(self) -> None:
        runner = Frame("/x/monarch_jupyter/cell_runner.py", 70, "run", "self._execute(body)", True)
        cell = Frame(rank_cell_filename(5, "workers"), 2, "<module>", "1/0", True)
        failed = failure(
            1,
            mesh_name="cells",
            actor_class="Cell",
            endpoint="run",
            frames=(runner, cell),
            message="m",
        )
        assert entry_lines([[failed]], no_cells) == [
            "the cell on workers[gpus=1] raised ValueError: m",
            "  Cell In[5] on workers, line 2",
            "  ----> 2 1/0",
        ]


class TestFrames:
    def test_frames_of_libraries_are_counted_but_for_the_one_where_it_ended(self) -> None:
        torch = "/env/lib/python3.11/site-packages/torch/nn/modules/"
        mine = "/home/user/model.py"
        files = [
            mine, torch + "module.py", torch + "module.py", mine, "/env/lib/python3.11/json/x.py",
            "<frozen importlib._bootstrap>", "/env/lib/python3.11/site-packages/six.py",
        ]  # fmt: skip
        places = [Place(file, at, "f", f"line {at}") for at, file in enumerate(files)]
        assert story_lines(places, no_cells) == [
            "File /home/user/model.py, line 0, in f",
            "----> 0 line 0",
            "... 2 frames of torch ...",
            "File /home/user/model.py, line 3, in f",
            "----> 3 line 3",
            "... 2 frames of json, importlib ...",
            "File /env/lib/python3.11/site-packages/six.py, line 6, in f",
            "----> 6 line 6",
        ]
        assert places[6].library == "six"
        assert story_lines(places[1:4], no_cells) == story_lines(places[3:4], no_cells)
        assert len(story_lines(places[1:3], no_cells)) == 4  # there is nothing else to show

    def test_lines_around_are_shown_with_an_arrow(self, tmp_path: Path) -> None:
        file = tmp_path / "train.py"
        file.write_text("def step():\n    x = 1\n    raise ValueError\n    y = 2\n\n\nz = 3\n")
        place = Place(str(file), 3, "step", "raise ValueError")
        assert place_lines(place, no_cells) == [
            f"File {file}, line 3, in step",
            "      1 def step():",
            "      2     x = 1",
            "----> 3     raise ValueError",
            "      4     y = 2",
        ]

    def test_a_file_that_has_changed_shows_the_line_that_ran(self, tmp_path: Path) -> None:
        file = tmp_path / "train.py"
        file.write_text("one\ntwo\nthree\n")
        place = Place(str(file), 2, "step", "raise ValueError")
        assert place_lines(place, no_cells)[1:] == ["----> 2 raise ValueError"]

    def test_a_cell_is_called_by_its_number(self) -> None:
        linecache.cache["/tmp/k/1.py"] = (4, None, ["1/0\n"], "/tmp/k/1.py")
        try:
            lines = place_lines(Place("/tmp/k/1.py", 1, "<module>", "1/0"), lambda f: "Cell In[3]")
        finally:
            del linecache.cache["/tmp/k/1.py"]
        assert lines == ["Cell In[3], line 1", "----> 1 1/0"]

    def test_source_that_is_nowhere_is_no_error(self) -> None:
        assert place_lines(Place("/none", 3, "f", ""), no_cells) == ["File /none, line 3, in f"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (12.3, "12 s"), (185, "3 min 5 s"), (7805, "2 h 10 min")],
)
def test_times_are_said_shortly(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0 µs"), (0.00000004, "0.04 µs"), (0.0000037, "3.7 µs"), (0.000347, "347 µs"),
        (0.0009994, "999 µs"), (0.0009996, "1.0 ms"), (0.0123, "12 ms"), (1.5, "1.5 s"),
        (9.94, "9.9 s"), (12.3, "12 s"), (185, "3 min 5 s"),
    ],
)  # fmt: skip
def test_short_times_keep_two_digits(seconds: float, said: str) -> None:
    assert short_time(seconds) == said


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (20_000, "20 KiB"), (2**20 - 1, "1.0 MiB"),
        (20 * 2**20, "20 MiB"), (3 * 2**30, "3.0 GiB"), (5 * 2**50, "5120 TiB"),
    ],
)  # fmt: skip
def test_sizes_are_said_in_the_nearest_unit(number: int, said: str) -> None:
    assert byte_size(number) == said


def test_counts_agree_with_their_nouns() -> None:
    assert (count(1, "rank"), count(0, "rank")) == ("1 rank", "0 ranks")


def test_columns_are_as_wide_as_their_widest_word() -> None:
    assert columns([["a", "b"], ["long", "c"]]) == ["a     b", "long  c"]


def test_restarts_are_counted_where_there_were_any_and_only_there() -> None:
    meshes = (mesh(), mesh([row(0, restarts=2), row(1, restarts=1)]))
    first, second = listing_text(meshes).splitlines()[1:]
    assert "restart" not in first
    assert "2: 2 idle, 3 restarts" in second
    assert "restart" not in str(listing_html(meshes[:1]))
    assert "restarts" in str(listing_html(meshes[1:]))
    again = mesh([row(0, state="starting", failure="killed by SIGKILL", restarts=1), row(1)])
    assert "gpus=0  starting again: killed by SIGKILL" in mesh_text(again)
