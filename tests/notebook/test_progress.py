"""Slow work shows how far it is, in its cell, and nothing when it has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from monarch.frontend import StartingMesh
from monarch.job import OpenWait
from monarch.observe import OpenCall, OpenMap, OpenPull
from monarch_jupyter.protocol.bars import AFTER, MOST, Bar, BarTable, bars_html, bars_of, keys_of
from tests.notebook.kernel import PATIENCE, Kernel
from tests.notebook.test_pages import PageComm

VIEW = "application/vnd.jupyter.widget-view+json"
WAITER = """
import fcntl
from monarch.actor import Actor, endpoint

class Trainer(Actor):
    @endpoint
    def step(self, gate, late):
        from monarch.actor import current_rank
        if current_rank().rank in late:
            with open(gate) as file:
                fcntl.flock(file, fcntl.LOCK_SH)

trainers = workers.spawn("trainers", Trainer)
"""


def call(number: int, owing: int, ranks: int = 8) -> OpenCall:
    points = tuple({"gpus": rank} for rank in range(owing))
    return OpenCall(number, "workers", "1", "trainers", "Trainer", "step", ranks, points)


def test_only_work_that_is_under_way_for_long_has_a_bar() -> None:
    began = {"call 1": 0.0, "call 2": 10.0 - AFTER / 2, "mesh a": 1.0, "pull 7": 0.0, "pull 8": 0.0}
    starting = [StartingMesh("a", "readers", 300, 1024), StartingMesh("b", "new", 0, 2)]
    pulls = [OpenPull(7, "trainers[gpus=0]", 3 << 30, 4 << 30), OpenPull(8, "waits", 0, 0)]
    calls = [call(1, 3), call(2, 8), call(3, 8)]
    spawning, pulling, step = bars_of(calls, starting, began, 10.0, pulls)
    assert pulling.said(10.0) == "pulling from trainers[gpus=0]: 3,072 of 4,096 MiB, 10 s"
    assert step.said(10.0) == "Trainer.step: 5 of 8 ranks, 10 s; waiting for gpus=0..2"
    assert spawning.said(10.0) == "spawning readers: 300 of 1,024 processes, 9.0 s"


def test_a_mesh_whose_processes_wait_for_an_import_says_so() -> None:
    (bar,) = bars_of([], [StartingMesh("a", "new", 0, 4, ("torch", "numpy"))], {"mesh a": 0.0}, 9.0)
    assert bar.said(9.0).endswith("0 of 4 processes, 9.0 s; waiting for the import of torch, numpy")
    (bar,) = bars_of([], [StartingMesh("a", "new", 1, 4, ("torch",))], {"mesh a": 0.0}, 9.0)
    assert bar.said(9.0) == "spawning new: 1 of 4 processes, 9.0 s"


def test_a_map_has_one_bar_in_place_of_those_of_its_calls() -> None:
    began = {"map 9": 0.0, "map 10": 0.0, "call 1": 0.0, "call 2": 0.0, "call 3": 0.0}
    late = ({"gpus": 2}, {"gpus": 3})
    fit = OpenMap(9, "fit", "workers", "1", 990, 1000, late, frozenset({1, 2}), True, True)
    silent = OpenMap(10, "quiet", "workers", "1", 0, 10, (), frozenset({3}), True, False)
    bars = bars_of([call(1, 1), call(2, 1), call(3, 1)], [], began, 12.0, maps=[fit, silent])
    assert [bar.said(12.0) for bar in bars] == [
        "fit: 990 of 1,000 items, 12 s; waiting for gpus=2..3"
    ]
    assert keys_of([], [], maps=[fit]) == ["map 9"]


def test_a_map_over_an_unknown_number_of_items_shows_how_many_are_done() -> None:
    began = {"map 1": 0.0, "map 2": 0.0}
    one = OpenMap(1, "fit", "workers", "1", 1, None, (), frozenset(), True, True)
    many = OpenMap(2, "fit", "workers", "1", 1234, None, (), frozenset(), True, True)
    bars = bars_of([], [], began, 12.0, maps=[one, many])
    assert [bar.said(12.0) for bar in bars] == ["fit: 1 item, 12 s", "fit: 1,234 items, 12 s"]
    assert '<progress aria-label="fit"></progress>' in bars_html(bars, 12.0)
    message: Any = BarTable(bars, lambda: 12.0).snapshot()
    assert [(sent["total"], sent["unit"]) for sent in message["bars"]] == [
        (None, "item"), (None, "items"),
    ]  # fmt: skip


def test_a_job_that_waits_for_its_hosts_has_a_bar_with_what_it_waits_for() -> None:
    waits = [OpenWait(3, "Slurm job 12: pending (Resources)", 4, 0.0), OpenWait(4, "new", 1, 0.0)]
    began = {"job 3": 0.0, "job 4": 10.0 - AFTER / 2}
    bars = bars_of([], [], began, 10.0, waits=waits)
    assert [bar.said(10.0) for bar in bars] == [
        "Slurm job 12: pending (Resources): 0 of 4 hosts, 10 s"
    ]
    assert keys_of([], [], waits=waits) == ["job 3", "job 4"]


def test_much_slow_work_has_few_bars() -> None:
    calls = [call(number, 1) for number in range(100)]
    began = {f"call {number}": 0.0 for number in range(100)}
    assert len(bars_of(calls, [], began, 10.0)) == MOST


def test_a_bar_has_a_name_and_its_figures() -> None:
    markup = bars_html(bars_of([call(1, 2)], [], {"call 1": 0.0}, 10.0), 10.0)
    assert '<progress max="8" aria-label="Trainer.step" value="6"></progress>' in markup
    assert "Trainer.step: 6 of 8 ranks, 10 s; waiting for gpus=0..1" in markup


def test_a_bar_without_an_answer_moves_by_itself_and_shows_the_time() -> None:
    markup = bars_html(bars_of([call(1, 8)], [], {"call 1": 0.0}, 10.0), 10.0)
    assert '<progress max="8" aria-label="Trainer.step"></progress>' in markup
    assert "Trainer.step: 0 of 8 ranks, 10 s" in markup
    assert "waiting for" not in markup


def test_the_bar_of_a_cell_on_ranks_has_no_internal_name() -> None:
    one = OpenCall(1, "workers", "1", "cells", "the cell", "run", 8, ({"gpus": 3},))
    (found,) = bars_of([one], [], {"call 1": 0.0}, 10.0)
    assert found.said(10.0) == ("the cell on workers: 7 of 8 ranks, 10 s; waiting for gpus=3")


def bar(key: str, done: int) -> Bar:
    return Bar(key, "step", done, 8, ("rank", "ranks"), "", 0.0)


def test_a_page_hears_all_bars_first_and_then_those_that_are_others() -> None:
    table = BarTable([bar("a", 1), bar("b", 1)], lambda: 5.0)
    assert table.delta() is None
    first: Any = table.snapshot()
    assert (first["seq"], [one["key"] for one in first["bars"]]) == (0, ["a", "b"])
    assert first["bars"][0]["for_s"] == 5.0
    table.put([bar("b", 2), bar("c", 0)])
    delta: Any = table.delta()
    assert (delta["seq"], delta["gone"]) == (1, ["a"])
    assert [(one["key"], one["done"]) for one in delta["bars"]] == [("b", 2), ("c", 0)]
    table.put([bar("b", 2), bar("c", 0)])
    assert table.delta() is None
    assert table.snapshot()["seq"] == 1


def slow_call(kernel: Kernel, gate: Path) -> str:
    """A cell whose call two of four ranks answer only when the gate is open."""
    kernel.ok("%monarch spawn workers gpus=4")
    kernel.ok(WAITER)
    kernel.ok("monarch_jupyter.protocol.bars.AFTER = 0.1")
    kernel.ok(f"import fcntl; gate = open({str(gate)!r}, 'w'); fcntl.flock(gate, fcntl.LOCK_EX)")
    return f"trainers.step.call({str(gate)!r}, (1, 3)).get();"


def test_a_slow_call_is_shown_in_its_cell_until_it_has_ended_where_no_page_shows_widgets(
    fresh_kernel: Kernel, tmp_path: Path
) -> None:
    kernel = fresh_kernel
    cell = slow_call(kernel, tmp_path / "gate")
    # The HTML itself opens the gate, when it is shown without the widget that nobody shows.
    kernel.ok(
        "import monarch_jupyter.cells.progress as progress\n"
        "said, looks = progress.bars_html, []\n"
        "def opens(bars, now):\n"
        "    looks.append(bars[0].done)\n"
        "    if looks.count(2) == 3: fcntl.flock(gate, fcntl.LOCK_UN)\n"
        "    return said(bars, now)\n"
        "progress.bars_html = opens"
    )
    shown = kernel.ok(cell)
    (first,) = shown.displays
    assert VIEW in first
    updates = [
        m["content"]["data"] for m in shown.messages if m["msg_type"] == "update_display_data"
    ]
    told = [first, *updates]
    assert any("2 of 4 ranks" in t["text/plain"] and "gpus=1,3" in t["text/plain"] for t in told)
    assert "<progress" in first["text/html"]
    assert any("<progress" in t.get("text/html", "") and len(t) == 2 for t in updates)
    assert kernel.ok("pass").displays == []


def test_a_page_that_shows_the_bars_is_told_what_changes_and_that_they_are_gone(
    fresh_kernel: Kernel, tmp_path: Path
) -> None:
    kernel = fresh_kernel
    cell = slow_call(kernel, tmp_path / "gate")
    # A look opens the gate, once the page was heard and has been told of two ranks.
    kernel.ok(
        "from monarch_jupyter.widgets.progress import ProgressBars\n"
        "asks, tell, update = (\n"
        "    ProgressBars.on_sync, ProgressBars.send_to_views, ProgressBars.update\n"
        ")\n"
        "def tells(self, message):\n"
        "    tell(self, message)\n"
        "    told.extend(bar for bar in message['bars'] if bar['done'] == 2)\n"
        "def opens(self, bars):\n"
        "    if heard and told: fcntl.flock(gate, fcntl.LOCK_UN)\n"
        "    update(self, bars)\n"
        "heard, told = [], []\n"
        "ProgressBars.on_sync = lambda self: (heard.append(1), asks(self))\n"
        "ProgressBars.send_to_views, ProgressBars.update = tells, opens"
    )
    kernel.ok("monarch_jupyter.cells.progress.UNHEARD = 1e9")  # however slow this machine is
    subshell = kernel.new_subshell()
    kernel.client.execute(cell)
    while "first" not in (opened := _next(kernel, "comm_open"))["data"].get("state", {}):
        pass
    assert opened["data"]["state"]["first"]["type"] == "bars"
    # A page asks when it shows the view. Before that the widget may not be ready to hear it.
    while VIEW not in _next(kernel, "display_data")["data"]:
        pass
    page = PageComm(kernel, opened["comm_id"])
    page.say_on(subshell, method="custom", content={"type": "sync", "view": "v"})
    while not (bars := page.hear().get("bars")) or bars[0]["done"] < 2:
        pass
    assert bars[0]["late"] == "gpus=1,3"
    while _next(kernel, "comm_close")["comm_id"] != opened["comm_id"]:
        pass
    kernel.ok("pass")


MAPPED = """
import fcntl
def pass_gate(item):
    if item > 1:
        with open(gate_path) as file:
            fcntl.flock(file, fcntl.LOCK_SH)
    return item
