"""`%monarch stacks`: what hangs is found, in cells too, and shown with its source."""

from __future__ import annotations

import re
import sys

from monarch.observe import MeshStacks, StackFrame, StackGroup, Stacks, ThreadStack
from monarch_jupyter.rendering.failures import no_cells
from monarch_jupyter.rendering.stacks import NO_RANKS, stacks_html, stacks_text
from tests.notebook.kernel import Kernel
from tests.notebook.reader import Reader

# Python 3.10 has no qualified names of code.
OF = "Trainer." if sys.version_info >= (3, 11) else ""
# A busy rank may not say in time what it waits for.
WAIT = r"(, in threading\.Event\.wait)?"
HANG = """
import threading
from monarch.actor import Actor, current_rank, endpoint

class Trainer(Actor):
    @endpoint
    def step(self):
        if current_rank().rank == 3:
            self.load()
        self.reduce()

    def reduce(self):
        threading.Event().wait()

    def load(self):
        threading.Event().wait()

trainers = workers.spawn("trainers", Trainer)
trainers.initialized.get()
trainers.step.broadcast()
import monarch_jupyter as mj
while len(mj.stacks("workers").meshes[0].groups) != 2 or "4" in mj.stacks().meshes[0].headline:
    pass
"""


def test_the_rank_that_hangs_elsewhere_is_named_with_its_line(kernel: Kernel) -> None:
    # Before the mesh is made, which has the time for clean-up of then.
    kernel.ok("from monarch.config import configure; configure(cleanup_timeout='100ms')")
    kernel.ok("%monarch spawn workers gpus=4")
    kernel.ok(HANG)
    shown = kernel.ok("%monarch stacks").result
    text = shown["text/plain"]
    assert re.match(rf"workers, 4 ranks: 3 in {OF}reduce{WAIT}, 1 in {OF}load{WAIT}: gpus=3", text)
    assert "Cell In[" in text
    assert "self.load()" in text
    assert re.search(rf"3 in {OF}reduce{WAIT}: gpus=0..2", Reader(shown["text/html"]).text)
    one = kernel.ok("%monarch stacks workers[gpus=3]").result["text/plain"]
    assert one.startswith(f"workers, 1 rank: 1 in {OF}load")
    assert "_src" in kernel.ok("%monarch stacks workers --full").result["text/plain"]
    explained = kernel.ok("%monarch explain").result
    assert re.search(r"load \(Cell In\[\d+\], line 15\)", explained["text/plain"])
    html = Reader(explained["text/html"]).text
    assert re.search(r"load \(Cell In\[\d+\], line 15\)", html)
    assert "odd: workers[gpus=3]: " in html
    assert "workers[gpus=0..2]: " in html


def test_what_it_does_not_find_is_said_in_a_line(kernel: Kernel) -> None:
    assert kernel.ok("%monarch stacks").result["text/plain"] == NO_RANKS
    kernel.ok("%monarch spawn workers gpus=2")
    assert kernel.refused("%monarch stacks workers[gpus=7]").startswith("gpus=7 is outside workers")
    assert kernel.refused("%monarch stacks nobody").startswith("there is no mesh 'nobody'")
    assert kernel.refused("%monarch stacks a b").startswith("stacks takes one mesh or slice")


BOX = """
class Box(Actor):
    def __init__(self):
        self.full = threading.Event()

    @endpoint
    def get(self):
        self.full.wait()

    @endpoint
    def put(self):
        self.full.set()

import threading
boxes = workers.slice(gpus=1).spawn("boxes", Box)
got, put = boxes.get.call_one(), boxes.put.call_one()
"""
LOOK = """
import monarch_jupyter as mj
from monarch.actor import Actor, endpoint
while WANTED not in (found := str(mj.stacks("workers"))):
    pass
print(found)
"""


def test_a_sleep_in_a_cell_and_a_call_behind_the_wait_that_it_has_to_end_are_named(
    kernel: Kernel,
) -> None:
    kernel.ok("from monarch.config import configure; configure(cleanup_timeout='100ms')")
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok(f"{LOOK.partition('while')[0]}{BOX}")
    wanted = "which waits for threading.Event.wait of self.full. The actor runs one call at a time"
    text = kernel.ok(LOOK.replace("WANTED", repr(wanted))).stdout
    assert "1 message (put) is queued behind Box.get, which waits for" in text
    assert "if put has to end this wait, it is a deadlock" in text
    subshell = kernel.new_subshell()
    said = ""
    for message in kernel.watch("%%monarch on workers[gpus=0]\nimport time\ntime.sleep(600)"):
        if message["msg_type"] == "execute_input":
            look = LOOK.replace("WANTED", repr("waits for time.sleep(600), for "))
            said = kernel.run_in_subshell(subshell, look)
            kernel.manager.interrupt_kernel()
    assert re.search(r"in <cell In\[\d+\] on workers.*>, line 3, in time\.sleep\(600\)", said)
    assert "waiting for an answer" not in said


def group(what: str, *ranks: int) -> StackGroup:
    frames = (
        StackFrame("step<script>", "/x/a&b.py", 3),
        StackFrame("... 9 more frames ...", "", 0),
    )
    thread = ThreadStack("loader", True, frames)
    return StackGroup(what, ranks, tuple({"gpus": rank} for rank in ranks), (thread,))


def test_stacks_read_the_same_as_text_and_as_html() -> None:
    mesh = MeshStacks(
        "u1", "workers", {"gpus": 3}, "2 in f, 1 in g: gpus=2",
        (group("in f", 0, 1), group("in g", 2)), "",
    )  # fmt: skip
    text = stacks_text(Stacks((mesh,)), no_cells)
    assert text.splitlines() == [
        "workers, 3 ranks: 2 in f, 1 in g: gpus=2",
        "",
        "2 in f: gpus=0..1",
        "  thread loader",
        "  File /x/a&b.py, line 3, in step<script>",
        "  ... 9 more frames ...",
        "  waits for an answer",
        "",
        "1 in g: gpus=2",
        "  thread loader",
        "  File /x/a&b.py, line 3, in step<script>",
        "  ... 9 more frames ...",
        "  waits for an answer",
    ]
    read = Reader(stacks_html(Stacks((mesh,)), no_cells))
    for line in text.splitlines():
        assert line.strip() in read.text.replace("workers 3 ranks 2", "workers, 3 ranks: 2")
    assert "script" not in read.tags
    assert read.tags.count("details") == 2
