"""The stop button ends the cell and what it has begun on ranks, and nothing else."""

from __future__ import annotations

import pytest

from tests.notebook.kernel import PATIENCE, Kernel, Shown

SLEEPERS = """
import asyncio, ctypes, time
from monarch.actor import Actor, endpoint, concurrent_endpoint

class Sync(Actor):
    def __init__(self):
        self.steps = 0

    @endpoint
    def step(self, seconds=600):
        self.steps += 1
        if seconds:
            print("begun", flush=True)
        time.sleep(seconds)
        return self.steps

    @endpoint
    def steps_so_far(self):
        return self.steps

    @endpoint
    def spin(self):
        print("begun", flush=True)
        while True:
            pass

    @endpoint
    def ignore(self):
        begun = False
        while True:
            try:
                if not begun:  # here, or the first interrupt might come before the try
                    begun = True
                    print("begun", flush=True)
                time.sleep(600)
            except KeyboardInterrupt:
                pass

    @endpoint
    def hold_the_lock(self):
        # In C, with the interpreter's lock, and deaf to signals.
        libc = ctypes.PyDLL(None)
        mutex = ctypes.create_string_buffer(128)
        libc.pthread_mutex_lock(mutex)
        print("begun", flush=True)
        libc.pthread_mutex_lock(mutex)

class Async(Actor):
    def __init__(self):
        self.steps = 0

    @endpoint
    async def step(self, seconds=600, word="begun"):
        self.steps += 1
        if seconds:
            print(word, flush=True)
        await asyncio.sleep(seconds)
        return self.steps
"""


def sleepers(kernel: Kernel, ranks: int, name: str = "Sync") -> None:
    kernel.ok(f"%monarch spawn workers gpus={ranks}")
    kernel.ok(f"{SLEEPERS}\nactors = workers.spawn('actors', {name})")


def told(shown: Shown) -> str:
    """What the one line of the notebook says."""
    lines = [line for line in shown.stdout.splitlines() if line.startswith("monarch: ")]
    assert len(lines) == 1, shown.stdout + shown.traceback
    return lines[0].removeprefix("monarch: ")


@pytest.mark.parametrize("name", ["Sync", "Async"])
def test_a_sleep_of_ten_minutes_on_eight_ranks_ends_and_the_actors_go_on(
    kernel: Kernel, name: str
) -> None:
    sleepers(kernel, 8, name)
    shown = kernel.interrupt_when("actors.step.call().get()", "begun")
    assert shown.error_name == "KeyboardInterrupt"
    assert told(shown) == f"interrupted; cancelled {name}.step on 8 ranks"
    assert kernel.value("actors.step.call(0).get(30).values()") == str([2] * 8)


def test_the_error_shows_the_line_of_the_cell_and_nothing_of_the_runtime(kernel: Kernel) -> None:
    sleepers(kernel, 2)
    shown = kernel.interrupt_when(
        "def wait(call):\n    call.get()\nwait(actors.step.call())", "begun"
    )
    assert "----> 3 wait(actors.step.call())" in shown.traceback
    assert "call.get()" in shown.traceback
    assert "monarch/_src" not in shown.traceback
    assert len(shown.traceback.splitlines()) < 20


def test_so_does_a_cell_that_awaits(kernel: Kernel) -> None:
    sleepers(kernel, 2)
    shown = kernel.interrupt_when("await actors.step.call()", "begun")
    assert shown.status == "error"
    assert told(shown) == "interrupted; cancelled Sync.step on 2 ranks"
    assert kernel.value("actors.step.call(0).get(30).values()") == "[2, 2]"


