"""What ranks print lands in the cell that runs: at once, tagged, folded, whole."""

from __future__ import annotations

import os
import re
from pathlib import Path

from monarch_jupyter.cells.output import MOST
from tests.notebook.kernel import PATIENCE, Kernel, Shown

TALKER = """
import sys
from monarch.actor import Actor, endpoint, context

class Talker(Actor):
    def __init__(self):
        self.rank = context().actor_instance.rank.rank

    @endpoint
    def say(self, text):
        print(text)

    @endpoint
    def say_late(self, fifo, text):
        with open(fifo, "rb", buffering=0) as pipe:
            pipe.read(1)
        print(text)

    @endpoint
    def say_rank(self):
        print(f"rank {self.rank}")

    @endpoint
    def complain(self, text):
        print(text, file=sys.stderr)

    @endpoint
    def count(self, number):
        for i in range(number):
            print(f"line {i}")

    @endpoint
    def say_and_die(self, text):
        import os
        print(text, flush=True)
        os._exit(3)
"""


def talkers(kernel: Kernel, ranks: int) -> None:
    kernel.ok(f"%monarch spawn workers gpus={ranks}")
    kernel.ok(f"{TALKER}\ntalkers = workers.spawn('talkers', Talker)")


def test_a_line_that_every_rank_prints_is_shown_once_with_all_ranks(kernel: Kernel) -> None:
    talkers(kernel, 4)
    shown = kernel.ok("talkers.say.call('good day').get()")
    assert shown.stdout == "[gpus=0..3] good day\n"
    # And rank by rank behind a click, which needs no kernel.
    (unfolded,) = shown.unfolded
    assert unfolded["text/html"].count("good day") == 4
    assert "<strong>gpus=3</strong>" in unfolded["text/html"]
    assert kernel.ok("talkers.slice(gpus=0).say.call('alone').get()").unfolded == []


def test_every_line_of_every_rank_is_there(kernel: Kernel) -> None:
    talkers(kernel, 8)
    lines = kernel.ok("talkers.say_rank.call().get()").stdout.splitlines()
    assert sorted(lines) == [f"[gpus={rank}] rank {rank}" for rank in range(8)]


def test_a_slice_is_tagged_by_its_ranks_in_the_mesh(kernel: Kernel) -> None:
    talkers(kernel, 4)
    shown = kernel.ok("talkers.slice(gpus=slice(1, 3)).say.call('part').get()")
    assert shown.stdout == "[gpus=1..2] part\n"


def test_stderr_stays_stderr(kernel: Kernel) -> None:
    talkers(kernel, 2)
    shown = kernel.ok("talkers.complain.call('careful').get()")
    assert (shown.stdout, shown.stderr) == ("", "[gpus=0..1] careful\n")


def test_many_lines_arrive_whole_and_in_each_ranks_order(kernel: Kernel) -> None:
    talkers(kernel, 2)
    shown = kernel.ok("talkers.count.call(2000).get()")
    kernel.ok(
        "import monarch_jupyter\n"
        "texts = {0: [], 1: []}\n"
        "for line in monarch_jupyter.logs('workers', tail=10_000).lines:\n"
        "    texts[line.rank].append(line.text)\n"
        "assert texts[0] == texts[1] == [f'line {i}' for i in range(2000)]"
    )
    assert len(shown.stdout.splitlines()) == MOST
    for rank in range(2):
        told = [
            int(line.rpartition(" ")[2])
            for line in shown.stdout.splitlines()
            if rank in ranks_of(line)
        ]
        assert told == list(range(len(told)))


def test_lines_of_a_cell_stand_above_its_value(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    shown = kernel.ok("%%monarch on workers\nprint('first')\n'then'")
    assert shown.stdout == "[gpus=0..1] first\n"
    assert order(shown, "stream", "execute_result")


def test_lines_stand_above_the_error_of_the_cell_that_printed_them(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    shown = kernel.run("%%monarch on workers\nprint('first')\n1/0")
    assert shown.stdout == "[gpus=0..1] first\n"
    assert order(shown, "stream", "error")


def test_lines_land_in_the_cell_that_caused_them(kernel: Kernel) -> None:
    talkers(kernel, 2)
    for text in ("one", "two", "three"):
        assert kernel.ok(f"talkers.say.call('{text}').get()").stdout == f"[gpus=0..1] {text}\n"
    assert kernel.ok("1 + 1").stdout == ""


def test_threads_write_into_the_running_cell_after_a_late_line_of_an_earlier_one(
    kernel: Kernel, tmp_path: Path
) -> None:
    talkers(kernel, 2)
    os.mkfifo(fifo := tmp_path / "fifo")
    kernel.ok(f"earlier = talkers.say_late.call({str(fifo)!r}, 'late')")
    shown = kernel.ok(
        "import os\nfrom threading import Thread\n"
        f"pipe = os.open({str(fifo)!r}, os.O_RDWR)\nos.write(pipe, b'..')\n"
        "earlier.get()\nos.close(pipe)\n"  # which shows the late line first
        "thread = Thread(target=print, args=('of a thread',))\nthread.start()\nthread.join()"
    )
    assert shown.stdout == "of a thread\n"


def test_a_line_is_shown_while_the_cell_still_runs(kernel: Kernel, tmp_path: Path) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    messages = kernel.watch(
        f"%%monarch on workers\nprint('waiting')\nopen({str(gate)!r}).read();\nprint('done')"
    )
    text = next(m["content"]["text"] for m in messages if m["msg_type"] == "stream")
    assert text == "[gpus=0] waiting\n"
    # The rank is waiting for this; had its line waited for the end of the cell, nothing would come.
    gate.write_text("go")
    rest = [m["content"]["text"] for m in messages if m["msg_type"] == "stream"]
    assert "".join(rest) == "[gpus=0] done\n"


def test_a_line_does_not_wait_long_for_ranks_that_never_write_it(
    kernel: Kernel, tmp_path: Path
) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.hold_output(0.01)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    try:
        messages = kernel.watch(
            f"%%monarch on workers[gpus=1]\nprint('alone')\nopen({str(gate)!r}).read();"
        )
        text = next(m["content"]["text"] for m in messages if m["msg_type"] == "stream")
        assert text == "[gpus=1] alone\n"
        gate.write_text("go")
        assert [m for m in messages if m["msg_type"] == "stream"] == []
    finally:
        kernel.hold_output(PATIENCE)


def test_the_last_line_before_a_crash_arrives(kernel: Kernel) -> None:
    talkers(kernel, 2)
    shown = kernel.run("talkers.slice(gpus=1).say_and_die.call('my last words').get()")
    assert shown.error_name == "SupervisionError"
    assert "[gpus=1] my last words\n" in shown.stdout


def test_with_several_meshes_a_line_names_its_mesh(kernel: Kernel) -> None:
    talkers(kernel, 2)
    kernel.ok("%monarch spawn others gpus=1")
    assert kernel.ok("talkers.say.call('x').get()").stdout == "[workers gpus=0..1] x\n"


def ranks_of(line: str) -> set[int]:
    match = re.match(r"\[gpus=(\d+)(?:\.\.(\d+))?\] ", line)
    assert match is not None, line
    return set(range(int(match[1]), int(match[2] or match[1]) + 1))


def order(shown: Shown, first: str, then: str) -> bool:
    return shown.kinds.index(first) < shown.kinds.index(then)


def test_lines_stand_above_the_value_of_an_ordinary_cell(kernel: Kernel) -> None:
    talkers(kernel, 2)
    shown = kernel.ok("talkers.say.call('first').get()\n'then'")
    assert order(shown, "stream", "execute_result")
