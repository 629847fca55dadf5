"""JupyterLab's own debugger on a remote rank: gutter, call stack, variables, steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.lab import Lab, open_notebook
from tests.browser.test_side_panel import mesh_of, side_panel

pytestmark = pytest.mark.browser

ACTOR = """\
from monarch.actor import Actor, endpoint

class Trainer(Actor):
    @endpoint
    def step(self, batch):
        loss = sum(batch) / len(batch)
        scaled = loss * 10
        return scaled

trainers = workers.spawn("trainers", Trainer)"""
LINE = 6


def run_cell(page: Page, number: int) -> None:
    """Start one cell of the notebook that is shown."""
    cell = page.locator(".jp-NotebookPanel:visible .jp-Cell").nth(number)
    cell.locator(".cm-content").first.click()
    page.keyboard.press("Control+Enter")


def output_of(page: Page, number: int) -> Locator:
    """What a cell has printed."""
    return page.locator(".jp-NotebookPanel:visible .jp-Cell").nth(number).locator(".jp-OutputArea")


def test_a_breakpoint_in_the_gutter_of_a_cell_stops_a_remote_rank(
    browser: Browser, lab: Lab, screenshot_path: Path
) -> None:
    lab.write_notebook(
        "debugger.ipynb",
        [
            "%load_ext monarch_jupyter\n%monarch spawn workers gpus=4",
            ACTOR,
            "%monarch debug --lab workers[gpus=3]",
            "print(trainers.step.call([0.5, 1, 2.25]).get().values())",
        ],
    )
    with open_notebook(browser, lab, "debugger.ipynb") as page:
        run_cell(page, 0)
        run_cell(page, 1)
        run_cell(page, 2)
        expect(output_of(page, 2)).to_contain_text("debugger is on workers[gpus=3]")
        page.locator(".jp-NotebookPanel:visible .jp-DebuggerBugButton").click()
        cell = page.locator(".jp-NotebookPanel:visible .jp-Cell").nth(1)
        # The first element of a gutter is there for its width only.
        cell.locator(".cm-breakpoint-gutter .cm-gutterElement").nth(LINE).click(force=True)
        breakpoints = page.locator(".jp-DebuggerBreakpoints")
        expect(breakpoints).to_contain_text("Cell [2]")
        run_cell(page, 3)
        stack = page.locator(".jp-DebuggerCallstack")
        expect(stack).to_contain_text(f"Cell [2]:{LINE}")
        expect(stack).to_contain_text("step")
        expect(cell.locator(".jp-DebuggerEditor-highlight")).to_contain_text("loss = sum(batch)")
        variables = page.locator(".jp-DebuggerVariables-body:visible")
        expect(variables).to_contain_text("batch")
        page.keyboard.press("F10")  # over the line
        expect(stack).to_contain_text(f"Cell [2]:{LINE + 1}")
        expect(variables.get_by_role("treeitem", name="loss: 1.25")).to_be_visible()
        page.screenshot(path=screenshot_path / "lab-debugger.png")
        page.keyboard.press("F9")  # and on
        expect(output_of(page, 3)).to_contain_text("[12.5, 12.5, 12.5, 12.5]")
        expect(stack).not_to_contain_text("step")
        # Where it is can be seen while it is there, whoever has put it there.
        workers = mesh_of(side_panel(page), "workers")
        expect(workers).to_contain_text("JupyterLab's debugger is on gpus=3")
        workers.get_by_role("button", name="Ranks").click()
        workers.get_by_role("gridcell", name="workers gpus=3: idle").click()
        switch = workers.get_by_role("button", name="Debug in JupyterLab")
        expect(switch).to_have_attribute("aria-pressed", "true")
        switch.click()
        expect(switch).to_have_attribute("aria-pressed", "false")
        expect(workers).not_to_contain_text("JupyterLab's debugger is on gpus=3")
