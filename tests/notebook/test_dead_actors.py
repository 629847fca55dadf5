"""An actor that has died: the cells, spawns and actors beside it go on, and views name it."""

from __future__ import annotations

import html

import pytest

from tests.notebook.kernel import Kernel

ACTORS = """
import os, sys
from monarch.actor import Actor, endpoint, context

class Fragile(Actor):
    def __init__(self, fails=()):
        self.rank = context().actor_instance.rank.rank
        if self.rank in fails:
            raise KeyError("no such weights")

    @endpoint
    def fail(self, ranks):
        if self.rank in ranks:
            raise ValueError("the loss is not a number")

    @endpoint
    def leave(self):
        sys.exit(3)

    @endpoint
    def step(self):
        return self.rank

    @endpoint
    def exit_hard(self):
        os._exit(3)
"""
UNHEARD = "(no caller waited for its answer)"
DEATHS = {
    "a failed broadcast": (
        "fragile = w.spawn('a', Fragile)\nfragile.fail.broadcast([1])",
        [1],
        "gpus=1",
        f"Fragile.fail on w[gpus=1] died of ValueError: the loss is not a number {UNHEARD}",
    ),
    "sys.exit": (
        "fragile = w.spawn('a', Fragile)\nfragile.leave.call().exception()",
        [0, 1, 2],
        "gpus=0..2",
        "Fragile.leave on w[gpus=0] died of SystemExit: 3",
    ),
    "a failed constructor": (
        "fragile = w.spawn('a', Fragile, [1, 2])\nfragile.initialized.exception()",
        [1, 2],
        "gpus=1..2",
        "Fragile.__init__ on w[gpus=1] raised KeyError: 'no such weights'",
    ),
}
REPORTED = """
import monarch.actor, threading
reported, changed, notices = set(), threading.Condition(), monarch.actor.unhandled_fault_hook
def report(failure):
    notices(failure)
    with changed:
        reported.update(one.rank for one in failure.failures)
        changed.notify_all()
monarch.actor.unhandled_fault_hook = report
try:
    {code}
    with changed:
        assert changed.wait_for(lambda: reported == set({ranks}), 60)
finally:
    monarch.actor.unhandled_fault_hook = notices
"""


@pytest.fixture(params=list(DEATHS))
def died(kernel: Kernel, request: pytest.FixtureRequest) -> tuple[str, str]:
    """Actors `a` of w, in the variable `fragile`, some dead; their ranks, and the first failure."""
    code, ranks, named, why = DEATHS[request.param]
    kernel.ok("%monarch spawn w gpus=3")
    kernel.ok(f"{ACTORS}\nhealthy = w.spawn('healthy', Fragile)\nhealthy.step.call().get()")
    kernel.ok(REPORTED.format(code=code.replace("\n", "\n    "), ranks=ranks))
    return named, why


def test_cells_spawns_and_other_actors_go_on_beside_a_dead_one(
    kernel: Kernel, died: tuple[str, str]
) -> None:
    assert kernel.ok("%%monarch on w\nrank * 10").result["text/plain"].split()[-3:] == [
        "0", "10", "20",
    ]  # fmt: skip
    kernel.ok("another = w.spawn('another', Fragile)")
    assert kernel.value("another.step.call().get().values()") == "[0, 1, 2]"
    assert kernel.value("healthy.step.call().get().values()") == "[0, 1, 2]"
    assert kernel.run("fragile.step.call().get()").error_name == "SupervisionError"


def test_every_view_of_the_mesh_names_the_dead_actors_and_their_ranks(
    kernel: Kernel, died: tuple[str, str]
) -> None:
    ranks, why = died
    line = f"a has failed on {ranks}: {why}"
    shown = kernel.ok("w").result
    assert f"  {line}" in shown["text/plain"]
    assert "w {gpus: 3}" in shown["text/plain"]
    assert "3 idle" in shown["text/plain"]
    assert html.escape(line) in shown["text/html"]
    listed = kernel.ok("%monarch ls").result
    assert f"healthy, a (failed on {ranks})" in listed["text/plain"]
    assert f"healthy, a (failed on {ranks})" in listed["text/html"]
    kernel.ok(
        "from monarch import observe\nfrom monarch_jupyter.protocol.messages import MeshTable"
    )
    sent = kernel.value("MeshTable().update(observe.snapshot())['meshes'][0]['failed']")
    assert sent == repr([line])
    # The copy of the explorer for pages without widgets.
    assert html.escape(line) in kernel.ok("%monarch show w").result["text/html"]


