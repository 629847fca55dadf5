"""What an explorer of many ranks costs: frames of the page while they work, the kernel at rest.

    python -m tests.benchmarks.explorer --ranks 1024

Needs Chromium and the built side panel, as the browser tests do.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

import psutil
from playwright.sync_api import expect

from tests.browser.conftest import LABEXTENSION
from tests.browser.lab import (
    PATIENCE_MS,
    open_notebook,
    run_all,
    run_in_new_cell,
    running_browser,
    running_lab,
)

WORK = """
from monarch.actor import Actor, endpoint
import time

class Worker(Actor):
    @endpoint
    def work(self):
        time.sleep(0.05)

workers_ = workers.spawn("workers", Worker)
end = time.time() + {seconds}
while time.time() < end:
    workers_.work.call().get()
"""
# Times between frames in ms, and how often anything in the explorer changed.
FRAMES = """seconds => new Promise(done => {
  const gaps = [];
  let changes = 0;
  const watcher = new MutationObserver(() => { changes += 1; });
  watcher.observe(document.querySelector('.mx-explorer'), {subtree: true, attributes: true});
  let before = performance.now();
  const begin = before;
  const frame = now => {
    gaps.push(now - before);
    before = now;
    if (now - begin < seconds * 1000) { requestAnimationFrame(frame); }
    else { watcher.disconnect(); done({gaps, changes}); }
  };
  requestAnimationFrame(frame);
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        running_lab(Path(folder), LABEXTENSION) as lab,
        running_browser() as browser,
    ):
        lab.write_notebook(
            "frames.ipynb",
            [
                f"%load_ext monarch_jupyter\n%monarch spawn workers gpus={options.ranks}",
                "%monarch show workers",
                "import os; print(f'pid={os.getpid()}')",
            ],
        )
        with open_notebook(browser, lab, "frames.ipynb") as page:
            run_all(page)
            # By style sheet's means, which cost the page less than a search by role.
            idle = page.locator('.mx-cell[data-state="idle"]')
            expect(idle).to_have_count(options.ranks, timeout=4 * PATIENCE_MS)
            run_in_new_cell(page, WORK.format(seconds=3 * options.seconds).strip())
            page.wait_for_selector('.mx-cell[data-state="busy"]', timeout=4 * PATIENCE_MS)
            found = page.evaluate(FRAMES, options.seconds)
            gaps = sorted(found["gaps"])
            print(
                f"{options.ranks} ranks at work, {options.seconds:g} s: {len(gaps)} frames, median "
                f"{gaps[len(gaps) // 2]:.1f} ms, 95 % within {gaps[len(gaps) * 95 // 100]:.1f} ms, "
                f"longest {gaps[-1]:.1f} ms; "
                f"{found['changes'] / options.seconds:.1f} updates of the page a second"
            )
            prompt = page.locator(".jp-CodeCell").last.locator(".jp-InputPrompt")
            expect(prompt).to_have_text(re.compile(r"\[\d+\]"), timeout=4 * PATIENCE_MS)
            expect(idle).to_have_count(options.ranks, timeout=4 * PATIENCE_MS)
            said = page.locator(".jp-CodeCell").nth(2).inner_text()
            kernel = psutil.Process(int(said.partition("pid=")[2].rpartition("pid=")[2].split()[0]))
            kernel.cpu_percent()
            page.wait_for_timeout(1000 * options.seconds)  # what is measured is a time
            print(f"the kernel at rest: {kernel.cpu_percent():.1f} % of a core")


if __name__ == "__main__":
    main()
