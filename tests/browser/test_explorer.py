"""The mesh explorer in JupyterLab: found by role and name, live while a cell runs."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, Page, expect

from monarch_jupyter.cells.static_views import static_copy
from tests.browser.accessible import assert_accessible
from tests.browser.conftest import REPOSITORY, long
from tests.browser.gate import WAIT_AT_GATE, shut_gate
from tests.browser.lab import PATIENCE_MS, Lab, open_notebook, run_all, run_in_new_cell

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


@pytest.mark.slow
def test_an_explorer_of_all_meshes_says_how_to_make_the_first_and_is_used_by_keyboard(
    browser: Browser, lab: Lab
) -> None:
    lab.write_notebook(
        "keys.ipynb",
        ["%load_ext monarch_jupyter", "%monarch show", "%monarch spawn workers hosts=2 gpus=3"],
    )
    with open_notebook(browser, lab, "keys.ipynb") as page:
        run_next = "void window.jupyterapp.commands.execute('notebook:run-cell-and-select-next')"
        page.evaluate(run_next)
        page.evaluate(run_next)
        expect(page.get_by_text("No meshes. Make one with %monarch spawn")).to_be_visible()
        page.evaluate(run_next)
        grid = page.get_by_role("grid", name="workers: 6 ranks by hosts and gpus")
        expect(grid.get_by_role("rowheader")).to_have_text(["hosts=0", "hosts=1"])
        expect(grid.get_by_role("columnheader").last).to_have_text("gpus=2")

        def focused() -> str | None:
            return page.evaluate("document.activeElement.getAttribute('aria-label')")

        expect(grid.get_by_role("gridcell", name=": idle")).to_have_count(6)
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
        run_in_new_cell(page, "%monarch spawn solo")
        expect_rank(page, "solo: idle")
        expect(page.get_by_role("grid", name="solo: 1 rank")).to_be_visible()


@pytest.mark.slow
def test_a_page_that_is_loaded_again_shows_a_mesh_as_it_lives_or_as_it_was_last(
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
        mesh = page.get_by_role("region", name="workers", exact=True)
        mesh.get_by_role("button", name="Stop").click()
        mesh.get_by_role("button", name="Stop 2 processes?").click()
        expect_rank(page, "workers gpus=1: stopped")
        page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
        page.reload()
        expect_rank(page, "workers gpus=1: stopped")


WAITER = """
import asyncio
from monarch.actor import Actor, endpoint

class Waiter(Actor):
    def __init__(self):
        self.patience = 60

    @endpoint
    async def wait(self):
        print("waiting")
        await asyncio.Event().wait()

