"""`%monarch debug`: what waits, a console through `input()` and one in the page."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.observe import RankPaused
from monarch_jupyter.debugger.pause_notices import groups_of, pause_line
from tests.notebook.kernel import PATIENCE, Kernel, Shown
from tests.notebook.test_page_requests import Page, uid_of

TRAINER = """
import time
from monarch.actor import Actor, current_rank, endpoint

class Trainer(Actor):
    def __init__(self):
        self.total = 100

    @endpoint
    def step(self, value):
        doubled = value * 2
        if current_rank().rank in (1, 2):
            breakpoint()
        result = doubled + self.total
        return result

    @endpoint
    def sleep(self):
        self.asleep = True
        while self.asleep:
            time.sleep(0.01)

    @endpoint
    def fail(self):
        kept = 7
        raise ValueError("no")

trainers = workers.spawn("trainers", Trainer)
"""
CALL = """
answer = trainers.step.call(5)
import monarch_jupyter as mj
while len(mj.debug()) < 2:
    pass
"""


@pytest.fixture
def paused(kernel: Kernel) -> Iterator[Kernel]:
    """A kernel with four trainers, of which two wait at a breakpoint in a cell."""
    kernel.ok("%monarch spawn workers gpus=4")
    kernel.ok(TRAINER)
    kernel.ok(CALL)
    yield kernel
    kernel.ok("%monarch debug --continue")
    kernel.ok("%monarch debug --post-mortem off")


@pytest.fixture
def page(kernel: Kernel) -> Page:
    return Page(kernel)


def talked(kernel: Kernel, code: str, lines: list[str]) -> tuple[Shown, list[str]]:
    """Execute a cell that asks, answer with these lines; what it showed, and with what it asked."""
    request = kernel.client.execute(code, allow_stdin=True)
    asked: list[str] = []
    for line in lines:
        asked.append(kernel.client.get_stdin_msg(timeout=PATIENCE)["content"]["prompt"])
        kernel.client.input(line)
    shown = Shown("ok")
    while True:
        message = kernel.client.get_iopub_msg(timeout=PATIENCE)
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            break
        shown.messages.append(message)
    while True:
        reply = kernel.client.get_shell_msg(timeout=PATIENCE)
        if reply["parent_header"].get("msg_id") == request:
            shown.status = reply["content"]["status"]
            return shown, asked


def test_what_waits_is_listed_by_cell_and_line(paused: Kernel) -> None:
    shown = paused.ok("%monarch debug").result
    text = shown["text/plain"]
    assert "2 ranks: workers[gpus=1..2] in Trainer.step, Cell In[" in text
    assert "line 12\n    breakpoint()" in text
    assert "<td" in shown["text/html"]
    assert "2 paused" in paused.ok("%monarch ls").result["text/plain"]


def test_a_console_through_input_changes_what_the_program_does(paused: Kernel) -> None:
    lines = ["p doubled", "doubled = 1000", "next", "p self.total + doubled", "continue"]
    shown, asked = talked(paused, "%monarch debug workers[gpus=1] --text", lines)
    assert asked == ["(Pdb) "] * 5
    assert "breakpoint()" in shown.stdout
    assert "\n10\n" in shown.stdout
    assert "-> result = doubled + self.total" in shown.stdout
    assert "1100" in shown.stdout
    assert "workers[gpus=1] has gone on" in shown.stdout
    said = paused.ok("%monarch debug --cast 'p doubled' trainers").result["text/plain"]
    assert said == "1 rank: workers[gpus=2]\n    10"
    paused.ok("%monarch debug --continue")
    assert paused.value("answer.get(60).values()") == "[110, 1100, 110, 110]"


def test_a_console_that_is_left_leaves_the_rank_paused(paused: Kernel) -> None:
    shown, _ = talked(paused, "%monarch debug workers[gpus=2] --text", ["detach"])
    assert "workers[gpus=2] stays paused" in shown.stdout
    assert paused.value("len(mj.debug())") == "2"


def refused(kernel: Kernel, code: str) -> str:
    """Execute a magic that must refuse; its line. That ranks wait may be said beside it."""
    shown = kernel.run(code)
    assert (shown.status, shown.error_name, shown.traceback) == ("error", "UsageError", "")
    (line,) = [one for one in shown.stderr.splitlines() if one.startswith("UsageError: ")]
    return line.removeprefix("UsageError: ")


def widget_state(shown: Shown) -> dict[str, Any]:
    opened = [m for m in shown.messages if m["msg_type"] == "comm_open"]
    states = [m["content"]["data"]["state"] for m in opened]
    (state,) = [state for state in states if "prompt" in state]
    return state


class WidgetPage:
    """The page's side of a console that a cell has opened."""

    def __init__(self, kernel: Kernel, where: str) -> None:
        self._client = kernel.client
        shown = kernel.ok(f"d = %monarch debug {where}\nd")
        self.state = widget_state(shown)
        self._comm = shown.result["application/vnd.jupyter.widget-view+json"]["model_id"]

    def say(self, **content: Any) -> None:
        data = {"method": "custom", "content": content}
        message = self._client.session.msg("comm_msg", {"comm_id": self._comm, "data": data})
        self._client.shell_channel.send(message)

    def hear(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE)
            content = message["content"]
            if message["msg_type"] == "comm_msg" and content["comm_id"] == self._comm:
                data = content["data"]
                found = data.get("state", data.get("content", {}))
                if wanted(found):
                    return found


