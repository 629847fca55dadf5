"""What is shown survives an export and a reader who runs nothing."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bleach
import nbformat
import pytest
from IPython.core.formatters import DisplayFormatter
from nbconvert import HTMLExporter
from nbconvert.preprocessors import ExecutePreprocessor

from monarch.actor import (
    Actor,
    Extent,
    Future,
    MeshFailure,
    MeshStoppedError,
    SupervisionError,
    ValueMesh,
)
from monarch.observe import Metrics
from monarch_jupyter.cells.static_views import WIDGET, StaticViews, static_copy
from monarch_jupyter.rendering.failures import no_cells
from monarch_jupyter.rendering.formatters import PICTURED, PUBLIC, Formatters
from tests.notebook.kernel import PATIENCE, Kernel
from tests.notebook.samples import counted, death, failure, instrument, measured, mesh, row

# What GitHub keeps of a notebook's HTML, of all that we use: no style, no title.
GITHUB = {
    *("div", "span", "strong", "code", "pre", "table", "thead", "tbody", "tr", "th", "td"),
    *("details", "summary", "img"),
}


@pytest.fixture
def shown() -> Any:
    """What a notebook makes of a value, by mime type."""
    formatter: Any = DisplayFormatter()
    formatters = Formatters(formatter, no_cells)
    formatters.install()
    yield lambda value: formatter.format(value)[0]
    formatters.restore()


SAMPLES: dict[str, Callable[[], object]] = {
    "a value a rank": lambda: ValueMesh(Extent(["a", "b"], [2, 2]), [1.0, float("nan"), 2, 3]),
    "very many values": lambda: ValueMesh(Extent(["a", "b"], [80, 64]), range(80 * 64)),
    "texts": lambda: ValueMesh(Extent(["a"], [100]), [f"<{i}>" for i in range(100)]),
    "a done future": lambda: Future.of(ValueMesh(Extent(["a"], [2]), [1, 2])),
    "a mesh that is seen": lambda: mesh([row(0), row(1, state="failed", failure="killed <x>")]),
    "figures": lambda: Metrics((counted(),), (), (measured(),), (instrument(),)),
    "a row": lambda: row(3),
    "a death": lambda: death(3).death,
    "a failure": lambda: failure(3),
    "a mesh failure": lambda: MeshFailure("workers", (failure(3), death(4))),
    "an error of ranks": lambda: SupervisionError(failures=[death(1), death(2)]),
    "another error": lambda: MeshStoppedError("it <has> stopped"),
    "an extent": lambda: Extent(["hosts"], [2]),
    "a point": lambda: Extent(["hosts"], [2]).point_of_rank(1),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_all_that_is_said_is_said_without_styles_and_scripts(name: str, shown: Any) -> None:
    data = shown(SAMPLES[name]())
    whole = data["text/html"]
    kept = bleach.clean(whole, tags=GITHUB, attributes={"th": ["scope"]}, strip=False)
    # Nothing had to be escaped, so nothing was there that GitHub does not take.
    assert _words(kept) == _words(whole)
    assert "<script" not in whole
    assert data["text/plain"].strip()


def _words(markup: str) -> str:
    return bleach.clean(markup, tags=set(), strip=True)


def test_every_public_class_has_a_picture_or_a_line(shown: Any) -> None:
    formatter: Any = DisplayFormatter()
    formatters = Formatters(formatter, no_cells)
    formatters.install()
    lacking: list[str] = []
    for module in PUBLIC:
        for name in module.__all__:
            kind = getattr(module, name)
            # Actors look as their users made them; a channel is a maker of ports.
            if not inspect.isclass(kind) or kind is Actor:
                continue
            try:
                formatter.formatters["text/html"].lookup_by_type(kind)
            except KeyError:
                lacking.append(f"{module.__name__}.{name}")
    formatters.restore()
    assert lacking == []
    assert all(inspect.isclass(kind) for kind in PICTURED)


def test_a_heat_map_says_where_the_extremes_are(shown: Any) -> None:
    data = shown(SAMPLES["a value a rank"]())["text/html"]
    assert "lowest 1 at a=0 b=0; highest 3 at a=1 b=1; 1 not finite" in data
    assert data.count("rgba(") == 3


class Loss:
    """A tensor of one element, of torch or its like."""

    dtype = "float32"
    shape = ()

    def __init__(self, value: float, device: str = "cpu") -> None:
        self.value, self.device = value, device

    def item(self) -> float:
        return self.value


def test_losses_in_tensors_are_numbers_but_none_is_fetched_from_a_device(shown: Any) -> None:
    here = ValueMesh(Extent(["gpus"], [2]), [Loss(0.5), Loss(0.25)])
    assert "lowest 0.25 at gpus=1" in shown(here)["text/html"]
    assert "0.5" in shown(here)["text/plain"]
    there = ValueMesh(Extent(["gpus"], [2]), [Loss(0.5, "cuda:0"), Loss(0.25, "cuda:0")])
    assert "Loss float32 [] on cuda:0" in shown(there)["text/plain"]


def test_very_many_numbers_are_told_by_their_spread_part_by_part(shown: Any) -> None:
    data = shown(SAMPLES["very many values"]())
    lines = data["text/plain"].splitlines()
    assert lines[2].split()[:3] == ["all", "0", "at"]
    assert lines[3].split()[0] == "a=0"
    assert "5119 at a=79 b=63" in lines[2]
    assert lines[-1].strip() == "and 16 more parts"
    assert len(data["text/html"]) < 100_000


def test_very_many_texts_are_a_click_away_and_none_is_lost(shown: Any) -> None:
    data = shown(SAMPLES["texts"]())
    assert "and 36 more" in data["text/plain"]
    assert all(f"&#x27;&lt;{i}&gt;&#x27;" in data["text/html"] for i in range(100))


def test_while_it_is_on_a_view_is_html_and_off_makes_it_live_again(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    said = "views are plain HTML, which exports keep\n"
    assert kernel.ok("%monarch static on").stdout == said
    result = kernel.ok("%monarch show").result
    assert WIDGET not in result
    assert "<td" in result["text/html"]
    kernel.ok("display(mj := __import__('monarch_jupyter').show())")
    assert WIDGET in kernel.ok("import ipywidgets\nipywidgets.IntSlider()").result, "no HTML beside"
    assert kernel.ok("%monarch static off").stdout == "views are live\n"
    assert WIDGET in kernel.ok("%monarch show").result


def test_a_copy_of_a_saved_notebook_is_exported_with_its_views(
    kernel: Kernel, tmp_path: Path
) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    result = kernel.ok("%monarch show").result
    assert WIDGET in result
    notebook = nbformat.v4.new_notebook()
    output = nbformat.v4.new_output("execute_result", data=result, execution_count=1)
    notebook.cells = [nbformat.v4.new_code_cell("%monarch show", outputs=[output])]
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    path = tmp_path / "report.ipynb"
    nbformat.write(notebook, path)
    said = kernel.ok(f"%monarch static {path}").stdout
    copy = tmp_path / "report.static.ipynb"
    assert said == f"wrote {copy}: 1 view shown as plain HTML\n"
    exported, _ = HTMLExporter().from_filename(str(copy))
    assert "● ready" in exported
    assert "widget-view" not in exported
    assert WIDGET in path.read_text(), "the notebook itself is left alone"


def test_a_widget_without_html_keeps_its_state(tmp_path: Path) -> None:
    path = tmp_path / "n.ipynb"
    state = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    output = {"data": {WIDGET: {}, "text/plain": "x"}}
    path.write_text(json.dumps({"cells": [{"outputs": [output]}], "metadata": {"widgets": state}}))
    copy, number = static_copy(path)
    assert number == 0
    assert json.loads(copy.read_text()) == json.loads(path.read_text())


def test_static_refuses_in_one_line(kernel: Kernel, tmp_path: Path) -> None:
    assert "No such file or directory; name a saved .ipynb file" in kernel.refused(
        "%monarch static nothing.ipynb"
    )
    (tmp_path / "list.ipynb").write_text("[]")
    assert "it is no notebook" in kernel.refused(f"%monarch static {tmp_path / 'list.ipynb'}")
    assert "on, off, auto, or one saved notebook" in kernel.refused("%monarch static on off")


@pytest.mark.slow
def test_a_notebook_that_nbconvert_executes_shows_html_without_being_told(tmp_path: Path) -> None:
    cells = (
        "%load_ext monarch_jupyter\n%monarch spawn workers gpus=2",
        "%monarch show",
        "%%monarch on workers\nprint('a line')\n7",
        "%monarch stacks workers",
        "%monarch static",
        "%monarch logs workers --live",
        "import ipywidgets\nipywidgets.IntSlider()",
        "workers.stop().get()",
    )
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    executed, _ = ExecutePreprocessor(timeout=PATIENCE).preprocess(notebook, {})
    shown = [
        [output["data"] for output in cell["outputs"] if "data" in output]
        for cell in executed["cells"]
    ]
    *views, lines, slider, _ = shown
    assert WIDGET not in lines[0]
    assert "] a line" in lines[0]["text/plain"]
    assert not any(WIDGET in data for cell in views for data in cell)
    assert WIDGET in slider[0], "no HTML beside"
    assert "<td" in views[1][0]["text/html"]
    exported, _ = HTMLExporter().from_notebook_node(executed)
    assert "● ready" in exported
    assert "workers: lines 1 to 2 of 2" in exported
    assert executed["cells"][4]["outputs"][0]["text"].startswith("views are plain HTML")


def test_without_a_kernel_views_are_what_the_user_chose_and_the_shell_is_left_as_it_was() -> None:
    class Shell:
        display_formatter: Any = DisplayFormatter()

    before = dict(vars(Shell.display_formatter))
    views = StaticViews(Shell())
    views.install()
    assert not views.on
    for choice, on in ((True, True), (False, False), (None, False)):
        views.turn(choice)
        assert views.on is on
    views.restore()
    assert vars(Shell.display_formatter) == before
