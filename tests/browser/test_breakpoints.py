"""Breakpoints in a real page: consoles in cells, in the explorer and in the panel, by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.accessible import assert_accessible
from tests.browser.lab import Lab, open_notebook, restart_kernel, run_all
from tests.browser.test_side_panel import mesh_of, run_in_new_cell, side_panel

pytestmark = pytest.mark.browser

LOAD = "%load_ext monarch_jupyter"
TRAINER = """
import numpy as np
from monarch.actor import Actor, current_rank, endpoint

class Trainer(Actor):
    def __init__(self):
        self.total = 100.0

    @endpoint
    def step(self, batch):
        rank = current_rank().rank
        batch = np.array(batch) * rank
        loss = batch.sum()
        if rank in (2, 5):
            breakpoint()
        self.total += loss
        return float(self.total)

trainers = workers.spawn("trainers", Trainer)
"""
WAIT = """
import monarch.debug
while len(monarch.debug.waiting()) < 2:
    pass
"""
MESH = f"{LOAD}\n%monarch spawn workers gpus=8"
STANDS = "Trainer.step, Cell In[2], line 14"


def console_of(page: Page | Locator, gpu: int) -> Locator:
    """The console of that rank, wherever it stands."""
    return page.get_by_role("region", name=f"Debugger: workers[gpus={gpu}] in ")


def line_of(console: Locator) -> Locator:
    """Where one types."""
    return console.get_by_role("textbox", name="Debugger command")


def say(console: Locator, text: str) -> None:
    """Type a line, and return when it has been done."""
    line = line_of(console)
    line.fill(text)
    line.press("Enter")
    expect(line).to_have_value("")
    expect(line).to_be_editable()


@contextmanager
def dark(page: Page) -> Iterator[None]:
    """JupyterLab's own dark theme while a block runs; the server remembers which one is chosen."""
    choose = "name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})"
    page.evaluate(choose, "JupyterLab Dark")
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    yield
    page.evaluate(choose, "JupyterLab Light")
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "true")


@pytest.mark.slow
def test_two_of_eight_ranks_are_stepped_and_changed_while_the_others_finish(
    browser: Browser, lab: Lab, screenshot_path: Path
) -> None:
    lab.write_notebook(
        "debug.ipynb",
        [
            MESH,
            TRAINER.strip(),
            "answer = trainers.step.call([1.0, 2.0])" + WAIT,
            "%monarch debug",
            "%monarch debug --cast 'p loss > 5' workers",
            "%monarch debug workers[gpus=2]",
        ],
    )
    with open_notebook(browser, lab, "debug.ipynb") as page:
        run_all(page)
        listed = page.locator(".jp-CodeCell").nth(3)
        expect(listed).to_contain_text("workers[gpus=2,5]")
        expect(listed).to_contain_text(STANDS)
        said = page.locator(".jp-CodeCell").nth(4)
        expect(said).to_contain_text("2 ranks: workers[gpus=2], workers[gpus=5]")
        # The other six have finished.
        expect(
            page.get_by_role("button", name="Monarch: 8 ranks: 2 paused, 6 idle")
        ).to_be_visible()

        console = console_of(page, 2)
        here = console.locator("[aria-current=step]")
        log = console.get_by_role("log")
        expect(here).to_contain_text("breakpoint()")
        say(console, "p batch, loss")
        expect(log).to_contain_text("(array([2., 4.]), ")
        line = line_of(console)
        line.fill("p self.tot")
        line.press("Tab")
        expect(line).to_have_value("p self.total")
        line.press("Enter")
        expect(log).to_contain_text("100.0")
        say(console, "loss = 1000")
        say(console, "next")
        expect(here).to_contain_text("self.total += loss")
        line.press("ArrowUp")
        expect(line).to_have_value("next")
        line.press("ArrowUp")
        expect(line).to_have_value("loss = 1000")
        line.press("ArrowDown")
        line.press("ArrowDown")
        expect(line).to_have_value("")
        console.get_by_role("button", name="Next").press("Enter")
        expect(here).to_contain_text("return float(self.total)")
        expect(console.get_by_role("button", name="Next")).to_be_focused()
        say(console, "p self.total")
        expect(log).to_contain_text("1100.0")
        assert_accessible(page, ".md-console")
        console.scroll_into_view_if_needed()
        page.screenshot(path=screenshot_path / "debugger.png")
        with dark(page):
            assert_accessible(page, ".md-console")

        console.get_by_role("button", name="Continue").click()
        expect(log).to_contain_text("workers[gpus=2] has gone on")
        expect(line).to_be_hidden()
        run_in_new_cell(page, "%monarch debug --continue\nanswer.get(timeout=60).values()")
        expect(page.locator(".jp-OutputArea-output").last).to_have_text(
            "[100.0, 103.0, 1100.0, 109.0, 112.0, 115.0, 118.0, 121.0]"
        )