def is_over(found: dict[str, Any]) -> bool:
    return found.get("over") is True


def says(text: str) -> Callable[[dict[str, Any]], bool]:
    return lambda found: text in str(found.get("entries", ""))


def test_the_page_says_commands_and_hears_answers(paused: Kernel) -> None:
    page = WidgetPage(paused, "workers[gpus=1]")
    assert page.state["title"].startswith("workers[gpus=1] in Trainer.step, Cell In[")
    assert "breakpoint()" in str(page.state["source"])
    page.say(type="command", text="p doubled")
    entries = page.hear(lambda found: len(found.get("entries", ())) == 2)["entries"]
    assert [entry["text"] for entry in entries] == ["(Pdb) p doubled", "10"]
    page.hear(lambda found: found.get("busy") is False)
    page.say(type="complete", text="p self.tot", id=4)
    answer = page.hear(lambda found: found.get("type") == "completions")
    assert (answer["id"], answer["matches"]) == (4, ["self.total"])
    page.say(type="command", text="next")
    page.hear(says("result = doubled"))
    page.hear(lambda found: found.get("source", {}).get("line") == 13)
    page.say(type="nonsense")
    page.say(type="command", text="continue")
    page.hear(is_over)


def test_a_console_of_a_page_that_is_left_leaves_the_rank_paused(paused: Kernel) -> None:
    page = WidgetPage(paused, "workers[gpus=1]")
    page.say(type="command", text="detach")
    page.hear(is_over)
    page.hear(says("workers[gpus=1] stays paused; `%monarch debug workers[gpus=1]` opens another"))
    assert paused.value("[one.holder for one in mj.debug()]") == "['', '']"


@pytest.mark.parametrize("ending", ["%monarch debug --continue", "%monarch stop workers"])
def test_a_console_whose_rank_somebody_else_lets_go_says_so(paused: Kernel, ending: str) -> None:
    page = WidgetPage(paused, "workers[gpus=1]")
    paused.client.execute(ending)
    page.hear(is_over)
    page.hear(says("workers[gpus=1] has gone on"))


def test_a_failing_endpoint_waits_with_its_frames(paused: Kernel) -> None:
    paused.ok("%monarch debug --continue")
    paused.ok("%monarch debug --post-mortem on")
    paused.ok("failing = trainers.slice(gpus=3).fail.call_one()\nwhile not mj.debug(): pass")
    assert "ValueError: no" in paused.ok("%monarch debug").result["text/plain"]
    said = paused.ok("%monarch debug --cast 'p kept'").result["text/plain"]
    assert said.endswith("    7")


def test_what_cannot_be_done_is_said_in_a_line(paused: Kernel) -> None:
    assert refused(paused, "%monarch debug nobody").startswith("nothing waits at a breakpoint")
    assert "2 ranks are paused on" in refused(paused, "%monarch debug workers")
    assert "no dim 'hosts'" in refused(paused, "%monarch debug workers[hosts=1]")
    assert "write on or off" in refused(paused, "%monarch debug --post-mortem maybe")
    two = refused(paused, "%monarch debug --continue --break workers")
    assert "these options exclude each other" in two
    assert "no endpoint is running there" in refused(
        paused, "%monarch debug --break workers[gpus=0]"
    )
    assert "workers[gpus=1]" in paused.complete("%monarch debug work")
    assert "--cast" in paused.complete("%monarch debug --c")


