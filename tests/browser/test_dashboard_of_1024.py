"""The dashboard over 1,024 ranks: `monarch dashboard FILE` in Chromium, over made-up rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.accessible import assert_accessible
from tests.browser.recorded_ranks import DEAD, FAILURE, RANKS, point_of, write_recording
from tests.browser.test_dashboard import opened
from tests.integration.admin_server import AdminProcess, dashboard_server

pytestmark = [pytest.mark.browser, pytest.mark.slow]
WHERE = " ".join(f"{dim}={at}" for dim, at in point_of(DEAD).items())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminProcess]:
    path = tmp_path_factory.mktemp("recording") / "run.duckdb"
    write_recording(path)
    with dashboard_server(str(path)) as running:
        yield running


def hidden(grid: Locator) -> list[int]:
    """How many pixels of a grid are out of sight, across and down."""
    found: list[int] = grid.evaluate(
        "grid => [grid.scrollWidth - grid.clientWidth, grid.scrollHeight - grid.clientHeight]"
    )
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_1024_ranks_are_on_one_screen_and_the_one_that_failed_is_named_and_found(
    browser: Browser,
    server: AdminProcess,
    screenshot_path: Path,
    scheme: Literal["light", "dark"],
) -> None:
    with opened(browser, server.said["page"], scheme, audited=True) as page:
        page.set_viewport_size({"width": 1200, "height": 900})
        expect(page.get_by_role("status").first).to_have_text("recording: 1 mesh, 1,024 ranks")
        grid = page.get_by_role("grid", name="workers: 1,024 ranks by hosts and gpus")
        expect(grid.get_by_role("gridcell")).to_have_count(RANKS)
        expect(grid.get_by_role("gridcell", name="workers hosts=127 gpus=7:")).to_be_in_viewport()
        assert hidden(grid) == [0, 0]
        failed = page.get_by_role("button", name=f"✕ 1 failed: {WHERE}")
        failed.click()
        expect(grid.locator(".mx-dimmed")).to_have_count(RANKS - 1)
        page.get_by_role("button", name=WHERE, exact=True).click()
        expect(page.locator(".mx-reading").first).to_contain_text(f"{WHERE}: failed: {FAILURE}")
        failed.click()
        expect(grid.locator(".mx-dimmed")).to_have_count(0)
        grid.get_by_role("gridcell", name=f"workers {WHERE}: failed").focus()
        expect(grid.locator(".mx-here")).to_have_count(2)
        expect(page.get_by_role("region", name=f"workers {WHERE} details")).to_contain_text(FAILURE)
        assert_accessible(page, "body")
        page.screenshot(path=screenshot_path / f"dashboard-1024-{scheme}.png")


def test_the_call_in_which_a_rank_died_has_failed_and_ran_before(
    browser: Browser, server: AdminProcess
) -> None:
    with opened(browser, server.said["page"]) as page:
        page.get_by_role("button", name="Timeline").click()
        calls = page.get_by_role("region", name="Timeline of calls").get_by_role("table")
        expect(page.get_by_role("button", name="1,023 busy")).to_be_visible()
        expect(calls).to_contain_text("trainer.step10,240, 1 failed")
        page.get_by_role("slider").fill("9.0")
        expect(page.get_by_role("button", name="1,024 busy")).to_be_visible()
        expect(calls).to_contain_text("trainer.step10,240")
        expect(calls).not_to_contain_text("failed")
