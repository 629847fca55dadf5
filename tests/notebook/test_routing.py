"""Where lines of ranks go: to the cell that caused them, and all of them to the log."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

import pytest

from monarch_jupyter.cells.output import MOST
from tests.notebook.kernel import Kernel, Shown, by_rank

SPEAKER = r"""
import asyncio, sys, threading
from monarch.actor import Actor, endpoint, context, concurrent_endpoint

class Speaker(Actor):
    @endpoint
    def say(self, *lines):
        for line in lines:
            print(line)

    @endpoint
    def write(self, text):
        sys.stdout.write(text)
        sys.stdout.flush()

    @endpoint
    def say_between(self, gates):
        print("before the gate")
        for gate in gates:
            open(gate).read()
            print("behind the gate")

    @endpoint
    def flood(self, lines):
        rank = context().actor_instance.rank.rank
        sys.stdout.write("".join(f"rank {rank} line {i}\n" for i in range(lines)))

    @endpoint
    def ask(self, other, *lines):
        other.say.call(*lines).get()

class Background(Actor):
    @endpoint
    async def bar(self, gate):
        print("\r 0%", end="")
        await asyncio.to_thread(lambda: open(gate).read())
        print("\r100%", end="")

    @endpoint
    async def begin(self, gate):
        async def later():
            await asyncio.to_thread(lambda: open(gate).read())
            print("in the background")
        self.task = asyncio.create_task(later())

    @endpoint
    async def finish(self):
        await self.task
        print("in the foreground")
