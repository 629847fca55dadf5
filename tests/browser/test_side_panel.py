"""The side panel in JupyterLab: it follows the notebook's kernel and never gets in its way."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.accessible import assert_accessible
from tests.browser.conftest import a_lab, long
from tests.browser.gate import shut_gate
from tests.browser.lab import Lab, open_notebook, restart_kernel, run_all, run_in_new_cell
from tests.browser.test_explorer import TRAINER

pytestmark = pytest.mark.browser

LOAD = "%load_ext monarch_jupyter"


def side_panel(page: Page) -> Locator:
    """The panel, brought to the front if another one is there."""
    tab = page.get_by_role("tab", name="Monarch")
    if tab.get_attribute("aria-selected") != "true":
        tab.click()
    return page.get_by_role("region", name="Monarch meshes")


def summary(panel: Locator) -> Locator:
    """The line that says what is the case."""
    return panel.locator(".jp-Monarch-summary")


def mesh_of(panel: Locator, name: str) -> Locator:
    """One mesh of the list."""
    return panel.get_by_role("list", name="Meshes").get_by_role("listitem", name=name, exact=True)


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
        expect(summary(panel)).to_contain_text(f"Run {LOAD} in a cell")
        with shut_gate(gate):
            run_all(page)
            # The cell that waits for the gate is running all this while.
            workers = mesh_of(panel, "workers")
            expect(workers).to_contain_text("gpus=4")
            expect(workers).to_contain_text("4 ranks: 1 failed, 2 busy, 1 idle")
            expect(workers).to_contain_text("trainers on")
            failures = workers.get_by_role("list", name="Failures")
            expect(failures).to_contain_text("gpus=3: exited with status 3")
            readers = mesh_of(panel, "readers")
            expect(readers).to_contain_text("2 ranks: 2 idle")
            expect(summary(panel)).to_have_text("2 meshes, failed: workers")
            page.screenshot(
                path=screenshot_path / "side-panel.png",
                clip={"x": 0, "y": 0, "width": 1280, "height": 420},
            )
        expect(summary(panel)).to_have_text("1 mesh, failed: workers")
        expect(readers).to_have_count(0)


@pytest.mark.slow
def test_a_page_that_is_loaded_again_lists_the_meshes_and_a_kernel_that_restarts_has_none(
    browser: Browser, lab: Lab
) -> None:
    lab.write_notebook("listed.ipynb", [LOAD, "%monarch spawn workers gpus=2"])
    with open_notebook(browser, lab, "listed.ipynb") as page:
        run_all(page)
        expect(mesh_of(side_panel(page), "workers")).to_be_visible()
        page.reload()
        page.wait_for_function("window.jupyterapp !== undefined")
        page.evaluate("window.jupyterapp.restored.then(() => true)")
        workers = mesh_of(side_panel(page), "workers")
        expect(workers).to_contain_text("2 ranks: 2 idle")
        run_in_new_cell(page, "%monarch spawn readers gpus=1")
        readers = mesh_of(side_panel(page), "readers")
        expect(readers).to_contain_text("1 rank: 1 idle")

        panel = side_panel(page)
        restart_kernel(page)
        expect(summary(panel)).to_contain_text(f"Run {LOAD} in a cell")
        expect(panel.get_by_role("list", name="Meshes")).to_be_hidden()
        run_all(page)
        expect(mesh_of(panel, "workers")).to_be_visible()


@pytest.mark.slow
def test_a_mesh_made_in_the_panel_is_bound_in_the_notebook_and_ended_from_there(
    browser: Browser, lab: Lab, screenshot_path: Path
) -> None:
    lab.write_notebook("made.ipynb", [LOAD])
    with open_notebook(browser, lab, "made.ipynb") as page:
        run_all(page)
        panel = side_panel(page)
        expect(summary(panel)).to_contain_text("No meshes yet")
        page.evaluate("window.jupyterapp.commands.execute('monarch:new-mesh')")
        name = panel.get_by_role("textbox", name="Name")
        expect(name).to_be_focused()
        panel.get_by_role("button", name="Spawn").click()
        expect(panel).to_contain_text("give the mesh a name")
        expect(name).to_be_focused()
        page.screenshot(path=screenshot_path / "empty-form.png")
        page.keyboard.type("readers")
        panel.get_by_role("button", name="Spawn").click()
        expect(panel).to_contain_text("give the dims and their sizes: write gpus=8")
        panel.get_by_role("textbox", name="Dims").fill("hosts=2 gpus=2")
        panel.get_by_role("button", name="Spawn").click()
        readers = mesh_of(panel, "readers")
        expect(readers).to_contain_text("4 ranks: 4 idle")
        expect(page.get_by_role("button", name="Monarch: 4 ranks: 4 idle")).to_be_visible()
        run_in_new_cell(page, "%%monarch on readers[hosts=1]\nprint('I am', rank)")
        expect(page.locator(".jp-OutputArea-output").last).to_contain_text("I am 3")
        page.evaluate("window.jupyterapp.commands.execute('monarch:show-lines')")
        expect(panel.get_by_role("log", name="Lines of all ranks")).to_contain_text("I am 3")
        readers.get_by_role("button", name="Ranks").click()
        readers.get_by_role("gridcell", name="readers hosts=1 gpus=0: idle").click()
        details = readers.get_by_role("region", name="readers hosts=1 gpus=0 details")
        expect(details).to_contain_text("pid")
        assert details.evaluate("box => box.scrollWidth <= box.clientWidth"), "nothing sticks out"
        assert_accessible(page, ".jp-Monarch")
        page.screenshot(path=screenshot_path / "panel-ranks.png")
        readers.get_by_role("button", name="Stop", exact=True).click()
        readers.get_by_role("button", name="Stop 4 processes?").click()
        expect(readers).to_have_count(0)
        run_in_new_cell(page, "readers")
        expect(page.locator(".jp-OutputArea-output").last).to_contain_text("stopped")


@pytest.mark.slow
def test_a_kept_session_is_found_after_a_restart_and_taken_up_from_the_panel(
    browser: Browser, lab: Lab, screenshot_path: Path
) -> None:
    lab.write_notebook(
        "kept.ipynb", [LOAD, "%monarch spawn keepers gpus=2 --keep", "%monarch show keepers"]
    )
    with open_notebook(browser, lab, "kept.ipynb") as page:
        run_all(page)
        panel = side_panel(page)
        expect(mesh_of(panel, "keepers")).to_be_visible()
        explorer = page.get_by_role("region", name="Mesh explorer")
        expect(explorer.get_by_role("gridcell", name="keepers gpus=1: idle")).to_be_visible()
        restart_kernel(page)
        expect(summary(panel)).to_contain_text(f"Run {LOAD} in a cell")
        sessions = panel.get_by_role("region", name="Sessions")
        kept = sessions.get_by_role("listitem", name="keepers", exact=True)
        expect(kept).to_contain_text("detached")
        # The explorer keeps its last picture, and says that it is one.
        lost = page.locator(".mx-lost")
        expect(lost).to_contain_text("Not live: the kernel that made this view is gone.")
        expect(explorer.get_by_role("gridcell", name="keepers gpus=1: idle")).to_be_visible()
        expect(explorer.get_by_role("button", name="Stop", exact=True)).to_be_hidden()
        page.locator(".jp-CodeCell").nth(2).screenshot(path=screenshot_path / "explorer-lost.png")
        # No kernel to attach with, until the extension is loaded.
        expect(kept.get_by_role("button", name="Attach keepers")).to_be_disabled()
        run_in_new_cell(page, LOAD)
        expect(summary(panel)).to_contain_text("No meshes yet")
        kept.get_by_role("button", name="Attach keepers").click()
        expect(mesh_of(panel, "keepers")).to_contain_text("2 ranks: 2 idle")
        # And lives again by itself, controls included.
        expect(lost).to_be_hidden()
        cell = explorer.get_by_role("gridcell", name="keepers gpus=1: idle")
        cell.click()
        details = explorer.get_by_role("region", name="keepers gpus=1 details")
        details.get_by_role("button", name="Stack").click()
        expect(details.get_by_label("Stack", exact=True)).to_contain_text("1 idle")
        explorer.get_by_role("button", name="Stop", exact=True).click()
        explorer.get_by_role("button", name="Stop 2 processes?").click()
        expect(mesh_of(panel, "keepers")).to_have_count(0)
        expect(explorer.get_by_role("gridcell", name="keepers gpus=1: stopped")).to_be_visible()


@pytest.mark.slow
def test_commands_settings_and_a_launcher_card_are_there_and_the_card_opens_a_tutorial(
    browser: Browser, lab: Lab, screenshot_path: Path
) -> None:
    lab.write_notebook("start.ipynb", ["1"])
    with open_notebook(browser, lab, "start.ipynb") as page:
        found = page.evaluate(
            "window.jupyterapp.commands.listCommands().filter(one => one.startsWith('monarch:'))"
        )
        assert set(found) == {
            "monarch:new-mesh",
            "monarch:open-tutorial",
            "monarch:show-lines",
            "monarch:show-meshes",
        }
        page.evaluate("window.jupyterapp.commands.execute('apputils:activate-command-palette')")
        page.keyboard.type("monarch new")
        expect(page.get_by_role("menuitem", name="Monarch: New Mesh")).to_be_visible()
        page.keyboard.press("Escape")
        page.evaluate("void window.jupyterapp.commands.execute('launcher:create')")
        card = page.locator(".jp-LauncherCard").filter(has_text="Tutorial")
        page.screenshot(path=screenshot_path / "launcher.png")
        card.click()
        page.wait_for_function(
            "window.jupyterapp.shell.currentWidget?.context?.path === 'monarch-tutorial.ipynb'"
        )
        expect(page.locator(".jp-NotebookPanel:visible .jp-Cell").first).to_contain_text("mesh")
        assert (lab.folder / "monarch-tutorial.ipynb").exists()


@long
@pytest.mark.slow
def test_a_server_that_was_started_again_lists_what_was_kept(browser: Browser) -> None:
    with a_lab() as lab:
        _started_again(browser, lab)


def _started_again(browser: Browser, lab: Lab) -> None:
    lab.write_notebook("before.ipynb", [LOAD, "%monarch spawn survivors gpus=2 --keep"])
    with open_notebook(browser, lab, "before.ipynb") as page:
        run_all(page)
        expect(mesh_of(side_panel(page), "survivors")).to_contain_text("2 ranks: 2 idle")
        lab.stop()  # and with it the kernel
    lab.start()
    lab.write_notebook("after.ipynb", [LOAD])
    with open_notebook(browser, lab, "after.ipynb") as page:
        panel = side_panel(page)
        kept = panel.get_by_role("region", name="Sessions").get_by_role("listitem")
        expect(kept.filter(has_text="survivors")).to_contain_text("detached")
        run_all(page)
        expect(summary(panel)).to_contain_text("No meshes yet")
        run_in_new_cell(page, "%monarch attach survivors")
        expect(mesh_of(panel, "survivors")).to_contain_text("2 ranks: 2 idle")
        run_in_new_cell(page, "%monarch stop survivors")
        expect(mesh_of(panel, "survivors")).to_have_count(0)
