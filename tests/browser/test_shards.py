"""The picture of a tensor's shards, as a notebook shows it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from monarch.frontend import Coordinates
from monarch_jupyter.ranks.shard import Shard
from monarch_jupyter.rendering.shards import ShardsView
from tests.browser.accessible import assert_accessible

pytestmark = pytest.mark.browser
ROWS, COLUMNS = 16, 40


def shard(rank: int) -> Shard:
    """A quarter of a wave over all ranks; the third has a column that is not finite."""
    rows = [
        [math.sin((x + rank * COLUMNS) / 25) * math.cos(y / 9) for x in range(COLUMNS)]
        for y in range(ROWS)
    ]
    odd = 0
    if rank == 2:
        odd = ROWS
        for row in rows:
            row[20] = math.nan
    finite = [value for row in rows for value in row if math.isfinite(value)]
    return Shard(
        (ROWS, COLUMNS), "float32", "cpu", min(finite), sum(finite) / len(finite), max(finite),
        odd, tuple(map(tuple, rows)), f"{rank:08x}",
    )  # fmt: skip


def test_shards_are_a_table_with_a_picture_of_each_rank(
    browser: Browser, screenshot_path: Path
) -> None:
    places = Coordinates.own({"gpus": 4})
    title = f"monarch.Tensor [{ROWS}, {COLUMNS}] float32 on workers {{gpus: 4}}"
    view = ShardsView(title, [shard(rank) for rank in range(4)], places)
    page = browser.new_page(viewport={"width": 720, "height": 620})
    page.set_content(
        "<html lang='en'><title>shards</title><main style='font: 14px system-ui; margin: 8px'>"
        f"{view._repr_html_()}</main></html>"
    )
    pictures = page.get_by_role("img")
    assert pictures.count() == 4
    for picture in pictures.all():
        assert picture.evaluate("one => one.naturalWidth") == COLUMNS
    assert_accessible(page, "main")
    page.locator("main").screenshot(path=screenshot_path / "shards.png")
    page.close()
