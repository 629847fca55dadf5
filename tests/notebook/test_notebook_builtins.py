"""Classes of cells that use what a notebook has put in the place of Python's own functions."""

from __future__ import annotations

from tests.notebook.kernel import Kernel

USES = """
import builtins, sys
from monarch.actor import Actor, endpoint

class Uses(Actor):
    @endpoint
    def read(self):
        with open("/proc/self/comm") as file:
            return bool(file.read()), open is builtins.open, "IPython" in sys.modules

    @endpoint
    def leave(self, code):
        if code == 3:
            exit(code)
        quit(code)

uses = workers.spawn("uses", Uses)
"""


def test_open_exit_and_quit_are_pythons_own_on_ranks(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok(USES)
    kernel.ok("uses.read.call().get()")
    assert kernel.value("_.values()") == "[(True, True, False), (True, True, False)]"
    for rank, code in enumerate((3, 4)):
        text = kernel.run(f"uses.slice(gpus={rank}).leave.call_one({code}).get()").traceback
        assert f"Uses.leave on workers[gpus={rank}] died of SystemExit: {code}" in text


def test_an_endpoint_with_a_line_of_the_notebooks_own_says_so(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    shown = kernel.run(
        "from monarch.actor import Actor, endpoint\n"
        "class Lists(Actor):\n    @endpoint\n    def files(self):\n        !ls\n"
        "workers.spawn('lists', Lists)"
    )
    assert shown.traceback.splitlines()[-1] == (
        "TypeError: Lists cannot be sent to another process: Lists.files, which uses get_ipython, "
        "a method: lines with % and ! run in the notebook only; subprocess.run(...) runs a command "
        "on a rank"
    )
    assert "_src" not in shown.traceback


def test_a_variable_that_cannot_be_sent_is_named_with_the_method_that_uses_it(
    kernel: Kernel,
) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    shown = kernel.run(
        "import threading\nfrom monarch.actor import Actor, endpoint\n"
        "guard = threading.Lock()\n"
        "def guarded():\n    with guard:\n        pass\n"
        "class Guarded(Actor):\n    @endpoint\n    def run(self):\n        guarded()\n"
        "workers.spawn('guarded', Guarded)"
    )
    assert shown.traceback.splitlines()[-1].startswith(
        "TypeError: Guarded cannot be sent to another process: Guarded.run, which uses guarded, "
        "which uses guard, a lock: cannot pickle '_thread.lock' object"
    )
    assert "_src" not in shown.traceback
