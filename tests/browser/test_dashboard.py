"""The dashboard in Chromium: live, over a recording, behind a proxy, and for strangers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from monarch.actor import this_host
from tests.browser.accessible import assert_accessible
from tests.browser.conftest import WITH_PICTURES
from tests.browser.dashboard_program import HOSTILE
from tests.browser.lab import PATIENCE_MS
from tests.browser.proxy import proxy_of
from tests.integration.admin_server import dashboard_server, session_name
from tests.integration.debugging import Stepper

pytestmark = pytest.mark.browser
PATIENCE_S = PATIENCE_MS / 1000
NAME = "trainer" if WITH_PICTURES else HOSTILE
SIZE: ViewportSize = {"width": 1200, "height": 720}


@dataclass
class Program:
    """What a program with a session has told."""

    page: str
    recording: str
    busy_s: float


@contextmanager
def running_program(folder: Path) -> Iterator[Program]:
    """A program that holds a call on one of its eight ranks until the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.browser.dashboard_program", str(folder), NAME],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    told = next((line for line in process.stdout if line.startswith("{")), "")
    try:
        yield Program(**json.loads(told))
    finally:
        process.communicate("", timeout=PATIENCE_S)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with running_program(tmp_path_factory.mktemp("program")) as running:
        yield running


@contextmanager
def opened(
    browser: Browser,
    url: str,
    scheme: Literal["light", "dark"] = "light",
    *,
    audited: bool = False,
    refused: int = 0,
) -> Iterator[Page]:
    """The page in a fresh context. It must log no error.

    `audited`: axe may be put into it. `refused`: how many of its questions get status 400, which
    Chromium logs.
    """
    context = browser.new_context(
        viewport=SIZE, color_scheme=scheme, device_scale_factor=2, bypass_csp=audited
    )
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    try:
        page.goto(url)
        yield page
    finally:
        context.close()
    assert [one for one in problems if "status of 400" not in one] == []
    assert len(problems) == refused


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_shows_a_session_at_work(
    browser: Browser, program: Program, screenshot_path: Path, scheme: Literal["light", "dark"]
) -> None:
    with opened(browser, program.page, scheme, audited=True) as page:
        expect(page.get_by_role("status").first).to_have_text("live: 1 mesh, 8 ranks")
        assert "token" not in page.url
        busy = page.get_by_role("gridcell", name="workers hosts=1 gpus=2: busy")
        expect(busy).to_be_visible()
        page.get_by_role("button", name="Timeline").click()
        timeline = page.get_by_role("region", name="Timeline of calls")
        expect(timeline.get_by_role("table")).to_contain_text(".wait")
        busy.click()
        details = page.get_by_role("region", name="workers hosts=1 gpus=2 details")
        expect(details).to_contain_text("wait")
        expect(details.get_by_role("list", name="Use of processor and memory")).to_contain_text(
            "MiB"
        )
        assert_accessible(page, "body")
        page.screenshot(path=screenshot_path / f"dashboard-{scheme}.png")


def test_lines_rows_and_the_case_file_are_text(browser: Browser, program: Program) -> None:
    with opened(browser, program.page, refused=1) as page:
        page.get_by_role("tab", name="Lines").click()
        lines = page.get_by_role("tabpanel", name="Lines")
        expect(lines).to_contain_text(f"hello {HOSTILE}")
        expect(lines).to_contain_text("hosts=0..1 gpus=0..3")
        page.get_by_role("tab", name="SQL").click()
        query = page.get_by_label("Query")
        query.fill("SELECT DISTINCT text FROM log_lines WHERE text LIKE 'hello%'")
        query.press("Control+Enter")
        expect(page.get_by_role("cell")).to_have_text(f"hello {HOSTILE}")
        query.fill("SELEC 1")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("tabpanel", name="SQL")).to_contain_text("Parser Error")
        page.get_by_role("tab", name="Explain").click()
        case = page.get_by_label("Case file")
        expect(case).to_contain_text("differs from the others'")
        expect(case).to_contain_text(HOSTILE)
        assert page.locator("img").count() == 0


