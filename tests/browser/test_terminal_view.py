"""Pictures of the terminal view: drawn by Textual, rendered in a page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser

from monarch._src.admin.state.case_file import CaseFile, case_of
from monarch._src.admin.state.nodes import Cluster, HostSource, build
from monarch._src.admin.state.openapi import Frame, StacksAnswer, Thread
from monarch._src.admin.terminal_view import TerminalView
from tests.browser import recorded_ranks
from tests.unit.admin.state.test_nodes import HOST, actor, proc

pytestmark = pytest.mark.browser
SESSION = "oz3p8n5h"
FRAMES = [
    Frame("Trainer.step", "train.py", 41), Frame("Trainer.batch", "train.py", 58),
    Frame("Loader.next", "loader.py", 112),
]  # fmt: skip
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
        return StacksAnswer(reference, "in Loader.next", [Thread("MainThread", False, FRAMES)])

    def case(self) -> CaseFile:
        return case_of(1, {})


class LargeScene(Scene):
    """1,024 ranks on 128 hosts, of which one has failed: hosts that are reached over links."""

    def cluster(self) -> Cluster:
        procs = [{**row, "session": row["host"]} for row in recorded_ranks.procs(13)]
        names = list(dict.fromkeys(row["host"] for row in procs))
        hosts = [
            {"session": name, "host": name, "agent_pid": None, "cores": None} for name in names
        ]
        sources = [HostSource(name, address := f"tcp://{name}:26600", address) for name in names]
        return build(17, 1, sources, {"hosts": hosts, "procs": procs})


class Picture(NamedTuple):
    """A picture of the docs: the file, the scene, the theme of Textual, and the keys to press."""

    file: str
    scene: Scene
    theme: str
    keys: Sequence[str]


STACKS = ("j", "j", "j", "tab", "p")
PICTURES = (
    Picture("tui.png", Scene(), "textual-dark", STACKS),
    Picture("tui-light.png", Scene(), "textual-light", STACKS),
    Picture("tui-1024.png", LargeScene(), "textual-dark", STACKS),
    Picture("tui-1024-light.png", LargeScene(), "textual-light", STACKS),
)


async def draw(picture: Picture) -> str:
    """The view with the stacks of a rank, as SVG."""
    view = TerminalView(picture.scene, 3600.0)
    view.theme = picture.theme
    async with view.run_test(size=(120, 22)) as pilot:
        await view.workers.wait_for_complete()
        await pilot.pause()
        await pilot.press(*picture.keys)
        await view.workers.wait_for_complete()
        await pilot.pause()
        return view.export_screenshot(title="monarch tui")


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    """The views as SVG; drawn before the browser starts, which has an event loop of its own."""
    return {one.file: _FONTS.sub("", asyncio.run(draw(one))) for one in PICTURES}


def shown(browser: Browser, svg: str, path: Path) -> str:
    """The text of a view in a page, of which a picture is taken."""
    page = browser.new_page(viewport={"width": 1482, "height": 610})
    page.set_content(f"<body style='margin: 0'>{svg}</body>")
    said = " ".join(page.locator("svg").all_text_contents()).replace("\xa0", " ")
    page.screenshot(path=path)
    page.close()
    return said


@pytest.mark.parametrize("file", ["tui.png", "tui-light.png"])
def test_the_picture_shows_the_failed_rank_and_the_stacks_of_another(
    drawn: dict[str, str], browser: Browser, screenshot_path: Path, file: str
) -> None:
    said = shown(browser, drawn[file], screenshot_path / file)
    assert "workers[gpus=6] pid 106 failed: killed by SIGKILL" in said
    assert said.index("workers[gpus=6]") < said.index("workers[gpus=0]")
    assert "in Loader.next" in said


@pytest.mark.parametrize("file", ["tui-1024.png", "tui-1024-light.png"])
def test_of_a_thousand_ranks_the_picture_shows_the_one_that_failed_first(
    drawn: dict[str, str], browser: Browser, screenshot_path: Path, file: str
) -> None:
    said = shown(browser, drawn[file], screenshot_path / file)
    assert "128 hosts, 1,024 procs; 1 failed proc" in said
    failed = "workers[hosts=77, gpus=3] pid 4619 failed: killed by SIGKILL"
    assert failed in said
    assert said.index("host node-077") < said.index(failed) < said.index("host node-000")
    assert "in Loader.next" in said
