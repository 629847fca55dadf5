"""What misleads nobody any more: a walk through the notebook as a user meets it, in one page each.

Kept sessions after a restart are in `test_side_panel.py`, exports in `test_explorer.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.accessible import assert_accessible
from tests.browser.gate import WAIT_AT_GATE, shut_gate
from tests.browser.lab import PATIENCE_MS, Lab, open_notebook, run_all, run_in_new_cell
from tests.browser.test_explorer import change_theme, expect_rank
from tests.browser.test_side_panel import mesh_of, side_panel

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LOAD = "%load_ext monarch_jupyter"
ACTORS = f"""{WAIT_AT_GATE}
import os
from monarch.actor import Actor, endpoint

class Trainer(Actor):
    @endpoint
    def step(self, gate=""):
        if gate:
            wait_at_gate(gate)

    @endpoint
    def fail(self):
        raise ValueError("no data")

    @endpoint
    def leave(self):
        os._exit(3)

trainers = workers.spawn("trainers", Trainer)
"""


def run(page: Page, source: str) -> Locator:
    """The new cell, below all others, that runs this, once it has ended."""
    number: int = page.evaluate(
        """async source => {
          const { content } = window.jupyterapp.shell.currentWidget;
          content.activeCellIndex = content.widgets.length - 1;
          await window.jupyterapp.commands.execute('notebook:insert-cell-below');
          content.activeCell.model.sharedModel.setSource(source);
          void window.jupyterapp.commands.execute('notebook:run-cell');
          return content.activeCellIndex;
        }""",
        source,
    )
    cell = page.locator(".jp-CodeCell").nth(number)
    expect(cell.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]:"))
    return cell


def kernel_status(page: Page) -> str:
    return page.evaluate(
        "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status"
    )


def test_a_failed_actor_is_named_and_cells_go_on_with_the_coordinates_of_their_mesh(
    browser: Browser, lab: Lab, tmp_path: Path
) -> None:
    lab.write_notebook(
        "misleads.ipynb",
        [LOAD, "%monarch spawn workers gpus=4", ACTORS.strip(), "%monarch show workers"],
    )
    with open_notebook(browser, lab, "misleads.ipynb") as page:
        run_all(page)
        expect_rank(page, "workers gpus=3: idle")
        # 1: a broadcast that fails ends the actor, not the mesh.
        run(page, "trainers.slice(gpus=1).fail.broadcast()")
        explorer = page.get_by_role("region", name="Mesh explorer of workers")
        expect(explorer.locator(".mx-failed")).to_contain_text("trainers has failed on gpus=1")
        expect_rank(page, "workers gpus=1: idle")
        # 2: a slice has the coordinates of its mesh, in lines and in values.
        cell = run(page, "%%monarch on workers[gpus=2:4]\nprint('here')\nrank / 4")
        expect(cell).to_contain_text("[gpus=2..3] here")
        expect(cell).to_contain_text("lowest 0.5 at gpus=2; highest 0.75 at gpus=3")
        # 3: an error that nobody looks at is said in the cell of its call.
        run(page, "trainers = workers.spawn('others', Trainer)")
        cell = run(page, "lost = trainers.fail.call()\ndel lost\ntrainers.step.call().get()")
        expect(cell).to_contain_text("Nothing has read this error")
        # 5: the lowest rank of equal errors is the one that is named.
        cell = run(page, "%%monarch on workers\nraise ValueError('no data')")
        expect(cell).to_contain_text("workers[gpus=0] raised ValueError")
        # 9: the help of a cell magic.
        cell = run(page, "%%monarch on -h")
        expect(cell).to_contain_text("--timeout")
        # 11: many lines are folded again when the cell ends, and few stay in the page.
        cell = run(page, "%%monarch on workers\nfor i in range(300): print(i)")
        expect(cell).to_contain_text("[gpus=0..3] 299")
        assert cell.locator(".jp-OutputArea-output").count() < 20
        # 4 and 7: while a call waits the kernel is busy, and its bar has a time.
        gate = tmp_path / "gate"
        with shut_gate(gate):
            run_in_new_cell(page, f"trainers.step.call({str(gate)!r}).get()")
            expect_rank(page, "workers gpus=0: busy in Trainer.step")
            bar = page.locator(".mx-work").last
            expect(bar).to_contain_text("Trainer.step")
            expect(bar).to_contain_text("5 s", timeout=PATIENCE_MS)
            page.get_by_role("gridcell", name="workers gpus=2:").click()
            expect(page.get_by_role("region", name="workers gpus=2 details")).to_be_visible()
            assert kernel_status(page) == "busy"
        expect_rank(page, "workers gpus=0: idle")


def overflow(explorer: Locator) -> int:
    """Pixels of the grid, and of the view, that are out of sight at their right."""
    return explorer.evaluate(
        "node => Math.max(...[node, ...node.querySelectorAll('.mx-grid')]"
        ".map(one => one.scrollWidth - one.clientWidth))"
    )


def widen(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_function(
        "width => document.querySelector('.mx-grid').getBoundingClientRect().right <= width",
        arg=width,
    )


def cut_heads(explorer: Locator) -> list[str]:
    """The heads of columns that are seen, and overlap the next one that is."""
    return explorer.evaluate(
        """node => {
          const ticks = [...node.querySelectorAll('.mx-column:not(.mx-quiet) > .mx-tick')]
            .filter(tick => tick.checkVisibility());
          const boxes = ticks.map(tick => tick.getBoundingClientRect());
          return ticks.filter((_, i) => i > 0 && boxes[i - 1].right > boxes[i].left + 0.5)
            .map(tick => tick.textContent);
        }"""
    )


WAITS = """
import asyncio
from monarch.actor import Actor, endpoint

