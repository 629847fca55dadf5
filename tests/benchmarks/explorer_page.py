"""What the page's part of an explorer of many ranks costs, by itself: no kernel, no processes.

    python -m tests.benchmarks.explorer_page --ranks 1024 [--modules OTHER/widgets/js]

The widget's module gets a snapshot, then deltas in which each rank changes, as fast as frames come.
Told are the browser's own figures: time in tasks, of these in scripts, styles and layout, and the
longest task. With `--modules` the same is run with the modules of another checkout, turn by turn,
so that a busy machine is unfair to neither.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from playwright.sync_api import Browser

from monarch_jupyter.widgets import bundle
from tests.browser.lab import running_browser

HERE = bundle._FOLDER
FIGURES = ("TaskDuration", "ScriptDuration", "RecalcStyleDuration", "LayoutDuration")
VIEW = """
async ([source, snapshot]) => {
  const found = await import(URL.createObjectURL(new Blob([source], {type: "text/javascript"})));
  const heard = [];
  const model = {
    get: name => (name === "only" ? "u" : null),
    send: () => undefined,
    on: (event, callback) => void (event === "msg:custom" && heard.push(callback)),
    off: () => undefined
  };
  window.tasks = [];
  new PerformanceObserver(list => window.tasks.push(...list.getEntries().map(one => one.duration)))
    .observe({type: "longtask"});
  window.hear = message => heard.forEach(callback => callback(message));
  found.default.render({model, el: document.querySelector("main")});
  window.hear(JSON.parse(snapshot));
  await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
}
"""
UPDATES = """
async ([idle, busy, times]) => {
  [idle, busy] = [JSON.parse(idle), JSON.parse(busy)];
  const gaps = [];
  let before = performance.now();
  for (let seq = 1; seq <= times; seq += 1) {
    window.hear({...(seq % 2 ? busy : idle), seq});
    const tile = document.querySelector(".mx-cell");
    let now = await new Promise(requestAnimationFrame);
    while (tile.dataset.state !== (seq % 2 ? "busy" : "idle")) {
      now = await new Promise(requestAnimationFrame);  // the drawing is paced
    }
    gaps.push(now - before);
    before = now;
  }
  return gaps;
}
"""


def message(kind: str, state: str, ranks: int) -> str:
    """As JSON, which Playwright passes on as it is."""
    rows = [
        {
            "rank": rank, "point": {"gpus": rank}, "pid": 1000 + rank, "state": state,
            "actor": "Trainer", "endpoint": "step" if state == "busy" else None, "since_s": 0.1,
            "messages": rank, "rss_mib": 100.0, "failure": None, "errors": 0, "restarts": 0,
            "where": None,
        }
        for rank in range(ranks)
    ]  # fmt: skip
    mesh = {
        "uid": "u", "name": "workers", "host": "here", "state": "ready", "sizes": {"gpus": ranks},
        "actors": ["trainers"], "failed": [], "debugged": [], "age_s": 1.0, "rows": rows,
    }  # fmt: skip
    return json.dumps({"type": kind, "seq": 0, "meshes": [mesh], "gone": []})


def measured(browser: Browser, modules: Path, ranks: int, updates: int) -> dict[str, float]:
    bundle._FOLDER = modules
    source, style = bundle.joined("explorer"), bundle.styles("explorer")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_content(f"<style>{style}</style><main></main>")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def figures() -> dict[str, float]:
        found = session.send("Performance.getMetrics")["metrics"]
        return {one["name"]: 1000 * one["value"] for one in found if one["name"] in FIGURES}

    start = figures()
    page.evaluate(VIEW, [source, message("snapshot", "idle", ranks)])
    shown = figures()
    longest = max(page.evaluate("window.tasks"), default=0.0)
    page.evaluate("window.tasks.length = 0")
    deltas = [message("delta", state, ranks) for state in ("idle", "busy")]
    gaps = page.evaluate(UPDATES, [*deltas, updates])
    updated = figures()
    told = {f"first paint, {name}": shown[name] - start[name] for name in FIGURES}
    told["first paint, longest task"] = longest
    told |= {f"an update, {name}": (updated[name] - shown[name]) / updates for name in FIGURES}
    told["an update, median frame"] = statistics.median(gaps)
    told["nodes"] = page.evaluate("document.querySelectorAll('*').length")
    page.close()
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modules", type=Path)
    options = parser.parse_args()
    folders = [HERE, *([options.modules] if options.modules else [])]
    found: dict[Path, list[dict[str, float]]] = {folder: [] for folder in folders}
    with running_browser() as browser:
        for _ in range(options.rounds):
            for folder in folders:
                found[folder].append(measured(browser, folder, options.ranks, options.updates))
    for folder, rounds in found.items():
        print(f"{folder}: {options.ranks} ranks, in ms, medians of {options.rounds} rounds")
        told = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
        print(json.dumps({name: round(value, 1) for name, value in told.items()}, indent=1))


if __name__ == "__main__":
    main()