waiters = workers.spawn("waiters", Waiter)
"""


@pytest.mark.slow
def test_a_rank_is_looked_into_and_its_call_ended_while_the_cell_runs(
    browser: Browser, lab: Lab, screenshot_path: Path
) -> None:
    lab.write_notebook(
        "stop.ipynb",
        [
            "%load_ext monarch_jupyter",
            "%monarch spawn workers gpus=4",
            "%monarch show workers",
            WAITER.strip(),
            "waiters.wait.call().get()",
        ],
    )
    with open_notebook(browser, lab, "stop.ipynb") as page:
        run_all(page)
        for gpu in range(4):
            expect_rank(page, f"workers gpus={gpu}: busy in Waiter.wait")
        page.get_by_role("gridcell", name="workers gpus=3:").click()
        details = page.get_by_role("region", name="workers gpus=3 details")
        attributes = details.get_by_role("group", name="Attributes of waiters")
        expect(attributes).to_contain_text("patience60")
        expect(details).to_contain_text("in wait, none queued")
        details.get_by_role("button", name="Stack").click()
        expect(details.get_by_label("Stack", exact=True)).to_contain_text("1 in Waiter.wait")
        details.get_by_role("button", name="Lines", exact=True).click()
        lines = details.get_by_role("log")
        expect(lines).to_contain_text("[gpus=3]waiting")
        explorer = page.get_by_role("region", name="Mesh explorer")
        explorer.screenshot(path=screenshot_path / "rank-details.png")
        assert_accessible(page, ".mx-explorer")
        details.get_by_role("button", name="Stop its call").click()
        expect(details.get_by_role("status").first).to_have_text("asked gpus=3 to end Waiter.wait")
        # Its caller learns of it; the actor lives, and the others wait on.
        # Its lines by rank may stand below the error.
        expect(page.locator(".jp-CodeCell").nth(4)).to_contain_text(
            "Waiter.wait on workers[gpus=3]"
        )
        expect_rank(page, "workers gpus=3: idle")
        expect_rank(page, "workers gpus=0: busy in Waiter.wait")


@pytest.mark.slow
def test_a_process_is_killed_at_the_second_press_while_the_cell_runs(
    browser: Browser, lab: Lab
) -> None:
    lab.write_notebook(
        "kill.ipynb",
        [
            "%load_ext monarch_jupyter",
            "%monarch spawn workers gpus=2",
            "%monarch show workers",
            WAITER.strip(),
            "waiters.wait.call().get()",
        ],
    )
    with open_notebook(browser, lab, "kill.ipynb") as page:
        run_all(page)
        expect_rank(page, "workers gpus=1: busy in Waiter.wait")
        page.get_by_role("gridcell", name="workers gpus=1:").click()
        details = page.get_by_role("region", name="workers gpus=1 details")
        details.get_by_role("button", name="Kill process").click()
        expect_rank(page, "workers gpus=1: busy in Waiter.wait")
        details.get_by_role("button", name="Kill pid").click()
        expect_rank(page, "workers gpus=1: failed: killed by SIGKILL")
        expect(page.locator(".jp-CodeCell").nth(4)).to_contain_text("SIGKILL")


def change_theme(page: Page, theme: str) -> None:
    page.evaluate(
        "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme
    )
    expect(page.locator("body")).to_have_attribute("data-jp-theme-name", theme)


@pytest.mark.slow
def test_the_explorer_is_accessible_in_either_theme(browser: Browser, lab: Lab) -> None:
    lab.write_notebook(
        "themes.ipynb",
        [
            "%load_ext monarch_jupyter",
            "%monarch spawn workers hosts=2 gpus=4",
            "%monarch show workers",
            TRAINER.strip(),
            "trainers.slice(hosts=1, gpus=3).crash.broadcast()",
        ],
    )
    with open_notebook(browser, lab, "themes.ipynb") as page:
        run_all(page)
        expect_rank(page, "workers hosts=1 gpus=3: failed: exited with status 3")
        page.get_by_role("gridcell", name="workers hosts=1 gpus=3:").click()
        for theme in ("JupyterLab Dark", "JupyterLab Light"):
            change_theme(page, theme)
            assert_accessible(page, ".mx-explorer")


LOSSES = """
from monarch.actor import Extent, ValueMesh
from monarch_jupyter import value_grid
def values(number, best):
    found = [0.25 + rank / 7 for rank in range(number)]
    return ValueMesh(Extent(["hosts", "gpus"], [number // 8, 8]), [*found[:-1], best])
losses = values(16, float("nan"))
"""
FOLLOW = """
with open({path!r}) as numbers:
    for number in numbers:
        grid.update(values(16, float(number)))
"""


@pytest.mark.slow
def test_values_are_a_live_heat_map_in_either_theme_that_is_walked_by_keys(
    browser: Browser, lab: Lab, tmp_path: Path, screenshot_path: Path
) -> None:
    numbers = tmp_path / "numbers"
    os.mkfifo(numbers)
    lab.write_notebook(
        "values.ipynb",
        [
            "%load_ext monarch_jupyter\n" + LOSSES,
            "%monarch show losses",
            "grid = value_grid(losses, 'live')\ngrid",
            FOLLOW.format(path=str(numbers)),
            "losses = values(1024, 3.5)",
        ],
    )
    with open_notebook(browser, lab, "values.ipynb") as page:
        run_all(page)
        followed = page.get_by_role("region", name="Values: losses")
        expect(followed.get_by_role("gridcell", name="hosts=1 gpus=7: nan")).to_be_visible()
        live = page.get_by_role("region", name="Values: live")
        with numbers.open("w", buffering=1) as give:  # the cell runs until this ends
            give.write("0.125\n")
            cell = live.get_by_role("gridcell", name="hosts=1 gpus=7: 0.125")
            expect(cell).to_be_visible()
            expect(live).to_contain_text("lowest at hosts=1 gpus=7, highest at hosts=1 gpus=6")
            cell.click()
            expect(live.get_by_role("status").last).to_have_text("hosts=1 gpus=7: 0.125")
            for theme in ("JupyterLab Dark", "JupyterLab Light"):
                change_theme(page, theme)
                assert_accessible(page, ".mx-values")
                picture = f"values-{theme.split()[1].lower()}.png"
                followed.screenshot(path=screenshot_path / picture)
            give.write("9.5\n")
            expect(live.get_by_role("gridcell", name="hosts=1 gpus=7: 9.5")).to_be_focused()
            page.keyboard.press("Control+Home")
            page.keyboard.press("ArrowDown")
            expect(live.get_by_role("gridcell", name="hosts=1 gpus=0: 1.39")).to_be_focused()
        # The other one follows its variable, to other dims.
        grid = followed.get_by_role("grid", name="losses: 1,024 ranks by hosts and gpus")
        expect(grid.get_by_role("gridcell")).to_have_count(1024)
        expect(grid.get_by_role("gridcell", name="hosts=127 gpus=7: 3.5")).to_be_visible()
        followed.screenshot(path=screenshot_path / "values-1024.png")


SLEEPER = """
from monarch.actor import Actor, endpoint

class Sleeper(Actor):
    def __init__(self):
        self.calls = 0

    @endpoint
    def sleep(self, seconds):
        import time
        self.calls += 1
        time.sleep(seconds)
        return self.calls

sleepers = workers.spawn("sleepers", Sleeper)
"""


@pytest.mark.slow
def test_the_stop_button_ends_a_cell_that_sleeps_on_eight_ranks_and_keeps_their_state(
    browser: Browser, lab: Lab
) -> None:
    lab.write_notebook(
        "button.ipynb",
        [
            "%load_ext monarch_jupyter",
            "%monarch spawn workers gpus=8",
            "%monarch show workers",
            SLEEPER.strip(),
            "sleepers.sleep.call(600).get()",
        ],
    )
    with open_notebook(browser, lab, "button.ipynb") as page:
        run_all(page)
        for gpu in range(8):
            expect_rank(page, f"workers gpus={gpu}: busy in Sleeper.sleep")
        page.get_by_role("button", name="Interrupt the kernel").click()
        cell = page.locator(".jp-CodeCell").nth(4)
        expect(cell).to_contain_text("KeyboardInterrupt")
        expect(cell).to_contain_text("Sleeper.sleep")
        for gpu in range(8):
            expect_rank(page, f"workers gpus={gpu}: idle")
        expect(cell).to_contain_text("[5]:")  # what comes after it is not aborted with it
        run_in_new_cell(page, "print('calls:', set(sleepers.sleep.call(0).get().values()))")
        expect(page.get_by_text("calls: {2}", exact=True)).to_be_visible()


@pytest.mark.slow
def test_an_export_shows_the_last_state_of_everything_without_a_kernel(
    browser: Browser, lab: Lab, screenshot_path: Path
) -> None:
    lab.write_notebook(
        "report.ipynb",
        [
            "%load_ext monarch_jupyter",
            # A busy machine may take longer than what a line waits for its like.
            "%monarch spawn workers gpus=4\nimport monarch_jupyter.cells.output as o; o.HOLD = 60",
            "%monarch show workers",
            "%%monarch on workers\nprint('loading')\nrank / 4",
            "values = _\n%monarch show values",
            "%%monarch on workers\nif rank == 2: raise ValueError('no data')",
        ],
    )
    with open_notebook(browser, lab, "report.ipynb") as page:
        run_all(page)
        expect(page.locator(".jp-CodeCell").last).to_contain_text("ValueError: no data")
        page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    copy, views = static_copy(lab.folder / "report.ipynb")
    assert views == 2
    markup, _ = HTMLExporter().from_filename(str(copy))
    exported = copy.with_suffix(".html")
    exported.write_text(markup, "utf-8")
    reader = browser.new_page(viewport={"width": 1100, "height": 1000}, offline=True)
    reader.goto(exported.as_uri(), wait_until="domcontentloaded")
    explorer, values, error = (reader.locator(".jp-CodeCell").nth(number) for number in (2, 4, 5))
    expect(explorer.get_by_role("table").first).to_contain_text("idle")
    expect(values.get_by_role("table")).to_contain_text("0.75")
    expect(values).to_contain_text("lowest 0 at gpus=0; highest 0.75 at gpus=3")
    expect(error).to_contain_text("ValueError: no data")
    # Lines that were folded come apart here too.
    lines = reader.locator(".jp-CodeCell").nth(3)
    expect(lines).to_contain_text("[gpus=0..3] loading")
    lines.get_by_text("4 lines by rank").click()
    expect(lines.locator("details pre").last).to_be_visible()
    reader.screenshot(path=screenshot_path / "export.png")
    reader.close()


@long
@pytest.mark.slow
def test_a_thousand_ranks_are_shown_and_walked_through(browser: Browser, lab: Lab) -> None:
    lab.write_notebook(
        "thousand.ipynb",
        [
            "%load_ext monarch_jupyter",
            "%monarch spawn workers gpus=1024",
            "%monarch show workers",
        ],
    )
    with open_notebook(browser, lab, "thousand.ipynb") as page:
        run_all(page)
        grid = page.get_by_role("grid", name="workers: 1,024 ranks by gpus")
        expect(grid).to_be_visible(timeout=3 * PATIENCE_MS)
        expect(grid.get_by_role("gridcell", name=": idle")).to_have_count(1024)
        expect(grid.get_by_role("rowheader")).to_have_count(32)
        grid.get_by_role("gridcell").first.focus()
        page.keyboard.press("Control+End")
        expect(page.get_by_role("gridcell", name="workers gpus=1023:")).to_be_focused()
        assert_accessible(page, ".mx-explorer")
