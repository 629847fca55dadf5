"""What a page may ask of a kernel, at the level of the protocol: done also while a cell runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.observe import OutputLine
from monarch_jupyter.errors import CommandError
from monarch_jupyter.lines.log_store import LogStore
from monarch_jupyter.protocol.lines import PAGE, fold_lines, lines_message
from monarch_jupyter.protocol.requests import (
    Attach,
    DebugInLab,
    Lines,
    ShowStacks,
    Spawn,
    StopRanks,
    parse_request,
)
from tests.notebook.kernel import Kernel
from tests.notebook.test_pages import PageComm

WAITER = """
import asyncio
from monarch.actor import Actor, endpoint

class Waiter(Actor):
    @endpoint
    async def wait(self):
        print("waiting")
        await asyncio.Event().wait()

    @endpoint
    async def quick(self):
        return 1

waiters = workers.spawn("waiters", Waiter)
"""


class Page:
    """A page that asks on a shell of its own, as JupyterLab does."""

    def __init__(self, kernel: Kernel) -> None:
        self.comm = PageComm(kernel)
        self.subshell = kernel.new_subshell()
        self.comm.hear()
        self._last = 0

    def ask(self, **what: Any) -> dict[str, Any]:
        """The answer."""
        self._last += 1
        self.comm.say_on(self.subshell, type="ask", view="test", id=self._last, what=what)
        while (message := self.comm.hear())["type"] != "answer" or message["id"] != self._last:
            pass
        return message

    def done(self, **what: Any) -> Any:
        """What comes of it."""
        answer = self.ask(**what)
        assert answer["error"] is None, answer["error"]
        return answer["result"]

    def refused(self, **what: Any) -> str:
        """The line that says why it is not done."""
        answer = self.ask(**what)
        assert answer["error"] is not None, answer["result"]
        assert "\n" not in answer["error"]
        return answer["error"]


@pytest.fixture
def page(kernel: Kernel) -> Page:
    return Page(kernel)


def uid_of(kernel: Kernel, name: str) -> str:
    return kernel.value(f"{name}.uid").strip("'")


def test_a_page_spawns_a_mesh_that_is_bound_in_the_notebook(kernel: Kernel, page: Page) -> None:
    said = page.done(do="spawn", name="workers", sizes={"gpus": 2}, keep=False)
    assert said == "workers is bound in the notebook, 2 ranks"
    assert kernel.value("dict(workers.sizes)") == "{'gpus': 2}"
    assert "workers is already a mesh" in page.refused(
        do="spawn", name="workers", sizes={}, keep=False
    )
    assert "can't name a mesh" in page.refused(do="spawn", name="2x", sizes={}, keep=False)
    uid = uid_of(kernel, "workers")
    assert page.done(do="stop", mesh=uid) == "stopped workers: 2 processes have ended"
    assert page.refused(do="stop", mesh=uid) == "this mesh has ended"


def test_a_page_ends_what_one_rank_runs_and_no_other(kernel: Kernel, page: Page) -> None:
    kernel.ok("%monarch spawn workers gpus=3")
    kernel.ok(WAITER)
    uid = uid_of(kernel, "workers")
    assert "gpus=1 runs no call of this kernel" in page.refused(do="stop", mesh=uid, ranks=[1])
    running = kernel.client.execute(
        "both = [waiters.slice(gpus=g).wait.call_one() for g in (1, 2)]\n"
        "try:\n    both[0].get()\nexcept Exception as error:\n    told = str(error)\n"
    )
    kernel.wait_until_busy(running)
    while not _states(page)[2] == _states(page)[1] == "busy":
        pass
    said = page.done(do="stop", mesh=uid, ranks=[1])
    assert said == "asked gpus=1 to end Waiter.wait"
    assert "gpus=1" in kernel.value("told")
    assert _states(page)[2] == "busy"
    assert kernel.value("waiters.slice(gpus=1).quick.call_one().get()") == "1"
    assert "in Waiter.wait" in page.done(do="stacks", mesh=uid, ranks=[2])
    page.done(do="stop", mesh=uid, ranks=[2])  # or the end of the mesh would wait for it


def test_a_page_puts_the_debugger_on_a_rank_and_takes_it_back(kernel: Kernel, page: Page) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    uid = uid_of(kernel, "workers")
    said = page.done(do="debug_in_lab", mesh=uid, ranks=[1])
    assert "JupyterLab's debugger is on workers[gpus=1]" in said
    said = page.done(do="debug_in_lab", mesh=uid, ranks=[0])
    assert "JupyterLab's debugger is on workers[gpus=0]" in said
    assert (
        page.done(do="debug_in_lab", mesh=uid, ranks=[0])
        == "JupyterLab's debugger is on the kernel"
    )
    assert (
        page.done(do="debug_in_lab", mesh=uid, ranks=None)
        == "JupyterLab's debugger is on the kernel"
    )


def _states(page: Page) -> dict[int, str]:
    page.comm.say_on(page.subshell, type="sync", view="test")
    while (message := page.comm.hear())["type"] != "snapshot":
        pass
    return {row["rank"]: row["state"] for mesh in message["meshes"] for row in mesh["rows"]}


def test_a_page_kills_one_process(kernel: Kernel, page: Page) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    uid = uid_of(kernel, "workers")
    assert page.done(do="kill", mesh=uid, ranks=[1]) == "killed the process of gpus=1"
    while _states(page) != {0: "idle", 1: "failed"}:
        pass
    assert page.refused(do="kill", mesh=uid, ranks=[1]) == "gpus=1 has no process any more"


def test_a_page_reads_what_ranks_wrote_folded_and_loses_none(kernel: Kernel, page: Page) -> None:
    assert page.done(do="lines", mesh="w", cell=None, ranks=None, grep="", page=None)["total"] == 0
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("%%monarch on workers\nprint('same')\nprint('mine', rank)")
    found = page.done(do="lines", mesh="workers", cell=None, ranks=None, grep="", page=None)
    assert (found["first"], found["last"], found["total"], found["pages"]) == (1, 4, 4, 1)
    told = {fold["text"]: (fold["points"], len(fold["each"])) for fold in found["folds"]}
    assert told == {
        "same": ("gpus=0..1", 2), "mine 0": ("gpus=0", 1), "mine 1": ("gpus=1", 1)
    }  # fmt: skip
    mine = page.done(do="lines", mesh="workers", cell=None, ranks=[1], grep="^mine", page=None)
    assert [fold["text"] for fold in mine["folds"]] == ["mine 1"]
    assert "not a regular expression" in page.refused(
        do="lines", mesh=None, cell=None, ranks=None, grep="(", page=None
    )


def test_a_page_of_another_version_is_told_so(page: Page) -> None:
    assert "different versions" in page.refused(do="dance")
    assert "has no valid 'ranks'" in page.refused(do="stacks", mesh="1", ranks=["x"])


def test_a_page_sees_the_sessions_of_this_machine(kernel: Kernel, page: Page) -> None:
    kernel.ok("%monarch spawn workers gpus=1 --keep")
    pid = int(kernel.value("__import__('os').getpid()"))
    sessions = page.done(do="sessions")["sessions"]
    (mine,) = [one for one in sessions if one["client_pid"] == pid]
    assert (mine["kept_as"], mine["state"], mine["meshes"]) == ("workers", "live", ["workers"])


# --- without a kernel -----------------------------------------------------------------------------


def test_requests_are_read_as_they_are_meant() -> None:
    assert parse_request({"do": "stop", "mesh": "1"}) == StopRanks("1", None, kill=False)
    assert parse_request({"do": "kill", "mesh": "1", "ranks": [2]}) == StopRanks(
        "1", (2,), kill=True
    )
    assert parse_request({"do": "stacks", "mesh": "1", "ranks": [0, 3]}) == ShowStacks("1", (0, 3))
    assert parse_request({"do": "debug_in_lab", "mesh": "1", "ranks": [3]}) == DebugInLab("1", (3,))
    asked = {"do": "lines", "mesh": None, "cell": 4, "ranks": None, "grep": "x", "page": 2}
    assert parse_request(asked) == Lines(None, 4, None, "x", 2)
    assert parse_request({"do": "attach", "name": "n"}) == Attach("n")
    spawn = {"do": "spawn", "name": "n", "sizes": {"gpus": 8}, "keep": True}
    assert parse_request(spawn) == Spawn("n", {"gpus": 8}, keep=True)


@pytest.mark.parametrize(
    "content", [None, 3, {}, {"do": "spawn", "name": "n", "sizes": {"g": "x"}}]
)
def test_what_is_no_request_is_refused(content: object) -> None:
    with pytest.raises(CommandError):
        parse_request(content)


@pytest.fixture
def write_lines() -> Callable[[int, int], LogStore]:
    def write(ranks: int, each: int) -> LogStore:
        store = LogStore()
        for number in range(each):
            texts = [f"step {number}" if number % 3 else f"step {number} {r}" for r in range(ranks)]
            store.add(
                [
                    OutputLine("w", "1", r, {"gpus": r}, "stdout", text, origin=7)
                    for r, text in enumerate(texts)
                ]
            )
        return store

    return write


def test_pages_hold_every_line_exactly_once(write_lines: Callable[[int, int], LogStore]) -> None:
    store = write_lines(16, 130)
    try:
        seen: dict[str, list[str]] = {}
        pages = lines_message(store.page(None, cell=7, length=PAGE, whole_pages=True))["pages"]
        assert pages == 5
        for number in range(1, 6):
            found = store.page(None, cell=7, page=number, length=PAGE, whole_pages=True)
            for fold in fold_lines(found.lines):
                for line in fold["each"]:
                    seen.setdefault(line["where"], []).append(fold["text"])
        assert set(seen) == {f"gpus={r}" for r in range(16)}
        for r in range(16):
            mine = [f"step {n}" if n % 3 else f"step {n} {r}" for n in range(130)]
            assert seen[f"gpus={r}"] == mine
        assert store.page(None, cell=8).total == 0
    finally:
        store.close()


LOOKED_AT = """
from monarch.actor import Actor, endpoint