def test_a_recording_is_walked_through_by_the_slider(
    browser: Browser, program: Program, screenshot_path: Path
) -> None:
    with (
        dashboard_server(program.recording) as server,
        opened(browser, server.said["page"]) as page,
    ):
        expect(page.get_by_role("status").first).to_have_text("recording: 1 mesh, 8 ranks")
        expect(page.get_by_role("gridcell", name="workers hosts=0 gpus=1: idle")).to_be_visible()
        expect(page.get_by_role("button", name="Kill")).to_have_count(0)
        page.get_by_role("button", name="Timeline").click()
        slider = page.get_by_role("slider")
        slider.fill(f"{program.busy_s:.1f}")
        for host in (0, 1):
            cell = page.get_by_role("gridcell", name=f"workers hosts={host} gpus=1: busy")
            expect(cell).to_be_visible()
        expect(page.get_by_role("region", name="Timeline of calls")).to_contain_text("so far")
        page.screenshot(path=screenshot_path / "dashboard-recording.png")
        page.get_by_role("tab", name="SQL").click()
        page.get_by_label("Query").fill("SELECT rank FROM messages WHERE status = 'active'")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("cell")).to_have_text(["1", "5"])
        page.get_by_role("tab", name="Explorer").click()
        page.get_by_role("button", name="Play").click()
        expect(page.get_by_role("gridcell", name="workers hosts=0 gpus=1: idle")).to_be_visible()
        expect(page.get_by_role("button", name="Play")).to_be_visible()  # it has come to the end


def test_calls_are_saved_as_a_trace(browser: Browser, program: Program, tmp_path: Path) -> None:
    with opened(browser, program.page) as page:
        page.get_by_role("button", name="Timeline").click()
        timeline = page.get_by_role("region", name="Timeline of calls")
        for _ in range(6):  # the program may have made its steps minutes ago
            timeline.get_by_role("button", name="Zoom out").click()
        expect(timeline.get_by_role("table")).to_contain_text(".step")
        with page.expect_download() as saving:
            timeline.get_by_role("button", name="Save the calls as a trace").click()
        assert saving.value.suggested_filename == "workers-calls.json"
        saving.value.save_as(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    steps = [one for one in events if one["ph"] == "X" and one["name"].endswith(".step")]
    assert sorted(one["args"]["rank"] for one in steps) == list(range(8))
    lanes = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert lanes[7] == "hosts=1 gpus=2"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_owner_debugs_a_paused_rank(
    browser: Browser, screenshot_path: Path, scheme: Literal["light", "dark"]
) -> None:
    mesh = this_host().spawn_procs({"gpus": 4}, name="workers")
    stepped = mesh.spawn("stepper", Stepper).step.call(21, (1, 3))
    with (
        dashboard_server("--owner", "--session", session_name()) as server,
        opened(browser, server.said["page"], scheme, audited=True) as page,
    ):
        page.get_by_role("tab", name="Debug (2)").click()
        paused = page.get_by_role("list", name="Paused ranks")
        expect(paused).to_contain_text("workers gpus=1 and 1 more in Stepper.step")
        page.get_by_label("Which rank").select_option("gpus=3")
        page.get_by_role("button", name="Console of").click()
        console = page.get_by_role("region", name="Debugger: workers[gpus=3]")
        expect(console.get_by_role("group", name="Source")).to_contain_text("breakpoint()")
        page.keyboard.type("p doubled, self.total")
        page.keyboard.press("Enter")
        expect(console.get_by_role("log")).to_contain_text("(42, 100)")
        page.keyboard.type("self.total = 1")
        page.keyboard.press("Enter")
        expect(console.get_by_role("log")).to_contain_text("self.total = 1")
        assert_accessible(page, "body")
        page.screenshot(path=screenshot_path / f"dashboard-debug-{scheme}.png")
        console.get_by_role("button", name="Continue").click()
        expect(console.get_by_role("log")).to_contain_text("workers[gpus=3] has gone on")
        expect(paused).to_contain_text("workers gpus=1 in Stepper.step")
        paused.get_by_role("button", name="Continue").click()
        expect(page.get_by_text("1 thread goes on")).to_be_visible()
        # Playwright runs a loop on this thread, on which nothing may block.
        with ThreadPoolExecutor(1) as thread:
            found = thread.submit(stepped.get, PATIENCE_S).result()
            thread.submit(mesh.stop().get).result()
    assert list(found.values()) == [142, 142, 142, 43]


def test_the_page_works_below_a_prefix(browser: Browser, program: Program) -> None:
    origin, _, query = program.page.partition("/dashboard/")
    with proxy_of(origin) as url, opened(browser, f"{url}/dashboard/{query}") as page:
        expect(page.get_by_role("status").first).to_have_text("live: 1 mesh, 8 ranks")
        page.get_by_role("tab", name="Lines").click()
        expect(page.get_by_role("tabpanel", name="Lines")).to_contain_text("hello")


def test_a_stranger_sees_an_error_and_nothing_else(browser: Browser, program: Program) -> None:
    page = browser.new_page()
    answer = page.goto(program.page.partition("?")[0])
    assert answer is not None
    assert answer.status == 401
    assert "workers" not in page.content()
    page.close()


def test_a_page_whose_program_has_ended_says_so(browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page()
    with running_program(tmp_path) as told:
        page.goto(told.page)
        expect(page.get_by_role("status").first).to_have_text("live: 1 mesh, 8 ranks")
    expect(page.get_by_role("alert")).to_contain_text("This is the last known state")
    page.close()
