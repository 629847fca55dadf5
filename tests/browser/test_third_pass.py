"""Output, values, names and errors of ranks, typed into one notebook as its user meets them.

Restarts by the menu and the form of the panel are in `test_side_panel.py`, ranks that are paused in
`test_breakpoints.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.gate import WAIT_AT_GATE, shut_gate
from tests.browser.lab import Lab, open_notebook
from tests.notebook.test_user_terms import INTERNAL

pytest.importorskip("torch", reason="the values are tensors")

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BAR = """%%monarch on workers
import sys
for percent in (25, 50):
    print(f"\\rdone {{percent}}%", end="", flush=True)
    print(f"\\rread {{percent}}%", end="", flush=True, file=sys.stderr)
wait_at_gate({gate})
print("\\rdone 99%", end="")"""
TORCHRUN = """ 2
import os
if os.environ["RANK"] == "1":
    raise ValueError("a bad batch")"""
ACTOR = """from monarch.actor import Actor, endpoint
class Trainer(Actor):
    def __init__(self):
        raise OSError("no data")
    @endpoint
    def step(self):
        pass
trainers = workers.spawn("trainers", Trainer)"""
ABORTS = """%%monarch on workers
import os
def lose():
    os.abort()
if rank == 1:
    lose()"""


def type_cell(page: Page, source: str) -> Locator:
    """Type this into the cell with the cursor, below all others, and press Shift+Enter."""
    cells = page.locator(".jp-CodeCell")
    number = cells.count() - 1
    cell = cells.nth(number)
    cell.locator(".cm-content").click()
    page.keyboard.insert_text(source)
    page.keyboard.press("Shift+Enter")
    expect(cells).to_have_count(number + 2)
    return cell


def output(cell: Locator) -> Locator:
    return cell.locator(".jp-OutputArea")


def ended(cell: Locator) -> Locator:
    """The output of the cell once it has ended; it has no name of the runtime's own."""
    expect(cell.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]:"))
    text = output(cell).inner_text()
    assert [name for name in INTERNAL if name in text] == [], text
    return output(cell)


