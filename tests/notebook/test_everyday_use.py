"""What users of such systems ask of a notebook, each demand a test in a real kernel."""

from __future__ import annotations

import textwrap

import nbformat
import pytest
from nbclient import NotebookClient

from tests.notebook.kernel import Kernel

SLEEPER = """
import time
from monarch.actor import Actor, endpoint

class Sleeper(Actor):
    def __init__(self):
        self.calls = 0

    @endpoint
    def sleep(self, seconds):
        self.calls += 1
        if seconds:
            print("asleep", flush=True)
        time.sleep(seconds)
        return self.calls
"""


def test_the_stop_button_stops_the_remote_work(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=8")
    kernel.ok(f"{SLEEPER}\nsleepers = workers.spawn('sleepers', Sleeper)")
    shown = kernel.interrupt_when("sleepers.sleep.call(600).get()", "asleep")
    assert shown.error_name == "KeyboardInterrupt"
    assert kernel.value("sleepers.sleep.call(0).get(30).values()") == str([2] * 8)


STEPS = """
from monarch.actor import Actor, endpoint
from {module} import scale

class Trainer(Actor):
    def __init__(self):
        self.steps = 0

    @endpoint
    def step(self):
        self.steps += {by}
        return scale(self.steps)
"""
PIDS = "[row.pid for row in __import__('monarch.observe').observe.snapshot()[0].rows]"


def test_what_is_edited_in_a_cell_or_a_file_is_used_without_restarting_the_world(
    kernel: Kernel,
) -> None:
    module = "demanded_steps"
    kernel.ok(f"open('{module}.py', 'w').write('def scale(x):\\n    return x');")
    kernel.ok("%monarch autoreload on")
    kernel.ok("%monarch spawn workers gpus=8")
    kernel.ok(STEPS.format(module=module, by=1) + "\ntrainers = workers.spawn('t', Trainer)")
    assert kernel.value("trainers.step.call().get().values()") == str([1] * 8)
    pids = kernel.value(PIDS)
    kernel.ok(f"open('{module}.py', 'w').write('def scale(x):\\n    return 100 * x');")
    assert kernel.value("trainers.step.call().get().values()") == str([200] * 8)
    kernel.ok(STEPS.format(module=module, by=10))
    kernel.ok("%monarch update Trainer")
    assert kernel.value("trainers.step.call().get().values()") == str([1200] * 8)
    assert kernel.value(PIDS) == pids
    kernel.ok("%monarch autoreload off")


TEN_LINES = """
from monarch.actor import Actor, endpoint, this_host
class Counter(Actor):
    def __init__(self, start):
        self.n = start
    @endpoint
    def add(self, k):
        self.n += k
        return self.n
counter = this_host().spawn_procs({"gpus": 4}, name="ten").spawn("counter", Counter, 10)
print(counter.add.call(1).get().values(), counter.slice(gpus=2).add.call_one(5).get())
"""
AWAITED = TEN_LINES.replace(".get()", "")
AWAITED = AWAITED.replace("counter.add.call(1)", "(await counter.add.call(1))")
AWAITED = AWAITED.replace("counter.slice", "await counter.slice")
HEAD, _, BODY = TEN_LINES.partition("counter = ")
INSIDE = textwrap.indent(f"counter = {BODY}", "    ")


@pytest.mark.parametrize(
    ("cell", "nested"),
    [
        (TEN_LINES, False),
        (AWAITED, False),
        (f"import asyncio\n{HEAD}\nasync def main():\n{INSIDE}\nasyncio.run(main())", True),
    ],
    ids=["that blocks", "that awaits", "with asyncio.run"],
)
def test_the_same_ten_lines_work_in_a_cell(kernel: Kernel, cell: str, nested: bool) -> None:
    """As a script, in IPython and in asyncio.run: `tests/integration/procs/test_programs.py`."""
    kernel.ok(f"%monarch asyncio {'on' if nested else 'off'}")
    shown = kernel.ok(cell)
    assert (shown.stdout, shown.stderr) == ("[11, 11, 11, 11] 16\n", "")
    kernel.ok("%monarch asyncio off")


def test_views_are_text_where_no_page_is_live_and_open_no_port() -> None:
    """Live in JupyterLab, and below a hub's URL: `tests/browser`."""
    notebook = nbformat.v4.new_notebook()
    ports = textwrap.dedent("""
        import os
        def listening():
            fds = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
            own = {os.readlink(fd) for fd in fds if os.path.islink(fd)}
            lines = [line.split() for name in ("tcp", "tcp6")
                     for line in list(open(f"/proc/self/net/{name}"))[1:]]
            return {x[9] for x in lines if x[3] == "0A" and f"socket:[{x[9]}]" in own}
        before = listening()
    """)
    cells = [
        ports,
        "%load_ext monarch_jupyter\n%monarch spawn workers gpus=2",
        "%monarch show",
        "print(listening() - before)",
        "%monarch stop --all",
    ]
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    (shown,) = notebook.cells[2].outputs
    assert "workers  {gpus: 2}  ready  2: 2 idle" in shown["data"]["text/plain"]
    assert "<td" in shown["data"]["text/html"]
    assert notebook.cells[3].outputs[0]["text"] == "set()\n"


def test_logs_are_whole_and_in_the_right_cell(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=64")
    shown = kernel.ok("%%monarch on workers\nprint(f'number {rank}')")
    lines = [line.partition("] ")[2] for line in shown.stdout.splitlines()]
    assert sorted(lines) == sorted(f"number {rank}" for rank in range(64))
    assert kernel.ok("1").stdout == ""
    cell = "%%monarch on workers[gpus=3]\nimport os\nprint('the last words')\nos._exit(3)"
    shown = kernel.run(cell)
    assert shown.error_name == "SupervisionError"
    assert "[gpus=3] the last words\n" in shown.stdout