def test_code_of_cells_on_ranks_pauses(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    subshell = kernel.new_subshell()
    request = kernel.client.execute("%%monarch on workers\nx = 1\nbreakpoint()\nx + 1")
    kernel.wait_until_busy(request)
    code = """
import monarch.debug
while len(monarch.debug.waiting()) < 2:
    pass
print([(one.function, one.line) for one in monarch.debug.waiting()])
monarch.debug.cast("!x = 5")
_ = monarch.debug.resume()
"""
    kernel.send_to_subshell(subshell, code)
    values, said = "", ""
    while not values:
        found = kernel.client.get_iopub_msg(timeout=PATIENCE)
        if found["msg_type"] == "stream":
            said += found["content"]["text"]
        if found["msg_type"] == "execute_result":
            values = found["content"]["data"]["text/plain"]
    assert "('<module>', 3)" in said
    assert "6" in values


def test_pauses_that_come_together_are_said_in_one_line() -> None:
    pauses = [
        RankPaused("u1", "workers", rank, {"gpus": rank}, 1, True, "Trainer.step", "Trainer.step",
                   "/x/train.py", 7, "breakpoint")
        for rank in range(3)
    ]  # fmt: skip
    (group,) = groups_of(pauses)
    line = pause_line(group)
    assert line.startswith(
        "monarch: 3 ranks wait at a breakpoint in Trainer.step, File /x/train.py, line 7: "
        "workers[gpus=0..2]. `%monarch debug workers[gpus=0]` opens a console"
    )


def board_of(shown: Shown) -> dict[str, str]:
    """What a cell shows of the breakpoints that it has run into."""
    (board,) = [data for data in shown.displays if "wait" in data.get("text/plain", "")]
    return board


def test_a_cell_that_waits_says_for_what_and_is_interrupted_as_ever(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=4")
    kernel.ok(TRAINER)
    shown = Shown("ok")
    pressed = False
    for message in kernel.watch("trainers.step.call(5).get()", shown):
        if not pressed and message["msg_type"] == "display_data":
            pressed = "wait" in message["content"]["data"].get("text/plain", "")
            if pressed:
                kernel.manager.interrupt_kernel()
    assert pressed
    said = board_of(shown)["text/plain"]
    assert said.startswith("monarch: 2 ranks wait at a breakpoint in Trainer.step, Cell In[")
    assert "`%monarch debug workers[gpus=1]` opens a console" in said
    assert shown.error_name == "KeyboardInterrupt"
    assert "cancelled Trainer.step on" in shown.traceback + shown.stdout
    assert "no rank is paused" in kernel.ok("%monarch debug").result["text/plain"]


def test_a_page_opens_a_console_by_asking_also_where_a_rank_only_runs(
    kernel: Kernel, page: Page
) -> None:
    kernel.ok("%monarch spawn workers gpus=4")
    kernel.ok(TRAINER)
    kernel.ok(CALL)
    uid = uid_of(kernel, "workers")
    opened = page.done(do="console", mesh=uid, ranks=[2])
    assert opened["title"].startswith("workers[gpus=2] in Trainer.step, Cell In[")
    assert opened["source"]["lines"][opened["source"]["line"] - opened["source"]["first"]]
    console = opened["console"]
    assert page.done(do="complete", console=console, text="p doub") == {"matches": ["doubled"]}
    stepped = page.done(do="say", console=console, text="next")
    assert "Cell In[" in stepped["text"]
    assert stepped["text"].endswith("-> result = doubled + self.total")
    assert page.done(do="resume", mesh=uid, ranks=[1, 2]) == "2 ranks go on"
    gone = page.done(do="standing", console=console)
    assert (gone["over"], gone["note"]) == (True, "workers[gpus=2] has gone on")
    assert page.refused(do="say", console=console, text="p 1").startswith("this console is closed")
    assert page.refused(do="console", mesh=uid, ranks=[2]) == "no endpoint is running there"
    assert page.refused(do="resume", mesh=uid, ranks=[2]) == "no rank is paused there any more"
    page.done(do="let_go", console=console)
    kernel.ok("answer.get(60)")

    kernel.ok("sleeping = trainers.slice(gpus=0).sleep.call()")
    kernel.ok(
        "from monarch import observe\nwhile observe.snapshot()[0].rows[0].state != 'busy': pass"
    )
    opened = page.done(do="console", mesh=uid, ranks=[0])
    assert ", broken into" in opened["title"]
    page.done(do="say", console=opened["console"], text="self.asleep = False")
    over = page.done(do="say", console=opened["console"], text="continue")
    assert (over["over"], over["note"]) == (True, "workers[gpus=0] has gone on")
    kernel.ok("sleeping.get(60)")


NOTICE = "application/vnd.jupyter.widget-view+json"
CONTINUE_ON_0 = """
import monarch.debug
while len(monarch.debug.waiting()) < 4:
    pass
monarch.debug.cast("continue", "workers[gpus=0]")
"""
VIA = """
from monarch.actor import Channel
class Caller(Actor):
    @endpoint
    def call(self, others):
        return others.step.call(7).get()
caller = workers.slice(gpus=0).spawn("caller", Caller)
"""
PAUSED_MAP = """
def hold(item):
    if item == 1:
        breakpoint()
    return item
items = workers.imap_unordered(hold, range(4))
while not mj.debug():
    pass
"""


def interrupted_at_notice(kernel: Kernel, code: str) -> dict[str, str]:
    """Execute a cell, and press stop when it says that ranks are paused; that display."""
    found: dict[str, str] = {}
    for message in kernel.watch(code):
        data = message["content"].get("data", {})
        if message["msg_type"] == "display_data" and "opens a console" in data["text/plain"]:
            found = data
            kernel.manager.interrupt_kernel()
    assert found, f"{code!r} has no notice"
    return found


def test_each_wait_for_ranks_paused_in_an_earlier_cell_has_the_notice(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=4")
    kernel.ok("%monarch debug --post-mortem on")
    subshell = kernel.new_subshell()
    # A call ends with its first error; the other ranks stay paused.
    failed = Shown("ok")
    continued = False
    for message in kernel.watch("%%monarch on workers\nx = 1\n1 / 0", failed):
        if not continued and message["msg_type"] == "display_data":
            continued = True
            kernel.send_to_subshell(subshell, CONTINUE_ON_0)
    assert "division by zero" in failed.traceback
    kernel.ok("import monarch_jupyter as mj")
    assert kernel.value("len(mj.debug())") == "3"
    notice = interrupted_at_notice(kernel, "%%monarch on workers\ny = 3")
    said = notice["text/plain"]
    assert said.startswith("monarch: 3 ranks wait where it raised ZeroDivisionError")
    assert "workers[gpus=1..3]. `%monarch debug workers[gpus=1]` opens a console" in said
    assert NOTICE in notice
    assert not kernel.ok("workers.pull('x')").displays  # pulls do not wait for cells
    kernel.ok("%monarch debug --continue")
    kernel.ok("%monarch debug --post-mortem off")

    kernel.ok(TRAINER)
    kernel.ok(VIA)
    kernel.ok(CALL)
    waits = (
        "trainers.step.call(6).get()",  # may report the pauses for the first time
        "await trainers.slice(gpus=2).step.call_one(6)",
        "caller.call.call_one(trainers).get()",  # waits for an actor that waits for them
        "_, receiver = Channel.open()\nreceiver.recv().get()",
        "answer.get()",  # its interrupt ends the pauses
    )
    for code in waits:
        notice = interrupted_at_notice(kernel, code)
        assert "at a breakpoint in Trainer.step, Cell In[" in notice["text/plain"], code
        assert NOTICE in notice

    kernel.ok(PAUSED_MAP)
    kernel.ok("workers.slice(gpus=0).map(abs, [1])")
    notice = interrupted_at_notice(kernel, "list(items)")
    assert "1 rank waits at a breakpoint in hold, Cell In[" in notice["text/plain"]


IN_A_TERMINAL = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in json.loads(sys.argv[1]):
    print("begins", flush=True)
    shell.run_cell(cell)
"""


def test_a_terminal_has_a_line_in_each_cell_that_waits_for_ranks_of_an_earlier_one(
    tmp_path: Path,
) -> None:
    wait = "trainers.step.call(6).get()"
    cells = [
        "%load_ext monarch_jupyter",
        "%monarch spawn workers gpus=4",
        TRAINER,
        CALL,
        wait,
        wait,
    ]
    command = [sys.executable, "-c", IN_A_TERMINAL, json.dumps(cells)]
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as program:
        assert program.stdout is not None
        begun, told = 0, False
        for line in program.stdout:
            if line == "begins\n":
                begun, told = begun + 1, False
            # Ranks may stop one after the other; the last cell has them in one line.
            if begun >= 5 and "opens a console" in line and not told:
                said.append(line)
                told = True
                program.send_signal(signal.SIGINT)
    assert len(said) == 2
    assert said[1].startswith("monarch: 2 ranks wait at a breakpoint in Trainer.step")
    assert "workers[gpus=1..2]. `%monarch debug workers[gpus=1]` opens a console" in said[1]