def test_one_notebook_is_typed_from_bars_and_values_to_deaths_and_remedies(
    browser: Browser, lab: Lab, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    lab.write_notebook("walk.ipynb", [""])
    with open_notebook(browser, lab, "walk.ipynb") as page:

        def picture(cell: Locator, name: str) -> None:
            cell.screenshot(path=tmp_path / f"walk-{name}.png")

        ended(type_cell(page, "%load_ext monarch_jupyter"))
        cell = type_cell(page, "%monarch spawn workers gpus=4")
        expect(ended(cell)).to_contain_text("4 ranks, 4 idle")
        # A line that is not ended yet is rewritten in its cell, and stays there.
        ended(type_cell(page, f"%%monarch on workers\n{WAIT_AT_GATE}"))
        with shut_gate(gate):
            bar = type_cell(page, BAR.format(gate=repr(str(gate))))
            expect(output(bar)).to_contain_text("[gpus=0..3] done 50%")
            expect(output(bar)).to_contain_text("[gpus=0..3] read 50%")
            picture(bar, "bar-runs")
        expect(ended(bar)).to_contain_text("] done 99%")
        expect(output(bar)).not_to_contain_text("done 50%")
        # A busy machine may take longer than what a line waits for its like.
        ended(type_cell(page, "import monarch_jupyter.cells.output as o; o.HOLD = 60"))
        cell = type_cell(page, "%%monarch on workers\nprint('next')")
        expect(ended(cell)).to_contain_text("[gpus=0..3] next")
        expect(output(cell)).not_to_contain_text("%")
        expect(output(bar)).to_contain_text("] read 50%")
        picture(bar, "bar")
        # Values that differ in their contents only are not called alike.
        ended(type_cell(page, "%%monarch on workers\nimport numpy as np\nimport torch"))
        for number, value in enumerate(
            (
                "torch.full((3,), float(rank))",
                "np.full((500, 500), rank)",
                "{'w': torch.ones(9) * rank}",
            )
        ):
            cell = type_cell(page, f"%%monarch on workers\n{value}")
            expect(ended(cell)).to_contain_text("gpus=3")
            expect(output(cell)).not_to_contain_text("gpus=0..3")
            expect(output(cell)).not_to_contain_text("alike")
            picture(cell, f"values-{number}")
        cell = type_cell(page, "%%monarch on workers\ntorch.ones(3)")
        expect(ended(cell)).to_contain_text("gpus=0..3")
        picture(cell, "values-equal")
        cell = type_cell(page, "%%monarch on workers\npoint")
        expect(ended(cell)).to_contain_text("{'gpus': 3/4}")
        # What a rank has been given wins in a mapped function, and that is said once.
        ended(type_cell(page, "kept, X = workers, list(range(8))\nworkers.scatter(X=X)"))
        ended(type_cell(page, "def count(item):\n    return len(X)"))
        cell = type_cell(page, "workers.map(count, [0, 0, 0])")
        expect(ended(cell)).to_contain_text("[2, 2, 2]")
        expect(output(cell)).to_contain_text("count uses X of the ranks of workers, which differs")
        picture(cell, "map")
        cell = type_cell(page, "workers.map(count, [0, 0, 0])")
        expect(ended(cell)).to_contain_text("[2, 2, 2]")
        expect(output(cell)).not_to_contain_text("count uses")
        # Tab offers options; a script that raises shows its own line.
        cell = page.locator(".jp-CodeCell").last
        cell.locator(".cm-content").click()
        page.keyboard.type("%%monarch torchrun --nproc")
        page.keyboard.press("Tab")
        expect(page.locator(".jp-Completer")).to_contain_text("--nproc-per-node")
        page.keyboard.press("Enter")
        expect(cell).to_contain_text("torchrun --nproc-per-node")
        cell = type_cell(page, TORCHRUN)
        expect(ended(cell)).to_contain_text("raised ValueError: a bad batch")
        picture(cell, "torchrun")
        # A constructor that raises on every rank is one notice, below the cell that spawned it.
        cell = type_cell(page, ACTOR)
        expect(output(cell)).to_contain_text("OSError: no data")
        call = type_cell(page, "trainers.step.call().get()")
        expect(ended(call)).to_contain_text("and on 3 more ranks: gpus=1..3")
        assert ended(cell).inner_text().count("OSError") == 1
        picture(cell, "constructor")
        picture(call, "call")
        with shut_gate(gate):
            cell = type_cell(
                page, f"%%monarch on workers\nprint('begun')\nwait_at_gate({str(gate)!r})"
            )
            expect(output(cell)).to_contain_text("begun")
            page.get_by_role("button", name="Interrupt the kernel").click()
            expect(ended(cell)).to_contain_text("KeyboardInterrupt in %%monarch on workers")
        picture(cell, "stopped-cell")
        live = type_cell(page, "%monarch logs workers --live")
        expect(ended(live)).to_contain_text("begun")
        # A death has the user's frames only, and lines that run as they are pasted.
        cell = type_cell(page, ABORTS)
        expect(ended(cell)).to_contain_text("died while it ran the cell: killed by SIGABRT")
        picture(cell, "death")
        error = output(cell).inner_text().partition("SupervisionError")[2]
        assert "line 4 in lose" in error
        assert ".py" not in error
        advised = re.findall(r"^%%monarch on .*$", error, re.MULTILINE)
        assert len(advised) == 2, error
        for line, ranks in zip(advised, ("2..3", "0"), strict=True):
            cell = type_cell(page, f"{line}\nprint('goes on')")
            expect(ended(cell)).to_contain_text(f"[gpus={ranks}] goes on")
        expect(output(live)).to_contain_text("goes on")
        picture(live, "logs")
        cell = type_cell(page, "%%monarch on workers\nrank")
        expect(ended(cell)).to_contain_text("calls that include workers[gpus=1] raise")
        picture(cell, "dead-mesh")
        ended(type_cell(page, "%monarch stop workers"))
        cell = type_cell(page, "kept.map(count, [0])")
        expect(ended(cell)).to_contain_text("MeshStoppedError: the proc mesh 'workers' has been")
        picture(cell, "mesh-stopped")
        page.keyboard.press("ControlOrMeta+s")
        page.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")
    markup, _ = HTMLExporter().from_filename(str(lab.folder / "walk.ipynb"))
    exported = tmp_path / "walk.html"
    exported.write_text(markup, "utf-8")
    reader = browser.new_page(viewport={"width": 1100, "height": 1000}, offline=True)
    reader.goto(exported.as_uri(), wait_until="domcontentloaded")
    lines = reader.locator(".jp-CodeCell", has_text="%monarch logs workers --live")
    expect(lines).to_contain_text("read 50%")
    lines.screenshot(path=tmp_path / "walk-exported.png")
    reader.close()
