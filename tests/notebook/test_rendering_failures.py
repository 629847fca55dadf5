"""How failures read, as text and as HTML, and which frames and lines of source are shown."""

from __future__ import annotations

import linecache
from pathlib import Path

from monarch.actor import Frame
from monarch_jupyter.rendering.failures import (
    entry_lines,
    failures_html,
    failures_text,
    fold_failures,
    no_cells,
    whole_text,
)
from monarch_jupyter.rendering.source_lines import (
    ProgramLine,
    place_lines,
    rank_cell_filename,
    story_lines,
)
from tests.notebook.reader import Reader
from tests.notebook.samples import death, failure


class TestFailures:
    def test_ranks_that_failed_alike_are_one_entry(self) -> None:
        failures = [failure(3), *(failure(rank) for rank in (1, 2, 4, 5, 6, 7))]
        text = failures_text(failures, no_cells)
        assert text.splitlines()[:2] == [
            "Trainer.step on workers[gpus=1] raised ValueError: the loss is not a number",
            "and on 6 more ranks: gpus=2..7",
        ]
        assert text.count("raised") == 1

    def test_ranks_that_failed_differently_are_entries_in_the_order_they_were_told(self) -> None:
        failures = [failure(2), failure(0, message="no data"), failure(1)]
        assert [len(group) for group in fold_failures(failures)] == [2, 1]

    def test_ranks_that_each_name_themselves_in_what_they_say_are_one_entry(self) -> None:
        failures = [failure(rank, message=f"rank {rank}") for rank in (3, 0, 1, 2, 4, 5)]
        lines = failures_text(failures, no_cells).splitlines()
        assert lines[:6] == [
            "Trainer.step on workers[gpus=0] raised ValueError: rank 0",
            "and on 5 more ranks, in other words:",
            "    gpus=1: rank 1",
            "    gpus=2: rank 2",
            "    gpus=3: rank 3",
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
        runner = Frame(
            "/x/monarch_jupyter/ranks/cell_runner.py", 70, "run", "self._execute(body)", True
        )
        cell = Frame(rank_cell_filename(5, "workers"), 2, "<module>", "1/0", True)
        failed = failure(
            1,
            mesh_name="cells",
            actor_class="the cell",
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
        places = [ProgramLine(file, at, "f", f"line {at}") for at, file in enumerate(files)]
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
        place = ProgramLine(str(file), 3, "step", "raise ValueError")
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
        place = ProgramLine(str(file), 2, "step", "raise ValueError")
        assert place_lines(place, no_cells)[1:] == ["----> 2 raise ValueError"]

    def test_a_cell_is_called_by_its_number(self) -> None:
        linecache.cache["/tmp/k/1.py"] = (4, None, ["1/0\n"], "/tmp/k/1.py")
        try:
            lines = place_lines(
                ProgramLine("/tmp/k/1.py", 1, "<module>", "1/0"), lambda f: "Cell In[3]"
            )
        finally:
            del linecache.cache["/tmp/k/1.py"]
        assert lines == ["Cell In[3], line 1", "----> 1 1/0"]

    def test_source_that_is_nowhere_is_no_error(self) -> None:
        assert place_lines(ProgramLine("/none", 3, "f", ""), no_cells) == [
            "File /none, line 3, in f"
        ]