@pytest.mark.slow
def test_a_cell_that_waits_shows_for_what_and_consoles_are_a_click_away_everywhere(
    browser: Browser, lab: Lab, screenshot_path: Path
) -> None:
    call = "trainers.step.call([1.0, 2.0]).get().values()"
    lab.write_notebook("waits.ipynb", [MESH, TRAINER.strip(), "%monarch show workers", call])
    with open_notebook(browser, lab, "waits.ipynb") as page:
        run_all(page)
        board = page.get_by_role("region", name="Breakpoints")
        waits = board.get_by_role("listitem")
        expect(board.get_by_role("status").first).to_have_text("2 ranks wait at a breakpoint")
        expect(waits).to_contain_text(f"workers[gpus=2,5] in {STANDS}")
        board.get_by_role("combobox").select_option("gpus=5")
        board.get_by_role("button", name="Console of workers[gpus=2,5]").click()
        console = console_of(board, 5)
        expect(line_of(console)).to_be_focused()
        say(console, "loss = 0")
        say(console, "next")
        expect(console.locator("[aria-current=step]")).to_contain_text("self.total += loss")
        assert_accessible(page, ".mx-breakpoints")

        # In the explorer, and in the panel.
        explorer = page.get_by_role("region", name="Mesh explorer")
        explorer.get_by_role("gridcell", name=f"workers gpus=2: paused in {STANDS}").click()
        details = explorer.get_by_role("region", name="workers gpus=2 details")
        expect(details).to_contain_text(f"paused in {STANDS}")
        details.get_by_role("button", name="Console", exact=True).click()
        in_details = console_of(details, 2)
        say(in_details, "p batch")
        expect(in_details.get_by_role("log")).to_contain_text("array([2., 4.])")
        assert_accessible(page, ".mx-details")
        panel = side_panel(page)
        paused = mesh_of(panel, "workers").get_by_role("list", name="Paused")
        expect(paused).to_contain_text(f"gpus=2: {STANDS}")
        paused.get_by_role("button", name="Console of gpus=2").click()
        in_panel = console_of(panel, 2)
        say(in_panel, "p float(loss)")
        expect(in_panel.get_by_role("log")).to_contain_text("6.0")
        assert_accessible(page, ".jp-Monarch")
        page.screenshot(
            path=screenshot_path / "breakpoints.png",
            clip={"x": 290, "y": 0, "width": 990, "height": 900},
        )

        # What one lets go on, the others show too; and the cell has waited all the while.
        line_of(console).fill("continue")
        line_of(console).press("Enter")
        expect(console.get_by_role("log")).to_contain_text("workers[gpus=5] has gone on")
        expect(waits).to_have_count(1)
        expect(waits).to_contain_text(f"workers[gpus=2] in {STANDS}")
        board.get_by_role("button", name="Continue workers[gpus=2]").click()
        expect(board.get_by_role("status").first).to_have_text("No rank is paused here now.")
        expect(in_details.get_by_role("log")).to_contain_text("workers[gpus=2] has gone on")
        expect(in_panel.get_by_role("log")).to_contain_text("workers[gpus=2] has gone on")
        expect(paused).to_be_hidden()
        expect(page.locator(".jp-OutputArea-output").last).to_have_text(
            "[100.0, 103.0, 106.0, 109.0, 112.0, 100.0, 118.0, 121.0]"
        )


HANG = """
import time
from monarch.actor import Actor, current_rank, endpoint

class Reducer(Actor):
    @endpoint
    def reduce(self):
        wanted = current_rank().rank
        while wanted != 7:
            time.sleep(0.01)

reducers = workers.spawn("reducers", Reducer)
reducers.initialized.get()
answer = reducers.reduce.call()
from monarch import observe
while sum(row.state == "busy" for row in observe.snapshot()[0].rows) != 7:
    pass
"""


@pytest.mark.slow
def test_a_rank_that_hangs_is_broken_into_from_its_stack_and_a_dead_kernel_ends_its_consoles(
    browser: Browser, lab: Lab, screenshot_path: Path
) -> None:
    lab.write_notebook("hang.ipynb", [MESH, HANG.strip(), "%monarch stacks workers"])
    with open_notebook(browser, lab, "hang.ipynb") as page:
        run_all(page)
        stacks = page.get_by_role("region", name="Stacks")
        expect(stacks).to_contain_text("time.sleep(0.01)")
        stacks.get_by_role("combobox").select_option("gpus=3")
        stacks.get_by_role("button", name="Console of 7 in Reducer.reduce").click()
        console = console_of(stacks, 3)
        say(console, "p wanted")
        expect(console.get_by_role("log")).to_contain_text("3")
        assert_accessible(page, ".jp-OutputArea-output .mx-explorer")

        run_in_new_cell(page, "%monarch debug workers[gpus=3] --take")
        in_cell = console_of(page.locator(".jp-CodeCell").nth(3), 3)
        say(in_cell, "p wanted + 1")
        expect(in_cell.get_by_role("log")).to_contain_text("4")
        restart_kernel(page)
        expect(in_cell.get_by_role("log")).to_contain_text("the kernel has ended or restarted")
        expect(line_of(in_cell)).to_be_hidden()
