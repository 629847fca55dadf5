"""Code that is changed while its actors live."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from monarch.actor import Actor, endpoint
from monarch_jupyter.meshes.stale_classes import same_code
from tests.notebook.kernel import Kernel

COUNTER = """
from monarch.actor import Actor, endpoint

class Counter(Actor):
    def __init__(self):
        self.value = 0

    @endpoint
    def add(self, amount=1):
        self.value += amount
        return self.value
"""
PIDS = "[row.pid for row in __import__('monarch.observe').observe.snapshot()[0].rows]"
TENFOLD = COUNTER.replace("self.value += amount", "self.value += 10 * amount")


def counters(kernel: Kernel, ranks: int, source: str = COUNTER) -> None:
    kernel.ok(f"%monarch spawn workers gpus={ranks}")
    kernel.ok(f"{source}\ncounters = workers.spawn('counters', Counter)")
    kernel.ok("counters.add.call().get();")


def test_a_changed_body_is_used_at_the_next_call_on_eight_ranks_and_state_is_kept(
    kernel: Kernel,
) -> None:
    counters(kernel, 8)
    pids = kernel.value(PIDS)
    shown = kernel.ok(TENFOLD)
    assert shown.stdout == (
        "monarch: Counter has changed, and counters on workers still runs the old code; "
        "`%monarch update Counter` puts the new one there, state kept\n"
    )
    assert kernel.value("counters.add.call().get().values()") == str([2] * 8)
    shown = kernel.ok("%monarch update Counter")
    assert shown.stdout == "counters on workers: 8 ranks run the new Counter, state kept\n"
    assert kernel.value("counters.add.call().get().values()") == str([12] * 8)
    assert kernel.value(PIDS) == pids


def test_endpoints_and_arguments_that_are_new_can_be_used(kernel: Kernel) -> None:
    counters(kernel, 2)
    kernel.ok("part = counters.slice(gpus=0)\npart.add.call().get();")
    more = COUNTER.replace("amount=1", "amount=1, twice=False") + (
        "\n    @endpoint\n    def double(self):\n        self.value *= 2\n        return self.value"
    )
    kernel.ok(more)
    kernel.ok("%monarch update Counter")
    assert kernel.value("counters.double.call().get().values()") == "[4, 2]"
    assert kernel.value("part.add.call(1, twice=True).get().values()") == "[5]"


def test_an_async_actor_takes_a_new_class_too(kernel: Kernel) -> None:
    source = COUNTER.replace("    def add", "    async def add")
    counters(kernel, 2, source)
    kernel.ok(source.replace("+= amount", "+= 5 * amount"))
    kernel.ok("%monarch update Counter")
    assert kernel.value("counters.add.call().get().values()") == "[6, 6]"


def test_a_cell_that_is_run_again_unchanged_says_nothing(kernel: Kernel) -> None:
    counters(kernel, 1)
    assert kernel.ok(f"# moved down by a line\n\n{COUNTER}").stdout == ""


def test_a_change_is_said_once(kernel: Kernel) -> None:
    counters(kernel, 1)
    assert "has changed" in kernel.ok(TENFOLD).stdout
    assert kernel.ok("1 + 1").stdout == ""


def test_what_cannot_be_put_on_says_why_and_the_old_code_runs_on(kernel: Kernel) -> None:
    counters(kernel, 1)
    kernel.ok(COUNTER.replace("    def add", "    async def add"))
    told = kernel.refused("%monarch update Counter")
    assert told.startswith("counters on workers keeps the old code: the actors of 'counters' are")
    assert "sync and Counter is async now" in told
    kernel.ok(COUNTER.replace("class Counter(Actor):", "class Counter(Actor, int):"))
    assert "does not fit the new class" in kernel.refused("%monarch update Counter")
    assert kernel.value("counters.add.call().get().values()") == "[2]"


def test_update_refuses_in_one_line(kernel: Kernel) -> None:
    counters(kernel, 1)
    assert "takes the name of one actor class" in kernel.refused("%monarch update")
    assert "did you mean 'Counter'?" in kernel.refused("%monarch update Countr")
    kernel.ok("class Other(Actor):\n    pass")
    assert kernel.refused("%monarch update Other") == (
        "no live actor has the class Other; there are Counter"
    )
    assert "Counter" in kernel.complete("%monarch update ")


def made(body: Callable[[int], int]) -> type:
    class Sample(Actor):
        limit = 3

        @endpoint
        def run(self, x: int) -> int:
            return x + 1

    if body.__name__ == "other":
        del Sample.run
    return Sample


def test_classes_are_compared_by_what_they_do() -> None:
    def one(x: int) -> int:
        return x

    def other(x: int) -> int:
        return x

    assert same_code(made(one), made(one))
    assert not same_code(made(one), made(other))


@pytest.mark.parametrize(
    "change", ["return x + 2", "return x + 1.0", "return (lambda: x + 1)()", "limit = 4"]
)
def test_a_change_of_a_constant_counts(change: str) -> None:
    source = "class Sample:\n    limit = 3\n    def run(self, x):\n        return x + 1\n"
    changed = source.replace("limit = 3" if "limit" in change else "return x + 1", change)
    old: dict[str, type] = {}
    new: dict[str, type] = {}
    exec(source, old)
    exec(changed, new)
    assert not same_code(old["Sample"], new["Sample"])


HELPED = """
from monarch.actor import Actor, endpoint, this_host

