"""The same in Notebook 7: widgets live, controls work while a cell runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.lab import Lab, open_notebook, run_all
from tests.browser.test_explorer import WAITER, expect_rank

pytest.importorskip("notebook", reason="Notebook 7 is not installed: pip install -e '.[test]'")
pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_output_errors_and_a_live_explorer_with_its_controls_are_there(
    browser: Browser, lab: Lab, screenshot_path: Path
) -> None:
    lab.write_notebook(
        "classic.ipynb",
        [
            "%load_ext monarch_jupyter",
            "%monarch spawn workers gpus=4",
            "%monarch show workers",
            "%%monarch on workers\nprint('hello', rank)",
            WAITER.strip(),
            "waiters.wait.call().get()",
        ],
    )
    with open_notebook(browser, lab, "classic.ipynb", "notebooks/{name}") as page:
        run_all(page)
        for gpu in range(4):
            expect_rank(page, f"workers gpus={gpu}: busy in Waiter.wait")
        expect(page.locator(".jp-CodeCell").nth(3)).to_contain_text("[gpus=3] hello 3")
        page.get_by_role("gridcell", name="workers gpus=2:").click()
        details = page.get_by_role("region", name="workers gpus=2 details")
        page.screenshot(path=screenshot_path / "notebook7.png")
        details.get_by_role("button", name="Stop its call").click()
        expect(details.get_by_role("status").first).to_have_text("asked gpus=2 to end Waiter.wait")
        expect(page.locator(".jp-CodeCell").nth(5)).to_contain_text(
            "Waiter.wait on workers[gpus=2]"
        )
        expect_rank(page, "workers gpus=2: idle")
