"""`%monarch autoreload`: what is edited in a module is used on every rank, and state is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.gates import gate_in
from tests.notebook.kernel import Kernel

STEPS = """
from monarch.actor import Actor, endpoint

def scale(x):
    return {factor} * x

class Trainer(Actor):
    def __init__(self):
        self.steps = 0

    @endpoint
    def step(self):
        self.steps += 1
        return scale(self.steps)
"""
TIMES_TWO = STEPS.format(factor=2)
PIDS = "[row.pid for row in __import__('monarch.observe').observe.snapshot()[0].rows]"


@pytest.fixture
def module(kernel: Kernel) -> str:
    """A module of a name that no other test has imported."""
    name = f"steps_{os.urandom(4).hex()}"
    write(kernel, name, STEPS.format(factor=1))
    return name


def write(kernel: Kernel, name: str, text: str) -> None:
    kernel.ok(f"open('{name}.py', 'w').write({text!r});")


def trainers(kernel: Kernel, module: str, ranks: int) -> None:
    kernel.ok(f"%monarch spawn workers gpus={ranks}")
    kernel.ok(f"from {module} import Trainer\ntrainers = workers.spawn('trainers', Trainer)")


def steps(kernel: Kernel) -> str:
    return kernel.value("trainers.step.call().get(30).values()")


@pytest.fixture
def watched(kernel: Kernel, module: str) -> str:
    """The module, with autoreload on."""
    shown = kernel.ok("%monarch autoreload on").stdout
    assert shown == "autoreload is on: edited modules are reloaded before each cell\n"
    return module


@pytest.fixture(autouse=True)
def _off(kernel: Kernel) -> object:
    yield
    assert kernel.ok("%monarch autoreload off").stdout == "autoreload is off\n"


def test_an_edit_is_used_at_the_next_call_on_eight_ranks_and_state_is_kept(
    kernel: Kernel, watched: str
) -> None:
    trainers(kernel, watched, 8)
    assert steps(kernel) == str([1] * 8)
    pids = kernel.value(PIDS)
    write(kernel, watched, TIMES_TWO)
    shown = kernel.ok("values = trainers.step.call().get().values()")
    assert (shown.stdout, shown.stderr) == ("", "")
    assert kernel.value("values") == str([4] * 8)
    changed = TIMES_TWO.replace("self.steps += 1", "self.steps += 10")
    write(kernel, watched, changed)
    assert steps(kernel) == str([24] * 8)
    assert kernel.value(PIDS) == pids


def test_new_endpoints_and_arguments_can_be_called(kernel: Kernel, watched: str) -> None:
    trainers(kernel, watched, 2)
    more = (
        "    @endpoint\n    def add(self, amount):\n        self.steps += amount\n"
        "        return self.steps\n"
    )
    write(kernel, watched, STEPS.format(factor=1) + more)
    assert kernel.value("trainers.add.call(5).get().values()") == "[5, 5]"
    write(kernel, watched, STEPS.format(factor=1) + more.replace("amount)", "amount, twice=False)"))
    assert kernel.value("trainers.add.call(1, twice=True).get().values()") == "[6, 6]"
    kernel.ok("others = workers.spawn('others', Trainer)")
    assert kernel.value("others.add.call(1, twice=True).get().values()") == "[1, 1]"


def test_so_is_an_edit_of_what_only_ranks_have_imported(kernel: Kernel, watched: str) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok(f"%%monarch on workers\nfrom {watched} import scale\nheld = [scale]")
    write(kernel, watched, TIMES_TWO)
    kernel.ok("%%monarch on workers\nscale(1), held[0](1)")
    assert kernel.value("_.values()") == "[(2, 2), (2, 2)]"
    assert kernel.value(f"'{watched}' in __import__('sys').modules") == "False"


def test_an_edit_right_after_the_first_import_is_not_missed(kernel: Kernel, watched: str) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    kernel.ok(f"%%monarch on workers\nimport {watched}")
    kernel.ok(f"open('{watched}.py', 'w').write({TIMES_TWO!r});")
    kernel.ok(f"%%monarch on workers\n{watched}.scale(1)")
    assert kernel.value("_.values()") == "[2]"


def test_a_version_that_does_not_load_is_told_once_and_the_old_code_runs_on(
    kernel: Kernel, watched: str
) -> None:
    trainers(kernel, watched, 4)
    steps(kernel)
    write(kernel, watched, "def scale(:")
    assert kernel.ok("1").stderr == (
        f"monarch: {watched} can't be reloaded here and on workers[gpus=0..3]: SyntaxError: "
        "invalid syntax, line 1; the old code stays in use\n"
    )
    shown = kernel.ok("values = trainers.step.call().get().values()")
    assert (shown.stderr, kernel.value("values")) == ("", "[2, 2, 2, 2]")
    write(kernel, watched, TIMES_TWO)
    assert steps(kernel) == "[6, 6, 6, 6]"


def test_a_class_that_live_actors_cannot_take_says_so(kernel: Kernel, watched: str) -> None:
    trainers(kernel, watched, 1)
    write(kernel, watched, STEPS.format(factor=1).replace("    def step", "    async def step"))
    said = kernel.ok("1").stderr
    assert said.startswith("monarch: trainers keeps the old Trainer: the actors of 'trainers' are")
    assert kernel.ok("1").stderr == ""


def test_a_rank_that_computes_holds_no_cell_up_and_has_the_code_afterwards(
    kernel: Kernel, watched: str, tmp_path: Path
) -> None:
    waiting = STEPS.format(factor=1) + (
        "    @endpoint\n    def hold(self, gate):\n        gate.pass_through()\n"
    )
    write(kernel, watched, waiting)
    trainers(kernel, watched, 1)
    steps(kernel)
    with gate_in(tmp_path) as gate:
        kernel.ok("from tests.integration.gates import Gate")
        kernel.ok(f"held = trainers.hold.call(Gate({gate.gate.entered!r}, {gate.gate.leave!r}))")
        gate.wait_entered(1)
        write(kernel, watched, waiting.replace("return 1 *", "return 7 *"))
        shown = kernel.ok("later = trainers.step.call()")
        assert "trainers is busy; its actors run the new Trainer when it is not" in shown.stderr
        gate.open(1)
        assert kernel.value("later.get(30).values()") == "[14]"


def test_ranks_that_live_have_the_edit_though_another_has_died(
    kernel: Kernel, watched: str
) -> None:
    trainers(kernel, watched, 3)
    steps(kernel)
    kernel.ok(
        "import os\nfrom monarch.actor import Actor, endpoint\nclass SelfEnding(Actor):\n"
        "    @endpoint\n    def quit(self):\n        os._exit(3)\n"
        "workers.slice(gpus=1).spawn('ending', SelfEnding).quit.call().exception();"
    )
    for factor in (2, 3):
        write(kernel, watched, STEPS.format(factor=factor))
        value = "[trainers.slice(gpus=i).step.call_one().get() for i in (0, 2)]"
        assert kernel.value(value) == str([factor * factor] * 2)


def test_an_edit_while_nobody_held_a_kept_session_is_found(fresh_kernel: Kernel) -> None:
    kernel, name, module = fresh_kernel, f"w{os.urandom(4).hex()}", f"steps_{os.urandom(4).hex()}"
    write(kernel, module, STEPS.format(factor=1))
    kernel.ok("%monarch autoreload on")
    kernel.ok(f"%monarch spawn {name} gpus=2 --keep")
    kernel.ok(f"%%monarch on {name}\nfrom {module} import scale")
    kernel.ok("1")
    kernel.ok("%monarch detach")
    write(kernel, module, TIMES_TWO)
    assert "reloader" not in kernel.ok(f"%monarch attach {name}").stdout
    kernel.ok(f"%%monarch on {name}\nscale(1)")
    assert kernel.value("_.values()") == "[2, 2]"
    kernel.ok("%monarch stop --all")


def test_now_reloads_once_and_off_is_off(kernel: Kernel, module: str) -> None:
    kernel.ok("%monarch autoreload now")
    trainers(kernel, module, 1)
    steps(kernel)
    write(kernel, module, TIMES_TWO)
    assert steps(kernel) == "[2]"
    assert kernel.ok("%monarch autoreload now").stdout == f"reloaded {module}\n"
    assert steps(kernel) == "[6]"
    assert kernel.ok("%monarch autoreload").stdout == "autoreload is off\n"
    assert "reloader" in kernel.ok("%monarch ls").result["text/plain"]
    kernel.ok("%monarch autoreload off")
    assert "reloader" not in kernel.ok("%monarch ls").result["text/plain"]


def test_beside_ipythons_own_each_module_is_loaded_once(kernel: Kernel, module: str) -> None:
    write(kernel, module, STEPS.format(factor=1) + "loads = globals().get('loads', 0) + 1\n")
    kernel.ok("%load_ext autoreload\n%autoreload 2")
    kernel.ok("%monarch autoreload on")
    trainers(kernel, module, 1)
    steps(kernel)
    write(kernel, module, TIMES_TWO + "loads = globals().get('loads', 0) + 1\n")
    assert steps(kernel) == "[4]"
    kernel.ok("%autoreload 0")


def test_autoreload_refuses_in_one_line(kernel: Kernel) -> None:
    assert kernel.refused("%monarch autoreload maybe") == (
        "autoreload takes on, off or now; `%monarch autoreload on`"
    )
    assert kernel.complete("%monarch autoreload o") == ["on", "off"]