class Trainer(Actor):
    def __init__(self):
        self.rate, self.losses = 0.5, [1, 2]

    @endpoint
    def wait(self, gate):
        open(gate).read()

trainers = workers.spawn("trainers", Trainer)
"""


def test_a_page_looks_into_the_actors_of_a_rank_that_computes(
    kernel: Kernel, page: Page, tmp_path: Path
) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok(LOOKED_AT)
    uid = uid_of(kernel, "workers")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    call = f"trainers.slice(gpus=1).wait.call_one({str(gate)!r})"
    running = kernel.client.execute(f"waits = [{call} for _ in range(3)]\nwaits[0].get()")
    kernel.wait_until_busy(running)
    while _states(page)[1] != "busy":
        pass
    (seen,) = page.done(do="actors", mesh=uid, ranks=[1])["actors"]
    assert (seen["name"], seen["class_name"], seen["running"]) == ("trainers", "Trainer", ["wait"])
    assert (seen["queued"], seen["ended"]) == (2, False)
    assert seen["attributes"] == [["rate", "0.5"], ["losses", "[1, 2]"]]
    gate.write_text("go")
    kernel.ok(f"_ = [(open({str(gate)!r}, 'w').close(), one.get()) for one in waits[1:]]")


def test_names_of_cells_are_what_a_rank_has_that_runs_cells(kernel: Kernel, page: Page) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    kernel.ok("%%monarch on workers\nimport os\nloss = 0.25")
    (seen,) = page.done(do="actors", mesh=uid_of(kernel, "workers"), ranks=[0])["actors"]
    assert ["loss", "0.25"] in seen["attributes"]
    assert ["os", "module 'os'"] in seen["attributes"]
    refused = page.refused(do="actors", mesh=uid_of(kernel, "workers"), ranks=[0, 1])
    assert "has no valid 'ranks'" in refused


def test_a_page_starts_dead_ranks_again_in_their_places(kernel: Kernel, page: Page) -> None:
    kernel.ok("%monarch spawn workers gpus=4")
    kernel.ok(WAITER)
    kernel.ok("%%monarch on workers\nloss = rank")
    uid = uid_of(kernel, "workers")
    for rank in (1, 3):
        assert page.done(do="kill", mesh=uid, ranks=[rank])
    while not _states(page)[1] == _states(page)[3] == "failed":
        pass
    assert page.done(do="restart", mesh=uid, ranks=[1]) == (
        "restarted workers[gpus=1]: 1 new process, with its actors: waiters\n"
        "names lost on gpus=1: loss (bound by a cell)"
    )
    lines = page.done(do="restart", mesh=uid, ranks=[3, 0]).splitlines()
    assert lines[0] == "restarted workers[gpus=0]: 1 new process, with its actors: waiters"
    assert "restarted workers[gpus=3]: 1 new process, with its actors: waiters" in lines
    while set(_states(page).values()) != {"idle"}:
        pass
    assert kernel.value("workers.uid").strip("'") == uid
    assert kernel.value("waiters.quick.call().get().values()") == "[1, 1, 1, 1]"
    assert page.refused(do="restart", mesh=uid, ranks=[4]) == "workers has no such ranks: [4]"
    assert "no valid 'ranks'" in page.refused(do="restart", mesh=uid, ranks="1")


def test_a_page_is_told_of_a_rank_that_cannot_be_restarted(kernel: Kernel, page: Page) -> None:
    kernel.ok("%monarch spawn kept gpus=2 --keep")
    uid = uid_of(kernel, "kept")
    assert page.refused(do="restart", mesh=uid, ranks=[1]).startswith(
        "'kept' is kept, so its ranks are not restarted"
    )
