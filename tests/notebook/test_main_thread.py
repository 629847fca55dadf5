"""Cells and functions of maps have the main thread of their rank, whatever ran there before."""

from __future__ import annotations

import pytest

from tests.notebook.kernel import Kernel
from tests.notebook.test_interrupts import told

ON_MAIN = """
import signal, threading

def on_main(x=None):
    # Only the main thread may do that.
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    return threading.current_thread() is threading.main_thread()
"""
EARLIER = {
    "nothing": "",
    "a cell": "%%monarch on workers\n1 + 1",
    "push and pull": "workers.push(y=1)\nworkers.pull('y')",
    "scatter": "workers.scatter(part=[1, 2])",
    "a map": "workers.map(abs, range(4))",
    "a map whose results are not all taken": (
        "opened = workers.imap_unordered(abs, range(10_000), chunk_size=1)\nnext(opened)"
    ),
    "an actor that has ended": (
        "from monarch.actor import Actor, endpoint\n"
        "class Ended(Actor):\n    @endpoint\n    def get(self): return 1\n"
        "ended = workers.spawn('ended', Ended)\nended.get.call().get()\nended.stop().get()"
    ),
    "the reloading of modules": "%load_ext autoreload\n%autoreload 2\nworkers.map(abs, [1])",
}


def test_cells_and_maps_have_it_whatever_ran_before(kernel: Kernel) -> None:
    for earlier, code in EARLIER.items():
        kernel.ok("%monarch spawn workers gpus=2")
        kernel.ok(ON_MAIN)
        if code:
            kernel.ok(code)
        kernel.ok("%%monarch on workers --push on_main\non_main()")
        assert kernel.value("_.values()") == "[True, True]", earlier
        if "opened" in code:
            kernel.ok("opened.close()")
        assert kernel.value("workers.map(on_main, range(4))") == str([True] * 4), earlier
        kernel.ok("%%monarch on workers\non_main()")
        assert kernel.value("_.values()") == "[True, True]", earlier
        kernel.ok("%monarch stop workers")
    kernel.ok("%autoreload 0")


def test_cells_and_maps_have_it_beside_a_process_group_and_tensors(kernel: Kernel) -> None:
    pytest.importorskip("torch")
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok(ON_MAIN)
    kernel.ok("workers.init_process_group()")
    assert kernel.value("workers.map(on_main, range(4))") == str([True] * 4)
    kernel.ok("%monarch stop workers")
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("import torch\nwith workers.activate():\n    torch.ones(2).sum()")
    assert kernel.value("workers.map(on_main, range(4))") == str([True] * 4)


BLOCKS = """
import os, queue, select, socket, subprocess, threading, time

def waits_for_a_process(x):
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            print("begun", flush=True)
            child.wait()
        finally:
            child.kill()
            print("ended", flush=True)

def receives(x):
    a, b = socket.socketpair()
    begin(lambda: a.recv(1))

def reads_a_pipe(x):
    readable, writable = os.pipe()
    try:
        begin(lambda: os.read(readable, 1))
    finally:
        os.close(readable), os.close(writable)

def waits_for_an_event(x):
    begin(threading.Event().wait)

def takes_from_a_queue(x):
    begin(queue.SimpleQueue().get)

def selects(x):
    begin(lambda: select.select([], [], [], 600))

def begin(blocks):
    try:
        print("begun", flush=True)
        blocks()
    finally:
        print("ended", flush=True)
"""
NAMES = (
    "waits_for_a_process",
    "receives",
    "reads_a_pipe",
    "waits_for_an_event",
    "takes_from_a_queue",
    "selects",
)
WAIT_UNTIL_ENDED = """
from monarch.observe import query
count = "SELECT count(*) FROM log_lines WHERE text = 'ended'"
while query(count, 60).rows[0][0] < {count}: pass
"""


def test_stop_and_a_time_out_end_what_blocks_after_a_cell(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("%%monarch on workers\n1 + 1")
    kernel.ok(BLOCKS)
    for at, name in enumerate(NAMES):
        shown = kernel.interrupt_when(f"workers.map({name}, range(2))", "begun")
        assert told(shown).startswith("interrupted; cancelled the map on 2 ranks"), name
        cell = f"%%monarch on workers --push {name},begin\n{name}(0)"
        shown = kernel.interrupt_when(cell, "begun")
        assert told(shown).startswith("interrupted; cancelled the cell on 2 ranks"), name
        kernel.ok(WAIT_UNTIL_ENDED.format(count=4 * (at + 1)))
    for name in NAMES:
        shown = kernel.run(f"workers.map({name}, range(2), timeout=0.5)")
        assert shown.error_name == "TimeoutError", name
        assert kernel.value("sum(workers.map(abs, range(5)))") == "10", name
