"""The mesh explorer in JupyterLab: found by role and name, live while a cell runs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import REPOSITORY
from tests.browser.gate import WAIT_AT_GATE, shut_gate
from tests.browser.lab import Lab, open_notebook, run_all

pytestmark = pytest.mark.browser

TUTORIAL = REPOSITORY / "notebooks" / "01_hello_mesh.ipynb"
TRAINER = f"""{WAIT_AT_GATE}
import os
from monarch.actor import Actor, endpoint

class Trainer(Actor):
    @endpoint
    def step(self, gate):
        wait_at_gate(gate)

    @endpoint
    def crash(self):
        os._exit(3)

trainers = workers.spawn("trainers", Trainer)
"""


def first_cells_of_the_tutorial(ranks: int) -> list[str]:
    """Up to the explorer, with as many ranks as a test wants."""
    notebook = nbformat.read(TUTORIAL, as_version=4)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"][:3]
    assert "gpus=4" in cells[1]
    assert cells[2] == "%monarch show workers"
    return [cell.replace("gpus=4", f"gpus={ranks}") for cell in cells]


def expect_rank(page: Page, name: str) -> None:
    expect(page.get_by_role("gridcell", name=name, exact=True)).to_be_visible()


def test_the_tutorials_first_cells_show_eight_ranks_live_while_a_cell_runs(
    browser: Browser, lab: Lab, tmp_path: Path, screenshot_path: Path
) -> None:
    gate = tmp_path / "gate"
    lab.write_notebook(
        "eight.ipynb",
        [
            *first_cells_of_the_tutorial(8),
            TRAINER.strip(),
            "trainers.slice(gpus=6).crash.broadcast()",
            f"trainers.slice(gpus=slice(2, 6)).step.call({str(gate)!r}).get()",
            "%monarch stop workers",
        ],
    )
    with open_notebook(browser, lab, "eight.ipynb") as page:
        with shut_gate(gate):
            run_all(page)
            grid = page.get_by_role("grid", name="workers: 8 ranks by gpus")
            expect(grid.get_by_role("gridcell")).to_have_count(8)
            for gpu in (2, 3, 4, 5):
                expect_rank(page, f"workers gpus={gpu}: busy in Trainer.step")
            for gpu in (0, 1, 7):
                expect_rank(page, f"workers gpus={gpu}: idle")
            expect_rank(page, "workers gpus=6: failed: exited with status 3")

            # All this while the cell runs, and it answers too.
            page.get_by_role("gridcell", name="workers gpus=3:").click()
            details = page.get_by_role("region", name="workers gpus=3 details")
            expect(details).to_contain_text("busy in Trainer.step")
            explorer = page.get_by_role("region", name="Mesh explorer")
            explorer.screenshot(path=screenshot_path / "explorer.png")
        for gpu in (0, 1, 2, 3, 4, 5, 7):
            expect_rank(page, f"workers gpus={gpu}: stopped")


def test_the_grid_is_used_by_keyboard(browser: Browser, lab: Lab) -> None:
    lab.write_notebook(
        "keys.ipynb",
        ["%load_ext monarch_jupyter", "%monarch spawn workers hosts=2 gpus=3", "%monarch show"],
    )
    with open_notebook(browser, lab, "keys.ipynb") as page:
        run_all(page)
        grid = page.get_by_role("grid", name="workers: 6 ranks by hosts and gpus")
        expect(grid.get_by_role("rowheader")).to_have_text(["hosts=0", "hosts=1"])
        expect(grid.get_by_role("columnheader").last).to_have_text("gpus=2")

        def focused() -> str | None:
            return page.evaluate("document.activeElement.getAttribute('aria-label')")

        first = grid.get_by_role("gridcell", name="workers hosts=0 gpus=0: idle")
        expect(first).to_have_attribute("tabindex", "0")
        first.focus()
        for key, place in [
            ("ArrowRight", "hosts=0 gpus=1"),
            ("ArrowDown", "hosts=1 gpus=1"),
            ("End", "hosts=1 gpus=2"),
            ("ArrowRight", "hosts=1 gpus=2"),
            ("Home", "hosts=1 gpus=0"),
            ("Control+Home", "hosts=0 gpus=0"),
            ("ArrowUp", "hosts=0 gpus=0"),
            ("Control+End", "hosts=1 gpus=2"),
        ]:
            page.keyboard.press(key)
            assert focused() == f"workers {place}: idle"
        details = page.get_by_role("region", name="workers hosts=1 gpus=2 details")
        page.keyboard.press("Enter")
        expect(details).to_be_visible()
        page.keyboard.press("Escape")
        expect(details).to_be_hidden()
        assert focused() == "workers hosts=1 gpus=2: idle"


def test_a_page_that_is_loaded_again_takes_the_explorer_up_again(
    browser: Browser, lab: Lab
) -> None:
    lab.write_notebook(
        "again.ipynb",
        ["%load_ext monarch_jupyter", "%monarch spawn workers gpus=2", "%monarch show workers"],
    )
    with open_notebook(browser, lab, "again.ipynb") as page:
        run_all(page)
        expect_rank(page, "workers gpus=1: idle")
        page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
        page.reload()
        expect_rank(page, "workers gpus=1: idle")
        stop = (
            "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel"
            ".requestExecute({code: '%monarch stop workers'}).done.then(() => true)"
        )
        assert page.evaluate(stop)
        expect_rank(page, "workers gpus=1: stopped")


def test_an_explorer_of_all_meshes_says_how_to_make_the_first_and_shows_those_that_come(
    browser: Browser, lab: Lab
) -> None:
    lab.write_notebook(
        "all.ipynb", ["%load_ext monarch_jupyter", "%monarch show", "%monarch spawn solo"]
    )
    with open_notebook(browser, lab, "all.ipynb") as page:
        page.evaluate(
            "void window.jupyterapp.commands.execute('notebook:run-cell-and-select-next')"
        )
        page.evaluate(
            "void window.jupyterapp.commands.execute('notebook:run-cell-and-select-next')"
        )
        expect(page.get_by_text("No meshes. Make one with %monarch spawn")).to_be_visible()
        page.evaluate(
            "void window.jupyterapp.commands.execute('notebook:run-cell-and-select-next')"
        )
        expect_rank(page, "solo: idle")
        expect(page.get_by_role("grid", name="solo: 1 rank")).to_be_visible()