def test_so_does_a_cell_on_ranks(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=8")
    kernel.ok("%%monarch on workers\nkept = rank")
    cell = "%%monarch on workers\nimport time\nprint('begun', flush=True)\ntime.sleep(600)"
    shown = kernel.interrupt_when(cell, "begun")
    assert shown.error_name == "KeyboardInterrupt"
    assert told(shown) == "interrupted; cancelled the cell on 8 ranks"
    kernel.ok("%%monarch on workers\nkept")
    assert kernel.value("_.values()") == str(list(range(8)))


def test_an_actor_beside_the_cells_can_be_interrupted_too(kernel: Kernel) -> None:
    """The first actor of a process has its main thread; this one does not."""
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("%%monarch on workers\nrank")
    kernel.ok(f"{SLEEPERS}\nactors = workers.spawn('actors', Sync)")
    for endpoint in ("step", "spin"):
        shown = kernel.interrupt_when(f"actors.{endpoint}.call().get()", "begun")
        assert told(shown) == f"interrupted; cancelled Sync.{endpoint} on 2 ranks"
    assert kernel.value("actors.step.call(0).get(30).values()") == "[2, 2]"


COUNT_BEGUN = """
from monarch.observe import query

def begun():
    return query("SELECT count(*) FROM log_lines WHERE text = 'begun'", 60).rows[0][0]
"""
WATCHED = """
import contextvars, threading
from monarch import observe

def tell():
    while not any(call.awaited for call in observe.open_calls()):
        pass
    print("now", flush=True)

threading.Thread(target=contextvars.copy_context().run, args=(tell,)).start()
"""
"""Prints `now` as soon as the cell waits for a call.

In the context of the cell: otherwise the lowest ipykernel gives the line to the cell of the last
request.
"""


def test_a_cell_that_waits_for_what_an_earlier_one_has_called_ends_that(kernel: Kernel) -> None:
    sleepers(kernel, 2)
    # Its lines are shown first: an interrupt while one is handled comes after the wait has ended.
    kernel.ok(f"{COUNT_BEGUN}\nbefore = begun()\nearlier = actors.step.call()\n"
              "while begun() < before + 2: pass")  # fmt: skip
    shown = kernel.interrupt_when(f"{WATCHED}\nearlier.get()", "now")
    assert told(shown) == "interrupted; cancelled Sync.step on 2 ranks"


def test_what_earlier_cells_have_called_and_nobody_waits_for_goes_on(kernel: Kernel) -> None:
    sleepers(kernel, 2)
    kernel.ok("earlier = actors.step.call(0.05)\nother = workers.spawn('other', Async)")
    # The earlier call may say "begun" before the cell has called anything.
    shown = kernel.interrupt_when("other.step.call(word='waiting').get()", "waiting")
    assert "Async.step on 2 ranks" in told(shown)
    assert kernel.value("earlier.get(30).values()") == "[1, 1]"


def test_a_mesh_whose_spawning_is_interrupted_is_not_there(kernel: Kernel) -> None:
    cell = (
        "import threading, os, signal\n"
        "from monarch.actor import this_host\n"
        "def wait():\n    import time\n    print('begun', flush=True)\n    time.sleep(600)\n"
        "mesh = this_host().spawn_procs({'gpus': 2}, name='slow', bootstrap=wait)\n"
        "mesh.initialized.get()"
    )
    shown = kernel.interrupt_when(cell, "begun")
    assert shown.error_name == "KeyboardInterrupt"
    kernel.ok("mesh.kill().get()")


def test_a_cell_that_calls_nothing_is_interrupted_as_ever(kernel: Kernel) -> None:
    shown = kernel.interrupt_when("print('begun')\nimport time\ntime.sleep(600)", "begun")
    assert (shown.error_name, shown.stderr) == ("KeyboardInterrupt", "")


def test_the_second_press_signals_and_the_third_says_what_ends_them(kernel: Kernel) -> None:
    sleepers(kernel, 2)
    kernel.ok("from monarch_jupyter.cells import interrupt_policy\ninterrupt_policy.PATIENCE = 60")
    shown = kernel.interrupt_when("actors.ignore.call().get()", "begun")
    assert told(shown) == (
        "interrupted; cancelled Sync.ignore on 2 ranks. Still running: Sync.ignore on "
        "workers[gpus=0..1]. Press stop again to send these ranks SIGINT"
    )
    assert "sent SIGINT to Sync.ignore on workers[gpus=0..1]. Still running:" in press(kernel)
    assert "`%monarch kill workers` ends the processes of the mesh" in press(kernel)
    assert "killed workers: its 2 processes were ended" in kernel.ok("%monarch kill workers").stdout


def test_a_rank_that_holds_the_interpreters_lock_is_named(kernel: Kernel) -> None:
    sleepers(kernel, 2)
    kernel.hold_output(0.01)  # the other rank will never say it
    shown = kernel.interrupt_when("actors.slice(gpus=1).hold_the_lock.call().get()", "begun")
    assert "Still running: Sync.hold_the_lock on workers[gpus=1]" in told(shown)
    assert kernel.value("actors.slice(gpus=0).step.call(0).get(30).values()") == "[1]"
    kernel.ok("%monarch kill workers")
    kernel.hold_output(PATIENCE)


def press(kernel: Kernel) -> str:
    """Press stop while no cell runs; the line that this says in the last cell."""
    kernel.manager.interrupt_kernel()
    while True:
        message = kernel.client.get_iopub_msg(timeout=PATIENCE)
        if message["msg_type"] == "stream":
            return message["content"]["text"]


WAITS_IN_C = """
import ctypes
from monarch.actor import Actor, endpoint

class InC(Actor):
    def __init__(self):
        self.calls = 0

    @endpoint
    def polls(self):
        # As a wait for a stream does that comes back to Python from time to time.
        libc = ctypes.CDLL(None)
        print("begun", flush=True)
        while True:
            libc.usleep(1000)

    @endpoint
    def collective(self):
        # As a wait of NCCL: for ever, without the interpreter's lock, deaf to signals.
        libc = ctypes.CDLL(None)
        mutex = ctypes.create_string_buffer(128)
        libc.pthread_mutex_lock(mutex)
        print("begun", flush=True)
        libc.pthread_mutex_lock(mutex)

    @endpoint
    def count(self):
        self.calls += 1
        return self.calls
"""


def test_a_loop_that_waits_in_c_ends_on_eight_ranks_and_the_actors_go_on(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=8")
    kernel.ok(f"{WAITS_IN_C}\nactors = workers.spawn('actors', InC)")
    shown = kernel.interrupt_when("await actors.polls.call()", "begun")
    assert told(shown) == "interrupted; cancelled InC.polls on 8 ranks"
    assert kernel.value("actors.count.call().get(30).values()") == str([1] * 8)


def test_a_collective_that_never_comes_is_named_on_eight_ranks_and_killed(kernel: Kernel) -> None:
    kernel.ok("from monarch_jupyter.cells import interrupt_policy\ninterrupt_policy.PATIENCE = 60")
    kernel.ok("%monarch spawn workers gpus=8")
    kernel.ok("%monarch spawn others gpus=1")
    kernel.ok(f"{WAITS_IN_C}\nactors = workers.spawn('actors', InC)")
    kernel.ok("apart = others.spawn('apart', InC)")
    shown = kernel.interrupt_when("actors.collective.call().get()", "begun")
    assert shown.error_name == "KeyboardInterrupt"
    assert "Still running: InC.collective on workers[gpus=0..7]" in told(shown)
    assert kernel.value("apart.count.call().get(30).values()") == "[1]"
    kernel.ok("%monarch kill workers")
    kernel.ok("%monarch spawn workers gpus=8")
    kernel.ok("actors = workers.spawn('actors', InC)")
    assert kernel.value("actors.count.call().get(30).values()") == str([1] * 8)
    kernel.ok("monarch_jupyter.cells.interrupt_policy.PATIENCE = 2.0")