def test_the_advice_is_a_line_that_ends_the_dead_actors_and_no_others(
    kernel: Kernel, died: tuple[str, str]
) -> None:
    text = kernel.run("fragile.step.call().get()").traceback
    assert "calls to fragile that include " in text
    assert "raise from now on; all else on w goes on." in text
    (line,) = [line for line in text.splitlines() if line.startswith("%monarch ")]
    assert line == "%monarch stop fragile"
    assert kernel.ok(line).stdout == "stopped a: its 3 actors on w have ended\n"
    seen = kernel.ok("w").result["text/plain"]
    assert "failed" not in seen
    assert "actors: healthy" in seen
    assert kernel.value("healthy.step.call().get().values()") == "[0, 1, 2]"
    kernel.ok("fragile = w.spawn('a', Fragile)")
    assert kernel.value("fragile.step.call().get().values()") == "[0, 1, 2]"


def test_a_dead_actor_is_stopped_by_its_name_where_no_variable_holds_it(
    kernel: Kernel, died: tuple[str, str]
) -> None:
    # Of two with one name, the dead one is meant.
    kernel.ok("fragile = w.spawn('a', Fragile)")
    assert "a" in kernel.complete("%monarch stop ")
    assert kernel.ok("%monarch stop a").stdout == "stopped a: its 3 actors on w have ended\n"
    assert kernel.value("fragile.step.call().get().values()") == "[0, 1, 2]"
    assert kernel.ok("%monarch stop fragile").stdout.startswith("stopped a: ")
    assert kernel.refused("%monarch stop fragile") == (
        "fragile has stopped, or belongs to another process; spawn it again"
    )


def test_one_name_of_two_living_meshes_of_actors_stops_neither(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn w gpus=2")
    kernel.ok("%monarch spawn v gpus=2")
    kernel.ok(f"{ACTORS}\nhere, there = w.spawn('twin', Fragile), v.spawn('twin', Fragile)")
    assert kernel.refused("%monarch stop twin") == (
        "2 meshes of actors are called twin, on v, w; name a variable that holds one of them"
    )
    values = "[m.step.call().get().values() for m in (here, there)]"
    assert kernel.value(values) == "[[0, 1], [0, 1]]"
    kernel.ok("%monarch stop here there")


def test_a_slice_stands_for_its_whole_mesh_of_actors(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn w gpus=2")
    kernel.ok(f"{ACTORS}\na = w.spawn('a', Fragile)\npart = a.slice(gpus=0)")
    assert kernel.ok("%monarch stop part").stdout == "stopped a: its 2 actors on w have ended\n"


def test_cells_run_again_after_the_actors_that_ran_them_were_stopped(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn w gpus=2")
    kernel.ok("%%monarch on w\nkept = rank")
    assert (
        kernel.ok("%monarch stop cells").stdout == "stopped cells: its 2 actors on w have ended\n"
    )
    assert kernel.ok("%%monarch on w\nrank").result["text/plain"].split()[-2:] == ["0", "1"]


def test_of_a_dead_process_the_advice_has_lines_to_paste_for_every_other_rank(
    kernel: Kernel,
) -> None:
    kernel.ok("%monarch spawn w gpus=4")
    kernel.ok(f"{ACTORS}\na = w.spawn('a', Fragile)")
    text = kernel.run("a.slice(gpus=1).exit_hard.call_one().get()").traceback
    assert (
        "calls that include w[gpus=1] raise from now on. `%monarch spawn --restart` (in code, "
        'restart="on-failure") makes a mesh that starts such ranks again, with their actors. '
        "Cells run on the other ranks with:\n"
        "%%monarch on w[gpus=2:4]\n"
        "%%monarch on w[gpus=0]\n"
        "This line brings it back in its place, and makes the actors there anew:\n"
        "%monarch restart w[gpus=1]\n"
    ) in text
    text = kernel.run("%%monarch on w\nrank").traceback
    assert text.partition("\n\n")[2].startswith(
        "the cell has not begun. `%monarch spawn --restart`"
    )
    assert "with:\n%%monarch on w[gpus=2:4]\n%%monarch on w[gpus=0]\nThis line brings it" in text
    assert kernel.ok("%%monarch on w[gpus=0]\nrank").result["text/plain"].split()[-1] == "0"
    assert kernel.ok("%%monarch on w[gpus=2:4]\nrank").result["text/plain"].split()[-1] == "3"
    assert kernel.ok("%monarch stop w").stdout == "stopped w: its 4 processes have ended\n"