class Box(Actor):
    def __init__(self):
        self.full = asyncio.Event()

    @endpoint
    async def get(self):
        await self.full.wait()

    @endpoint
    async def put(self):
        self.full.set()

boxes = workers.spawn("boxes", Box)
got, put = boxes.get.call(), boxes.put.call()
import monarch_jupyter as mj
while "queued behind" not in str(mj.stacks("workers")):
    pass
"""


def test_the_stacks_of_an_endpoint_that_awaits_say_what_for_and_who_is_behind_it(
    browser: Browser, lab: Lab
) -> None:
    """8: it was told as idle. (That `monarch debug` finds its session, a test of that has.)"""
    lab.write_notebook("awaits.ipynb", [LOAD, "%monarch spawn workers gpus=2", WAITS.strip()])
    with open_notebook(browser, lab, "awaits.ipynb") as page:
        run_all(page)
        cell = run(page, "%monarch stacks workers")
        expect(cell).to_contain_text(
            "2 in Box.get, awaiting asyncio.Event.wait of self.full", timeout=PATIENCE_MS
        )
        expect(cell).to_contain_text("1 message (put) is queued behind Box.get")
        expect(cell).to_contain_text("it is a deadlock")


def test_256_ranks_fit_into_any_page_and_are_filtered_by_state(
    browser: Browser, lab: Lab, tmp_path: Path, screenshot_path: Path
) -> None:
    lab.write_notebook(
        "many.ipynb",
        [
            LOAD,
            "%monarch spawn workers hosts=16 gpus=16",
            ACTORS.strip(),
            "%monarch show workers",
            "trainers.slice(hosts=3, gpus=10).leave.broadcast()",
        ],
    )
    gate = tmp_path / "gate"
    with open_notebook(browser, lab, "many.ipynb") as page:
        run_all(page)
        # After `spawn`: a sign for each rank, and once what the signs mean.
        spawned = page.locator(".jp-CodeCell").nth(1).locator("table").first
        expect(spawned.locator("td")).to_have_count(256, timeout=3 * PATIENCE_MS)
        expect(spawned).not_to_contain_text("idle")
        explorer = page.get_by_role("region", name="Mesh explorer of workers")
        failed = explorer.get_by_role("gridcell", name="workers hosts=3 gpus=10: failed")
        expect(failed).to_be_visible(timeout=3 * PATIENCE_MS)
        with shut_gate(gate):
            run_in_new_cell(
                page, f"trainers.slice(hosts=slice(8, 12)).step.call({str(gate)!r}).get()"
            )
            explorer.scroll_into_view_if_needed()
            expect(explorer.get_by_role("button", name="● 64 busy")).to_be_visible()
            page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
            for width, theme in ((1280, "Light"), (700, "Dark"), (400, "Light")):
                change_theme(page, f"JupyterLab {theme}")
                widen(page, width)
                expect(explorer.get_by_role("columnheader", name="gpus=15")).to_be_visible()
                assert overflow(explorer) <= 0, width
                assert cut_heads(explorer) == []
                explorer.get_by_role("gridcell", name="workers hosts=9 gpus=12:").hover()
                expect(explorer.locator(".mx-here")).to_have_count(2)
                expect(explorer.locator(".mx-reading").first).to_contain_text(
                    "hosts=9 gpus=12: busy in Trainer.step"
                )
                assert_accessible(page, ".mx-explorer")
                picture = f"explorer-256-{width}.png"
                explorer.screenshot(path=screenshot_path / picture)
            widen(page, 1280)
            explorer.get_by_role("button", name="✕ 1 failed").click()
            expect(explorer.locator(".mx-dimmed")).to_have_count(255)
            explorer.get_by_role("button", name="hosts=3 gpus=10", exact=True).click()
            details = explorer.get_by_role("region", name="workers hosts=3 gpus=10 details")
            expect(details).to_contain_text("exited with status 3")


WORKING = """
import random, time
from monarch.actor import Actor, endpoint

