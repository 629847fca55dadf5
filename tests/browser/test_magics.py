"""Every magic in a real page, in one notebook, as somebody would try them one after the other."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.lab import Lab, open_notebook, run_all

pytestmark = pytest.mark.browser

CLASS = """
class Counter(Actor):
    def __init__(self):
        self.value = 0
    @endpoint
    def add(self, number):
        self.value += {}number
        return self.value
"""
MAIN = """
import asyncio
async def main():
    print("main got", await counters.slice(gpus=0).add.call_one(1))
asyncio.run(main())
"""
# What is run, and what its cell shows of it.
CELLS = [
    ("%load_ext monarch_jupyter\nfrom monarch.actor import Actor, endpoint" + CLASS.format(""), ""),
    ("%monarch doctor", "CPython"),
    ("%monarch spawn workers gpus=2 --env GREETING=hello --keep", "workers"),
    ("counters = workers.spawn('counters', Counter)\ncounters.add.call(1).get()", "gpus=1"),
    ("%monarch ls", "Counter.add"),
    ("%monarch ps", "MiB"),
    ("%monarch show", "workers"),
    (
        "%%monarch on workers[gpus=1]\nimport os\nprint(os.environ['GREETING'], rank)",
        "[gpus=1] hello 1",
    ),
    ("%monarch logs workers", "hello 1"),
    ("%monarch stacks", "2 idle"),
    ("%monarch debug", "no rank is paused at a breakpoint"),
    (CLASS.format("100 * "), "`%monarch update Counter` puts the new one there"),
    ("%monarch update Counter", "2 ranks run the new Counter, state kept"),
    ("%monarch autoreload on", "autoreload is on"),
    ("%monarch autoreload off", "autoreload is off"),
    ("%monarch asyncio on", "nested asyncio is on"),
    (MAIN, "main got 101"),
    ("%monarch asyncio off", "nested asyncio is off"),
    ("%monarch static on\nworkers", "views are plain HTML"),
    ("%monarch static off", "views are live"),
    ("%monarch detach", "workers"),
    ("%monarch attach workers", "workers"),
    ("counters.slice(gpus=0).add.call_one(1).get()", "201"),  # state, taken up again
    ("%monarch spawn more gpus=1\n%monarch kill more", "killed more"),
    ("%monarch stop workers", "stopped workers"),
    ("%monarch reap", "nothing is left behind"),
]


@pytest.mark.slow
def test_every_magic_shows_in_its_cell_what_it_did(browser: Browser, lab: Lab) -> None:
    lab.write_notebook("magics.ipynb", [source for source, _ in CELLS])
    with open_notebook(browser, lab, "magics.ipynb") as page:
        run_all(page)
        for number, (source, shown) in enumerate(CELLS):
            outputs = page.locator(".jp-CodeCell").nth(number).locator(".jp-OutputArea")
            expect(outputs, source).to_contain_text(shown)
            expect(outputs, source).not_to_contain_text("Traceback")
