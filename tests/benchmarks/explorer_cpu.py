"""What an explorer of very many ranks takes of the processor: its kernel and its page.

    python -m tests.benchmarks.explorer_cpu [--ranks 4096] [--seconds 20]

A real JupyterLab, kernel and page; the ranks are made up, since no machine for tests has that many
processes. In place of an answer of the host agent the kernel decodes one that was encoded before.
*Busy*: every rank begins or ends an endpoint between two snapshots, of which there are ten a second
at most. *Page*: all processes of Chromium, which shows nothing else and draws without a GPU.

Needs Chromium and the built side panel, as the browser tests do.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil
from playwright.sync_api import Page, expect

from monarch._src.observe.meshes import MeshSnapshot, snapshot_of
from monarch._src.wire.frames import decode, encode
from monarch._src.wire.messages import MeshState, RankState, Snapshotted
from tests.browser.conftest import LABEXTENSION
from tests.browser.lab import (
    PATIENCE_MS,
    open_notebook,
    run_in_new_cell,
    running_browser,
    running_lab,
)

SETTLED_MS = 5_000  # after this time, work of the last cell or the first drawing is done
SETUP = """
from monarch import observe
from tests.benchmarks.explorer_cpu import MadeUpRanks
ranks = MadeUpRanks({ranks})
observe.snapshot = ranks.snapshot
%load_ext monarch_jupyter
import os
print(f"pid={{os.getpid()}}")
"""


class MadeUpRanks:
    """Answers of a host agent about one mesh; as `observe.snapshot`, any thread may ask."""

    def __init__(self, ranks: int) -> None:
        self._answers = [
            [bytes(frame) for frame in encode(_answer(ranks, state))] for state in ("idle", "busy")
        ]
        self._asked = 0
        self.is_busy = False

    def snapshot(self, timeout: float = 5.0) -> list[MeshSnapshot]:
        """The next answer: always the same one, or in turn those of idle and of busy ranks."""
        self._asked += self.is_busy
        message, _ = decode(self._answers[self._asked % 2])
        assert isinstance(message, Snapshotted)
        return [snapshot_of(mesh) for mesh in message.meshes]


def _answer(ranks: int, state: str) -> Snapshotted:
    is_busy = state == "busy"
    rows = [
        RankState(
            rank=rank, pid=1000 + rank, state=state, actor="trainers" if is_busy else "",
            endpoint="step" if is_busy else "", since_s=0.1, messages=1 + is_busy,
            rss_bytes=100 * 2**20, failure="", cpu_s=1.0,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    mesh = MeshState(
        mesh=1, state="ready", age_s=1.0, ranks=rows, name="workers", labels=["gpus"], sizes=[ranks]
    )
    return Snapshotted(request=1, meshes=[mesh])


class Spent(NamedTuple):
    """So far: seconds of the clock and of the processor, and how often the page has changed."""

    wall: float
    kernel: float
    page: float
    changes: float


# Counts the turns of the page in which anything in it changes: messages that come together are one.
COUNT = """() => {
  window.changes = 0;
  const watcher = new MutationObserver(() => { window.changes += 1; });
  const all = {subtree: true, attributes: true, childList: true, characterData: true};
  watcher.observe(document.querySelector('.jp-NotebookPanel'), all);
}"""


def spent(kernel: psutil.Process, page: Page) -> Spent:
    browser = [one for one in psutil.Process().children(recursive=True) if "chrom" in one.name()]
    page_s = sum(_cpu_s(process) for process in browser)
    return Spent(time.monotonic(), _cpu_s(kernel), page_s, page.evaluate("window.changes"))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def measure(page: Page, kernel: psutil.Process, what: str, for_s: float) -> None:
    """Print the shares of a core that are taken while that goes on."""
    page.wait_for_timeout(SETTLED_MS)
    began = spent(kernel, page)
    page.wait_for_timeout(1000 * for_s)  # what is measured is a time
    wall, *rest = (b - a for a, b in zip(began, spent(kernel, page), strict=True))
    of_kernel, of_page, changes = (one / wall for one in rest)
    asked = time.monotonic()
    run_in_new_cell(page, f"print('after', {what!r})")
    expect(page.get_by_text(f"after {what}", exact=True)).to_be_visible()
    print(
        f"{what}: kernel {100 * of_kernel:.1f} %, page {100 * of_page:.1f} % of a core; "
        f"{changes:.1f} changes of the page a second; "
        f"a cell shows its line after {time.monotonic() - asked:.1f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        running_lab(Path(folder), LABEXTENSION) as lab,
        running_browser() as browser,
    ):
        lab.write_notebook("cpu.ipynb", ["None"])
        with open_notebook(browser, lab, "cpu.ipynb") as page:
            page.evaluate(COUNT)
            run_in_new_cell(page, SETUP.format(ranks=options.ranks).strip())
            said = page.get_by_text(re.compile(r"^\s*pid=\d+\s*$"))
            expect(said).to_be_visible()
            kernel = psutil.Process(int(said.inner_text().strip().removeprefix("pid=")))
            print(f"{options.ranks} ranks, {options.seconds:g} s each")
            measure(page, kernel, "no explorer", options.seconds)
            run_in_new_cell(page, "%monarch show")
            # By style sheet's means, which cost the page less than a search by role.
            cells = page.locator('.mx-cell[data-state="idle"]')
            expect(cells).to_have_count(options.ranks, timeout=4 * PATIENCE_MS)
            measure(page, kernel, "an explorer, at rest", options.seconds)
            run_in_new_cell(page, "ranks.is_busy = True")
            page.wait_for_selector('.mx-cell[data-state="busy"]', timeout=4 * PATIENCE_MS)
            measure(page, kernel, "an explorer, busy", options.seconds)


if __name__ == "__main__":
    main()