class Trainer(Actor):
    @endpoint
    def step(self):
        until = time.monotonic() + random.uniform(0.05, 0.3)
        while time.monotonic() < until:
            pass

    @endpoint
    def save(self):
        time.sleep(0.2)

trainers = workers.spawn("trainers", Trainer)
"""
WORK = """
for at in range(10_000):
    trainers.step.call().get()
    if at % 5 == 4:
        trainers.save.call().get()
"""


def test_use_over_time_and_a_timeline_of_calls_are_shown_while_a_cell_runs(
    browser: Browser, lab: Lab, screenshot_path: Path
) -> None:
    lab.write_notebook(
        "time.ipynb",
        [
            LOAD,
            "%monarch spawn workers gpus=8",
            WORKING.strip(),
            "%monarch show workers",
            WORK.strip(),
        ],
    )
    with open_notebook(browser, lab, "time.ipynb") as page:
        run_all(page)
        explorer = page.get_by_role("region", name="Mesh explorer of workers")
        explorer.get_by_role("button", name="Timeline").click()
        timeline = explorer.get_by_role("region", name="Timeline of calls")
        table = timeline.get_by_role("table")
        expect(table).to_contain_text("Trainer.step")
        expect(table).to_contain_text("Trainer.save")
        explorer.get_by_label("workers: what tiles show").select_option("cpu")
        expect(explorer.locator(".mx-measure")).to_contain_text("highest")
        expect(explorer.locator(".mx-cell .mx-spark")).to_have_count(8)
        page.get_by_role("gridcell", name="workers gpus=3:").click()
        details = explorer.get_by_role("region", name="workers gpus=3 details")
        use = details.get_by_role("list", name="Use of processor and memory")
        expect(use.get_by_role("listitem").first).to_contain_text("%")
        expect(use).to_contain_text("MiB")
        # Long enough for a picture.
        expect(use.get_by_role("listitem").first).to_contain_text("in 20 s")
        for theme in ("Dark", "Light"):
            change_theme(page, f"JupyterLab {theme}")
            assert_accessible(page, ".mx-explorer")
            explorer.screenshot(path=screenshot_path / f"timeline-{theme.lower()}.png")
        picture = timeline.get_by_role("img", name="Calls by rank and time")
        picture.focus()
        live = timeline.get_by_role("button", name="Live")
        expect(live).to_have_attribute("aria-pressed", "true")
        page.keyboard.press("ArrowLeft")
        expect(live).to_have_attribute("aria-pressed", "false")
        page.keyboard.press("+")
        expect(timeline).to_contain_text("20 s, to")
        page.keyboard.press("End")
        expect(live).to_have_attribute("aria-pressed", "true")
        page.get_by_role("button", name="Interrupt the kernel").click()
        # The name of a tile also has the figure that it shows.
        expect(
            page.get_by_role("gridcell", name=re.compile("^workers gpus=3: idle, "))
        ).to_be_visible()


def test_a_mesh_with_a_dead_rank_is_started_again_from_the_explorer_which_shows_the_new_one(
    browser: Browser, lab: Lab, screenshot_path: Path
) -> None:
    lab.write_notebook(
        "restart.ipynb",
        [LOAD, "%monarch spawn workers gpus=4", ACTORS.strip(), "%monarch show workers"],
    )
    with open_notebook(browser, lab, "restart.ipynb") as page:
        run_all(page)
        expect_rank(page, "workers gpus=3: idle")
        panel = side_panel(page)
        # 13: labels that can be seen, and what a session is.
        for label in ("Name", "Dims", "Keep it when the kernel ends"):
            expect(panel.get_by_label(label, exact=True)).to_be_visible()
            expect(panel.get_by_text(label, exact=True)).to_be_visible()
        sessions = panel.get_by_role("region", name="Sessions")
        expect(sessions).to_contain_text("A session is the meshes of one program.")
        expect(sessions.get_by_role("listitem", name="restart.ipynb")).to_be_visible()
        # 16: the line of the error, and the button.
        cell = run(page, "trainers.slice(gpus=1).leave.call_one().get()")
        expect(cell).to_contain_text('restart="on-failure"')
        expect(cell).to_contain_text("%monarch restart workers")
        explorer = page.get_by_role("region", name="Mesh explorer of workers")
        expect(explorer.get_by_role("button", name="Restart")).to_be_visible()
        mesh_of(panel, "workers").get_by_role("button", name="Ranks").click()
        page.screenshot(path=screenshot_path / "restart.png")
        explorer.get_by_role("button", name="Restart").click()
        explorer.get_by_role("button", name="End workers and start it again?").click()
        expect(
            explorer.get_by_role("gridcell", name="workers gpus=1: idle", exact=True)
        ).to_be_visible()
        expect(mesh_of(panel, "workers")).to_contain_text("4 ranks: 4 idle")
        cell = run(page, "%%monarch on workers\nrank + 10")
        expect(cell).to_contain_text("lowest 10 at gpus=0; highest 13 at gpus=3")
