"""A dead rank is started again by a button: in the explorer, and in the side panel."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.accessible import assert_accessible
from tests.browser.lab import Lab, open_notebook, run_all, run_in_new_cell
from tests.browser.test_explorer import TRAINER, change_theme, expect_rank
from tests.browser.test_side_panel import LOAD, mesh_of, side_panel

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_dead_rank_comes_back_from_the_explorer_and_from_the_panel_with_what_it_has_lost_said(
    browser: Browser, lab: Lab, tmp_path: Path, screenshot_path: Path
) -> None:
    lab.write_notebook(
        "ranks.ipynb",
        [
            LOAD,
            "%monarch spawn workers hosts=2 gpus=4",
            TRAINER.strip(),
            "%%monarch on workers\nloss = 1 / (1 + rank)",
            "%monarch show workers",
            "trainers.slice(hosts=1, gpus=2).crash.broadcast()",
        ],
    )
    with open_notebook(browser, lab, "ranks.ipynb") as page:
        run_all(page)
        explorer = page.get_by_role("region", name="Mesh explorer of workers")
        expect_rank(page, "workers hosts=1 gpus=2: failed: exited with status 3")
        page.get_by_role("gridcell", name="workers hosts=0 gpus=0:").click()
        restart = explorer.get_by_role("button", name="Restart rank")
        expect(explorer.get_by_role("button", name="Kill process")).to_be_visible()
        expect(restart).to_have_count(0)
        page.get_by_role("gridcell", name="workers hosts=1 gpus=2:").click()
        expect(restart).to_be_visible()
        for theme in ("Dark", "Light"):
            change_theme(page, f"JupyterLab {theme}")
            assert_accessible(page, ".mx-explorer")
            explorer.screenshot(path=screenshot_path / f"restart-rank-{theme.lower()}.png")
        restart.click()
        details = explorer.get_by_role("region", name="workers hosts=1 gpus=2 details")
        outcome = details.get_by_role("status").first
        expect(outcome).to_contain_text(
            "restarted workers[hosts=1, gpus=2]: 1 new process, with its actors: trainers"
        )
        expect(outcome).to_contain_text("names lost on [hosts=1, gpus=2]: loss (bound by a cell)")
        expect_rank(page, "workers hosts=1 gpus=2: idle")
        expect(restart).to_have_count(0)
        for theme in ("Dark", "Light"):
            change_theme(page, f"JupyterLab {theme}")
            explorer.screenshot(path=tmp_path / f"restarted-rank-{theme.lower()}.png")
        panel = side_panel(page)
        workers = mesh_of(panel, "workers")
        expect(workers.get_by_role("button", name="Restart")).to_have_count(0)
        run_in_new_cell(page, "trainers.slice(hosts=0, gpus=1).crash.broadcast()")
        again = workers.get_by_role("button", name="Restart hosts=0 gpus=1")
        expect(again).to_be_visible()
        for theme in ("Dark", "Light"):
            change_theme(page, f"JupyterLab {theme}")
            assert_accessible(page, ".jp-Monarch")
            panel.screenshot(path=tmp_path / f"panel-restart-{theme.lower()}.png")
        again.click()
        expect(workers).to_contain_text("restarted workers[hosts=0, gpus=1]: 1 new process")
        expect(workers).to_contain_text("8 ranks: 8 idle")
        expect(workers.get_by_role("list", name="Failures")).to_be_hidden()
        run_in_new_cell(page, "print('pids', len(set(workers.map(lambda _: 1, range(4)))))")
        expect(page.get_by_text("pids 1", exact=True)).to_be_visible()
