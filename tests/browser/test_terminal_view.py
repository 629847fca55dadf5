"""The picture of the terminal view: drawn by Textual, rendered in a page."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from monarch._src.admin.state.case_file import CaseFile, case_of
from monarch._src.admin.state.nodes import Cluster, HostSource, build
from monarch._src.admin.state.openapi import Frame, StacksAnswer, Thread
from monarch._src.admin.terminal_view import TerminalView
from tests.unit.admin.state.test_nodes import HOST, actor, proc

pytestmark = pytest.mark.browser
SESSION = "oz3p8n5h"
_FONTS = re.compile(r"@font-face \{.*?\}", re.DOTALL)  # from a server that tests do not reach


class Scene:
    """Eight ranks, of which one has failed."""

    def cluster(self) -> Cluster:
        procs = [proc(rank, "busy", actor="Trainer", endpoint="step") for rank in range(8)]
        procs[6] = proc(6, "failed", failure="killed by SIGKILL")
        actors = [{**actor(r, "processing"), "running": "step"} for r in range(8) if r != 6]
        rows = {"hosts": [{**HOST, "host": "node-1"}], "procs": procs, "actors": actors}
        named = {
            name: [{**row, "session": SESSION} for row in table] for name, table in rows.items()
        }
        return build(17, 1, [HostSource(SESSION, "/run")], named)

    def stacks(self, reference: str) -> StacksAnswer:
        frames = [
            Frame("Trainer.step", "train.py", 41), Frame("Trainer.batch", "train.py", 58),
            Frame("Loader.next", "loader.py", 112),
        ]  # fmt: skip
        return StacksAnswer(reference, "in Loader.next", [Thread("MainThread", False, frames)])

    def case(self) -> CaseFile:
        return case_of(1, {})


async def draw() -> str:
    """The view with the stacks of a rank, as SVG."""
    view = TerminalView(Scene(), 3600.0)
    async with view.run_test(size=(120, 22)) as pilot:
        await view.workers.wait_for_complete()
        await pilot.pause()
        await pilot.press("j", "j", "j", "tab", "p")
        await view.workers.wait_for_complete()
        await pilot.pause()
        return view.export_screenshot(title="monarch tui")


@pytest.fixture(scope="module")
def picture() -> str:
    """The view as SVG; drawn before the browser starts, which has an event loop of its own."""
    return _FONTS.sub("", asyncio.run(draw()))


def test_the_picture_shows_the_failed_rank_and_the_stacks_of_another(
    picture: str, browser: Browser, screenshot_path: Path
) -> None:
    page = browser.new_page(viewport={"width": 1482, "height": 610})
    page.set_content(f"<body style='margin: 0'>{picture}</body>")
    said = " ".join(page.locator("svg").all_text_contents()).replace("\xa0", " ")
    assert "workers[gpus=6] pid 106 failed: killed by SIGKILL" in said
    assert said.index("workers[gpus=6]") < said.index("workers[gpus=0]")
    assert "in Loader.next" in said
    page.screenshot(path=screenshot_path / "tui.png")
    page.close()