"""


def speakers(kernel: Kernel, ranks: int) -> None:
    kernel.ok(f"%monarch spawn workers gpus={ranks}")
    kernel.ok(f"{SPEAKER}\nspeakers = workers.spawn('speakers', Speaker)")


def gate(tmp_path: Path, name: str = "gate") -> Path:
    path = tmp_path / name
    os.mkfifo(path)
    return path


def later(kernel: Kernel, first: Shown, cell: str) -> tuple[str, str]:
    """Run a cell; what it shows itself, and what the earlier one shows meanwhile."""
    request = first.messages[0]["parent_header"]["msg_id"]
    now = kernel.client.execute(cell)
    mine: list[str] = []
    theirs: list[str] = []
    while True:
        message: dict[str, Any] = kernel.client.get_iopub_msg(timeout=60)
        parent, content = message["parent_header"].get("msg_id"), message["content"]
        if message["msg_type"] == "stream":
            (theirs if parent == request else mine).append(content["text"])
        if parent == now and content.get("execution_state") == "idle":
            return "".join(mine), "".join(theirs)


def test_what_a_call_writes_after_its_cell_has_ended_lands_in_that_cell(
    kernel: Kernel, tmp_path: Path
) -> None:
    speakers(kernel, 1)
    path = gate(tmp_path)
    first = kernel.ok(f"print('begun')\ncall = speakers.say_between.call([{str(path)!r}])")
    mine, theirs = later(kernel, first, f"open({str(path)!r}, 'w').close()\ncall.get()\nprint('x')")
    assert mine == "x\n"
    assert theirs.endswith("[gpus=0] behind the gate\n")


def test_so_does_what_a_task_writes_that_an_endpoint_has_left_behind(
    kernel: Kernel, tmp_path: Path
) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    kernel.ok(f"{SPEAKER}\nactors = workers.spawn('actors', Background)")
    path = gate(tmp_path)
    first = kernel.ok(f"actors.begin.call({str(path)!r}).get()\nprint('begun')")
    cell = f"open({str(path)!r}, 'w').close()\nactors.finish.call().get();"
    mine, theirs = later(kernel, first, cell)
    assert mine == "[gpus=0] in the foreground\n"
    assert theirs == "[gpus=0] in the background\n"


def test_and_what_a_rank_has_another_rank_do(kernel: Kernel) -> None:
    speakers(kernel, 2)
    kernel.ok("speakers.say.call('an earlier cell').get()")
    shown = kernel.ok("speakers.slice(gpus=0).ask.call(speakers.slice(gpus=1), 'asked').get()")
    assert shown.stdout == "[gpus=1] asked\n"


def test_and_what_is_called_by_a_task_of_an_earlier_cell(kernel: Kernel) -> None:
    speakers(kernel, 1)
    first = kernel.ok(
        "import asyncio\ngo = asyncio.Event()\nasync def later():\n    await go.wait()\n"
        "    await speakers.say.call('by the task')\n"
        "task = asyncio.create_task(later())\nprint('begun')"
    )
    mine, theirs = later(kernel, first, "go.set()\nawait task\nprint('x')")
    assert mine == "x\n"
    assert theirs == "[gpus=0] by the task\n"


def unfinished(shown: Shown) -> list[str]:
    """What the line that is written over showed, from first to last."""
    kinds = ("display_data", "update_display_data")
    return [m["content"]["data"]["text/plain"] for m in shown.messages if m["msg_type"] in kinds]


def test_a_progress_bar_shows_its_last_state_and_ends_as_a_line(
    kernel: Kernel, tmp_path: Path
) -> None:
    speakers(kernel, 2)
    kernel.hold_output(0.01)
    shown, path = Shown("ok"), gate(tmp_path)
    write = "speakers.write.call"
    cell = (
        rf"{write}('\r 10%\r 20%').get()"
        f"\nopen({str(path)!r}).read()\nmonarch_jupyter.cells.output.HOLD = 60\n"
        rf"{write}('\r100%\n').get();"
    )
    seen = False
    for _ in kernel.watch(cell, shown):
        if not seen and unfinished(shown)[-1:] == ["[gpus=0..1]  20%"]:
            seen = True
            path.open("w").close()
    assert seen
    assert "[gpus=0..1] 100%\n" in shown.stdout
    assert "10%" not in shown.stdout


def test_an_unfinished_line_is_shown_in_its_own_cell_and_in_no_other(kernel: Kernel) -> None:
    speakers(kernel, 2)
    one = r"[speakers.slice(gpus=i).write.call(f'\r{i}0%').get() for i in (0, 1)];"
    cells = [
        # Each state of a rank replaces the one before, over the calls of a cell.
        (r"for i in range(100): speakers.write.call(f'\r{i}%').get()", "[gpus=0..1] 99%\n"),
        ("speakers.say.call('x').get();", "[gpus=0..1] x\n"),
        (one, "[gpus=0] 00%\n[gpus=1] 10%\n"),
        (r"speakers.write.call('\r100%\n').get();", "[gpus=0..1] 100%\n"),
        (one, "[gpus=0] 00%\n[gpus=1] 10%\n"),
        (r"speakers.write.call('\r20%').get();", "[gpus=0..1] 20%\n"),
        # The line of one call does not go on in that of another.
        (
            r"for text in ('\r30%', 'y'): speakers.write.call(text).get()",
            "[gpus=0..1] 30%\n[gpus=0..1] y\n",
        ),
        (
            r"speakers.write.call('a\rbc\b\bd\x1b[31m').get();",
            "[gpus=0..1] bc\b\bd\x1b[31m\x1b[0m\n",
        ),
        (r"speakers.write.call('gone\r    \r').get();", ""),
        ("speakers.say.call('z').get();", "[gpus=0..1] z\n"),
        # A map leaves the last state of each rank.
        (
            r"_ = workers.map(lambda i: print(f'\ritem {i}', end=''), [0, 0], chunk_size=1)",
            "[gpus=0..1] item 0\n",
        ),
        (r"speakers.write.call('\r60%').get();", "[gpus=0..1] 60%\n"),
        ("%monarch stop workers", "stopped workers: its 2 processes have ended\n"),
    ]
    for cell, text in cells:
        shown = kernel.ok(cell)
        assert shown.stdout == text, cell
        assert all("by rank: `%monarch logs" in view for view in unfinished(shown)), cell
    logged = [text for _, expected in cells for text in by_rank(expected).get(0, ())]
    kernel.ok("import monarch_jupyter\nlines = monarch_jupyter.logs('workers', tail=1000).lines")
    shown = kernel.value("[line.text for line in lines if line.rank == 0]")
    assert ast.literal_eval(shown) == [text.removesuffix("\x1b[0m") for text in logged]


def test_so_is_what_a_call_leaves_unfinished_after_its_cell_has_ended(
    kernel: Kernel, tmp_path: Path
) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    kernel.ok(f"{SPEAKER}\nactors = workers.spawn('actors', Background)")
    path = gate(tmp_path)
    first = kernel.ok(f"call = actors.bar.call({str(path)!r})\nprint('begun')")
    assert "%" not in first.stdout, "its rank has not answered"
    mine, theirs = later(kernel, first, f"open({str(path)!r}, 'w').close()\ncall.get()\nprint('x')")
    assert mine == "x\n"
    assert theirs == "[gpus=0] 100%\n"
    assert kernel.ok("print('y')").stdout == "y\n"


def test_bars_of_tqdm_are_one_line_a_rank_on_stderr(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=4")
    bars = kernel.ok(
        "%%monarch on workers\nfrom tqdm import tqdm\n"
        "for _ in tqdm(range(200), bar_format='{desc}{percentage:.0f}%|{bar}|', ncols=20): pass\n"
        "for _ in tqdm(range(9), desc='gone', leave=False): pass\n"
        "left = tqdm(total=4, desc='left', bar_format='{desc} {n}', miniters=1, mininterval=0)\n"
        "left.update(2);"
    )
    assert bars.stdout == ""
    assert by_rank(bars.stderr) == {rank: ["100%|██████████████|", "left 2"] for rank in range(4)}
    after = kernel.ok("%%monarch on workers\nleft.update(1);\nprint('after')")
    assert after.stdout == "[gpus=0..3] after\n"
    assert by_rank(after.stderr) == {rank: ["left 3"] for rank in range(4)}


def test_a_line_without_carriage_returns_ends_with_its_call(kernel: Kernel) -> None:
    speakers(kernel, 1)
    shown = kernel.ok("speakers.write.call('half a ').get();")
    assert (shown.stdout, unfinished(shown)) == ("[gpus=0] half a \n", [])
    assert kernel.ok(r"speakers.write.call('line\n').get();").stdout == "[gpus=0] line\n"


def test_colours_stay_and_end_with_their_line(kernel: Kernel) -> None:
    speakers(kernel, 1)
    shown = kernel.ok(r"speakers.say.call('\x1b[31mred', '\x1b[32mgreen\x1b[0m', 'plain').get();")
    assert shown.stdout == (
        "[gpus=0] \x1b[31mred\x1b[0m\n[gpus=0] \x1b[32mgreen\x1b[0m\n[gpus=0] plain\n"
    )


@pytest.mark.slow
def test_a_hundred_thousand_lines_are_all_kept_and_the_page_gets_some(kernel: Kernel) -> None:
    speakers(kernel, 64)
    shown = kernel.ok("speakers.flood.call(100_000 // 64).get();")
    lines = shown.stdout.splitlines()
    assert len(lines) == MOST
    hidden = 64 * (100_000 // 64) - MOST
    told, view = unfinished(shown)[-2:]
    assert told == (
        f"monarch: {hidden:,} more lines are not shown here; `%monarch logs workers` has every one"
    )
    assert "`%monarch logs` shows them as text" in view
    assert len(shown.messages) < 1000
    total = kernel.ok("import monarch_jupyter\nprint(monarch_jupyter.logs('workers').total)").stdout
    assert int(total) == 64 * (100_000 // 64)
    kernel.ok(
        "seen = {}\n"
        "for line in monarch_jupyter.logs('workers', tail=1_000_000).lines:\n"
        "    seen.setdefault(line.rank, []).append(line.text)\n"
        "assert sorted(seen) == list(range(64))\n"
        "for rank, texts in seen.items():\n"
        "    assert texts == [f'rank {rank} line {i}' for i in range(1562)]"
    )


def test_ranks_that_drift_apart_are_folded_again_when_the_cell_ends(kernel: Kernel) -> None:
    speakers(kernel, 2)
    kernel.hold_output(0.0)  # no line waits for its like
    said = "*[f'step {i}' for i in range(300)]"
    shown = kernel.ok(
        f"speakers.slice(gpus=0).say.call({said}).get()\n"
        f"speakers.slice(gpus=1).say.call({said}).get();"
    )
    assert len(shown.stdout.splitlines()) == MOST
    (again,) = [data for data in shown.displays if "were joined" in data["text/plain"]]
    assert again["text/plain"] == (
        "monarch: 600 lines, 300 after equal lines of different ranks were joined"
    )
    assert again["text/html"].count("[gpus=0..1] step ") == 300


def test_logs_show_the_last_lines_of_any_rank_and_those_that_match(kernel: Kernel) -> None:
    speakers(kernel, 2)
    kernel.ok("speakers.say.call(*[f'step {i}' for i in range(150)]).get()")
    tail = kernel.ok("%monarch logs workers --tail 2").stdout.splitlines()
    assert tail[0].startswith("workers: lines 299 to 300 of 300 (--page 1 to --page 3 have all)")
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d \[gpus=\d\] step \d+", line) for line in tail[1:])
    kernel.ok("%monarch spawn few gpus=1")
    kernel.ok("%%monarch on few\nprint(1)\nprint(2)")
    (head, _) = kernel.ok("%monarch logs few --tail 1").stdout.splitlines()
    assert head == "few: lines 2 to 2 of 2 (--page 1 has all)"
    one = kernel.ok("%monarch logs workers[gpus=1] --grep 'step 1?7$'").stdout.splitlines()
    assert [line.partition("] ")[2] for line in one[1:]] == ["step 7", "step 17"]
    assert kernel.ok("%monarch logs workers --rank 0 --page 2").stdout.count("gpus=0") == 50
    assert "no line of workers matches" in kernel.ok("%monarch logs workers --grep zz").stdout


def test_logs_outlive_their_mesh(kernel: Kernel) -> None:
    speakers(kernel, 1)
    kernel.ok("speakers.say.call('remember me').get()")
    kernel.ok("%monarch stop workers")
    assert "remember me" in kernel.ok("%monarch logs workers").stdout


def test_logs_refuse_in_one_line(kernel: Kernel) -> None:
    speakers(kernel, 1)
    kernel.ok("speakers.say.call('x').get()")
    assert kernel.refused("%monarch logs") == (
        "logs needs a mesh; for example `%monarch logs workers[gpus=3]`"
    )
    assert "did you mean 'workers'?" in kernel.refused("%monarch logs worker")
    assert "is not a regular expression" in kernel.refused("%monarch logs workers --grep [")
    assert "the last one is --page" in kernel.refused("%monarch logs workers --page 99999")
    assert "give a whole number from 1 up" in kernel.refused("%monarch logs workers --tail=-1")
    assert "--tail or --page, not both" in kernel.refused("%monarch logs workers --tail 1 --page 1")


def test_half_a_line_that_an_error_has_cut_off_is_in_its_own_cell(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    failed = kernel.run("%%monarch on workers\nimport sys\nsys.stdout.write('half')\n1 / 0")
    assert failed.error_name != ""
    assert failed.stdout == "[gpus=0] half\n"
    assert kernel.ok("%%monarch on workers\nprint('whole')").stdout == "[gpus=0] whole\n"
