"""The explorer's own part of 4,096 ranks, from a made-up snapshot: no kernel and no processes.

A machine for tests cannot have that many processes; `test_explorer.py` has a thousand real ones.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from monarch_jupyter.widgets import bundle
from tests.benchmarks.explorer_page import VIEW, message

pytestmark = [pytest.mark.browser, pytest.mark.slow]
RANKS = 4096
DEAD = 1234
COLOURS = {
    "light": {"--jp-layout-color0": "#fff", "--jp-layout-color1": "#fff"},
    "dark": {
        "--jp-layout-color0": "#111", "--jp-layout-color1": "#212121",
        "--jp-ui-font-color1": "#e0e0e0", "--jp-ui-font-color2": "#a0a0a0",
        "--jp-border-color2": "#424242", "--jp-success-color1": "#4caf50",
        "--jp-brand-color1": "#64b5f6", "--jp-error-color1": "#ef5350",
    },
}  # fmt: skip
"""What the view takes of a theme of JupyterLab."""


def snapshot(hosts: int = 1) -> str:
    """Ranks of which some are busy and one has died; on so many hosts."""
    told = json.loads(message("snapshot", "idle", RANKS))
    (mesh,) = told["meshes"]
    if hosts > 1:
        mesh["sizes"] = {"hosts": hosts, "gpus": RANKS // hosts}
        for row in mesh["rows"]:
            host, gpu = divmod(row["rank"], RANKS // hosts)
            row["point"] = {"hosts": host, "gpus": gpu}
    for row in mesh["rows"]:
        if row["rank"] % 7 < 2:
            row |= {"state": "busy", "endpoint": "step"}
    mesh["rows"][DEAD] |= {"state": "failed", "endpoint": None, "failure": "killed by SIGKILL"}
    return json.dumps(told)


def show(browser: Browser, theme: str, hosts: int = 1) -> Page:
    page = browser.new_page(viewport={"width": 1280, "height": 1200}, device_scale_factor=2)
    colours = ";".join(f"{name}: {value}" for name, value in COLOURS[theme].items())
    page.set_content(
        f"<style>body {{ margin: 0; {colours}; background: var(--jp-layout-color0) }}"
        f"{bundle.styles('explorer')}</style><main></main>"
    )
    page.evaluate(VIEW, [bundle.joined("explorer"), snapshot(hosts)])
    return page


def overflow(explorer: Locator) -> int:
    """By how many pixels the grid is wider than the page gives it."""
    return explorer.locator(".mx-grid").evaluate("grid => grid.scrollWidth - grid.clientWidth")


def test_4096_ranks_fit_into_any_page_with_places_on_axes_and_the_one_that_failed_is_named(
    browser: Browser, screenshot_path: Path
) -> None:
    for theme in COLOURS:
        page = show(browser, theme)
        explorer = page.get_by_role("region", name="Mesh explorer")
        expect(explorer.locator(".mx-cell")).to_have_count(RANKS)
        for width in (1280, 400, 700):
            page.set_viewport_size({"width": width, "height": 1200})
            column = explorer.get_by_role("columnheader", name="+63")
            expect(column).to_be_in_viewport()
            expect(explorer.locator(".mx-cell").last).to_be_in_viewport()
            page.wait_for_function(
                "() => { const grid = document.querySelector('.mx-grid');"
                "        return grid.scrollWidth <= grid.clientWidth; }"
            )
            assert overflow(explorer) <= 0, width
            tile = explorer.locator(f'.mx-cell[data-rank="{DEAD}"]')
            tile.hover()
            expect(explorer.locator(".mx-here")).to_have_count(2)
            expect(explorer.locator(".mx-reading").first).to_contain_text(
                f"gpus={DEAD}: failed: killed by SIGKILL"
            )
        explorer.screenshot(path=screenshot_path / f"explorer-4096-{theme}.png")
        failed = explorer.get_by_role("button", name=f"✕ 1 failed: gpus={DEAD}")
        failed.click()
        expect(explorer.locator(".mx-dimmed")).to_have_count(RANKS - 1)
        explorer.get_by_role("button", name=f"gpus={DEAD}", exact=True).click()
        details = explorer.get_by_role("region", name=f"workers gpus={DEAD} details")
        expect(details.get_by_role("button", name="Restart rank")).to_be_visible()
        page.close()


@pytest.mark.parametrize("hosts", [64, 512])
def test_4096_ranks_on_many_hosts_fit_into_any_page_without_scrolling(
    browser: Browser, hosts: int
) -> None:
    page = show(browser, "light", hosts)
    explorer = page.get_by_role("region", name="Mesh explorer")
    expect(explorer.locator(".mx-cell")).to_have_count(RANKS)
    first, last = explorer.locator(".mx-cell").first, explorer.locator(".mx-cell").last
    for width in (1280, 400, 700):
        page.set_viewport_size({"width": width, "height": 1200})
        page.wait_for_function(
            "() => { const grid = document.querySelector('.mx-grid');"
            "        return grid.scrollWidth <= grid.clientWidth"
            "            && grid.scrollHeight <= grid.clientHeight; }"
        )
        expect(first).to_be_in_viewport()
        expect(last).to_be_in_viewport()
    host, gpu = divmod(DEAD, RANKS // hosts)
    explorer.locator(f'.mx-cell[data-rank="{DEAD}"]').hover()
    expect(explorer.locator(".mx-reading").first).to_contain_text(
        f"hosts={host} gpus={gpu}: failed: killed by SIGKILL"
    )
    heads = [head.get_attribute("aria-label") for head in explorer.locator(".mx-here").all()]
    names = {64: ["gpus=18", "hosts=19"], 512: ["hosts=+2 gpus=2", "hosts=152..159"]}
    assert heads == names[hosts]
    page.close()


FLOOD = """
async ([idle, busy]) => {
  const tile = document.querySelector(".mx-cell");
  let changes = 0;
  new MutationObserver(records => { changes += records.length; })
    .observe(tile, {attributeFilter: ["data-state"]});
  for (let seq = 1; seq <= 40; seq += 1) {
    window.hear({...JSON.parse(seq % 2 ? busy : idle), seq});
    await new Promise(resolve => setTimeout(resolve));
  }
  window.hear({...JSON.parse(busy), seq: 41});
  while (tile.dataset.state !== "busy") { await new Promise(requestAnimationFrame); }
  return changes;
}
"""


def test_a_page_that_gets_changes_faster_than_it_can_draw_draws_some_of_them_and_the_last(
    browser: Browser,
) -> None:
    page = show(browser, "light")
    changes = page.evaluate(FLOOD, [message("delta", state, RANKS) for state in ("idle", "busy")])
    assert 1 <= changes < 40
    expect(page.locator('.mx-cell[data-state="busy"]')).to_have_count(RANKS)
    page.close()


FLOOD_OF_VALUES = """
async () => {
  const tile = document.querySelector(".mx-cell");
  const isLast = () => tile.getAttribute("aria-label").endsWith(": 41");
  let changes = 0;
  new MutationObserver(records => { changes += records.length; })
    .observe(tile, {attributeFilter: ["aria-label"]});
  const ranks = [...document.querySelectorAll(".mx-cell")].map((_, rank) => rank);
  for (let seq = 1; seq <= 41; seq += 1) {
    const numbers = ranks.map(rank => rank + seq);
    window.hear({type: "values_delta", seq, ranks, numbers, texts: numbers.map(String)});
    await new Promise(resolve => setTimeout(resolve));
  }
  while (!isLast()) { await new Promise(requestAnimationFrame); }
  return changes;
}
"""


def test_a_grid_that_gets_values_faster_than_it_can_draw_draws_some_of_them_and_the_last(
    browser: Browser,
) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 1200})
    page.set_content(f"<style>{bundle.styles('explorer')}</style><main></main>")
    numbers = list(range(RANKS))
    values = {
        "type": "values", "seq": 0, "sizes": {"gpus": RANKS}, "dims": ["gpus"],
        "indices": {"gpus": numbers}, "fixed": {}, "numbers": numbers,
        "texts": [str(number) for number in numbers],
    }  # fmt: skip
    page.evaluate(VIEW, [bundle.joined("value_grid"), json.dumps(values)])
    expect(page.locator(".mx-cell")).to_have_count(RANKS)
    changes = page.evaluate(FLOOD_OF_VALUES)
    assert 1 <= changes < 40
    last = page.get_by_role("gridcell", name=f"gpus={RANKS - 1}: {RANKS + 40}", exact=True)
    expect(last).to_be_visible()
    page.close()
