"""The side panel in JupyterLab: it follows the notebook's kernel and never gets in its way."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.gate import shut_gate
from tests.browser.lab import Lab, open_notebook, run_all
from tests.browser.test_explorer import TRAINER

pytestmark = pytest.mark.browser

LOAD = "%load_ext monarch_jupyter"


def side_panel(page: Page) -> Locator:
    """The panel, brought to the front if another one is there."""
    tab = page.get_by_role("tab", name="Monarch")
    if tab.get_attribute("aria-selected") != "true":
        tab.click()
    return page.get_by_role("region", name="Monarch meshes")


def test_the_panel_says_how_to_begin_and_lists_each_mesh_as_it_changes(
    browser: Browser, lab: Lab, tmp_path: Path, screenshot_path: Path
) -> None:
    gate = tmp_path / "gate"
    lab.write_notebook(
        "panel.ipynb",
        [
            LOAD,
            "%monarch spawn readers hosts=1 gpus=2",
            "%monarch spawn workers gpus=4",
            TRAINER.strip(),
            "trainers.slice(gpus=3).crash.broadcast()",
            f"trainers.slice(gpus=slice(0, 2)).step.call({str(gate)!r}).get()",
            "%monarch stop readers",
        ],
    )
    with open_notebook(browser, lab, "panel.ipynb") as page:
        panel = side_panel(page)
        expect(panel.get_by_role("status")).to_contain_text(f"Run {LOAD} in a cell")
        with shut_gate(gate):
            run_all(page)
            # The cell that waits for the gate is running all this while.
            workers = panel.get_by_role("listitem", name="workers")
            expect(workers).to_contain_text("gpus=4")
            expect(workers).to_contain_text("4 ranks: 1 failed, 2 busy, 1 idle")
            expect(workers).to_contain_text("trainers on")
            failures = workers.get_by_role("list", name="Failures")
            expect(failures).to_contain_text("rank 3: exited with status 3")
            readers = panel.get_by_role("listitem", name="readers")
            expect(readers).to_contain_text("2 ranks: 2 idle")
            expect(panel.get_by_role("status")).to_have_text("2 meshes, failed: workers")
            page.screenshot(
                path=screenshot_path / "side-panel.png",
                clip={"x": 0, "y": 0, "width": 1280, "height": 420},
            )
        expect(panel.get_by_role("status")).to_have_text("1 mesh, failed: workers")
        expect(readers).to_have_count(0)


def test_a_page_that_is_loaded_again_lists_the_meshes_again(browser: Browser, lab: Lab) -> None:
    lab.write_notebook("again.ipynb", [LOAD, "%monarch spawn workers gpus=2"])
    with open_notebook(browser, lab, "again.ipynb") as page:
        run_all(page)
        expect(side_panel(page).get_by_role("listitem", name="workers")).to_be_visible()
        page.reload()
        page.wait_for_function("window.jupyterapp !== undefined")
        page.evaluate("window.jupyterapp.restored.then(() => true)")
        workers = side_panel(page).get_by_role("listitem", name="workers")
        expect(workers).to_contain_text("2 ranks: 2 idle")
        page.evaluate(
            "window.jupyterapp.commands.execute('notebook:insert-cell-below').then(() => {"
            "  const cell = window.jupyterapp.shell.currentWidget.content.activeCell;"
            "  cell.model.sharedModel.setSource('%monarch spawn readers gpus=1');"
            "  void window.jupyterapp.commands.execute('notebook:run-cell');"
            "})"
        )
        readers = side_panel(page).get_by_role("listitem", name="readers")
        expect(readers).to_contain_text("1 rank: 1 idle")


def test_a_kernel_that_restarts_has_no_meshes_and_is_loaded_anew(
    browser: Browser, lab: Lab
) -> None:
    lab.write_notebook("restart.ipynb", [LOAD, "%monarch spawn workers gpus=2"])
    with open_notebook(browser, lab, "restart.ipynb") as page:
        run_all(page)
        panel = side_panel(page)
        expect(panel.get_by_role("listitem", name="workers")).to_be_visible()
        page.evaluate(
            "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
        )
        expect(panel.get_by_role("status")).to_contain_text(f"Run {LOAD} in a cell")
        expect(panel.get_by_role("listitem")).to_have_count(0)
        run_all(page)
        expect(panel.get_by_role("listitem", name="workers")).to_be_visible()