"""


def test_a_map_is_shown_in_its_cell_by_its_function_and_its_items(
    fresh_kernel: Kernel, tmp_path: Path
) -> None:
    kernel = fresh_kernel
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok(MAPPED)
    kernel.ok("monarch_jupyter.protocol.bars.AFTER = 0.1")
    path = str(tmp_path / "gate")
    kernel.ok(
        f"gate_path = {path!r}; gate = open(gate_path, 'w'); fcntl.flock(gate, fcntl.LOCK_EX)"
    )
    # The text itself opens the gate, once it has shown the two items that do not wait.
    kernel.ok(
        "import monarch_jupyter.cells.progress as progress\n"
        "said = progress.bars_text\n"
        "def opens(bars, now):\n"
        "    if bars[0].done == 2: fcntl.flock(gate, fcntl.LOCK_UN)\n"
        "    return said(bars, now)\n"
        "progress.bars_text = opens"
    )
    shown = kernel.ok("workers.map(pass_gate, range(6), chunk_size=1)")
    assert shown.result["text/plain"] == "[0, 1, 2, 3, 4, 5]"
    kinds = ("display_data", "update_display_data")
    told = [m["content"]["data"] for m in shown.messages if m["msg_type"] in kinds]
    assert any(one["text/plain"].startswith("pass_gate: 2 of 6 items, ") for one in told)
    assert not any("the map" in one["text/plain"] for one in told)


def _next(kernel: Kernel, kind: str) -> dict[str, Any]:
    while (message := kernel.client.get_iopub_msg(timeout=PATIENCE))["msg_type"] != kind:
        pass
    return message["content"]
