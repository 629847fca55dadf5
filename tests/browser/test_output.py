"""What ranks write, in a real page: folded, taken apart, and more of it than a page can show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.accessible import assert_accessible
from tests.browser.lab import PATIENCE_MS, Lab, open_notebook, run_all, run_in_new_cell

pytestmark = pytest.mark.browser

LOAD = "%load_ext monarch_jupyter"
LINE = re.compile(r"\[gpus=(\d+)\] step \d+ \1")
LINES_OF_CELL = """number =>
    window.jupyterapp.shell.currentWidget.content.widgets[number].outputArea.model.toJSON()
        .filter(output => output.name === 'stdout')
        .flatMap(output => output.text).join('').trimEnd().split('\\n')
"""


def test_equal_lines_are_one_in_the_cell_and_come_apart_in_the_view_of_lines(
    browser: Browser, lab: Lab, screenshot_path: Path
) -> None:
    lab.write_notebook(
        "folded.ipynb",
        [
            LOAD,
            # A busy machine may take longer than what a line waits for its like.
            "%monarch spawn workers gpus=8\nimport monarch_jupyter.cells.output as o; o.HOLD = 60",
            "%%monarch on workers\nprint('loading')\nif rank == 3: print('\\x1b[31mslow\\x1b[0m')",
            "%monarch logs workers --live",
        ],
    )
    with open_notebook(browser, lab, "folded.ipynb") as page:
        run_all(page)
        cell = page.locator(".jp-CodeCell").nth(2)
        expect(cell.locator(".jp-OutputArea-output").first).to_contain_text("[gpus=0..7] loading")
        view = page.get_by_role("region", name="Lines of workers")
        expect(view.get_by_role("status")).to_have_text("1 to 9 of 9 lines")
        fold = view.get_by_role("button", name="[gpus=0..7] ×8")
        fold.click()
        expect(fold).to_have_attribute("aria-expanded", "true")
        expect(view.get_by_text("[gpus=5]", exact=True)).to_be_visible()
        view.screenshot(path=screenshot_path / "lines.png")
        # What comes later is followed.
        run_in_new_cell(page, '%%monarch on workers\nprint("later", rank)')
        expect(view.get_by_role("status")).to_have_text("1 to 17 of 17 lines")
        view.get_by_role("searchbox").fill("later [67]")
        view.get_by_role("searchbox").press("Enter")
        expect(view.get_by_role("status")).to_have_text("1 to 2 of 2 lines")
        expect(view.get_by_role("log")).to_contain_text("[gpus=7]later 7")
        view.get_by_role("searchbox").fill("")
        view.get_by_role("searchbox").press("Enter")
        assert_accessible(page, ".mx-lines")


@pytest.mark.slow
def test_a_hundred_thousand_lines_of_64_ranks_are_all_there_and_the_page_stays_small(
    browser: Browser, lab: Lab
) -> None:
    lab.write_notebook(
        "many.ipynb",
        [
            LOAD,
            "%monarch spawn workers gpus=64",
            "%%monarch on workers\nfor step in range(1563): print('step', step, rank)",
        ],
    )
    with open_notebook(browser, lab, "many.ipynb") as page:
        run_all(page)
        cell = page.locator(".jp-CodeCell").nth(2)
        view = cell.get_by_role("region", name="Lines of this cell")
        expect(view).to_be_visible(timeout=3 * PATIENCE_MS)
        expect(view.get_by_role("status")).to_have_text(
            "100,001 to 100,032 of 100,032 lines", timeout=3 * PATIENCE_MS
        )
        expect(cell).to_contain_text("99,832 more lines are not shown here")
        assert page.evaluate("document.querySelectorAll('*').length") < 20_000
        # Something else that the cell shows may stand between the lines: no one output has all.
        shown = page.evaluate(LINES_OF_CELL, 2)
        assert len(shown) == 200
        assert all(LINE.fullmatch(line) for line in shown)
        expect(cell.get_by_text(shown[-1])).not_to_have_count(0)
        view.get_by_role("button", name="Oldest").click()
        expect(view.get_by_role("status")).to_have_text("1 to 500 of 100,032 lines")
        view.get_by_role("button", name="Newer").click()
        expect(view.get_by_role("status")).to_have_text("501 to 1,000 of 100,032 lines")
        view.get_by_role("searchbox").fill(" 777 42$")
        view.get_by_role("searchbox").press("Enter")
        expect(view.get_by_role("status")).to_have_text("1 to 1 of 1 line")
        expect(view.get_by_role("log")).to_contain_text("[gpus=42]step 777 42")