def helper():
    return 1

class Result:
    pass

class Worker(Actor):
    def __init__(self):
        self.kept = "kept"

    @endpoint
    def go(self):
        return helper(), self.kept

    @endpoint
    def make(self):
        return Result()

    @endpoint
    def takes(self, result):
        return isinstance(result, Result)
"""


def helped(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok(f"{HELPED}\nworker = workers.spawn('worker', Worker)\nworker.go.call().get();")


def test_a_helper_that_was_defined_anew_is_hinted_at_and_brought_by_an_update(
    kernel: Kernel,
) -> None:
    helped(kernel)
    assert kernel.ok("def helper():\n    return 2").stdout == (
        "monarch: helper has changed, and worker on workers, which uses it, still has the old one; "
        "`%monarch update Worker` puts the new one there, state kept\n"
    )
    assert kernel.ok("1 + 1").stdout == ""
    assert kernel.value("worker.go.call().get().values()") == "[(1, 'kept'), (1, 'kept')]"
    shown = kernel.ok("%monarch update Worker")
    assert shown.stdout == "worker on workers: 2 ranks run the new Worker, state kept\n"
    assert shown.stderr == ""
    assert kernel.value("worker.go.call().get().values()") == "[(2, 'kept'), (2, 'kept')]"
    assert kernel.ok("def helper():\n    return 2").stdout == ""


def test_a_class_that_an_actor_uses_is_the_new_one_on_ranks_after_an_update(
    kernel: Kernel,
) -> None:
    helped(kernel)
    told = kernel.ok("class Result:\n    extra = True\ndef helper():\n    return 3").stdout
    assert "helper and Result have changed" in told
    assert kernel.value("worker.takes.call(Result()).get().values()") == "[False, False]"
    kernel.ok("%monarch update Worker")
    assert kernel.value("worker.takes.call(Result()).get().values()") == "[True, True]"
    assert kernel.value("[isinstance(r, Result) for r in worker.make.call().get().values()]") == (
        "[True, True]"
    )


def test_a_mesh_that_was_spawned_again_under_its_name_is_not_said_to_run_old_code(
    kernel: Kernel,
) -> None:
    counters(kernel, 1)
    shown = kernel.ok(f"{TENFOLD}\ncounters = workers.spawn('counters', Counter)")
    assert shown.stderr == ""
    assert kernel.value("counters.add.call().get().values()") == "[10]"


def test_an_update_says_that_a_base_is_still_the_old_one(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    base = (
        "from monarch.actor import Actor, endpoint\nclass Base:\n    def f(self):\n        return "
    )
    kernel.ok(
        f"{base}1\nclass Child(Base, Actor):\n    @endpoint\n    def go(self):\n"
        "        return self.f()\nchild = workers.spawn('child', Child)\nchild.go.call().get();"
    )
    kernel.ok(f"{base}2")
    assert kernel.ok("%monarch update Child").stdout == (
        "child on workers: 1 rank run the new Child, state kept\n"
        "Child is still derived from the old Base: run the cell that defines Child, and update it "
        "again\n"
    )
